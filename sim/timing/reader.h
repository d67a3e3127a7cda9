// Stream reader (hw/gpt2/reader.py): walks the access program and cuts its runs of rows into bursts.
#pragma once
#include <algorithm>
#include "clocked_queue.h"
#include "program.h"
#include "record.h"
#include "step.h"

namespace timing {

class Reader {
public:
    Reader(const Sizes& sizes, const Program& program, const Registers& cfg, Record& record)
        : sizes_(sizes), program_(program), cfg_(cfg), record_(record), batch_(is_batch(sizes, cfg)),
          credits_(sizes.fifo_words) {}

    // The command that waits; shown to the ports while `run`.
    bool pending = false;
    uint64_t row = 0;
    uint32_t beats = 0;
    uint32_t steps = 0;  // of a batch that it has begun

    struct Inputs {
        bool run, read_ready, row_popped;
        uint32_t tokens_valid, committed;
        uint32_t steps;    // that fetch has begun; `step`: the latest of them
        const Step& step;
    };

    void clock(const Inputs& in, uint64_t now) {
        const uint64_t queued = runs_.size();
        split(in, queued, now);
        walk(in, queued);
    }

private:
    enum State { START, POSITION, FETCH, DECODE, EMBED, TOKEN, GUARD, ROWS, PRODUCT, SUM, RUNS, END };
    struct Run {
        uint64_t row, count;
        uint32_t descriptor, position;
    };

    // Keys and values of the position before are in memory.
    bool guard_open(uint64_t committed) const { return committed + cfg_.layers > instance_; }

    void split(const Inputs& in, uint64_t queued, uint64_t now) {
        const uint32_t burst = std::min<uint64_t>(left_, sizes_.burst_beats - next_row_ % sizes_.burst_beats);
        const bool issue = in.run && left_ && credits_ >= burst && (!pending || in.read_ready);
        const bool take = !left_ || (issue && left_ == burst);
        if (issue) {
            row = next_row_, beats = burst, pending = true;
            next_row_ += burst, left_ -= burst;
            if (!left_) record_.event(UNIT_READER, current_.descriptor, current_.position, began_, now + 1);
        } else if (pending && in.run && in.read_ready) {
            pending = false;
        }
        if (take && queued) {
            current_ = runs_.front(), runs_.pop();
            next_row_ = current_.row, left_ = current_.count, began_ = now + 1;
        }
        credits_ += in.row_popped;
        if (issue) credits_ -= burst;
    }

    void walk(const Inputs& in, uint64_t queued) {
        const Access& access = program_.descriptors[index_];
        switch (state_) {
            case START:
                position_ = cfg_.row[0].position;
                if (in.run) state_ = POSITION;
                break;
            case POSITION:
                if (batch_ && in.steps == steps) break;
                steps = in.steps;
                step_ = batch_ ? in.step : sequence_step(sizes_, cfg_, position_);
                index_ = 0, pointer_ = cfg_.weight_base, loop_left_ = 0;
                state_ = FETCH;
                break;
            case FETCH: state_ = DECODE; break;
            case DECODE: decode(access); break;
            case EMBED:
                if (!token_) state_ = PRODUCT;
                else if (batch_ || row_position() < in.tokens_valid) state_ = TOKEN;
                break;
            case TOKEN: {
                const int64_t token = program_.token(batch_ ? of_row() : 0, row_position());
                block_ = std::max<int64_t>(token, 0) / sizes_.tile;  // unknown: as if it were 0
                state_ = PRODUCT;
                break;
            }
            case GUARD: {
                const RowRegisters& own = cfg_.row[batch_ ? of_row() : 0];
                base_ = values_ ? own.value_base + value_layer_ : own.key_base + key_layer_;
                stride_ = scale_ = values_ ? cfg_.value_head_rows : cfg_.key_head_rows;
                blocks_ = attended_position() / (values_ ? sizes_.tile : sizes_.lanes) + 1;
                words_ = values_ ? cfg_.value_strips : cfg_.key_words;
                if (guard_open(in.committed)) state_ = ROWS;
                break;
            }
            case ROWS:
                count_ = blocks_ * words_;
                state_ = PRODUCT;
                break;
            case PRODUCT:
                product_ = block_ * scale_;
                state_ = SUM;
                break;
            case SUM:
                base_ += product_;
                state_ = RUNS;
                break;
            case RUNS:
                if (!heads_ || !count_) {
                    next_row();
                } else if (queued < sizes_.reader_runs) {
                    runs_.push({base_, count_, index_, attended_position()});
                    base_ += stride_;
                    if (--heads_ == 0) next_row();
                }
                break;
            case END: break;
        }
    }

