// The logits writers of all rows and the arbiters between them (hw/gpt2/core.py, _join_logits).
#pragma once
#include <vector>
#include "logits_writer.h"
#include "step.h"
#include "write_arbiter.h"

namespace timing {

class LogitsWriters {
public:
    LogitsWriters(const Sizes& sizes, const Registers& cfg, Record& record) : arbiters_(sizes.rows) {
        for (uint32_t r = 0; r < sizes.rows; ++r) {
            const uint64_t base = cfg.row[is_batch(sizes, cfg) ? r : 0].logits_base;
            writers_.emplace_back(sizes, cfg, base, r, record);
        }
    }

    // A strip of logits of the rows that decide was issued at `now`; `last`: of its product.
    void strip(uint32_t index, bool last, uint32_t decides, const Positions& positions, uint64_t now) {
        each_row(decides, [&](uint32_t r) { writers_[r].strip(index, last, positions[r], now); });
    }

    bool full() const {
        for (const LogitsWriter& writer : writers_) if (writer.full()) return true;
        return false;
    }
    bool busy() const {
        for (const LogitsWriter& writer : writers_) if (writer.busy()) return true;
        return false;
    }

    // What they show together: row 0 is the most urgent.
    WriteCommand command() {
        WriteCommand joined = writers_[0].command();
        for (uint32_t r = 1; r < writers_.size(); ++r)
            if (!arbiters_[r].urgent(joined.valid)) joined = writers_[r].command();
        return joined;
    }

    // `ready`: what they show would be taken in this cycle.
    void clock(bool ready, uint64_t now) {
        bool valid[MAX_ROWS], joined[MAX_ROWS];  // a command of row r; of any row up to r
        for (uint32_t r = 0; r < writers_.size(); ++r) {
            valid[r] = writers_[r].showing();
            joined[r] = valid[r] || (r && joined[r - 1]);
        }
        for (uint32_t r = writers_.size(); r-- > 1;) {
            const bool urgent = arbiters_[r].urgent(joined[r - 1]);
            arbiters_[r].clock(urgent, valid[r], ready);
            writers_[r].clock(!urgent && valid[r] && ready, now);
            ready &= urgent;
        }
        writers_[0].clock(valid[0] && ready, now);
    }

private:
    std::vector<LogitsWriter> writers_;
    std::vector<WriteArbiter> arbiters_;  // of row r and those before it; row 0 has none
};

}  // namespace timing
