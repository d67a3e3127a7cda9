// The core (hw/gpt2/core.py) and its control (hw/board/control.py), one cycle of the core's clock at a time:
// decide() looks at the registers, clock() moves them; the edges of the port clock that fall between are taken between.
#pragma once
#include <memory>
#include "core_ring.h"
#include "fetch.h"
#include "issue.h"
#include "kv_writer.h"
#include "logits_writer.h"
#include "memory_ports.h"
#include "reader.h"
#include "record.h"
#include "softmax.h"
#include "statistics.h"

namespace timing {

enum class State { RUN, DRAIN, RESET, IDLE };

class Core {
public:
    State state;
    uint64_t idle_cycles = 0;  // without a tile
    std::unique_ptr<CoreRing> ring;  // if there are other boards

    Core(const Sizes& sizes, const Program& program, const Registers& cfg, MemoryPorts& ports, Record& record)
        : state(in_range(sizes, cfg) ? State::RUN : State::RESET), sizes_(sizes), ports_(ports), record_(record),
          fetch_(program, cfg), issue_(sizes, cfg), reader_(sizes, program, cfg, record),
          softmax_(sizes, record), statistics_(sizes, record), kv_(sizes, cfg, record), logits_(sizes, cfg, record),
          tokens_valid_(cfg.prompt_end), reset_left_(sizes.reset_cycles) {}

    // Cycle `now`, before any clock's edge: does a tile leave, and if not, why.
    void decide(uint64_t now) {
        if (state == State::RESET) {
            record_.stall(STALL_DRAIN, false, false);
            return;
        }
        at_issue_ = issue_.valid;
        issued_ = issue_.clock(state == State::RUN, fetch_, hazards(now), now, taken_);
        account(now);
        if (taken_) record_.open(issue_.cur.position, issue_.cur.index, issue_.cur.layer);
    }

    // The edge of the core's clock that ends cycle `now`.
    void clock(uint64_t now) {
        if (state == State::RESET) {
            ports_.core_clock(false, 0, 0, false, {});
            if (ring) ring->rest(now);
            if (--reset_left_ == 0) state = State::IDLE;
            return;
        }
        const bool run = state == State::RUN, fire = issued_.stall < 0;
        const bool best = now == token_at_, decided = ring ? ring->peers.decided() : best;
        const bool row_valid = ports_.row_valid(), popped = ports_.row_popped(), read_ready = ports_.read_ready();
        const uint32_t outstanding = ports_.writes_outstanding();
        const bool writing = kv_.writing() || logits_.busy() || (ring && !ring->outbox.idle());
        const bool drained =
            quiet_ == sizes_.quiet_cycles && !writing && !ports_.rows_outstanding() && !outstanding;
        const Fetch::Result fetched = fetch_.clock(run, !ring || ring->peers.joined, taken_, decided);

        const WriteCommand kv_command = kv_.command(), logits_command = logits_.command();
        const bool kv_turn = arbiter_.kv(kv_command);
        WriteCommand write = kv_turn ? kv_command : logits_command;
        const bool write_ready = !write.valid || ports_.write_ready(write.channels);
        write.valid &= write_ready;
        arbiter_.clock(kv_turn, logits_command.valid, write_ready);

        const bool row_take = fire || (!run && row_valid);  // a run that ends throws away what was read ahead
        const Reader::Inputs reading{run, read_ready, popped, tokens_valid_, kv_.committed};
        ports_.core_clock(reader_.pending && run && read_ready, reader_.row, reader_.beats, row_take, write);
        reader_.clock(reading, now);
        kv_.clock(kv_turn && write.valid, outstanding, now);
        logits_.clock(!kv_turn && write.valid, now);
        if (fire) begin(issued_, now);
        if (ring) exchange(run, best, now);

        idle_cycles = fire ? 0 : idle_cycles + 1;
        quiet_ = run || fire ? 0 : quiet_ + (quiet_ != sizes_.quiet_cycles);
        if (fetched.token_write) {
            tokens_valid_ = fetched.address + 1;
            record_.token_cycles.push_back(int64_t(now) - record_.start + 1);
        }
        if (run && fetched.finish) state = State::DRAIN;
        if (!run) {
            drained_ = drained ? drained_ + 1 : 0;
            if (drained_ == sizes_.drain_cycles) state = State::RESET;
        }
    }

private:
    static bool in_range(const Sizes& sizes, const Registers& cfg) {
        return cfg.position < cfg.context_limit && cfg.prompt_end > cfg.position &&
               cfg.prompt_end <= cfg.context_limit && cfg.context_limit <= sizes.context && cfg.max_new_tokens != 0;
    }

