// Several boards and the cables between them: board b's port 1 leads to port 0 of board b + 1, the last one's to board 0.
//
// The ring moves from the first advance while a run is on until no board runs. Before, an access of the host lets its own
// board work alone, and the links' clock of a board that does not run stands still: so nothing depends on how often and
// in which order the host looked. The links' clock of a board begins with its run, at the same time of the ring for every
// board; a board that was not started joins when the ring begins to move.
//
// Boards go in windows. A window and a period of the links' clock together are no longer than the shortest hop: within a
// window the boards look at what arrives up to the first edge of that clock behind it (LinkEnd::apply), and what is sent
// in it arrives later. So within a window each board may work as if it were alone, on any thread. The first window of a
// move is at least START_WINDOW long, so that the host may look at boards that it has started before it starts the others;
// what would arrive inside it arrives behind it.
#pragma once
#include <chrono>
#include "board.h"

class Ring {
public:
    static constexpr uint64_t START_WINDOW = 64;
    // From the reset of the boards until the channels are up and the ports have noticed.
    static constexpr uint64_t BRING_UP_TICKS = (CHANNEL_DOWN_CYCLES * LINK_PERIOD + CORE_PERIOD - 1) / CORE_PERIOD + 64;

    uint64_t no_progress_limit = 20000;
    double wall_limit_s = 0;
    std::string message;

    // A configuration for each cable; cable b is the one between board b and board b + 1.
    Ring(unsigned count, const LinkConfig* configs, unsigned threads) : configs_(configs, configs + count), cables_(count) {
        window_ = NEVER;
        for (const LinkConfig& config : configs_)
            window_ = std::min(window_, (config.hop - LINK_PERIOD) / CORE_PERIOD);
        for (unsigned b = 0; b < count; ++b) {
            boards_.push_back(std::make_unique<Board>());
            boards_[b]->ring = this;
            for (unsigned port = 0; port < 2; ++port)
                boards_[b]->links[port].cable = &cable(b, port), boards_[b]->links[port].end = 1 - port;
        }
        if (threads > 1) shared_ = std::make_unique<SharedWork>(count, [this](uint32_t b) { work(*boards_[b]); });
        bring_up();
    }

    Board& board(unsigned b) { return *boards_[b]; }

    // One cycle for a board, as part of an access of the host.
    void tick(Board& board) {
        if (!moving_) {
            if (!board.link_clock && !board.idle()) board.start_link_clock(origin_);
            if (board.link_clock && board.ring_ticks == window_end_) catch_up();
        }
        if (moving_) advance_to(board.ring_ticks + 1);
        else board.tick();
    }

    // Before a write to a board: a run that starts while no other lasts finds the clocks in the same phase.
    void before_write(Board& board) {
        if (!board.idle()) return;
        if (all_idle() && clocked()) catch_up();
        if (!board.link_clock) board.align();
    }

    // The time of a board's memories begins anew.
    void restart_memories(Board& board) {
        if (board.link_clock) board.restart_memories();
        else board.align();
    }

    // Reset a board. While no run lasts, all channels come up anew, so that it does not matter which board was first.
    void reset(Board& board) {
        if (all_idle()) {
            board.reset();
            bring_up();
            return;
        }
        begin();
        for (LinkEnd& link : board.links) link.cable->reset(now());
        board.begin_reset();
        move(board, RESET_TICKS);
        board.end_reset();
        move(board, RESET_TICKS);
        board.settle_reset();
        if (all_idle()) bring_up();
    }

    // Let the whole ring work until `board` is idle, for at most `limit` cycles.
    Result advance(Board& board, uint64_t limit, uint64_t& passed) {
        const auto started = std::chrono::steady_clock::now();
        auto seconds = [&] {
            return wall_used_s_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
        };
        begin();
        Result result = PASSED;
        uint64_t check = WALL_CHECK_TICKS;
        for (passed = 0; passed < limit && result == PASSED;) {
            passed += step(board, limit - passed);
            if (board.idle()) result = DONE;
            else if (stuck()) result = STUCK;
            else if (passed >= check) {
                check += WALL_CHECK_TICKS;
                if (violated()) result = VIOLATION;
                else if (wall_limit_s > 0 && seconds() > wall_limit_s) result = TOO_LONG;
            }
        }
        if (violated()) result = VIOLATION;
        if (result == STUCK)
            for (auto& one : boards_) one->last_progress = one->ticks;  // whoever goes on gets the same patience again
        wall_used_s_ = result == TOO_LONG ? 0 : seconds();
        return result;
    }

