// What a run leaves: one span an instruction instance, the tail of the run, and events of the units if asked for.
#pragma once
#include <vector>
#include "fetch.h"
#include "hardware.h"

namespace timing {

class Record {
public:
    std::vector<Span> spans;
    std::vector<Event> events;
    std::vector<Token> tokens;
    int64_t tiles = 0, stalls[STALLS] = {}, refresh = 0;  // of the run
    int64_t tail[STALLS] = {};  // behind the last instruction's last tile
    int64_t start = 0;          // cycle in which the run began; times are stored from it

    bool keep_events = false;

    void event(int64_t unit, int64_t first, int64_t second, uint64_t begin, uint64_t end) {
        if (keep_events) events.push_back({unit, first, second, int64_t(begin) - start, int64_t(end) - start});
    }

    // Whether the first tile of a position was issued.
    bool begun(int64_t position) const {
        return !spans.empty() && (spans.back().position > position ||
                                  (spans.back().position == position && spans.back().first_issue >= 0));
    }

    // A cycle without a tile; `open`: an instruction is at issue.
    void stall(int cause, bool open, bool behind_refresh) {
        ++stalls[cause], refresh += behind_refresh;
        if (open) ++spans.back().stalls[cause], spans.back().refresh += behind_refresh;
        else ++tail[cause];
    }

    void issued(bool param, uint64_t now, uint64_t result) {
        Span& span = spans.back();
        ++tiles, ++(param ? span.params : span.tiles);
        if (span.first_issue < 0) span.first_issue = int64_t(now) - start;
        span.last_issue = int64_t(now) - start;
        span.last_result = int64_t(result) - start;
    }

    // An instruction comes to issue: it pays for the cycles since the one before.
    void open(const Work& work) {
        spans.push_back({work.position, work.index, work.layer, work.step.number, std::popcount(work.counted()),
                         work.attended(), -1, -1, -1, 0, 0, {}, 0});
        for (int i = 0; i < STALLS; ++i) spans.back().stalls[i] = tail[i], tail[i] = 0;
    }
};

}  // namespace timing
