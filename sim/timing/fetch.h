// Instruction fetch (hw/gpt2/fetch.py): loops, positions, token boundaries.
#pragma once
#include "program.h"

namespace timing {

struct Work {
    const Instruction* code = nullptr;
    uint32_t index = 0, layer = 0, position = 0;
    const Instruction* gather = nullptr;  // the GATHER in front of it
    bool begins = false;                  // a position
};

class Fetch {
public:
    bool work_valid = false;
    Work work;
    uint32_t generated = 0;  // tokens of this run

    Fetch(const Program& program, const Registers& cfg) : program_(program), cfg_(cfg) {}

    bool waiting() const { return state_ == WAIT || state_ == DECIDED || state_ == BOUNDARY; }

    struct Result {
        bool token_write = false, finish = false;
        uint32_t address = 0;
        int64_t token = 0;
    };

    // One cycle. `go`: the first position may begin; `work_take`: the issue unit takes `work`; `token_valid`: the
    // arg-max has decided.
    Result clock(bool run, bool go, bool work_take, bool token_valid) {
        Result result;
        const bool was_valid = work_valid;
        if (work_take) work_valid = false;
        switch (state_) {
            case START:
                if (run && go) position_ = cfg_.position, state_ = POSITION;
                break;
            case POSITION:
                pc_ = layer_ = loop_left_ = 0, begins_ = true;
                state_ = TOKEN;
                break;
            case TOKEN:
            case ADDRESS:
                state_ = DECODE;
                break;
            case DECODE:
                if (run) decode(was_valid && !work_take);
                break;
            case WAIT:
                if (token_valid) state_ = DECIDED;
                break;
            case DECIDED:
                result.token_write = run;
                result.address = position_ + 1;
                result.token = decided_ = program_.token(position_ + 1);
                ++generated, ++position_;
                state_ = BOUNDARY;
                break;
            case BOUNDARY: {
                bool stopped = false;
                for (int64_t i = 0; i < cfg_.stop_count && i < STOP_IDS; ++i) stopped |= cfg_.stop[i] == decided_;
                const bool enough = generated == uint64_t(cfg_.max_new_tokens);
                if (stopped || enough || position_ == uint64_t(cfg_.context_limit)) {
                    result.finish = run;
                    state_ = END;
                } else {
                    state_ = POSITION;
                }
                break;
            }
            case END: break;
        }
        return result;
    }

private:
    enum State { START, POSITION, TOKEN, ADDRESS, DECODE, WAIT, DECIDED, BOUNDARY, END };

    void decode(bool full) {
        const Instruction& code = program_.instructions[pc_];
        const bool prompt_step = position_ + 1 < uint64_t(cfg_.prompt_end);
        if (code.op == OP_NEXT) {
            if (prompt_step) ++position_, state_ = POSITION;
            else state_ = WAIT;
        } else if (code.decode_only && prompt_step) {
            advance();
        } else if (code.op == OP_LOOP) {
            loop_first_ = pc_ + 1, loop_last_ = pc_ + code.words, loop_left_ = code.strips;
            ++pc_, layer_ = 0, state_ = ADDRESS;
        } else if (code.op == OP_GATHER) {
            gather_ = &code;
            advance();
        } else if (!full) {
            work_valid = true;
            work = {&code, pc_, layer_, position_, gather_, begins_};
            gather_ = nullptr, begins_ = false;
            advance();
        }
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

    const Program& program_;
    const Registers& cfg_;
    State state_ = START;
    uint32_t pc_ = 0, position_ = 0, layer_ = 0, loop_first_ = 0, loop_last_ = 0, loop_left_ = 0;
    int64_t decided_ = 0;
    const Instruction* gather_ = nullptr;
    bool begins_ = false;
};

}  // namespace timing
