// The samplers of all rows (hw/gpt2/sampler.py; docs/sampling.md section 5), and when the rows have decided.
#pragma once
#include <algorithm>
#include <vector>
#include "clocked_queue.h"
#include "hardware.h"
#include "step.h"

namespace timing {

// Which tokens are among the largest depends on data: with top_k the queue counts as empty, as it is to within a few
// strips where a product brings a strip no sooner than every `lanes` cycles.
class Sampler {
public:
    Sampler(const Sizes& sizes, const Registers& cfg, int64_t sampling)
        : sizes_(sizes), cfg_(cfg), draws_(sampling & ((1ll << 40) - 1)), top_k_(sampling >> 48 & 127) {}

    // A strip of logits comes in cycle `at`.
    void strip(uint32_t index, uint64_t at) {
        if (!draws_ || top_k_) return;
        const int64_t left = cfg_.vocab - int64_t(index) * sizes_.lanes;
        const int64_t columns = std::clamp<int64_t>(left, 1, sizes_.lanes);
        const uint64_t begin = at_work_ ? std::max(at + sizes_.sampler_strip, worked_) : at + sizes_.sampler_first;
        at_work_ = true, worked_ = begin + (columns + sizes_.sampler_ways - 1) / sizes_.sampler_ways;
        coming_.push(at), begins_.push(begin);
    }

    // The step's last strip comes in cycle `at`: when the token is there; `ring`: boards of a ring do not draw.
    uint64_t decides(uint64_t at, bool ring) {
        at_work_ = false;
        if (!draws_ || ring) return at + sizes_.max_latency + 2;  // maximum tree and the register behind it, decision
        return top_k_ ? at + sizes_.sampler_hold + top_k_ : worked_ + sizes_.sampler_score;
    }

    // Whether strips that are under way in cycle `now` may not find room.
    bool full(uint64_t now) {
        for (; !coming_.empty() && coming_.front() < now; coming_.pop()) ++waiting_;
        for (; !begins_.empty() && begins_.front() <= now; begins_.pop()) --waiting_;
        return waiting_ + sizes_.logits_margin > sizes_.logits_depth;
    }

private:
    const Sizes& sizes_;
    const Registers& cfg_;
    const bool draws_;
    const uint32_t top_k_;
    bool at_work_ = false;                // on a step
    uint64_t worked_ = 0;                 // cycle from which the next strip can be taken apart
    uint32_t waiting_ = 0;                // strips in the queue
    Queue<uint64_t> coming_, begins_;     // cycles in which strips come, and from which they are taken apart
};

class Samplers {
public:
    Samplers(const Sizes& sizes, const Registers& cfg) {
        for (uint32_t r = 0; r < sizes.rows; ++r)
            rows_.emplace_back(sizes, cfg, cfg.row[is_batch(sizes, cfg) ? r : 0].sampling);
    }

    // A strip of the rows that decide comes in cycle `at`.
    void strip(uint32_t index, uint32_t decides, uint64_t at) {
        each_row(decides, [&](uint32_t r) { rows_[r].strip(index, at); });
    }

    // The step's last one: when all of them have decided.
    uint64_t decide(uint32_t decides, uint64_t at, bool ring) {
        uint64_t latest = 0;
        each_row(decides, [&](uint32_t r) { latest = std::max(latest, rows_[r].decides(at, ring)); });
        return latest;
    }

    bool full(uint64_t now) {
        bool any = false;
        for (Sampler& row : rows_) any |= row.full(now);
        return any;
    }

private:
    std::vector<Sampler> rows_;
};

}  // namespace timing
