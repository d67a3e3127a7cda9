// Which rows are at work in a step, and at which positions (docs/rows.md section 2; hw/gpt2/row_steps.py).
#pragma once
#include <array>
#include <bit>
#include "hardware.h"

namespace timing {

using Positions = std::array<uint32_t, MAX_ROWS>;

struct Step {
    uint32_t number = 0;     // within the run
    bool batch = false;      // rows are requests of their own
    bool prompt = true;      // no row decides
    uint32_t rows = 1;       // at work, a bit each
    uint32_t decides = 0;    // ... whose logits count
    uint32_t last = 0;       // of a sequence: last position
    Positions positions{};   // of each row
};

inline bool is_batch(const Sizes& sizes, const Registers& cfg) { return sizes.rows > 1 && cfg.flags & FLAG_BATCH; }

// The first of some rows.
inline uint32_t lowest_row(uint32_t rows) { return std::countr_zero(rows); }

// Whether test(row) holds for any of `rows`.
template <class Test>
bool any_row(uint32_t rows, Test test) {
    for (; rows; rows &= rows - 1)
        if (test(lowest_row(rows))) return true;
    return false;
}

template <class Action>
void each_row(uint32_t rows, Action action) {
    for (; rows; rows &= rows - 1) action(lowest_row(rows));
}

// The step of a sequence that begins at `position`.
inline Step sequence_step(const Sizes& sizes, const Registers& cfg, uint32_t position) {
    Step step;
    const uint32_t group = position & ~(sizes.rows - 1), prompt_end = cfg.row[0].prompt_end;
    step.last = position;
    if (position + 1 < prompt_end) step.last = std::min(group + sizes.rows, prompt_end) - 1;
    step.rows = 0;
    for (uint32_t r = 0; r < sizes.rows; ++r) {
        step.positions[r] = group + r;
        if (group + r >= position && group + r <= step.last) step.rows |= 1u << r;
    }
    step.decides = 1u << (step.last - group);
    step.prompt = step.last + 1 < prompt_end;
    return step;
}

// The step of a batch whose rows `alive` are at `positions`.
inline Step batch_step(const Registers& cfg, const Positions& positions, uint32_t alive) {
    Step step;
    step.batch = true, step.rows = alive, step.positions = positions;
    each_row(alive, [&](uint32_t r) {
        if (positions[r] + 1 >= uint64_t(cfg.row[r].prompt_end)) step.decides |= 1u << r;
    });
    step.prompt = !step.decides;
    return step;
}

}  // namespace timing
