// An AXI port of the kernel in front of one DRAM channel: clock and width converter, bursts of the memory port, limits
// of outstanding transactions. Times of the kernel's port are port cycles, those of the memory port memory cycles.
#pragma once
#include <algorithm>
#include <cstdint>
#include "dram_channel.h"
#include "memory_config.h"

class DramPort {
public:
    static constexpr unsigned MAX_BURSTS = 64;      // of the kernel and a kind, not answered; a power of two
    static constexpr unsigned MAX_BEATS = 2048;     // of reads, not taken; a power of two
    static constexpr unsigned MAX_DATA_AHEAD = 16;  // write beats that the converter holds before their address

    bool arready = false, awready = false, wready = false, rvalid = false, rlast = false, bvalid = false;
    DramChannel channel;

    void configure(const MemoryConfig& config, uint64_t seed, unsigned number) {
        config_ = config;
        cycles_ = config.memory_mhz % config.port_mhz ? 0 : config.memory_mhz / config.port_mhz;
        channel.configure(config, seed, number);
    }

    void reset() {
        channel.reset();
        arready = awready = wready = rvalid = rlast = bvalid = false;
        read_head_ = read_free_ = read_filling_ = read_end_ = 0;
        write_head_ = write_free_ = write_data_ = write_end_ = 0;
        ahead_head_ = ahead_end_ = beat_head_ = beat_end_ = 0;
        reads_ = writes_ = taken_beats_ = filled_beats_ = filled_columns_ = write_beats_ = 0;
        address_free_ = data_free_ = column_free_ = 0;
        told_ = 0, tell_cycle_ = take_cycle_ = 0;
    }

    bool idle() const { return read_head_ == read_end_ && write_head_ == write_end_ && ahead_head_ == ahead_end_; }

    void read_accepted(uint64_t now, uint64_t offset, unsigned beats) {
        const uint32_t first = offset / config_.column_bytes;
        const uint32_t columns = (offset + uint64_t(beats) * config_.port_bytes - 1) / config_.column_bytes - first + 1;
        const unsigned commands = (columns + config_.burst_columns - 1) / config_.burst_columns;
        reads_list_[read_end_++ % MAX_BURSTS] = {0, uint32_t(offset % config_.column_bytes), beats, commands};
        reads_ += commands;
        for (uint32_t done = 0; done < columns; done += config_.burst_columns) {
            address_free_ = std::max(address_free_, arrival(now));
            channel.read(address_free_, first + done, std::min(config_.burst_columns, columns - done));
            address_free_ += config_.port_period;
        }
    }

    void beat_taken() {
        rvalid = false;
        ++beat_head_;
        if (++taken_beats_ == reads_list_[read_head_ % MAX_BURSTS].beats) ++read_head_, taken_beats_ = 0;
    }

    void write_address_accepted(uint64_t now, uint64_t offset, unsigned beats) {
        const uint64_t burst_bytes = uint64_t(config_.burst_columns) * config_.column_bytes;
        const unsigned commands = (uint64_t(beats) * config_.port_bytes + burst_bytes - 1) / burst_bytes;
        const uint32_t first = offset / config_.column_bytes;
        writes_list_[write_end_++ % MAX_BURSTS] = {offset, commands, channel.open_write(), first, false};
        writes_ += commands;
        while (ahead_head_ != ahead_end_ && write_data_ != write_end_)
            take_data(now, ahead_[ahead_head_++ % MAX_DATA_AHEAD]);
    }

    void write_data_accepted(uint64_t now, bool last) {
        if (write_data_ == write_end_) ahead_[ahead_end_++ % MAX_DATA_AHEAD] = last;
        else take_data(now, last);
    }

    void response_taken() {
        bvalid = false;
        ++write_head_;
    }

    void prepare(uint64_t next) {
        if (idle() && !reads_ && !writes_) {
            arready = awready = wready = true;
            return;
        }
        const uint64_t memory = arrival(next);  // when what the kernel sends next is at the memory port
        channel.advance(memory - 1);
        if (read_filling_ != read_end_) collect();
        uint64_t time;
        for (; read_free_ != read_filling_ && read(read_free_).returned <= memory; ++read_free_)
            reads_ -= read(read_free_).commands;
        for (; write_free_ != write_data_ && answered(write_free_, time) && time <= memory; ++write_free_)
            writes_ -= write(write_free_).commands;
        if (!rvalid && beat_head_ != beat_end_) {
            rvalid = beats_[beat_head_ % MAX_BEATS].cycle <= next;
            rlast = rvalid && taken_beats_ + 1 == read(read_head_).beats;
        }
        if (!bvalid && write_head_ != write_data_) bvalid = answered(write_head_, time) && delivery(time) <= next;
        arready = reads_ < config_.reads_outstanding && read_end_ - read_head_ < MAX_BURSTS;
        awready = writes_ < config_.writes_outstanding && write_end_ - write_head_ < MAX_BURSTS;
        wready = ahead_end_ - ahead_head_ < MAX_DATA_AHEAD;
    }

    bool behind_refresh(uint64_t now) const {
        if (read_head_ == read_end_) return false;
        if (beat_head_ == beat_end_) return channel.late();
        const Beat& beat = beats_[beat_head_ % MAX_BEATS];
        return beat.late && beat.cycle <= now + port_cycles(beat.late);
    }

