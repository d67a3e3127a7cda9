// One board: its core and memory ports, and the order of the edges of their clocks.
#pragma once
#include <utility>
#include "core.h"

namespace timing {

enum Outcome { FINISHED = 0, STUCK = 1, TOO_LONG = 2, STOPPED = 3 };

struct Board {
    const Sizes sizes;
    const Registers cfg;
    const Program program;
    Record record;
    MemoryPorts ports;
    Core core;
    uint64_t cycle = 0;  // of the core; cycle n ends at time n * core_period, where both clocks have an edge at time 0
    std::vector<uint64_t> behind;  // channels that a refresh holds up: since which cycle, 0 if not; only for events

    Board(const Sizes& given, const Registers& registers, Program what, const MemoryConfig& memory, uint64_t seed,
          const uint64_t* offsets)
        : sizes(given), cfg(registers), program(std::move(what)), ports(sizes, memory, seed, offsets),
          core(sizes, program, cfg, ports, record), behind(sizes.channels) {}

    // Until the run ends, or the first tile of position `stop` (if that is not negative) is issued.
    int run(uint64_t limit, uint64_t idle_limit, int64_t stop) {
        begin();
        for (; core.state != State::IDLE; ++cycle) {
            if (cycle - record.start >= limit) return TOO_LONG;
            if (core.idle_cycles > idle_limit) return STUCK;
            core.decide(cycle);
            if (stop >= 0 && record.begun(stop)) return STOPPED;
            edges();
            core.clock(cycle);
        }
        return FINISHED;
    }

    // Up to the first cycle of the run.
    void begin() {
        for (; cycle < sizes.start_cycle; ++cycle) edges(), ports.core_clock(false, 0, 0, false, {});
        record.start = cycle;
    }

    // The edges of the port clock up to the core's edge; a common one leaves what the core samples as it was before.
    void edges() {
        const uint64_t core_time = cycle * sizes.core_period;
        uint64_t port_time = ports.port_cycle * sizes.port_period;
        for (; port_time < core_time; port_time += sizes.port_period) port_edge();
        ports.sample();
        if (port_time == core_time) port_edge();
    }

    void port_edge() {
        ports.port_clock();
        if (record.keep_events) watch_refresh();
    }

    void watch_refresh() {
        for (uint32_t c = 0; c < sizes.channels; ++c) {
            const bool now = ports.behind_refresh(c);
            if (!now && behind[c]) record.event(UNIT_REFRESH, c, 0, behind[c], cycle + 1);
            behind[c] = !now ? 0 : behind[c] ? behind[c] : cycle + 1;
        }
    }
};

}  // namespace timing
