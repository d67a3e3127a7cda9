// Instruction fetch (hw/gpt2/fetch.py): loops, steps, token boundaries.
#pragma once
#include <algorithm>
#include "program.h"
#include "step.h"

namespace timing {

struct Work {
    const Instruction* code = nullptr;
    uint32_t index = 0, layer = 0, position = 0;  // position: to which attention loops
    uint32_t rows = 1;                            // that take part, a bit each
    const Instruction* gather = nullptr;          // the GATHER in front of it
    bool begins = false;                          // a step
    Step step;

    // Rows whose results count.
    uint32_t counted() const { return code->path == PATH_LOGITS && code->op == OP_MM ? rows & step.decides : rows; }
    // Positions that these rows attend to, their own included.
    uint32_t attended() const {
        uint32_t sum = 0;
        each_row(counted(), [&](uint32_t r) { sum += step.positions[r] + 1; });
        return sum;
    }
};

class Fetch {
public:
    bool work_valid = false;
    Work work;
    uint32_t steps = 0;  // begun
    Step step;           // the latest of them

    Fetch(const Sizes& sizes, const Program& program, const Registers& cfg)
        : sizes_(sizes), program_(program), cfg_(cfg), batch_(is_batch(sizes, cfg)) {}

    bool waiting() const { return state_ == WAIT || state_ == DECIDED || state_ == BOUNDARY; }

    struct Result {
        bool token_write = false, finish = false;
        uint32_t row = 0, address = 0;
    };

    // One cycle. `go`: the first position may begin; `read`: the steps that the reader has begun; `work_take`: the issue
    // unit takes `work`; `token_valid`: the arg-max has decided.
    Result clock(bool run, bool go, uint32_t read, bool work_take, bool token_valid) {
        Result result;
        const bool was_valid = work_valid;
        if (work_take) work_valid = false;
        switch (state_) {
            case START:
                if (run && go) begin(), state_ = POSITION;
                break;
            case POSITION:
                if (batch_ && read != steps) break;  // the reader is at the step before that one
                pc_ = layer_ = loop_left_ = 0, begins_ = true;
                step = batch_ ? batch_step(cfg_, at_, alive_) : sequence_step(sizes_, cfg_, at_[0]);
                step.number = steps++;
                tokens_left_ = sizes_.rows, state_ = TOKENS;
                break;
            case TOKENS:
                if (--tokens_left_ == 0) state_ = DECODE;
                break;
            case ADDRESS: state_ = DECODE; break;
            case DECODE:
                if (run) decode(was_valid);
                break;
            case WAIT:
                if (token_valid) row_ = 0, state_ = DECIDED;
                break;
            case DECIDED: {
                const uint32_t next = (batch_ ? at_[row_] : step.last) + 1;
                decides_ = !batch_ || step.decides >> row_ & 1;
                result.token_write = run && decides_;
                result.row = row_, result.address = next;
                decided_ = program_.token(row_, next);
                made_[row_] += decides_;
                if (!batch_ || alive_ >> row_ & 1) at_[row_] = next;
                state_ = BOUNDARY;
                break;
            }
            case BOUNDARY:
                if (decides_ && ended()) alive_ &= ~(1u << row_);
                if (batch_ && ++row_ != sizes_.rows) {
                    state_ = DECIDED;
                } else if (!alive_) {
                    result.finish = run;
                    state_ = END;
                } else {
                    state_ = POSITION;
                }
                break;
            case END: break;
        }
        return result;
    }

private:
    enum State { START, POSITION, TOKENS, ADDRESS, DECODE, WAIT, DECIDED, BOUNDARY, END };

    void begin() {
        alive_ = batch_ ? cfg_.batch_rows : 1;
        for (uint32_t r = 0; r < sizes_.rows; ++r) at_[r] = cfg_.row[r].position;
    }

    // Whether the row's token was its last.
    bool ended() const {
        const RowRegisters& own = cfg_.row[row_];
        for (int64_t i = 0; i < own.stop_count && i < STOP_IDS; ++i)
            if (own.stop[i] == decided_) return true;
        return made_[row_] == uint64_t(own.max_new_tokens) || at_[row_] == uint64_t(cfg_.context_limit);
    }

    // Whether each row executes an instruction by itself.
    bool by_row(const Instruction& code) const {
        if (code.op == OP_EMB) return batch_ || code.operand == OPERAND_TOKEN;
        return batch_ && (code.op == OP_SC || code.op == OP_AV);
    }

    void decode(bool full) {
        const Instruction& code = program_.instructions[pc_];
        if (code.op == OP_NEXT) {
            if (step.prompt) next(), state_ = POSITION;
            else state_ = WAIT;
        } else if (code.decode_only && step.prompt) {
            advance();
        } else if (code.op == OP_LOOP) {
            loop_first_ = pc_ + 1, loop_last_ = pc_ + code.words, loop_left_ = code.strips;
            ++pc_, layer_ = 0, state_ = ADDRESS;
        } else if (code.op == OP_GATHER) {
            gather_ = &code;
            advance();
        } else if (!full) {
            hand_out(code);
        }
    }

    // For all rows, or for the next one; behind the last one step on.
    void hand_out(const Instruction& code) {
        const uint32_t todo = step.rows & ~done_rows_, row = lowest_row(todo);
        const bool alone = by_row(code);
        work_valid = true;
        work = {&code, pc_, layer_, batch_ ? step.positions[row] : step.last, alone ? 1u << row : step.rows,
                gather_, begins_, step};
        gather_ = nullptr, begins_ = false;
        done_rows_ |= work.rows;
        if (alone && step.rows & ~done_rows_) return;
        done_rows_ = 0;
        advance();
    }

    // Behind a prompt step.
    void next() {
        if (!batch_) at_[0] = step.last + 1;
        else each_row(alive_, [&](uint32_t r) { ++at_[r]; });
    }

    // Step behind the instruction at pc, around the loop if it is the body's last.
    void advance() {
        state_ = ADDRESS;
        if (loop_left_ && pc_ == loop_last_) {
            const bool last = loop_left_-- == 1;
            pc_ = last ? pc_ + 1 : loop_first_;
            layer_ = last ? 0 : layer_ + 1;
        } else {
            ++pc_;
        }
    }

    const Sizes& sizes_;
    const Program& program_;
    const Registers& cfg_;
    const bool batch_;
    State state_ = START;
    Positions at_{}, made_{};  // of each row: position, new tokens; a sequence's are row 0's
    uint32_t alive_ = 1;       // rows whose request has not ended
    uint32_t tokens_left_ = 0, row_ = 0, done_rows_ = 0;
    uint32_t pc_ = 0, layer_ = 0, loop_first_ = 0, loop_last_ = 0, loop_left_ = 0;
    int64_t decided_ = 0;
    const Instruction* gather_ = nullptr;
    bool begins_ = false, decides_ = false;
};

}  // namespace timing