    // Instead of rvalid and beat_taken(), for a user that takes every beat at once and looks only now and then. It calls
    // prepare(now) for cycles in which something is accepted and for known_until() of its latest look; before that
    // take_beats(now) for the beats of the cycles since then, after it tell_beats() for those that have become known.
    // tell_beats: tell(cycle) for each beat, in order, with the cycle in which it is taken.
    template <class Tell>
    void tell_beats(Tell tell) {
        for (; told_ != beat_end_; ++told_) {
            const uint64_t cycle = std::max<uint64_t>(beats_[told_ % MAX_BEATS].cycle, tell_cycle_);
            tell_cycle_ = cycle + 1;
            tell(cycle);
        }
    }
    // Returns how many beats they were, and adds the bursts that they end.
    uint32_t take_beats(uint64_t now, uint32_t& bursts) {
        const uint32_t first = beat_head_;
        for (; beat_head_ != beat_end_; ++beat_head_) {
            const uint64_t cycle = std::max<uint64_t>(beats_[beat_head_ % MAX_BEATS].cycle, take_cycle_);
            if (cycle >= now) break;
            take_cycle_ = cycle + 1;
            if (++taken_beats_ == read(read_head_).beats) ++read_head_, ++bursts, taken_beats_ = 0;
        }
        rvalid = false;
        return beat_head_ - first;
    }
    // All beats before this cycle are known after prepare(now): what is not decided then is decided later.
    uint64_t known_until(uint64_t now) const {
        return delivery(arrival(now) + config_.address_delay + config_.data_delay);
    }

private:
    struct Read {
        uint64_t returned;  // when the last column has left the memory port
        uint32_t start;     // of the first beat in its column
        uint32_t beats, commands;
    };
    struct Write {
        uint64_t offset;
        uint32_t commands, number;  // number in the channel
        uint32_t column;            // first one not yet told to the channel
        bool complete;
    };
    struct Beat {
        uint64_t cycle : 48, late : 16;  // when it can appear; by how many memory cycles refreshes have delayed it
    };

    const Read& read(uint32_t number) const { return reads_list_[number % MAX_BURSTS]; }
    const Write& write(uint32_t number) const { return writes_list_[number % MAX_BURSTS]; }

    uint64_t memory_time(uint64_t cycle) const {
        return cycles_ ? cycle * cycles_ : cycle * config_.memory_mhz / config_.port_mhz;
    }
    uint64_t port_cycles(uint64_t time) const {
        if (cycles_) return (time + cycles_ - 1) / cycles_;
        return (time * config_.port_mhz + config_.memory_mhz - 1) / config_.memory_mhz;
    }
    // When what leaves the kernel in a cycle is at the memory port.
    uint64_t arrival(uint64_t cycle) const { return memory_time(cycle + config_.converter_cycles); }
    // When what is at the memory port at a time is at the kernel.
    uint64_t delivery(uint64_t time) const { return port_cycles(time) + config_.converter_cycles; }

    void take_data(uint64_t now, bool last) {
        Write& write = writes_list_[write_data_ % MAX_BURSTS];
        ++write_beats_;
        const uint64_t end_byte = write.offset + uint64_t(write_beats_) * config_.port_bytes;
        const uint32_t end = (end_byte + config_.column_bytes - 1) / config_.column_bytes;
        const uint32_t columns = end - write.column;
        const uint32_t memory_beats = std::max(1u, config_.port_bytes / config_.column_bytes);
        data_free_ = std::max(data_free_, arrival(now)) + config_.port_period * memory_beats;
        if (columns && (last || columns >= config_.burst_columns)) {
            channel.write(data_free_ - config_.port_period, write.column, columns, write.number);
            write.column = end;
        }
        if (last) write.complete = true, write_beats_ = 0, ++write_data_;
    }

    // Columns leave the memory port in the order of the addresses and are put together to beats.
    void collect() {
        uint64_t time;
        for (uint32_t late; channel.data(time, late);) {
            channel.take();
            column_free_ = std::max(column_free_ + config_.port_period, time);
            ++filled_columns_;
            Read& read = reads_list_[read_filling_ % MAX_BURSTS];
            const uint32_t filled_bytes = filled_columns_ * config_.column_bytes - read.start;
            while (filled_beats_ < read.beats && (filled_beats_ + 1) * config_.port_bytes <= filled_bytes)
                beats_[beat_end_++ % MAX_BEATS] = {delivery(column_free_), late}, ++filled_beats_;
            if (filled_beats_ != read.beats) continue;
            read.returned = column_free_;
            ++read_filling_, filled_beats_ = filled_columns_ = 0;
        }
    }

    bool answered(uint32_t number, uint64_t& time) const {
        return write(number).complete && channel.written(write(number).number, time);
    }

    MemoryConfig config_{};
    uint64_t cycles_ = 0;  // memory cycles in a port cycle, 0 if that is not a whole number
    Read reads_list_[MAX_BURSTS];
    Write writes_list_[MAX_BURSTS];
    Beat beats_[MAX_BEATS];
    bool ahead_[MAX_DATA_AHEAD] = {};  // data without address: whether each is a last one
    // Counts of bursts: taken by the kernel, gone from the memory port, put together, accepted.
    uint32_t read_head_ = 0, read_free_ = 0, read_filling_ = 0, read_end_ = 0;
    uint32_t write_head_ = 0, write_free_ = 0, write_data_ = 0, write_end_ = 0;
    uint32_t ahead_head_ = 0, ahead_end_ = 0, beat_head_ = 0, beat_end_ = 0;
    uint32_t reads_ = 0, writes_ = 0;  // transactions under way at the memory port
    uint32_t taken_beats_ = 0, filled_beats_ = 0, filled_columns_ = 0, write_beats_ = 0;  // of the burst in each place
    uint32_t told_ = 0;                         // beats told
    uint64_t tell_cycle_ = 0, take_cycle_ = 0;  // first cycle in which the next beat told, or taken, may be taken
    uint64_t address_free_ = 0, data_free_ = 0, column_free_ = 0;  // from when the memory port can take or give another
};
