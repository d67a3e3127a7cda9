// Issue (hw/gpt2/issue.py): one tile or parameter row a cycle, or the cause why not.
#pragma once
#include <algorithm>
#include <vector>
#include "fetch.h"
#include "hardware.h"
#include "result_queue.h"
#include "row.h"

namespace timing {

// What the other units say in a cycle.
struct Hazards {
    bool keys, values;   // commit of that kind under way
    const Row* rows;     // what each row has under way
    bool statistics;     // vector of a row at work under way
    bool score_room;     // no score row of a row at work is free
    bool logits;         // a logits writer is full
    bool row;            // the stream has a row
    bool waiting;        // fetch is at a token boundary
    bool ring;           // there are other boards
    bool joining;        // they have not begun
    bool sums;           // sums of other boards are missing
    bool best;           // ... their arg-max
    bool room;           // results can be sent
    bool queue;          // no more results can wait
};

// What a cycle of the issue unit did.
struct Issued {
    int stall = -1;  // STALL_..., or -1: something was issued
    bool param = false, end = false;        // a parameter row; the instruction's last tile
    bool stats_start = false, head_start = false, score_start = false;
    bool strip = false, logits = false, score_last = false;  // results of this tile
    bool strip_last = false, stats = false;
    bool send = false, flush = false;  // to the other boards; the end of a frame
    int commit = COMMIT_NONE;
    uint32_t index = 0, dst = 0;  // logits strip; strip address
    uint32_t tiles = 0, head = 0, stats_set = 0;  // rows of scores of a head
    uint32_t layer = 0, rows = 0, decides = 0;  // rows: that take part; decides: whose logits count
    Positions positions;
    // Where there are results: the cycles of issue that their times count from (first and last result).
    uint64_t first_at = 0, last_at = 0;
    uint32_t results = 1;
};

class Issue {
public:
    bool valid = false;
    Work cur;

    Issue(const Sizes& sizes, const Registers& cfg)
        : sizes_(sizes), cfg_(cfg), strip_free_(sizes.strip_addresses + sizes.strips_per_word),
          missing_(strip_free_.size()), acc_used_(sizes.acc_depth, NEVER), results_(sizes) {}

    // The result queue of a core with int8 weights.
    bool queue_full(uint64_t now) { return results_.full(now); }
    bool queue_empty(uint64_t now) { return !results_.owed(now); }

    // Another board's strip can be read by tiles that issue from now on.
    void arrive(uint32_t strip) { --missing_[strip]; }

    // One cycle; `taken` tells whether the fetch unit's work was taken.
    Issued clock(bool run, const Fetch& fetch, const Hazards& h, uint64_t now, bool& taken) {
        Issued out;
        taken = false;
        if (!run) {
            out.stall = STALL_DRAIN;
        } else if (!valid) {
            const bool link = h.joining || (h.waiting && h.best) || late(fetch, h);
            out.stall = link ? STALL_LINK : h.waiting ? STALL_TOKEN : STALL_INSTRUCTION;
        } else {
            look();
            out.stall = check(h, now);
            if (out.stall < 0) fire(out, now);
        }
        const bool done = out.stall < 0 && out.end;
        const bool held = (fetch.work.gather && announcing(now)) || late(fetch, h);
        const bool ready = (!valid || done) && !held;
        if (run && fetch.work_valid && ready) take(fetch.work, now), taken = true;
        else if (done) valid = false;
        return out;
    }

private:
    static constexpr uint64_t NEVER = ~0ull >> 1;

    void take(const Work& work, uint64_t now) {
        cur = work, code_ = work.code, valid = true;
        if (work.gather) announce(*work.gather, now);
        base_ = middle_ = inner_ = rows_taken_ = head_src_ = 0;
        is_mm_ = code_->op == OP_MM || code_->op == OP_EMB, is_sc_ = code_->op == OP_SC;
        head_kv_ = code_->head0 * (is_sc_ ? cfg_.key_words : cfg_.value_strips);
        rows_ = !is_mm_ || !code_->first ? 0 : code_->params == PARAMS_NORM ? 2 : code_->params == PARAMS_BIAS;
        served_ = code_->op == OP_MM ? sizes_.strips_per_row : 1;
        if (served_ == 2 && code_->first) ++rows_;  // scales
        const uint32_t words = code_->op == OP_EMB ? 1 : code_->words;
        last_middle_ = is_mm_ ? words - 1 : cur.position / (is_sc_ ? sizes_.lanes : sizes_.tile);
        last_inner_ = uint32_t(is_sc_ ? cfg_.key_words : cfg_.value_strips) - 1;
        changed_ = true;
    }

