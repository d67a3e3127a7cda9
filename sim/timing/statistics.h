// LayerNorm statistics of a row (hw/gpt2/statistics.py): one vector at a time; its times follow when its last tile is issued.
#pragma once
#include "hardware.h"
#include "record.h"

namespace timing {

class Statistics {
public:
    uint64_t free_at = 0;           // cycle from which the next vector may end
    uint64_t norm_free[2] = {0, 0};  // ... and the scalars of each set be used

    Statistics(const Sizes& sizes, uint32_t row, Record& record) : sizes_(sizes), row_(row), record_(record) {}

    // The last tile of a vector is issued at `now`; `strip`: its result is the last strip. `share`: of this board's
    // slice; then total() follows.
    void start(uint32_t set, bool strip, bool share, uint64_t now) {
        free_at = norm_free[set] = NEVER;
        if (!strip) return;
        const uint64_t summed = now + sizes_.write + sizes_.vector_sum_latency;
        set_ = set;
        if (share) share_at_ = summed;
        else scalars(set, summed);
    }

    // Whether the sums of this board's slice are there in cycle `now`.
    bool shares(uint64_t now) const { return share_at_ == now; }
    // The sums of all boards are there.
    void total(uint64_t now) { scalars(set_, now); }

private:
    static constexpr uint64_t NEVER = ~0ull >> 1;

    void scalars(uint32_t set, uint64_t summed) {
        norm_free[set] = summed + sizes_.norm_latency - sizes_.drain + 1;  // the flag's register
        free_at = summed + sizes_.norm_latency + 1 + 1;                  // the strobe's and the flag's
        record_.event(UNIT_NORM_SCALARS, set + 2 * row_, 0, summed, summed + sizes_.norm_latency);
    }

    const Sizes& sizes_;
    const uint32_t row_;
    Record& record_;
    uint64_t share_at_ = NEVER;
    uint32_t set_ = 0;
};

}  // namespace timing
