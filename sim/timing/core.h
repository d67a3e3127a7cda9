// The core (hw/gpt2/core.py) and its control (hw/board/control.py), one cycle of the core's clock at a time:
// decide() looks at the registers, clock() moves them; the edges of the port clock that fall between are taken between.
#pragma once
#include <memory>
#include <vector>
#include "core_ring.h"
#include "fetch.h"
#include "issue.h"
#include "kv_writer.h"
#include "logits_writers.h"
#include "memory_ports.h"
#include "reader.h"
#include "record.h"
#include "row.h"
#include "sampler.h"

namespace timing {

enum class State { RUN, DRAIN, RESET, IDLE };

class Core {
public:
    State state;
    uint64_t idle_cycles = 0;  // without a tile
    std::unique_ptr<CoreRing> ring;  // if there are other boards

    Core(const Sizes& sizes, const Program& program, const Registers& cfg, MemoryPorts& ports, Record& record)
        : state(in_range(sizes, cfg) ? State::RUN : State::RESET), sizes_(sizes), ports_(ports), record_(record),
          fetch_(sizes, program, cfg), issue_(sizes, cfg), reader_(sizes, program, cfg, record),
          kv_(sizes, cfg, record), logits_(sizes, cfg, record), samplers_(sizes, cfg),
          tokens_valid_(cfg.row[0].prompt_end),
          reset_left_(sizes.reset_cycles) {
        for (uint32_t r = 0; r < sizes.rows; ++r) rows_.emplace_back(sizes, r, record);
    }

    // Cycle `now`, before any clock's edge: does a tile leave, and if not, why.
    void decide(uint64_t now) {
        if (state == State::RESET) {
            record_.stall(STALL_DRAIN, false, false);
            return;
        }
        at_issue_ = issue_.valid;
        issued_ = issue_.clock(state == State::RUN, fetch_, hazards(now), now, taken_);
        account(now);
        if (taken_) record_.open(issue_.cur);
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
        const bool unanswered = ports_.writes_unanswered();
        const bool writing = kv_.writing() || logits_.busy() || (ring && !ring->outbox.idle());
        const bool drained = drained_;
        drained_ = quiet_ == sizes_.quiet_cycles && !writing && !ports_.rows_outstanding() && !unanswered;
        const bool joined = !ring || ring->peers.joined;

        const WriteCommand kv_command = kv_.command(), logits_command = logits_.command();
        const bool kv_turn = arbiter_.urgent(kv_command.valid);
        WriteCommand write = kv_turn ? kv_command : logits_command;
        const bool write_ready = ports_.write_ready();
        write.valid &= write_ready;
        arbiter_.clock(kv_turn, logits_command.valid, write_ready);

        const bool row_take = fire || (!run && row_valid);  // a run that ends throws away what was read ahead
        const Reader::Inputs reading{run, read_ready, popped, tokens_valid_, kv_.committed, fetch_.steps, fetch_.step};
        ports_.core_clock(reader_.pending && run && read_ready, reader_.row, reader_.beats, row_take, write);
        const uint32_t read = reader_.steps;
        reader_.clock(reading, now);
        kv_.clock(kv_turn && write.valid, unanswered, now);
        logits_.clock(!kv_turn && write_ready, now);
        const Fetch::Result fetched = fetch_.clock(run, joined, read, taken_, decided);
        if (fire) begin(issued_);
        if (ring) exchange(run, best, now);

        idle_cycles = fire ? 0 : idle_cycles + 1;
        quiet_ = run || fire || !issue_.queue_empty(now) ? 0 : quiet_ + (quiet_ != sizes_.quiet_cycles);
        if (fetched.token_write) {
            if (fetched.row == 0) tokens_valid_ = fetched.address + 1;
            record_.tokens.push_back({int64_t(now) - record_.start + 1, fetched.row});
        }
        if (run && fetched.finish) state = State::DRAIN;
        if (!run) {
            drain_ = drained ? drain_ + 1 : 0;
            if (drain_ == sizes_.drain_cycles) state = State::RESET;
        }
    }

private:
    static bool in_range(const Sizes& sizes, const Registers& cfg) {
        const uint32_t rows = is_batch(sizes, cfg) ? cfg.batch_rows : 1;
        const bool wrong = any_row(rows, [&](uint32_t r) {
            const RowRegisters& own = cfg.row[r];
            return own.position >= cfg.context_limit || own.prompt_end <= own.position ||
                   own.prompt_end > cfg.context_limit || own.max_new_tokens == 0;
        });
        return rows && !wrong && cfg.context_limit <= sizes.context;
    }