    // Let the ring work for so many cycles of a board, whether or not anything runs.
    void move(Board& board, uint64_t cycles) {
        for (uint64_t passed = 0; passed < cycles;) {
            begin();
            passed += step(board, cycles - passed);
        }
    }

    void cut(unsigned b, unsigned port, bool drops_channel) { cable(b, port).cut(now(), drops_channel); }
    void mend(unsigned b, unsigned port) { cable(b, port).mend(now()); }

    // Of the words that a port sends.
    Link<LinkWord>::Counters counters(unsigned b, unsigned port) { return cable(b, port).links[1 - port].counters(); }

private:
    Cable<LinkWord>& cable(unsigned b, unsigned port) { return cables_[(b + cables_.size() - 1 + port) % cables_.size()]; }

    bool all_idle() const {
        return std::all_of(boards_.begin(), boards_.end(), [](const auto& board) { return board->idle(); });
    }
    bool clocked() const {
        return std::any_of(boards_.begin(), boards_.end(), [](const auto& board) { return board->link_clock; });
    }

    // Time of the ring; in the first window, of the board that is furthest.
    uint64_t now() const {
        uint64_t ticks = 0;
        for (const auto& board : boards_)
            if (board->link_clock) ticks = std::max(ticks, board->ring_ticks);
        return origin_ + ticks * CORE_PERIOD;
    }

    void begin() {
        if (moving_) return;
        moving_ = true, wall_used_s_ = 0;
        for (auto& board : boards_) {
            if (board->link_clock) continue;
            if (board->idle()) board->align();
            board->start_link_clock(origin_);
        }
    }

    void stop() {
        moving_ = false, origin_ += window_end_ * CORE_PERIOD, window_end_ = first_window();
        for (auto& board : boards_) board->stop_link_clock();
    }

    uint64_t first_window() const { return std::max(window_, START_WINDOW); }

    // All boards to the end of the window.
    void catch_up() {
        begin();
        advance_to(window_end_);
    }

    // At most `limit` cycles of a board, not beyond the window; returns how many.
    uint64_t step(Board& board, uint64_t limit) {
        const uint64_t from = board.ring_ticks, target = std::min(from + limit, window_end_);
        advance_to(target);
        return target - from;
    }

    // All boards to a tick of the present window, but for those that are further.
    void advance_to(uint64_t target) {
        work_to(target);
        if (target < window_end_) return;
        exchange();
        if (all_idle()) stop();
        else window_end_ += window_;
    }

    void work_to(uint64_t target) {
        target_ = target;
        if (shared_) shared_->start(), shared_->finish();
        else
            for (auto& board : boards_) work(*board);
    }

    void work(Board& board) {
        while (board.ring_ticks < target_) board.tick();
    }

    void exchange() {
        for (auto& cable : cables_) cable.exchange();
    }

    // All channels down and up again, with all boards idle.
    void bring_up() {
        for (auto& board : boards_) {
            board->stop_link_clock();
            board->align();
            for (unsigned q = 0; q < LINKS; ++q) board->links[q].pins.clear();
            board->start_link_clock(origin_);
        }
        for (size_t c = 0; c < cables_.size(); ++c) cables_[c].configure(configs_[c], c, origin_);
        for (window_end_ = 0; window_end_ < BRING_UP_TICKS;) {
            window_end_ = std::min(window_end_ + window_, BRING_UP_TICKS);
            work_to(window_end_);
            exchange();
        }
        stop();
    }

    // Whether nothing has moved on any board for too long and no word is under way that could change this.
    bool stuck() const {
        for (const auto& board : boards_)
            if (board->ticks - board->last_progress <= no_progress_limit) return false;
        for (const auto& cable : cables_)
            for (const auto& link : cable.links)
                if (link.under_way([](const LinkWord& word) { return word.carries(); })) return false;
        return true;
    }

    bool violated() {
        for (size_t b = 0; b < boards_.size(); ++b)
            if (boards_[b]->violated()) return message = "board " + std::to_string(b) + ", " + boards_[b]->message, true;
        return false;
    }

    const std::vector<LinkConfig> configs_;
    std::vector<Cable<LinkWord>> cables_;
    std::vector<std::unique_ptr<Board>> boards_;
    uint64_t window_ = 1;                      // longest time for which boards may work alone, in ticks
    uint64_t window_end_ = 0;                  // end of the present window, or of the first of the next move
    uint64_t target_ = 0;                      // ticks to which the boards work at present
    uint64_t origin_ = 0;                      // time of the ring at which the present move began, or the next one will
    bool moving_ = false;
    double wall_used_s_ = 0;
    std::unique_ptr<SharedWork> shared_;       // the last member: its thread uses the others
};
