// Queue of results between accumulators and drain unit (hw/gpt2/result_queue.py): with int8 weights a tile may have two.
#pragma once
#include "clocked_queue.h"
#include "hardware.h"

namespace timing {

class ResultQueue {
public:
    explicit ResultQueue(const Sizes& sizes) : sizes_(sizes) {}

    // A tile with `results` was issued at `now`. Returns the cycle in which it would have been issued if nothing had
    // waited: the first result is at a stage so many cycles after it.
    uint64_t issue(uint32_t results, uint64_t now) {
        if (!sizes_.result_queue) return now;  // no queue
        const uint64_t first = std::max(now + sizes_.total + 1, free_at_);
        free_at_ = first + results;
        freed_.push(free_at_);
        return first - sizes_.total - 1;
    }

    // Entries that are taken in cycle `now`, or issued before it.
    uint64_t owed(uint64_t now) {
        while (!freed_.empty() && freed_.front() <= now) freed_.pop();
        return freed_.size();
    }
    bool full(uint64_t now) { return sizes_.result_queue && owed(now) == sizes_.result_queue - 1; }

private:
    const Sizes& sizes_;
    Queue<uint64_t> freed_;  // of each entry: the first cycle in which it is free again
    uint64_t free_at_ = 0;   // cycle in which the next result may leave
};

}  // namespace timing
