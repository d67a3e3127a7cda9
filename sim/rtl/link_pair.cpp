// Two link ports on one cable: traffic that is drawn by a seed goes both ways, and what arrives is compared with it.
// Python's side is sim/rtl/link_pair.py.
#include "Vlink_port.h"
#include "link_timing.h"
#include "verilated.h"
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

namespace {

// Layout of header_layout() in hw/link/frame.py.
struct Header {
    uint32_t kind, beats, hops, origin, run, address, strips;
    uint64_t bits() const {
        return kind | beats << 3 | hops << 8 | origin << 11 | run << 14 | uint64_t(address) << 22 |
               uint64_t(strips) << 38;
    }
};

constexpr unsigned MAX_BEATS = 16, BEAT_WORDS = 8;
constexpr unsigned ENTRY_BEATS = ENTRY_BITS / 256;
enum Kind { STRIPS = 1, HELLO = 4, ABORT = 5 };

// Python fills it in (PairTraffic). Frames by board and region. Probabilities are in 2^-64, times in kernel cycles.
struct Traffic {
    uint64_t seed, frames[2][2], full_frames, write_pause, rewrite, read_pause, long_pause, long_pause_cycles;
};

struct Word {
    uint32_t data[BEAT_WORDS];
    uint32_t keep;
    bool last;
    void flip(unsigned bit) { data[bit / 32] ^= 1u << bit % 32; }
};

struct Frame {
    Header header;
    uint32_t payload[MAX_BEATS * BEAT_WORDS];
};

// Frame `number` that board `side` sends from `region`: the same whoever asks.
Frame frame_of(const Traffic& traffic, unsigned side, unsigned region, uint64_t number) {
    Random random(stream_seed(traffic.seed, 8 + 2 * side + region, number));
    Frame frame{};
    const uint64_t draw = random.next();
    const unsigned beats = traffic.full_frames ? MAX_BEATS : draw % (MAX_BEATS + 1);
    frame.header = {beats ? STRIPS + unsigned(draw >> 8) % 4 : ABORT, beats, unsigned(draw >> 16 & 7), side << 1 | region,
                    unsigned(draw >> 24 & 255), unsigned(number & 65535), unsigned(draw >> 32 & 255)};
    for (unsigned i = 0; i < beats * BEAT_WORDS; ++i) frame.payload[i] = random.next();
    return frame;
}

bool drawn(Random& random, uint64_t probability) { return probability && random.next() < probability; }

// One board: a port, the core's side of it, and the counts that Python reads.
struct Side {
    Side(const Traffic& traffic, unsigned number)
        : traffic(traffic), number(number), random(stream_seed(traffic.seed, number, 0)) {
        for (unsigned region = 0; region < 2; ++region) begin(region);
        top.kernel_rst = top.link_rst = 1;
    }

    // Inputs of the core's side for the cycle that ends now, from the outputs in it.
    void kernel_inputs() {
        if (was_up && !top.up) {
            for (unsigned region = 0; region < 2; ++region) begin(region), resync[region] = true;
            entry = reading = 0;
        }
        was_up = top.up;
        write();
        read();
    }

    void fail(const std::string& text) {
        if (error.empty()) error = "board " + std::to_string(number) + ": " + text;
    }

    VerilatedContext context;
    Vlink_port top{&context, "port"};
    const Traffic& traffic;
    const unsigned number;
    Random random;
    uint64_t pushed[2] = {}, delivered[2] = {}, expected[2] = {}, payload_bytes = 0, last_delivery = 0;
    bool resync[2] = {}, was_up = false, held = false;
    std::string error;
    uint64_t now = 0;

private:
    void begin(unsigned region) {
        frame[region] = frame_of(traffic, number, region, pushed[region]);
        written[region] = 0;
    }

    unsigned entries(unsigned region) const {
        return (frame[region].header.beats + ENTRY_BEATS - 1) / ENTRY_BEATS;
    }

