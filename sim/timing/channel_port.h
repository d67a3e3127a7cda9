// Port side of a memory channel (hw/board/channel_port.py) with the memory behind it; what is in it counts port cycles.
#pragma once
#include "clocked_queue.h"
#include "hardware.h"
#include "port_timing.h"

namespace timing {

struct ReadCommand {
    uint64_t row;
    uint32_t beats;
};

// Commands as the port clock sees them: all channels get the same ones in the same cycles.
struct Commands {
    std::vector<ReadCommand> ring;  // a power of two
    uint64_t shown = 0;

    const ReadCommand& at(uint64_t number) const { return ring[number & (ring.size() - 1)]; }
};

class ChannelPort {
public:
    static constexpr uint64_t NEVER = ~0ull;
    PortTiming memory;
    uint64_t commands_taken = 0, words = 0;  // words: received before the cycle for which memory is prepared
    Synchronized writes_seen, answers_seen;  // writes in this clock, answers in the core's
    uint64_t writes_queued = 0, writes_taken = 0, answers = 0, answers_sampled = 0, answers_taken = 0;
    Queue<uint64_t> writes;  // rows
    uint32_t writes_outstanding = 0;

    // Bring memory to cycle `now`, before which nothing but read data moved since the last look. receive(cycle) is told
    // of words in order, when they become known; all that are received before known_until_ are.
    template <class Receive>
    void catch_up(uint64_t now, Receive receive) {
        if (prepared_ == now) return;
        prepared_ = now;
        if (!memory.looks_ahead()) {
            memory.prepare(now);
            return;
        }
        uint32_t bursts = 0;
        words += memory.take_beats(now, bursts);
        unanswered_ -= bursts;
        memory.prepare(now);
        memory.tell_beats(receive);
        known_until_ = memory.known_until(now);
    }

    // Port cycle `now`; returns the next one at which to look at this channel if no command or write comes before.
    template <class Receive>
    uint64_t step(const Sizes& sizes, const Commands& commands, uint64_t offset, uint64_t now, Receive receive) {
        const bool writing = writes_outstanding, ahead = memory.looks_ahead();
        if (arvalid_ || writing || !ahead || known_until_ <= now || unanswered_ == sizes.bursts) catch_up(now, receive);
        const bool ready = memory.arready, word = !ahead && memory.rvalid;
        const bool take = commands_taken != commands.shown && (!arvalid_ || ready) && unanswered_ != sizes.bursts;
        if (arvalid_ && ready) memory.read_accepted(now, offset + address_ * sizes.port_bytes, beats_);
        if (word) {
            unanswered_ -= memory.rlast;
            memory.beat_taken(now);
            receive(now);
        }
        if (take) {
            const ReadCommand& command = commands.at(commands_taken++);
            address_ = command.row, beats_ = command.beats, arvalid_ = true, ++unanswered_;
        } else if (ready) {
            arvalid_ = false;
        }
        if (writing) write(sizes, offset, now);
        if (arvalid_ || writing || commands_taken != commands.shown) return now + 1;
        return !unanswered_ ? NEVER : ahead ? known_until_ : now + 1;
    }

private:
    void write(const Sizes& sizes, uint64_t offset, uint64_t now) {
        const bool address_ready = memory.awready, data_ready = memory.wready;
        const bool take = writes_taken != writes_seen.value && (!awvalid_ || address_ready) && (!wvalid_ || data_ready);
        if (awvalid_ && address_ready) memory.write_address_accepted(now, offset + write_row_ * sizes.port_bytes, 1);
        if (wvalid_ && data_ready) memory.write_data_accepted(now, true);
        if (memory.bvalid) memory.response_taken(now), ++answers;
        if (take) {
            write_row_ = writes.front(), writes.pop();
            awvalid_ = wvalid_ = true, ++writes_taken;
        } else {
            awvalid_ &= !address_ready, wvalid_ &= !data_ready;
        }
        writes_seen.clock(writes_queued);
    }

    bool arvalid_ = false, awvalid_ = false, wvalid_ = false;
    uint32_t beats_ = 0, unanswered_ = 0;
    uint64_t address_ = 0, write_row_ = 0, prepared_ = 0, known_until_ = 0;
};

}  // namespace timing