    // Other boards' strips of a vector will be written anew.
    void announce(const Instruction& gather, uint64_t now) {
        for (int32_t i = 0; i < gather.strips; ++i)
            if (i < gather.src || i >= gather.src + gather.words) ++missing_[gather.dst + i];
        announced_word_ = gather.dst / sizes_.strips_per_word, announced_at_ = now + 1;
        announced_last_ = (gather.dst + gather.strips - 1) / sizes_.strips_per_word;
    }
    // A position does not begin before the sums of the one before, which nobody may have used, are done with.
    static bool late(const Fetch& fetch, const Hazards& h) {
        return fetch.work_valid && fetch.work.begins && h.statistics && h.ring;
    }
    // The scoreboard notes an announcement a word a cycle.
    bool announcing(uint64_t now) const { return now - announced_at_ <= announced_last_ - announced_word_; }
    bool soon(uint32_t word, uint64_t now) const {
        return announcing(now) && word >= announced_word_ + (now - announced_at_) && word <= announced_last_;
    }

    // What the present tile is; kept while it waits.
    void look() {
        if (!changed_) return;
        changed_ = false;
        const Instruction& code = *code_;
        const uint32_t group_left = code.strips - base_, strip = base_ + inner_;
        const uint32_t inner_last = is_mm_ ? std::min<uint32_t>(group_left, code.group) - 1 : last_inner_;
        inner_end_ = inner_ + served_ - 1 == inner_last, middle_end_ = middle_ == last_middle_;
        outer_end_ = is_mm_ ? group_left <= uint32_t(code.group) : base_ + 1 == uint32_t(code.heads);
        param_ = middle_ == 0 && rows_taken_ < rows_ && strip % sizes_.param_strips == 0;
        end_ = !param_ && inner_end_ && middle_end_ && outer_end_;
        acc_start_ = is_mm_ ? code.first && middle_ == 0 : (is_sc_ ? inner_ : middle_) == 0;
        acc_end_ = is_mm_ ? code.last && middle_end_ : is_sc_ ? inner_end_ : middle_end_;
        acc_ = code.acc + (is_sc_ ? 0 : is_mm_ && !(code.first && code.last) ? strip : inner_);
        logits_ = is_mm_ && code.path == PATH_LOGITS;
        strip_ = !param_ && acc_end_ && !is_sc_ && !logits_;
        head_ = code.head0 + base_;
        dst_ = is_mm_ ? code.dst + strip : code.dst + head_src_ + inner_;
        if (is_sc_ || code.op == OP_MM) {
            const uint32_t tail = (is_sc_ ? inner_end_ : middle_end_) ? code.tail : sizes_.tile;
            operand_ = (code.src + (is_sc_ ? head_src_ + inner_ : middle_)) * sizes_.strips_per_word;
            needed_ = (tail + sizes_.lanes - 1) / sizes_.lanes;
        } else {
            needed_ = 0;
        }
        const bool newest = !is_mm_ && middle_end_;
        const uint32_t kv = head_kv_ + inner_;
        new_ = is_sc_ ? sizes_.new_key_base + kv * sizes_.strips_per_word : sizes_.new_value_base + kv;
        new_needed_ = !newest ? 0 : is_sc_ ? sizes_.strips_per_word : 1;
    }

    bool busy(uint32_t first, uint32_t count, uint64_t now) const {
        for (uint32_t i = 0; i < count; ++i)
            if (now < strip_free_[first + i]) return true;
        return false;
    }

    // Announced and not come, or come and not announced: the scoreboard does not tell them apart.
    bool owed(uint32_t first, uint32_t count) const {
        for (uint32_t i = 0; i < count; ++i)
            if (missing_[first + i]) return true;
        return false;
    }

    // The first cause in the hardware's order of priority, or -1.
    int check(const Hazards& h, uint64_t now) const {
        static_assert(STALL_WRITER < STALL_STATISTICS && STALL_STATISTICS < STALL_PARAMS &&
                          STALL_PARAMS < STALL_ACCUMULATOR && STALL_ACCUMULATOR < STALL_SCORE_ROOM &&
                          STALL_SCORE_ROOM < STALL_SOFTMAX && STALL_SOFTMAX < STALL_NORM &&
                          STALL_NORM < STALL_OPERAND && STALL_OPERAND < STALL_LINK &&
                          STALL_LINK < STALL_NEW_KV && STALL_NEW_KV < STALL_RESULT &&
                          STALL_RESULT < STALL_SEND && STALL_SEND < STALL_STREAM,
                      "the checks below stand in another order than the hardware's causes");
        const Instruction& code = *code_;
        if (is_mm_) {
            const bool keys = code.commit == COMMIT_KEYS, values = code.commit == COMMIT_VALUES;
            if ((keys && h.keys) || (values && h.values)) return STALL_WRITER;
            if (code.stats && h.statistics) return STALL_STATISTICS;
            if (param_ && now < param_free_[rows_taken_]) return STALL_PARAMS;
        }
        if (!param_) {
            if (!acc_start_ && accumulating(now)) return STALL_ACCUMULATOR;
            if (is_sc_ && acc_end_ && h.score_room) return STALL_SCORE_ROOM;
        }
        if (!is_mm_ && (!is_sc_ || (middle_ == 0 && inner_ == 0)) && probabilities_missing(h, now)) return STALL_SOFTMAX;
        if (!param_) {
            const bool norm = is_mm_ && acc_end_ && code.params == PARAMS_NORM && scalars_missing(h, now);
            if (norm && !h.sums) return STALL_NORM;
            if (busy(operand_, needed_, now)) return STALL_OPERAND;
            if (norm || owed(operand_, needed_)) return STALL_LINK;
            if (needed_ && soon(operand_ / sizes_.strips_per_word, now)) return STALL_LINK;
            const bool claims = strip_ && !code.send;
            if (claims && (owed(dst_, served_) || soon(dst_ / sizes_.strips_per_word, now))) return STALL_LINK;
        }
        if (busy(new_, new_needed_, now)) return STALL_NEW_KV;
        if (strip_ && busy(dst_, served_, now)) return STALL_RESULT;
        if (!param_ && acc_end_ && ((logits_ && h.logits) || h.queue)) return STALL_RESULT;
        if (strip_ && code.send && !h.room) return STALL_SEND;
        return h.row ? -1 : STALL_STREAM;
    }