    Hazards hazards(uint64_t now) {
        Hazards h;
        h.keys = kv_.hazard(false), h.values = kv_.hazard(true);
        h.rows = rows_.data(), h.logits = logits_.full() || samplers_.full(now);
        h.statistics = any_row(issue_.cur.rows, [&](uint32_t r) { return now < rows_[r].statistics.free_at; });
        h.score_room = any_row(issue_.cur.rows, [&](uint32_t r) { return rows_[r].softmax.full(now); });
        h.row = ports_.row_valid(), h.waiting = fetch_.waiting();
        h.ring = ring != nullptr, h.joining = ring && !ring->peers.joined, h.room = !ring || ring->outbox.room();
        h.queue = issue_.queue_full(now);
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
        const uint64_t result = issued_.strip ? sizes_.write : reported ? sizes_.report : 0;
        record_.issued(issued_.param, now, result ? issued_.last_at + result : now);
    }

    // What a tile sets going.
    void begin(const Issued& issued) {
        if (issued.head_start || issued.score_start || issued.stats_start)
            each_row(issued.rows, [&](uint32_t r) { begin(issued, rows_[r]); });
        for (uint32_t i = 0; i < issued.results; ++i) result(issued, i, i + 1 == issued.results);
        if (issued.commit == COMMIT_KEYS || issued.commit == COMMIT_VALUES)
            kv_.commit_start(issued.commit == COMMIT_VALUES, issued.strip, issued.layer, issued.rows,
                             issued.positions, issued.last_at);
        if (issued.commit == COMMIT_TOKEN && issued.logits)
            token_at_ = samplers_.decide(issued.decides, issued.last_at + sizes_.report, ring != nullptr);
    }

    // ... its result number `i`, `last` of them.
    void result(const Issued& issued, uint32_t i, bool last) {
        const uint64_t at = issued.first_at + i;
        if (issued.send) ring->outbox.strip(issued.dst + i, issued.flush && last, at + sizes_.write);
        if (ring && issued.strip && issued.dst + i < sizes_.new_key_base) storing_.push(at + sizes_.write);
        if (!issued.logits) return;
        logits_.strip(issued.index + i, issued.strip_last && last, issued.decides, issued.positions, at);
        if (!ring) samplers_.strip(issued.index + i, issued.decides, at + sizes_.report);
    }

    // ... of one of its rows.
    void begin(const Issued& issued, Row& row) {
        if (issued.head_start) row.softmax.head_start(issued.head);
        if (issued.score_start) row.softmax.score_start();
        if (issued.score_last) row.softmax.score_last(issued.head, issued.tiles, issued.last_at);
        if (issued.stats_start) row.statistics.start(issued.stats_set, issued.strip, issued.send, issued.last_at);
    }

    // One cycle of what goes to and comes from the other boards.
    void exchange(bool run, bool best, uint64_t now) {
        Statistics& statistics = rows_[0].statistics;  // several boards have one row each
        if (run && ring->peers.total()) statistics.total(now);
        const bool storing = !storing_.empty() && storing_.front() == now;
        if (storing) storing_.pop();
        const Peers::Own own{statistics.shares(now), best};
        ring->clock(now, run, storing, own, [this](uint32_t strip) { issue_.arrive(strip); });
    }

    const Sizes& sizes_;
    MemoryPorts& ports_;
    Record& record_;
    Fetch fetch_;
    Issue issue_;
    Reader reader_;
    std::vector<Row> rows_;
    KvWriter kv_;
    LogitsWriters logits_;
    Samplers samplers_;
    WriteArbiter arbiter_;
    Issued issued_;
    Queue<uint64_t> storing_;  // cycles in which own strips go to the activation memory
    bool at_issue_ = false, taken_ = false, drained_ = false;
    uint32_t tokens_valid_, reset_left_, quiet_ = 0, drain_ = 0;
    uint64_t token_at_ = ~0ull;
};

}  // namespace timing
