// All memory channels in lock step (hw/board/memory_ports.py): the core's side of their FIFOs, the join of their words.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>
#include "channel_port.h"
#include "write_command.h"

namespace timing {

class MemoryPorts {
    // Channels whose words are joined first. Row numbers count from the start of the run, so pops do not show in them.
    struct Group {
        std::vector<uint64_t> received;  // ring: cycle in which the last channel gets its word of a row
        uint64_t told = 0;               // rows whose cycle is known
        uint64_t sampled = 0, level = 0, counted = 0;
        Synchronized words;
        uint64_t& at(uint64_t row) { return received[row & (received.size() - 1)]; }
    };

    // Takes the cycle in which a channel gets its next word.
    struct Receiver {
        Group& group;
        uint64_t& told;
        void operator()(uint64_t cycle) const {
            uint64_t& received = group.at(told++);
            received = std::max(received, cycle);
        }
    };
    Receiver receiver(uint32_t c) { return {groups_[c / sizes_.join_channels], told_[c]}; }

public:
    uint64_t port_cycle = 0;  // the next one

    MemoryPorts(const Sizes& sizes, const MemoryConfig& memory, uint64_t seed, const uint64_t* offsets)
        : sizes_(sizes), channels_(sizes.channels), offsets_(offsets, offsets + sizes.channels),
          readers_(reads_alike(memory) ? 1 : sizes.channels), look_at_(sizes.channels, ChannelPort::NEVER),
          told_(sizes.channels), groups_((readers_ + sizes.join_channels - 1) / sizes.join_channels),
          takes_(sizes.pop_stages) {
        uint64_t rows = 1;
        while (rows < 2ull * sizes.fifo_words) rows *= 2;
        for (Group& group : groups_) group.received.resize(rows);
        commands_.ring.resize(2 * sizes.commands);
        for (uint32_t c = 0; c < sizes.channels; ++c) {
            channels_[c].memory.configure(memory, seed, c);
            channels_[c].memory.reset();
        }
    }

    ChannelPort& channel(uint32_t index) { return channels_[index]; }

    // Outputs of a core cycle, all from registers.
    bool read_ready() const { return commands_written_ - commands_free_.value != sizes_.commands; }
    bool row_valid() const { return joined_ != taken_; }
    bool row_popped() const { return takes_[take_at_]; }
    uint64_t rows_outstanding() const { return rows_outstanding_; }
    bool writes_unanswered() const { return writes_unanswered_; }
    bool write_ready() const { return write_ready_; }

    // What the core's clock samples of the port clock's registers: before an edge that both have, else at the core's.
    void sample() {
        for (Group& group : groups_) {
            uint64_t& rows = group.sampled;
            while (rows < group.told && group.at(rows) < port_cycle) group.at(rows++) = 0;
        }
        commands_sampled_ = commands_taken_;
        if (writes_outstanding_)
            for (ChannelPort& channel : channels_) channel.answers_sampled = channel.answers;
    }

    // One edge of the core's clock.
    void core_clock(bool read, uint64_t row, uint32_t beats, bool row_take, const WriteCommand& write) {
        bool join = true;
        for (const Group& group : groups_) join &= group.counted != joined_;
        for (Group& group : groups_) {
            group.counted += group.level > group.counted;
            group.level = group.words.value;
            group.words.clock(group.sampled);
        }
        joined_ += join;
        commands_free_.clock(commands_sampled_);
        if (read) {
            commands_.ring[commands_written_++ & (commands_.ring.size() - 1)] = {row, beats};
            rows_outstanding_ += beats;
        }
        rows_outstanding_ -= takes_[take_at_];
        taken_ += row_take;
        takes_[take_at_] = row_take;
        take_at_ = take_at_ + 1 == takes_.size() ? 0 : take_at_ + 1;
        // counts and room as they were before this edge, and the write of this cycle
        writes_unanswered_ = writes_outstanding_ || write.valid;
        write_ready_ = true;
        if (writes_outstanding_) answers();
        if (write.valid) accept(write);
    }

