// Stream reader (hw/gpt2/reader.py): walks the access program and cuts its runs of rows into bursts.
#pragma once
#include <algorithm>
#include "clocked_queue.h"
#include "program.h"
#include "record.h"

namespace timing {

class Reader {
public:
    Reader(const Sizes& sizes, const Program& program, const Registers& cfg, Record& record)
        : sizes_(sizes), program_(program), cfg_(cfg), record_(record), credits_(sizes.fifo_words) {}

    // The command that waits; shown to the ports while `run`.
    bool pending = false;
    uint64_t row = 0;
    uint32_t beats = 0;

    struct Inputs {
        bool run, read_ready, row_popped;
        uint32_t tokens_valid, committed;
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
                position_ = cfg_.position;
                if (in.run) state_ = POSITION;
                break;
            case POSITION:
                index_ = 0, pointer_ = cfg_.weight_base, loop_left_ = 0;
                state_ = FETCH;
                break;
            case FETCH: state_ = DECODE; break;
            case DECODE: decode(access); break;
            case EMBED:
                if (!token_) state_ = PRODUCT;
                else if (position_ < in.tokens_valid) state_ = TOKEN;
                break;
            case TOKEN:
                block_ = std::max<int64_t>(program_.token(position_), 0) / sizes_.tile;  // unknown: as if it were 0
                state_ = PRODUCT;
                break;
            case GUARD:
                base_ = values_ ? cfg_.value_base + value_layer_ : cfg_.key_base + key_layer_;
                stride_ = scale_ = values_ ? cfg_.value_head_rows : cfg_.key_head_rows;
                blocks_ = position_ / (values_ ? sizes_.tile : sizes_.lanes) + 1;
                words_ = values_ ? cfg_.value_strips : cfg_.key_words;
                if (guard_open(in.committed)) state_ = ROWS;
                break;
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
                    advance();
                } else if (queued < sizes_.reader_runs) {
                    runs_.push({base_, count_, index_, position_});
                    base_ += stride_;
                    if (--heads_ == 0) advance();
                }
                break;
            case END: break;
        }
    }

    void decode(const Access& access) {
        const bool prompt_step = position_ + 1 < uint64_t(cfg_.prompt_end);
        values_ = access.kind == KIND_VALUES, token_ = access.operand == OPERAND_TOKEN;
        heads_ = access.heads, count_ = access.count;
        if (access.kind == KIND_NEXT) {
            ++position_;
            state_ = position_ == uint64_t(cfg_.context_limit) ? END : POSITION;
        } else if (access.decode_only && prompt_step) {
            advance();
        } else if (access.kind == KIND_LOOP) {
            loop_first_ = index_ + 1, loop_last_ = index_ + access.length, loop_left_ = access.count;
            ++index_, key_layer_ = value_layer_ = 0;
            state_ = FETCH;
        } else if (access.kind == KIND_WEIGHTS) {
            base_ = pointer_, pointer_ += access.count, heads_ = 1;
            state_ = RUNS;
        } else if (access.kind == KIND_EMBED) {
            base_ = (token_ ? cfg_.token_base : cfg_.position_base) + access.offset;
            block_ = position_ / sizes_.tile, scale_ = cfg_.embed_strips, heads_ = 1;
            state_ = EMBED;
        } else {
            block_ = access.head0, attended_ = true;
            state_ = GUARD;
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
    Queue<Run> runs_;
    Run current_{};
    uint64_t began_ = 0, next_row_ = 0, left_ = 0, credits_;
    State state_ = START;
    bool values_ = false, token_ = false, attended_ = false;
    uint32_t index_ = 0, position_ = 0, loop_first_ = 0, loop_last_ = 0, heads_ = 0;
    uint64_t pointer_ = 0, instance_ = 0, key_layer_ = 0, value_layer_ = 0, loop_left_ = 0;
    uint64_t base_ = 0, stride_ = 0, product_ = 0, block_ = 0, scale_ = 0, blocks_ = 0, words_ = 0, count_ = 0;
};

}  // namespace timing
