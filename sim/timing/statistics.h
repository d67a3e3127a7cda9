// LayerNorm statistics (hw/gpt2/statistics.py): one vector at a time; its times follow when its last tile is issued.
#pragma once
#include "hardware.h"
#include "record.h"

namespace timing {

class Statistics {
public:
    uint64_t free_at = 0;           // cycle from which the next vector may end
    uint64_t norm_free[2] = {0, 0};  // ... and the scalars of each set be used

    Statistics(const Sizes& sizes, Record& record) : sizes_(sizes), record_(record) {}

    // The last tile of a vector is issued at `now`; `strip`: its result is the last strip.
    void start(uint32_t set, bool strip, uint64_t now) {
        free_at = norm_free[set] = NEVER;
        if (!strip) return;
        const uint64_t summed = now + sizes_.write + sizes_.vector_sum_latency;
        norm_free[set] = summed + sizes_.norm_latency - sizes_.drain + 1;  // the flag's register
        free_at = summed + sizes_.norm_latency + 1 + 1;                  // the strobe's and the flag's
        record_.event(UNIT_NORM_SCALARS, set, 0, summed, summed + sizes_.norm_latency);
    }

private:
    static constexpr uint64_t NEVER = ~0ull >> 1;
    const Sizes& sizes_;
    Record& record_;
};

}  // namespace timing