    // The row at work: the lowest that has not done the descriptor at hand.
    uint32_t of_row() const { return lowest_row(step_.rows & ~done_rows_); }
    uint32_t row_position() const { return step_.positions[of_row()]; }
    // Up to which keys and values are read.
    uint32_t attended_position() const { return batch_ ? row_position() : step_.last; }

    void decode(const Access& access) {
        values_ = access.kind == KIND_VALUES, token_ = access.operand == OPERAND_TOKEN;
        heads_ = access.heads, count_ = access.count;
        const bool embeds = access.kind == KIND_EMBED, attends = values_ || access.kind == KIND_KEYS;
        by_row_ = (embeds && (token_ || batch_)) || (attends && batch_);
        if (access.kind == KIND_NEXT) {
            position_ = step_.last + 1;
            state_ = !batch_ && position_ == uint64_t(cfg_.context_limit) ? END : POSITION;
        } else if (access.decode_only && step_.prompt) {
            advance();
        } else if (access.kind == KIND_LOOP) {
            loop_first_ = index_ + 1, loop_last_ = index_ + access.length, loop_left_ = access.count;
            ++index_, key_layer_ = value_layer_ = 0;
            state_ = FETCH;
        } else if (access.kind == KIND_WEIGHTS) {
            base_ = pointer_, pointer_ += access.count, heads_ = 1;
            state_ = RUNS;
        } else if (embeds) {
            base_ = (token_ ? cfg_.token_base : cfg_.position_base) + access.offset;
            block_ = row_position() / sizes_.tile, scale_ = cfg_.embed_strips, heads_ = 1;
            state_ = EMBED;
        } else {
            block_ = access.head0, attended_ = true;
            state_ = GUARD;
        }
    }

    // The descriptor again for the next row that does it by itself; behind the last one step on.
    void next_row() {
        done_rows_ |= 1u << of_row();
        if (by_row_ && step_.rows & ~done_rows_) {
            state_ = FETCH;
        } else {
            done_rows_ = 0;
            advance();
        }
    }

    // Step behind the descriptor at index, around the loop if it is the body's last.
    void advance() {
        state_ = FETCH;
        if (loop_left_ && index_ == loop_last_) {
            const bool last = loop_left_-- == 1;
            index_ = last ? index_ + 1 : loop_first_;
            key_layer_ = last ? 0 : key_layer_ + cfg_.key_layer_rows;
            value_layer_ = last ? 0 : value_layer_ + cfg_.value_layer_rows;
            instance_ += attended_, attended_ = false;
        } else {
            ++index_;
        }
    }

    const Sizes& sizes_;
    const Program& program_;
    const Registers& cfg_;
    Record& record_;
    const bool batch_;
    Step step_;               // at hand
    uint32_t done_rows_ = 0;  // that have done the descriptor
    Queue<Run> runs_;
    Run current_{};
    uint64_t began_ = 0, next_row_ = 0, left_ = 0, credits_;
    State state_ = START;
    bool values_ = false, token_ = false, attended_ = false, by_row_ = false;
    uint32_t index_ = 0, position_ = 0, loop_first_ = 0, loop_last_ = 0, heads_ = 0;
    uint64_t pointer_ = 0, instance_ = 0, key_layer_ = 0, value_layer_ = 0, loop_left_ = 0;
    uint64_t base_ = 0, stride_ = 0, product_ = 0, block_ = 0, scale_ = 0, blocks_ = 0, words_ = 0, count_ = 0;
};

}  // namespace timing
