// Sends words through one direction of a cable: the C functions behind sim/devices/link_traffic.py.
#include <cstring>
#include "link_timing.h"

namespace {
struct NumberedWord {
    uint64_t number;
    bool last;
    uint32_t changed_bits;
    void flip(unsigned) { ++changed_bits; }
};
struct Event {
    uint64_t cycle, kind;
};
enum EventKind { RESET = 0, CUT = 1, CUT_SILENTLY = 2, MEND = 3 };
struct Arrival {
    uint64_t number, time;
    uint32_t changed_bits, last;
};
enum State : uint8_t { READY = 1, UP = 2, TAKEN = 4 };
}  // namespace

extern "C" {
// `count` words with their marks `last`, offered without a pause from cycle 0 on; `cycles` of both ends' clocks, the
// receiver's edges `phase` behind the sender's. Fills times[word] with the edge that took it, states[cycle], and the
// arrivals; returns how many there are.
uint64_t link_run(const LinkConfig* config, uint32_t cable_number, uint32_t end, uint64_t phase, const uint8_t* last,
                  uint64_t count, uint64_t cycles, const Event* events, uint64_t event_count, uint64_t* times,
                  uint8_t* states, Arrival* arrivals, uint64_t* counters) {
    Cable<NumberedWord> cable;
    cable.configure(*config, cable_number, 0);
    uint64_t sent = 0, arrived = 0, event = 0;
    for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
        const uint64_t now = (cycle + 1) * config->period;
        for (; event < event_count && events[event].cycle == cycle; ++event) switch (events[event].kind) {
            case RESET: cable.reset(now - config->period); break;
            case CUT: cable.cut(now - config->period, true); break;
            case CUT_SILENTLY: cable.cut(now - config->period, false); break;
            case MEND: cable.mend(now - config->period); break;
        }
        const bool ready = cable.ready(end, now), taken = ready && sent < count;
        states[cycle] = ready * READY | cable.up(now) * UP | taken * TAKEN;
        const NumberedWord word{sent, taken && last[sent], 0};
        if (taken) times[sent++] = now;
        cable.transmit_cycle(end, now, taken ? &word : nullptr);
        cable.exchange();
        NumberedWord received;
        if (cable.receive(1 - end, now + phase, received))
            arrivals[arrived++] = {received.number, now + phase, received.changed_bits, received.last};
    }
    const auto totals = cable.links[end].counters();
    const uint64_t values[] = {totals.words_sent, totals.words_lost, totals.words_corrupted, totals.words_received};
    std::memcpy(counters, values, sizeof values);
    return arrived;
}

uint32_t link_config_bytes() { return sizeof(LinkConfig); }
}
