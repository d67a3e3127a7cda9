// Key/value writer (hw/gpt2/kv_writer.py).
#pragma once
#include "clocked_queue.h"
#include "hardware.h"
#include "record.h"
#include "step.h"
#include "write_command.h"

namespace timing {

class KvWriter {
public:
    uint32_t committed = 0;

    KvWriter(const Sizes& sizes, const Registers& cfg, Record& record)
        : sizes_(sizes), cfg_(cfg), record_(record), batch_(is_batch(sizes, cfg)) {}

    // A product of `kind` that commits was issued to its end at `now`; `strip`: with results, of `rows` at `positions`.
    void commit_start(bool values, bool strip, uint32_t layer, uint32_t rows, const Positions& positions, uint64_t now) {
        under_way_[values] = true;
        if (strip) commits_.push({now + sizes_.write, values, layer, rows, positions});
    }

    bool hazard(bool values) const { return under_way_[values] || busy(values); }
    bool writing() const { return busy(false) || busy(true); }

    WriteCommand command() const {
        WriteCommand out;
        if (state_ != WRITE) return out;
        const uint32_t slot = slot_in_tile();
        const uint32_t elements = sizes_.tile / sizes_.channels_per_lane;
        out.valid = true, out.row = head_row_ + word_;
        for (uint32_t c = 0; c < sizes_.channels; ++c) {
            const uint32_t lane = c / sizes_.channels_per_lane, part = c % sizes_.channels_per_lane;
            if (now_.values ? slot / elements == part : slot % sizes_.lanes == lane) out.channels |= 1u << c;
        }
        return out;
    }

    // `taken`: the command of this cycle was taken; `unanswered`: some writes are not answered.
    void clock(bool taken, bool unanswered, uint64_t now) {
        if (state_ == IDLE && waiting_.empty() && commits_.empty()) return;
        const bool start = state_ == IDLE && !waiting_.empty();
        switch (state_) {
            case IDLE:
                if (start) {
                    now_ = waiting_.front(), waiting_.pop();
                    working_ = true, head_ = word_ = 0, state_ = PRODUCTS, began_ = now;
                }
                break;
            case PRODUCTS: state_ = BLOCK; break;
            case BLOCK: {
                const RowRegisters& own = cfg_.row[batch_ ? row() : 0];
                const uint64_t block = position() / (now_.values ? sizes_.tile : sizes_.lanes) * words();
                head_row_ = now_.values ? own.value_base + now_.layer * cfg_.value_layer_rows + block
                                        : own.key_base + now_.layer * cfg_.key_layer_rows + block;
                state_ = WRITE;
                break;
            }
            case WRITE:
                if (taken) written(now);
                break;
            case ANSWERS:
                if (unanswered) break;
                ++committed, state_ = IDLE;
                record_.event(UNIT_KV_WRITER, 1, now_.layer, began_, now + 1);
                break;
        }
        if (!commits_.empty() && commits_.front().at == now) {
            under_way_[commits_.front().values] = false;
            waiting_.push(commits_.front()), commits_.pop();
        }
    }

private:
    enum State { IDLE, PRODUCTS, BLOCK, WRITE, ANSWERS };
    struct Job {
        uint64_t at;
        bool values;
        uint32_t layer, rows;  // rows that are not yet written
        Positions positions;
    };

    // One word; behind the last of a row the next row, behind the last row the next job.
    void written(uint64_t now) {
        if (++word_ < words()) return;
        word_ = 0, head_row_ += now_.values ? cfg_.value_head_rows : cfg_.key_head_rows;
        if (++head_ < uint64_t(cfg_.heads)) return;
        head_ = 0, now_.rows &= now_.rows - 1;
        if (now_.rows) {
            state_ = PRODUCTS;
            return;
        }
        working_ = false, state_ = now_.values ? ANSWERS : IDLE;
        if (!now_.values) record_.event(UNIT_KV_WRITER, 0, now_.layer, began_, now + 1);
    }

    uint32_t row() const { return lowest_row(now_.rows); }
    uint32_t position() const { return now_.positions[row()]; }
    uint64_t words() const { return now_.values ? cfg_.value_strips : cfg_.key_words; }
    uint32_t slot_in_tile() const {
        const uint32_t group = position() % sizes_.tile / sizes_.lanes * sizes_.lanes;
        return group + (position() + head_ * sizes_.rows) % sizes_.lanes;
    }
    bool busy(bool values) const {
        if (working_ && now_.values == values) return true;
        for (uint64_t i = 0; i < waiting_.size(); ++i)
            if (waiting_.at(i).values == values) return true;
        return false;
    }

    const Sizes& sizes_;
    const Registers& cfg_;
    Record& record_;
    const bool batch_;
    Queue<Job> commits_;           // on the way through the pipeline
    Queue<Job> waiting_;
    Job now_{};
    State state_ = IDLE;
    bool working_ = false, under_way_[2] = {false, false};
    uint32_t head_ = 0;
    uint64_t word_ = 0, head_row_ = 0, began_ = 0;
};

}  // namespace timing