    void write() {
        top.write = top.push = 0;
        if (drawn(random, traffic.write_pause)) return;
        const bool open[2] = {pushed[0] < traffic.frames[number][0] && top.room_local,
                              pushed[1] < traffic.frames[number][1] && top.room_transit};
        if (!open[0] && !open[1]) return;
        const unsigned region = open[0] && open[1] ? random.next() & 1 : open[1];
        const Frame& made = frame[region];
        const unsigned count = entries(region);
        const uint32_t all = (1u << count) - 1;
        if (written[region] && drawn(random, traffic.rewrite)) {  // begin it anew, over what is there
            written[region] = 0;
            return;
        }
        if (written[region] != all) {
            unsigned entry = __builtin_ctz(~written[region]);
            if (traffic.rewrite) do entry = random.next() % count; while (written[region] >> entry & 1);
            top.write = 1, top.write_transit = region, top.write_entry = entry;
            uint32_t* out = reinterpret_cast<uint32_t*>(top.write_data.data());
            std::memcpy(out, made.payload + entry * ENTRY_BEATS * BEAT_WORDS, ENTRY_BITS / 8);
            written[region] |= 1u << entry;
        }
        if (written[region] == all && (traffic.full_frames || random.next() & 1)) {
            top.push = 1, top.push_transit = region, top.push_header = made.header.bits();
            ++pushed[region];
            begin(region);
        }
    }

    void read() {
        if (reading) check(reading - 1);
        reading = 0;
        top.pop = 0;
        if (held) return;
        if (pause) {
            --pause;
            return;
        }
        if (drawn(random, traffic.long_pause)) pause = traffic.long_pause_cycles;
        if (!top.frame_valid || drawn(random, traffic.read_pause)) return;
        if (entry == 0) accept();
        if (!error.empty()) return;
        const unsigned count = (taken.header.beats + ENTRY_BEATS - 1) / ENTRY_BEATS;
        top.read_entry = entry;
        if (count) reading = entry + 1, checked = taken;
        if (++entry >= count) top.pop = 1, entry = 0;
    }

    // A new frame is the oldest: is it the one that comes next from its region?
    void accept() {
        const uint64_t header = top.header;
        const unsigned origin = header >> 11 & 7, region = origin & 1;
        if (origin >> 1 != (1 - number)) return fail("a frame with header " + std::to_string(header) + " was never sent");
        uint64_t next = expected[region];
        if (resync[region]) {  // what was under way when the channel went down is lost
            next += uint16_t((header >> 22 & 65535) - next);
            resync[region] = false;
        }
        taken = frame_of(traffic, 1 - number, region, next);
        if (header != taken.header.bits())
            return fail("frame " + std::to_string(next) + " of region " + std::to_string(region) + " was to come, got number " +
                        std::to_string(header >> 22 & 65535) + ", header " + std::to_string(header));
        expected[region] = next + 1;
        ++delivered[region];
        payload_bytes += 32 * taken.header.beats, last_delivery = now;
    }

    void check(unsigned at) {
        const unsigned beats = std::min(ENTRY_BEATS, checked.header.beats - at * ENTRY_BEATS);
        if (std::memcmp(top.read_data.data(), checked.payload + at * ENTRY_BEATS * BEAT_WORDS, 32 * beats))
            fail("entry " + std::to_string(at) + " of frame " + std::to_string(checked.header.address) + " of region " +
                 std::to_string(checked.header.origin & 1) + " has wrong data");
    }

    Frame frame[2], taken{}, checked{};
    uint32_t written[2] = {};
    unsigned entry = 0, reading = 0;
    uint64_t pause = 0;
};

struct Statistics {
    uint64_t pushed[2], delivered[2], payload_bytes, last_delivery, up, dead, counters[4], words_sent;
};

struct Pair {
    Pair(const Traffic& traffic, const LinkConfig& link, uint64_t kernel_period)
        : traffic(traffic), link(link), kernel_period(kernel_period) {
        cable.configure(link, 0, 0);
        for (unsigned s = 0; s < 2; ++s) {
            sides[s] = std::make_unique<Side>(this->traffic, s);
            next_kernel[s] = kernel_period + s * kernel_period / 3;
            next_link[s] = link.period + s * link.period / 7;
        }
    }

