// The switch between HBM ports and pseudo-channels, beyond what the kernel's own ports need (each reads one channel of
// its own group): a port that reads from several channels, and the lateral links between groups of four ports.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>
#include "dram_channel.h"
#include "memory_config.h"

// Reads of one AXI ID by one port of the kernel from several pseudo-channels. Data return in the order of the
// addresses, and different channels would not keep it: an address for another channel is held until all data before it
// have returned. It is held behind the port's own switch, whose delay is therefore no part of the wait (so the figures
// of u280.md a.7 fit; otherwise they are missed by 5 to 8 %).
class SwitchPort {
public:
    // One configuration a channel: their delays differ by distance. `there` and `back`: memory cycles of the port's own
    // switch. `release`: memory cycles from the return of all data to the release of an address for another channel.
    SwitchPort(const std::vector<MemoryConfig>& configs, uint64_t seed, uint32_t there, uint32_t back, uint32_t release)
        : config_(configs.front()), there_(there), back_(back), release_(release), channels_(configs.size()) {
        for (unsigned i = 0; i < configs.size(); ++i) channels_[i].configure(configs[i], seed, i), channels_[i].reset();
    }

    bool ready() const { return under_way_ < config_.reads_outstanding; }

    void accept(uint64_t now, unsigned channel, uint64_t offset, unsigned beats) {
        const uint32_t first = offset / config_.column_bytes;
        const uint32_t columns = beats * config_.port_bytes / config_.column_bytes;
        bursts_.push_back({channel, columns, 0, 0});
        for (uint32_t done = 0; done < columns; done += config_.burst_columns) {
            const uint32_t count = std::min(config_.burst_columns, columns - done);
            commands_.push_back({std::max(address_free_, arrival(now)), channel, first + done, count});
            address_free_ = commands_.back().time + config_.port_period;
            ++under_way_;
        }
    }

    // Whether the last beat of the oldest burst is at the kernel's port in cycle `next`.
    bool prepare(uint64_t next) {
        release();
        for (DramChannel& channel : channels_) channel.advance(arrival(next) - 1);
        while (complete_ < bursts_.size()) {
            Burst& burst = bursts_[complete_];
            uint64_t time;
            uint32_t late;
            if (!channels_[burst.channel].data(time, late)) break;
            channels_[burst.channel].take();
            column_free_ = std::max(column_free_ + config_.port_period, time);
            --open_;
            if (++burst.returned == burst.columns) burst.time = column_free_, ++complete_;
        }
        if (!complete_) return false;
        const Burst& oldest = bursts_.front();
        const uint64_t beats = oldest.columns * config_.column_bytes / config_.port_bytes;
        if (std::max(last_beat_ + beats, delivery(oldest.time)) > next) return false;
        last_beat_ = next;
        under_way_ -= (oldest.columns + config_.burst_columns - 1) / config_.burst_columns;
        bursts_.pop_front(), --complete_;
        return true;
    }

private:
    struct Burst {
        unsigned channel;
        uint32_t columns, returned;
        uint64_t time;  // when the last one is at the memory port
    };
    struct Command {
        uint64_t time;
        unsigned channel;
        uint32_t column, count;
    };

    uint64_t arrival(uint64_t cycle) const {
        return (cycle + config_.converter_cycles) * config_.memory_mhz / config_.port_mhz + there_;
    }
    uint64_t delivery(uint64_t time) const {
        const uint64_t whole = (time + back_) * config_.port_mhz + config_.memory_mhz - 1;
        return whole / config_.memory_mhz + config_.converter_cycles;
    }

    void release() {
        while (!commands_.empty()) {
            Command& command = commands_.front();
            if (command.channel != channel_) {
                if (open_) return;
                channel_ = command.channel;
                command.time = std::max(command.time, column_free_ + release_);
            }
            released_ = std::max(released_, command.time);
            channels_[channel_].read(released_, command.column, command.count);
            released_ += config_.port_period;
            open_ += command.count;
            commands_.pop_front();
        }
    }

    MemoryConfig config_;
    uint32_t there_, back_, release_;
    std::vector<DramChannel> channels_;
    std::deque<Burst> bursts_;
    std::deque<Command> commands_;      // held by the switch
    unsigned channel_ = 0;              // of the last address that it let pass
    uint32_t open_ = 0;                 // columns released and not returned
    uint32_t under_way_ = 0;            // transactions of the memory port
    uint64_t complete_ = 0;             // bursts whose data are all at the memory port
    uint64_t address_free_ = 0, released_ = 0, column_free_ = 0, last_beat_ = 0;
};

// A lateral link that masters share: one beat a cycle, held for a whole burst, one dead cycle when the master changes.
class LateralLink {
public:
    LateralLink(unsigned masters, unsigned burst_beats) : masters_(masters), burst_beats_(burst_beats) {}

    // One cycle in which every master has something to send; whether a beat passes.
    bool step() {
        if (!left_) {
            const unsigned next = (owner_ + 1) % masters_;
            left_ = burst_beats_;
            if (next != owner_) {
                owner_ = next;
                return false;
            }
        }
        --left_;
        return true;
    }

private:
    unsigned masters_, burst_beats_, owner_ = 0, left_ = 0;
};
