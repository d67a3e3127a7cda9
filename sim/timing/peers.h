// What a core knows of the other boards (hw/gpt2/ring.py): joining a run, their sums and arg-max.
#pragma once
#include "frame.h"

namespace timing {

// Parts of a total that come from all boards: complete in the cycle behind the last one.
class Contributions {
public:
    bool complete(uint32_t boards) const { return count_ == boards; }
    bool missing(uint32_t boards) const { return own_in_ && !complete(boards); }
    void clock(bool own, bool arrives, uint32_t boards) {
        const bool all = complete(boards);
        count_ = (all ? 0 : count_) + (own || arrives);
        own_in_ = own || (own_in_ && !all);
    }

private:
    uint32_t count_ = 0;
    bool own_in_ = false;
};

class Peers {
public:
    bool joined = false;

    explicit Peers(const RingSizes& sizes) : sizes_(sizes) {}

    uint32_t hello(bool run) const { return run ? ~told_ & 3 : 0; }
    bool total() const { return sums_.complete(sizes_.boards); }
    bool decided() const { return best_.complete(sizes_.boards); }
    bool sums_missing() const { return sums_.missing(sizes_.boards); }
    bool best_missing() const { return best_.missing(sizes_.boards); }

    struct Own {
        bool sums = false, best = false;  // strobes
    };

    // Whether a delivered entry can be taken; `store_ready`: activation memory has a cycle for strips.
    bool ready(const Entry& entry, const Own& own, bool store_ready) const {
        switch (entry.frame.kind) {
            case FRAME_STRIPS: return store_ready;
            case FRAME_SUMS: return !own.sums;
            case FRAME_BEST: return !own.best;
            default: return true;
        }
    }

    // One cycle; `entry`: delivered and taken, or null; `told`: bit per port whose HELLO was taken; `cleared`: a run
    // lasts and its scoreboard is ready.
    void clock(const Entry* entry, const Own& own, uint32_t told, bool cleared) {
        const int kind = entry ? entry->frame.kind : -1;
        joined = told_ == 3 && heard_ == 3 && cleared;
        told_ |= told;
        if (kind == FRAME_HELLO) heard_ |= 1u << entry->port;
        sums_.clock(own.sums, kind == FRAME_SUMS, sizes_.boards);
        best_.clock(own.best, kind == FRAME_BEST, sizes_.boards);
    }

private:
    const RingSizes& sizes_;
    Contributions sums_, best_;
    uint32_t told_ = 0, heard_ = 0;
};

}  // namespace timing