    Hazards hazards(uint64_t now) {
        Hazards h;
        h.keys = kv_.hazard(false), h.values = kv_.hazard(true);
        h.statistics = now < statistics_.free_at;
        h.norm_free = statistics_.norm_free, h.softmax_free = softmax_.free_at;
        h.score_room = softmax_.full(now), h.logits = logits_.full();
        h.row = ports_.row_valid(), h.waiting = fetch_.waiting();
        h.ring = ring != nullptr, h.joining = ring && !ring->peers.joined, h.room = !ring || ring->outbox.room();
        h.sums = ring && ring->peers.sums_missing(), h.best = ring && ring->peers.best_missing();
        return h;
    }

    void account(uint64_t now) {
        if (issued_.stall >= 0) {
            const bool open = at_issue_ && issued_.stall != STALL_DRAIN;
            record_.stall(issued_.stall, open, issued_.stall == STALL_STREAM && ports_.behind_refresh());
            return;
        }
        const bool reported = issued_.score_start || issued_.logits;
        record_.issued(issued_.param, now, now + (issued_.strip ? sizes_.write : reported ? sizes_.report : 0));
    }

    // What a tile sets going.
    void begin(const Issued& issued, uint64_t now) {
        if (issued.head_start) softmax_.head_start(issued.head);
        if (issued.score_start) softmax_.score_start();
        if (issued.score_last) softmax_.score_last(issued.head, issued.tiles, now);
        if (issued.stats_start) statistics_.start(issued.stats_set, issued.strip, issued.send, now);
        if (issued.send) ring->outbox.strip(issued.dst, issued.flush, now + sizes_.write);
        if (ring && issued.strip && issued.dst < sizes_.new_key_base) storing_.push(now + sizes_.write);
        if (issued.logits) logits_.strip(issued.index, issued.strip_last, issued.position, now);
        if (issued.commit == COMMIT_KEYS || issued.commit == COMMIT_VALUES)
            kv_.commit_start(issued.commit == COMMIT_VALUES, issued.strip, issued.layer, issued.position, now);
        // report stage, maximum tree and the register behind it, decision
        if (issued.commit == COMMIT_TOKEN && issued.logits) token_at_ = now + sizes_.report + sizes_.max_latency + 2;
    }

    // One cycle of what goes to and comes from the other boards.
    void exchange(bool run, bool best, uint64_t now) {
        if (run && ring->peers.total()) statistics_.total(now);
        const bool storing = !storing_.empty() && storing_.front() == now;
        if (storing) storing_.pop();
        const Peers::Own own{statistics_.shares(now), best};
        ring->clock(now, run, storing, own, [this](uint32_t strip) { issue_.arrive(strip); });
    }

    const Sizes& sizes_;
    MemoryPorts& ports_;
    Record& record_;
    Fetch fetch_;
    Issue issue_;
    Reader reader_;
    Softmax softmax_;
    Statistics statistics_;
    KvWriter kv_;
    LogitsWriter logits_;
    WriteArbiter arbiter_;
    Issued issued_;
    Queue<uint64_t> storing_;  // cycles in which own strips go to the activation memory
    bool at_issue_ = false, taken_ = false;
    uint32_t tokens_valid_, reset_left_, quiet_ = 0, drained_ = 0;
    uint64_t token_at_ = ~0ull;
};

}  // namespace timing
