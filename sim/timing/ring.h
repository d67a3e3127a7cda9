// Several boards and the cables between them, in lock step. Port 1 of board b is cabled to port 0 of board b + 1.
#pragma once
#include <memory>
#include <vector>
#include "board.h"
#include "link_timing.h"

namespace timing {

class Ring {
public:
    // Time is that of `links`; the boards' cores have a common period of `sizes.core_period`.
    Ring(std::vector<Board*> boards, const RingSizes& sizes, const LinkConfig& links)
        : sizes_(sizes), boards_(std::move(boards)), cables_(boards_.size()) {
        for (uint32_t b = 0; b < boards_.size(); ++b) {
            cables_[b].configure(links, b, 0);
            boards_[b]->core.ring = std::make_unique<CoreRing>(sizes_, b);
        }
    }

    // Until the runs of all boards have ended, or all have issued the first tile of position `stop` (if that is not
    // negative). The channels have come up before.
    int run(uint64_t limit, uint64_t idle_limit, int64_t stop) {
        bring_up();
        for (Board* board : boards_) board->begin();
        const uint64_t start = boards_[0]->record.start;
        for (uint64_t cycle = start; !ended(); ++cycle) {
            if (cycle - start >= limit) return TOO_LONG;
            if (stuck(idle_limit)) return STUCK;
            for (Board* board : boards_) if (running(*board)) board->core.decide(board->cycle);
            if (stop >= 0 && begun(stop)) return STOPPED;
            edges(origin_ + (cycle - start) * sizes_.core_period);
            for (Board* board : boards_) step(*board, cycle);
        }
        return FINISHED;
    }

    uint32_t count() const { return boards_.size(); }
    const CoreRing& core_ring(uint32_t board) const { return *boards_[board]->core.ring; }

private:
    static constexpr uint64_t SETTLE_CYCLES = 64;  // from a channel that is up to ports that are

    // As long as the RTL harness gives it. The link's clock then stands until the runs begin, with an edge of the core's.
    void bring_up() {
        const uint64_t down = CHANNEL_DOWN_CYCLES * sizes_.link_period;
        const uint64_t cycles = (down + sizes_.core_period - 1) / sizes_.core_period + SETTLE_CYCLES;
        for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
            edges(cycle * sizes_.core_period);
            for (Board* board : boards_) board->core.ring->rest(cycle);
        }
        origin_ = link_time_ = cycles * sizes_.core_period;
    }

    static bool running(const Board& board) { return board.core.state != State::IDLE; }
    bool ended() const {
        for (const Board* board : boards_) if (running(*board)) return false;
        return true;
    }
    bool begun(int64_t position) const {
        for (const Board* board : boards_) if (!board->record.begun(position)) return false;
        return true;
    }
    // A board may wait for others as long as any of them works.
    bool stuck(uint64_t idle_limit) const {
        for (const Board* board : boards_) if (running(*board) && board->core.idle_cycles <= idle_limit) return false;
        return true;
    }

    void step(Board& board, uint64_t cycle) {
        if (running(board)) {
            board.edges();
            board.core.clock(board.cycle++);
        } else {
            board.core.ring->rest(cycle);
        }
    }

    // The edges of the link's clock up to the core's; a common one leaves what the cores sample as it was before.
    void edges(uint64_t core_time) {
        for (; link_time_ < core_time; link_time_ += sizes_.link_period) link_edge();
        for (Board* board : boards_) board->core.ring->sample();
        if (link_time_ == core_time) link_edge(), link_time_ += sizes_.link_period;
        for (auto& cable : cables_) cable.exchange();
    }

    void link_edge() {
        const uint32_t count = boards_.size();
        for (uint32_t b = 0; b < count; ++b) {
            port_edge(boards_[b]->core.ring->node.ports[1], cables_[b], 0);
            port_edge(boards_[b]->core.ring->node.ports[0], cables_[(b + count - 1) % count], 1);
        }
    }

    void port_edge(RingPort& port, Cable<LinkWord>& cable, unsigned end) {
        const bool up = cable.up(link_time_), ready = up && cable.ready(end, link_time_);
        const LinkWord* word = ready ? port.word() : nullptr;
        cable.transmit_cycle(end, link_time_, word);
        const bool received = cable.receive(end, link_time_, received_);
        port.link_clock(up, ready, received ? &received_ : nullptr);
    }

    const RingSizes sizes_;
    std::vector<Board*> boards_;
    std::vector<Cable<LinkWord>> cables_;
    LinkWord received_;
    uint64_t link_time_ = 0, origin_ = 0;  // next edge of the link's clock; time at the end of the runs' first cycle
};

}  // namespace timing