    bool accumulating(uint64_t now) const {
        for (uint32_t i = 0; i < served_; ++i)
            if (now - acc_used_[acc_ + i] < sizes_.accumulator_latency) return true;
        return false;
    }
    bool probabilities_missing(const Hazards& h, uint64_t now) const {
        return any_row(cur.rows, [&](uint32_t r) { return now < h.rows[r].softmax.free_at[head_]; });
    }
    bool scalars_missing(const Hazards& h, uint64_t now) const {
        return any_row(cur.rows, [&](uint32_t r) { return now < h.rows[r].statistics.norm_free[code_->norm]; });
    }

    void fire(Issued& out, uint64_t now) {
        const Instruction& code = *code_;
        changed_ = true;
        out.layer = cur.layer, out.stats_set = code.stats_set;
        out.rows = cur.rows, out.decides = cur.step.decides, out.positions = cur.step.positions;
        out.param = param_, out.end = end_, out.head = head_;
        out.head_start = is_sc_ && middle_ == 0 && inner_ == 0;
        if (param_) {
            param_free_[rows_taken_] = now + sizes_.param_strips / sizes_.strips_per_row;
            ++rows_taken_;
            return;
        }
        out.results = served_;
        if (acc_end_) out.first_at = results_.issue(served_, now), out.last_at = out.first_at + served_ - 1;
        for (uint32_t i = 0; i < served_; ++i) {
            acc_used_[acc_ + i] = now;
            if (strip_) strip_free_[dst_ + i] = out.first_at + i + sizes_.written + 1;
        }
        out.strip = strip_, out.logits = acc_end_ && logits_, out.strip_last = is_sc_ ? middle_end_ : end_;
        out.score_start = is_sc_ && acc_end_, out.score_last = out.score_start && middle_end_;
        out.tiles = middle_ + 1, out.index = code.dst + base_ + inner_;
        out.send = strip_ && code.send, out.flush = inner_end_, out.dst = dst_;
        out.stats = is_mm_ && code.stats, out.stats_start = out.stats && end_;
        if (is_mm_ && end_) out.commit = code.commit;
        step();
    }

    void step() {
        rows_taken_ = 0;
        if (!inner_end_) {
            inner_ += served_;
            return;
        }
        inner_ = 0;
        if (!middle_end_) {
            ++middle_;
            return;
        }
        middle_ = 0;
        if (is_mm_) {
            base_ += code_->group;
            return;
        }
        const uint32_t words = is_sc_ ? cfg_.key_words : cfg_.value_strips;
        ++base_, head_src_ += words, head_kv_ += words;
    }

    const Sizes& sizes_;
    const Registers& cfg_;
    const Instruction* code_ = nullptr;
    std::vector<uint64_t> strip_free_;  // scoreboard: cycle from which a strip may be read or written again
    std::vector<int32_t> missing_;      // results that other boards owe each strip, less those that have come
    std::vector<uint64_t> acc_used_;    // cycle of the last tile on an accumulator
    uint64_t param_free_[3] = {0, 0, 0};
    ResultQueue results_;
    uint64_t announced_at_ = NEVER;  // cycle in which the first word of the latest announcement is noted
    uint32_t announced_word_ = 0, announced_last_ = 0;
    uint32_t base_ = 0, middle_ = 0, inner_ = 0, rows_taken_ = 0, head_src_ = 0, head_kv_ = 0;
    uint32_t served_ = 1;  // strips of a row
    uint32_t rows_ = 0, last_middle_ = 0, last_inner_ = 0;
    bool is_mm_ = false, is_sc_ = false, changed_ = false;
    bool inner_end_ = false, middle_end_ = false, outer_end_ = false, param_ = false, end_ = false;
    bool acc_start_ = false, acc_end_ = false, logits_ = false, strip_ = false;
    uint32_t acc_ = 0, head_ = 0, dst_ = 0, operand_ = 0, needed_ = 0, new_ = 0, new_needed_ = 0;
};

}  // namespace timing
