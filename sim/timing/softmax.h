// Softmax path of a row (hw/gpt2/softmax.py). Nothing in it can be held up: when a head's last score is issued all times follow.
#pragma once
#include <algorithm>
#include "clocked_queue.h"
#include "hardware.h"
#include "record.h"

namespace timing {

class Softmax {
public:
    uint64_t free_at[HEADS] = {};  // cycle from which a head's probabilities may be used and its softmax started anew

    Softmax(const Sizes& sizes, uint32_t row, Record& record) : sizes_(sizes), row_(row), record_(record) {}

    void head_start(uint32_t head) { free_at[head] = NEVER; }
    void score_start() { ++rows_taken_; }

    // The last of a head's `rows` strips of scores is issued at `now`.
    void score_last(uint32_t head, uint32_t rows, uint64_t now) {
        // report stage, maximum tree and the register behind it, queue
        const uint64_t queued = now + sizes_.report + sizes_.max_latency + 1 + 1;
        const uint64_t start = std::max(queued, exponential_free_);
        exponential_free_ = start + rows;
        reading_.push({start, rows});
        const uint64_t summed = start + rows - 1 + sizes_.exponential + sizes_.head_sum_latency + 1;
        const uint64_t inverse = std::max(summed, reciprocal_free_);
        reciprocal_free_ = inverse + sizes_.reciprocal_latency + 1;
        free_at[head] = inverse + 2;  // the strobe's register and the flag's
        record_.event(UNIT_EXPONENTIAL, head + row_ * HEADS, rows, start, start + rows + sizes_.exponential);
        record_.event(UNIT_RECIPROCAL, head + row_ * HEADS, 0, inverse, inverse + sizes_.reciprocal_latency);
    }

    // Whether all score rows are taken in cycle `now`.
    bool full(uint64_t now) {
        while (!reading_.empty() && reading_.front().start + reading_.front().rows <= now)
            rows_taken_ -= reading_.front().rows, reading_.pop();
        uint64_t freed = 0;
        if (!reading_.empty() && reading_.front().start < now) freed = now - reading_.front().start;
        return rows_taken_ - freed == sizes_.score_rows;
    }

private:
    static constexpr uint64_t NEVER = ~0ull >> 1;
    struct Reading {
        uint64_t start, rows;
    };

    const Sizes& sizes_;
    const uint32_t row_;
    Record& record_;
    Queue<Reading> reading_;
    uint64_t rows_taken_ = 0, exponential_free_ = 0, reciprocal_free_ = 0;
};

}  // namespace timing
