// When things happen at one AXI port of a kernel and in the memory behind it, in cycles of the port; no data. The RTL
// harness and the timing executor both decide by this file alone, so equal events give equal cycles in both.
#pragma once
#include <cstdint>
#include "delays.h"
#include "dram_port.h"
#include "memory_config.h"

// Outputs belong to the present cycle. For cycle `now` call what happened, in the order of the declarations, then
// prepare(now + 1). While the port is idle and nothing is offered to it, cycles may be left out; prepare(n) must come
// before a cycle n whose outputs count. Time begins at 0 with reset(). Later events never change an earlier answer.
class PortTiming {
public:
    bool arready = false, awready = false, wready = false, rvalid = false, rlast = false, bvalid = false;

    void configure(const MemoryConfig& config, uint64_t seed, unsigned channel) {
        dram_ = config.kind != MEMORY_DELAYS;
        if (dram_) dram_port_.configure(config, seed, channel);
        else delays_.configure(config, seed, channel);
    }

    // Forget everything under way.
    void reset() {
        if (dram_) dram_port_.reset(), show(dram_port_);
        else delays_.reset(), show(delays_);
    }

    // A read address; offset in bytes from the start of the channel. Returns whether the data are those of this moment
    // (else of the moment when each beat appears).
    bool read_accepted(uint64_t now, uint64_t offset, unsigned beats) {
        if (!dram_) return delays_.read_accepted(now, beats);
        dram_port_.read_accepted(now, offset, beats);
        return false;
    }
    void beat_taken(uint64_t now) {
        rvalid = false;
        if (dram_) dram_port_.beat_taken();
        else delays_.beat_taken(now);
    }
    void write_address_accepted(uint64_t now, uint64_t offset, unsigned beats) {
        if (dram_) dram_port_.write_address_accepted(now, offset, beats);
        else delays_.write_address_accepted(now);
    }
    void write_data_accepted(uint64_t now, bool last) {
        if (dram_) dram_port_.write_data_accepted(now, last);
        else delays_.write_data_accepted(now, last);
    }
    // Memory changes when the response appears, not when it is taken.
    void response_taken(uint64_t) {
        bvalid = false;
        if (dram_) dram_port_.response_taken();
        else delays_.response_taken();
    }
    void prepare(uint64_t next) {
        if (dram_) dram_port_.prepare(next), show(dram_port_);
        else delays_.prepare(next), show(delays_);
    }

    // DRAM only, for a user that takes every beat at once and looks only now and then: see DramPort.
    bool looks_ahead() const { return dram_; }
    template <class Tell>
    void tell_beats(Tell tell) {
        dram_port_.tell_beats(tell);
    }
    uint32_t take_beats(uint64_t now, uint32_t& bursts) {
        rvalid = false;
        return dram_port_.take_beats(now, bursts);
    }
    uint64_t known_until(uint64_t now) const { return dram_port_.known_until(now); }

    bool idle() const { return dram_ ? dram_port_.idle() : delays_.idle(); }

    // Whether the beat that the port shows or waits for would have come by `now`, and earlier than it does, but for
    // refreshes of its memory.
    bool behind_refresh(uint64_t now) const { return dram_ && dram_port_.behind_refresh(now); }

    // Counters since reset: refreshes, accesses to an open row, to a closed bank, to a bank with another row open, and
    // changes of direction. All 0 without DRAM.
    uint64_t refreshes() const { return banks().refreshes; }
    uint64_t row_hits() const { return banks().row_hits; }
    uint64_t row_closed() const { return banks().row_closed; }
    uint64_t row_misses() const { return banks().row_misses; }
    uint64_t turnarounds() const { return banks().turnarounds; }

private:
    const DramBanks& banks() const { return dram_port_.channel.banks; }

    template <class Port>
    void show(const Port& port) {
        arready = port.arready, awready = port.awready, wready = port.wready;
        rvalid = port.rvalid, rlast = port.rlast, bvalid = port.bvalid;
    }

    bool dram_ = false;
    DelayPort delays_;
    DramPort dram_port_;
};