    void kernel_edge(unsigned s) {
        Side& side = *sides[s];
        side.now = now;
        if (edges[s] >= RESET_EDGES) side.kernel_inputs();
        side.top.eval();
        side.top.kernel_clk = 1, side.top.eval(), side.top.kernel_clk = 0;
        if (++edges[s] == RESET_EDGES) side.top.kernel_rst = side.top.link_rst = 0;
        side.top.eval();
    }

    void link_edge(unsigned s) {
        Vlink_port& top = sides[s]->top;
        cable.exchange();
        Word word{};
        top.channel_up = cable.up(now);
        top.tx_tready = cable.ready(s, now);
        top.rx_tvalid = cable.receive(s, now, word);
        std::memcpy(top.rx_tdata.data(), word.data, sizeof word.data);
        top.rx_tkeep = word.keep, top.rx_tlast = word.last;
        top.eval();
        const bool taken = top.tx_tvalid && top.tx_tready;
        if (taken) {
            std::memcpy(word.data, top.tx_tdata.data(), sizeof word.data);
            word.keep = top.tx_tkeep, word.last = top.tx_tlast;
            ++words_sent[s];
        }
        top.link_clk = 1, top.eval(), top.link_clk = 0, top.eval();
        cable.transmit_cycle(s, now, taken ? &word : nullptr);
    }

    bool finished() const {
        for (const auto& side : sides)
            for (unsigned region = 0; region < 2; ++region)
                if (side->expected[region] < traffic.frames[1 - side->number][region]) return false;
        return true;
    }

    // For so many link periods, or until something is wrong or, if asked for, all frames are delivered.
    int run(uint64_t periods, bool until_finished) {
        for (const uint64_t end = now + periods * link.period; now < end;) {
            now = std::min({next_kernel[0], next_kernel[1], next_link[0], next_link[1]});
            for (unsigned s = 0; s < 2; ++s) {
                if (next_link[s] == now) link_edge(s), next_link[s] += link.period;
                if (next_kernel[s] == now) {
                    kernel_edge(s), next_kernel[s] += kernel_period;
                    if (!sides[s]->error.empty()) return error = sides[s]->error, -1;
                    if (until_finished && finished()) return 1;
                }
            }
        }
        return finished();
    }

    static constexpr unsigned RESET_EDGES = 4;
    const Traffic traffic;
    const LinkConfig link;
    const uint64_t kernel_period;
    Cable<Word> cable;
    std::unique_ptr<Side> sides[2];
    uint64_t now = 0, next_kernel[2], next_link[2], edges[2] = {}, words_sent[2] = {};
    std::string error;
};

}  // namespace

extern "C" {
Pair* pair_open(const Traffic* traffic, const LinkConfig* link, uint64_t kernel_period) {
    return new Pair(*traffic, *link, kernel_period);
}
void pair_close(Pair* pair) { delete pair; }
int pair_run(Pair* pair, uint64_t periods, int until_finished) { return pair->run(periods, until_finished); }
const char* pair_error(Pair* pair) { return pair->error.c_str(); }
uint64_t pair_now(Pair* pair) { return pair->now / pair->link.period; }
void pair_reset_channel(Pair* pair) { pair->cable.reset(pair->now); }
void pair_cut(Pair* pair, int drops_channel) { pair->cable.cut(pair->now, drops_channel); }
void pair_hold(Pair* pair, int held) {
    for (const auto& side : pair->sides) side->held = held;
}
void pair_mend(Pair* pair) { pair->cable.mend(pair->now); }
void pair_statistics(Pair* pair, unsigned s, Statistics* out) {
    const Side& side = *pair->sides[s];
    const auto& top = side.top;
    *out = {{side.pushed[0], side.pushed[1]},
            {side.delivered[0], side.delivered[1]},
            side.payload_bytes,
            side.last_delivery / pair->link.period,
            top.up,
            top.dead,
            {top.frames_sent, top.frames_received, top.frames_dropped, top.resends},
            pair->words_sent[s]};
}
}
