// Drives traffic into the models: the C functions behind sim/devices/traffic.py.
#include <deque>
#include <memory>
#include <vector>
#include "port_timing.h"
#include "switch.h"

namespace {
struct Request {
    uint64_t offset, not_before;
    uint32_t beats;
    uint16_t channel, write;
};
struct Answer {
    uint64_t accepted, first, last;  // cycles of the address, of the first and of the last beat (or of the response)
};
struct Totals {
    uint64_t cycles, refreshes, row_hits, row_closed, row_misses, turnarounds, late_cycles;
};

// One port of a kernel that sends its requests in order, reads and writes independently of each other.
struct Master {
    PortTiming timing;
    const Request* requests;
    uint64_t count, interval, outstanding;
    bool skip_idle;
    Answer* answers;
    uint64_t read = 0, write = 0, data = 0;  // next to send: read address, write address, write data
    uint64_t next_read = 0, beats_sent = 0, beats_taken = 0, late_cycles = 0;
    std::deque<uint64_t> reads, writes;  // under way

    uint64_t following(uint64_t index, bool writes_only) const {
        while (index < count && bool(requests[index].write) != writes_only) ++index;
        return index;
    }
    void start() { read = following(0, false), write = data = following(0, true); }
    bool done() const { return read == count && write == count && data == count && reads.empty() && writes.empty(); }

    void cycle(uint64_t now) {
        late_cycles += !timing.rvalid && timing.behind_refresh(now);
        const bool room = !outstanding || reads.size() < outstanding;
        const bool writes_room = !outstanding || writes.size() < outstanding;
        if (read < count && timing.arready && room && now >= next_read && now >= requests[read].not_before) {
            timing.read_accepted(now, requests[read].offset, requests[read].beats);
            answers[read].accepted = now;
            reads.push_back(read);
            read = following(read + 1, false), next_read = now + interval;
        }
        if (timing.rvalid) {
            Answer& answer = answers[reads.front()];
            if (!beats_taken++) answer.first = now;
            if (timing.rlast) answer.last = now, reads.pop_front(), beats_taken = 0;
            timing.beat_taken(now);
        }
        if (write < count && timing.awready && writes_room && now >= requests[write].not_before) {
            timing.write_address_accepted(now, requests[write].offset, requests[write].beats);
            answers[write].accepted = now;
            writes.push_back(write);
            write = following(write + 1, true);
        }
        if (data < count && timing.wready && now >= requests[data].not_before && (data < write || data == write)) {
            const bool last = ++beats_sent == requests[data].beats;
            timing.write_data_accepted(now, last);
            if (last) beats_sent = 0, data = following(data + 1, true);
        }
        if (timing.bvalid) {
            answers[writes.front()].first = answers[writes.front()].last = now;
            writes.pop_front();
            timing.response_taken(now);
        }
        if (!skip_idle || !timing.idle() || sends(now + 1)) timing.prepare(now + 1);
    }

    // Whether there may be something to send in a cycle.
    bool sends(uint64_t cycle) const {
        for (const uint64_t next : {read, write, data})
            if (next < count && cycle >= requests[next].not_before) return true;
        return false;
    }
};
}  // namespace

extern "C" {
// `ports` ports of the same configuration, channels 0 and up, send the same requests at the same time. `skip_idle`:
// leave out the cycles in which a port has nothing to do. Returns 0, or 1 if they are not through by `limit` cycles.
int traffic_run(const MemoryConfig* config, uint64_t seed, uint32_t ports, const Request* requests, uint64_t count,
                uint64_t interval, uint64_t outstanding, uint64_t limit, int skip_idle, Answer* answers,
                Totals* totals) {
    std::vector<std::unique_ptr<Master>> masters;
    for (uint32_t port = 0; port < ports; ++port) {
        masters.push_back(std::make_unique<Master>());
        Master& master = *masters.back();
        master.requests = requests, master.count = count, master.interval = interval, master.outstanding = outstanding;
        master.answers = answers + port * count, master.skip_idle = skip_idle;
        master.timing.configure(*config, seed, port), master.timing.reset(), master.timing.prepare(0);
        master.start();
    }
    uint32_t busy = ports;
    for (uint64_t now = 0; busy; ++now) {
        if (now >= limit) return 1;
        for (uint32_t port = 0; port < ports; ++port) {
            Master& master = *masters[port];
            if (totals[port].cycles) continue;
            master.cycle(now);
            if (!master.done()) continue;
            --busy;
            const PortTiming& timing = master.timing;
            totals[port] = {now + 1, timing.refreshes(), timing.row_hits(), timing.row_closed(), timing.row_misses(),
                            timing.turnarounds(), master.late_cycles};
        }
    }
    return 0;
}

// One port that reads through the switch, a configuration a channel. Of the answers `last` is set.
int switch_run(const MemoryConfig* configs, uint32_t channels, uint32_t there, uint32_t back, uint32_t release,
               uint64_t seed, const Request* requests, uint64_t count, uint64_t interval, uint64_t limit,
               Answer* answers) {
    SwitchPort port({configs, configs + channels}, seed, there, back, release);
    uint64_t sent = 0, returned = 0, next_read = 0;
    for (uint64_t now = 0; returned < count; ++now) {
        if (now >= limit) return 1;
        if (sent < count && port.ready() && now >= next_read && now >= requests[sent].not_before) {
            const Request& request = requests[sent];
            port.accept(now, request.channel, request.offset, request.beats);
            answers[sent++].accepted = now, next_read = now + interval;
        }
        if (port.prepare(now + 1)) answers[returned++].last = now + 1;
    }
    return 0;
}

// Beats that pass a lateral link in so many cycles.
uint64_t lateral_run(uint32_t masters, uint32_t burst_beats, uint64_t cycles) {
    LateralLink link(masters, burst_beats);
    uint64_t beats = 0;
    for (uint64_t cycle = 0; cycle < cycles; ++cycle) beats += link.step();
    return beats;
}

uint32_t config_bytes() { return sizeof(MemoryConfig); }
}