    // One edge of the port clock.
    void port_clock() {
        const bool more = commands_.shown != commands_shown_.value;
        commands_.shown = commands_shown_.value;
        if (more || port_cycle >= look_) {
            look_ = commands_taken_ = ChannelPort::NEVER;
            for (uint32_t c = 0; c < sizes_.channels; ++c) {
                ChannelPort& channel = channels_[c];
                const bool reads = c < readers_;
                const Commands& commands = reads ? commands_ : no_commands_;
                if ((more && reads) || port_cycle >= look_at_[c])
                    look_at_[c] = channel.step(sizes_, commands, offsets_[c], port_cycle, receiver(c));
                look_ = std::min(look_, look_at_[c]);
                if (reads) commands_taken_ = std::min(commands_taken_, channel.commands_taken);
            }
            count_told();
        }
        commands_shown_.clock(commands_written_);
        ++port_cycle;
    }

    // Whether a channel that has delivered least is late because of a refresh.
    bool behind_refresh() {
        if (!channels_[0].memory.looks_ahead()) return false;
        uint64_t least = ~0ull;
        for (uint32_t c = 0; c < readers_; ++c) {
            channels_[c].catch_up(port_cycle, receiver(c));
            least = std::min(least, channels_[c].words);
        }
        count_told();
        for (uint32_t c = 0; c < readers_; ++c)
            if (channels_[c].words == least && channels_[c].memory.behind_refresh(port_cycle)) return true;
        return false;
    }

    // Whether channel `c` is held up by a refresh.
    bool behind_refresh(uint32_t c) {
        if (c >= readers_ || !channels_[c].memory.looks_ahead()) return false;
        channels_[c].catch_up(port_cycle, receiver(c));
        count_told();
        return channels_[c].memory.behind_refresh(port_cycle);
    }

private:
    // Delays that are always the same, of reads apart from writes: all channels get the same commands and so deliver in
    // the same cycles, and one of them stands for all.
    static bool reads_alike(const MemoryConfig& memory) {
        const bool fixed = memory.read_min == memory.read_max && !memory.gap_permille && !memory.stall_permille;
        return memory.kind == MEMORY_DELAYS && fixed;
    }

    // How many rows each group knows of: those that all of its channels have told.
    void count_told() {
        for (uint32_t c = 0; c < readers_; ++c) {
            uint64_t& told = groups_[c / sizes_.join_channels].told;
            told = c % sizes_.join_channels ? std::min(told, told_[c]) : told_[c];
        }
    }

    void answers() {
        for (uint32_t c = 0; c < sizes_.channels; ++c) {
            ChannelPort& channel = channels_[c];
            if (!channel.writes_outstanding) continue;
            write_ready_ &= channel.writes_outstanding + 2 <= sizes_.writes;
            if (channel.answers_taken != channel.answers_seen.value)
                ++channel.answers_taken, --channel.writes_outstanding, --writes_outstanding_;
            channel.answers_seen.clock(channel.answers_sampled);
        }
    }

    void accept(const WriteCommand& write) {
        for (uint32_t c = 0; c < sizes_.channels; ++c) {
            if (!(write.channels >> c & 1)) continue;
            ChannelPort& channel = channels_[c];
            channel.writes.push(write.row), ++channel.writes_queued;
            ++channel.writes_outstanding, ++writes_outstanding_;
            look_ = look_at_[c] = 0;
        }
    }

    const Sizes& sizes_;
    std::vector<ChannelPort> channels_;
    std::vector<uint64_t> offsets_;
    const uint32_t readers_;
    std::vector<uint64_t> look_at_;  // port cycle at which each channel wants to be looked at
    std::vector<uint64_t> told_;     // words of each channel of which the group knows
    std::vector<Group> groups_;
    std::vector<uint8_t> takes_;
    Commands commands_;
    const Commands no_commands_{};
    uint64_t look_ = ChannelPort::NEVER, commands_taken_ = 0;  // least of all channels
    uint32_t take_at_ = 0;
    uint64_t commands_written_ = 0, commands_sampled_ = 0;
    Synchronized commands_free_, commands_shown_;
    uint64_t joined_ = 0, taken_ = 0, rows_outstanding_ = 0;
    uint32_t writes_outstanding_ = 0;
    bool writes_unanswered_ = false, write_ready_ = true;
};

}  // namespace timing
