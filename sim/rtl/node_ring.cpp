// A ring of nodes (hw/link/node.py) with drawn traffic: every board sends frames as fast as its core's model likes, takes
// what the node delivers when it likes, and compares it with what was to come. Python's side is sim/rtl/node_ring.py.
//
// The model of a core behaves as hw/gpt2/other_boards.py does: HELLO both ways, joined, frames, ABORT when its run breaks.
#include "Vring_node.h"
#include "link_pins.h"
#include "verilated.h"
#include <algorithm>
#include <memory>
#include <string>

namespace {

constexpr unsigned LEFT = 0, RIGHT = 1, PORTS = 2, MAX_BOARDS = 8;
constexpr unsigned MAX_BEATS = 16, BEAT_WORDS = 8, ENTRY_BEATS = ENTRY_BITS / 256, ENTRY_WORDS = ENTRY_BITS / 32;
constexpr uint64_t TELLING_CYCLES = 4096;  // for which a broken run tries to tell
constexpr unsigned RESET_CYCLES = 16;      // of a core between two runs
enum Kind { STRIPS = 1, SUMS, BEST, HELLO, ABORT };

// Python fills both in. Cycles are the kernel's; send_pause in 2^-64, once for each entry.
struct Traffic {
    uint64_t seed, send_pause, accept_longest, pause_longest, start_longest, silence_limit, lost_cable, spoiled;
};
struct Run {
    uint64_t number, frames, breaks_after;  // breaks_after: cycles after all have joined; 0: it does not
};

// Layout of header_layout() in hw/link/frame.py.
struct Header {
    unsigned kind, beats, hops, origin, run, address, strips;
    bool operator==(const Header&) const = default;
    static Header of(uint64_t bits) {
        return {unsigned(bits & 7),       unsigned(bits >> 3 & 31),      unsigned(bits >> 8 & 7),   unsigned(bits >> 11 & 7),
                unsigned(bits >> 14 & 255), unsigned(bits >> 22 & 65535), unsigned(bits >> 38 & 255)};
    }
    unsigned entries() const { return std::max(1u, (beats + ENTRY_BEATS - 1) / ENTRY_BEATS); }
    std::string text() const {
        return "kind " + std::to_string(kind) + " of board " + std::to_string(origin) + ", run " + std::to_string(run) +
               ", address " + std::to_string(address) + ", " + std::to_string(beats) + " beats, " + std::to_string(hops) +
               " hops to go, strips " + std::to_string(strips);
    }
};

struct Frame {
    Header header;
    uint32_t payload[MAX_BEATS * BEAT_WORDS];
};

// Frame `number` that board `origin` sends in a run, hops aside: the same whoever asks. HELLO and ABORT likewise.
Frame frame_of(uint64_t seed, unsigned origin, uint64_t run, uint64_t number) {
    Random random(stream_seed(seed, unsigned(run << 3 | origin), 0) ^ number * 0x2545F4914F6CDD1Dull);
    const uint64_t draw = random.next();
    const unsigned kind = draw % 4 < 2 ? unsigned(STRIPS) : draw % 4;  // 2 SUMS, 3 BEST
    Frame frame{};
    frame.header = {kind, kind == STRIPS ? unsigned(1 + (draw >> 8) % MAX_BEATS) : 1, 0, origin, unsigned(run),
                    unsigned(number & 65535), unsigned(draw >> 32 & 255)};
    for (unsigned i = 0; i < frame.header.beats * BEAT_WORDS; ++i) frame.payload[i] = uint32_t(random.next());
    return frame;
}
Frame hello_of(uint64_t seed, unsigned origin, uint64_t run) {
    Frame frame = frame_of(seed, origin, run, ~0ull);
    frame.header.kind = HELLO, frame.header.beats = 1, frame.header.address = frame.header.strips = 0;
    return frame;
}

bool drawn(Random& random, uint64_t probability) { return probability && random.next() < probability; }

// When each frame was accepted, by origin and run: how long it took is known where it arrives. No board is two runs ahead
// of another one.
struct SentAt {
    std::vector<uint64_t>& of(unsigned origin, uint64_t run) { return cycles_[origin][run % 4]; }

private:
    std::vector<uint64_t> cycles_[MAX_BOARDS][4];
};

class Board {
public:
    Board(const Traffic& traffic, unsigned boards, unsigned number, SentAt& sent_at)
        : traffic_(traffic), boards_(boards), number_(number), sent_at_(sent_at), random_(stream_seed(traffic.seed, 900 + number, 0)) {
        top.kernel_rst = top.link_0_rst = top.link_1_rst = 1;
        top.boards = boards, top.board = number;
        links[0].pins = {&top.link_0_clk, &top.link_0_up, &top.link_0_tx_tready, &top.link_0_tx_tvalid, &top.link_0_tx_tlast,
                         top.link_0_tx_tdata.data(), &top.link_0_tx_tkeep, &top.link_0_rx_tvalid, &top.link_0_rx_tlast,
                         top.link_0_rx_tdata.data(), &top.link_0_rx_tkeep};
        links[1].pins = {&top.link_1_clk, &top.link_1_up, &top.link_1_tx_tready, &top.link_1_tx_tvalid, &top.link_1_tx_tlast,
                         top.link_1_tx_tdata.data(), &top.link_1_tx_tkeep, &top.link_1_rx_tvalid, &top.link_1_rx_tlast,
                         top.link_1_rx_tdata.data(), &top.link_1_rx_tkeep};
    }

    void kernel_edge(uint64_t cycle) {
        cycle_ = cycle;
        if (cycle < RESET_EDGES) {
            top.kernel_clk = 1, top.eval(), top.kernel_clk = 0;
            if (cycle + 1 == RESET_EDGES) top.kernel_rst = top.link_0_rst = top.link_1_rst = 0;
            return;
        }
        drive();
        top.eval();
        follow();
        top.kernel_clk = 1, top.eval(), top.kernel_clk = 0;
    }

    void link_edge(unsigned port, uint64_t now, uint64_t period) {
        LinkEnd& link = links[port];
        link.sample(now);
        *link.pins.clk = 1, top.eval(), *link.pins.clk = 0;
        link.cable->exchange();
        link.apply(now + period);
    }

    void enqueue(const Run& run) { runs_.push_back(run); }
    bool idle() const { return state_ == OFF && runs_.empty(); }
    // Ends the run that lasts, if one does.
    void break_run() {
        if (state_ == ON) breaks();
    }
    std::string text() const {
        static const char* const names[] = {"no run", "a run", "a run that tells that it broke"};
        return "board " + std::to_string(number_) + ": " + names[state_] + (state_ == ON && !joined_ ? ", not joined, " : ", ") +
               std::to_string(sent_) + " frames sent, " + std::to_string(delivered) + " delivered";
    }

    VerilatedContext context;
    Vring_node top{&context, "node"};
    LinkEnd links[PORTS];
    uint64_t delivered = 0, ended = 0, broken = 0, longest = 0, dead_since[PORTS] = {};
    std::string error;

private:
    static constexpr unsigned RESET_EDGES = 4;
    enum State { OFF, ON, TELLING };

    void fail(const std::string& text) {
        if (error.empty()) error = "board " + std::to_string(number_) + ": " + text;
    }
    uint64_t frames() const { return run_.frames; }

    // Ways (docs/ring.md section 4): boards that frame `number` reaches to the left or right.
    unsigned reach(unsigned way, uint64_t number) const {
        return (boards_ - 1) / 2 + (boards_ % 2 == 0 && (number % 2 == 0) == (way == RIGHT));
    }
    unsigned distance(unsigned origin, unsigned port) const {
        return (port == LEFT ? number_ + boards_ - origin : origin + boards_ - number_) % boards_;
    }
    // Boards that still have to get it behind this one when it comes through `port`; negative: it does not come here so.
    int hops(unsigned origin, unsigned port, uint64_t number) const {
        return int(reach(1 - port, number)) - int(distance(origin, port));
    }
    uint64_t next_from(unsigned origin, unsigned port, uint64_t number) const {
        for (uint64_t n = number; n < std::min(number + 2, frames()); ++n)
            if (hops(origin, port, n) >= 0) return n;
        return frames();
    }
    // Whether frames of `origin` that come here through `port` cross the cable that the test has cut for good.
    bool lost(unsigned origin, unsigned port) const {
        for (unsigned d = 0; d < distance(origin, port); ++d) {
            const unsigned cable = port == LEFT ? (origin + d) % boards_ : (origin + boards_ - 1 - d) % boards_;
            if (cable == traffic_.lost_cable) return true;
        }
        return false;
    }
    bool complete() const {
        if (!joined_ || sent_ < frames()) return false;
        for (unsigned origin = 0; origin < boards_; ++origin)
            for (unsigned port = 0; port < PORTS && origin != number_; ++port)
                if (expected_[origin][port] < frames() && !lost(origin, port)) return false;
        return true;
    }

    void begin(const Run& run) {
        run_ = run, state_ = ON, heard_at_ = cycle_, sent_ = 0, entry_ = 0, joined_ = false, ends_at_ = NEVER;
        cleared_at_ = cycle_ + random_.between(0, 40);
        sent_at_.of(number_, run.number).clear();
        for (unsigned port = 0; port < PORTS; ++port) {
            told_[port] = heard_[port] = false, arriving_[port].open = false;
            for (unsigned origin = 0; origin < boards_; ++origin) expected_[origin][port] = next_from(origin, port, 0);
        }
        frame_ = frame_of(traffic_.seed, number_, run_.number, 0);
        offered_ = false;
    }
    void end(bool well) {
        state_ = OFF, ++(well ? ended : broken);
        wait_until_ = cycle_ + RESET_CYCLES + random_.between(0, traffic_.start_longest);
    }
    void breaks() { state_ = TELLING, breaks_at_ = cycle_, ends_at_ = NEVER, offered_ = false; }

    // Inputs of the cycle that ends now, from what was there before it.
    void drive() {
        if (state_ == OFF && !runs_.empty() && cycle_ >= wait_until_) {
            begin(runs_.front());
            runs_.pop_front();
        }
        top.active = state_ == ON, top.run = run_.number;
        joined_ = state_ == ON && (joined_ || (told_[0] && told_[1] && heard_[0] && heard_[1] && cycle_ >= cleared_at_));
        if (joined_ && !top.joined) joined_at_ = cycle_;
        top.joined = joined_;
        if (until_ <= cycle_) {
            accepts_ = !accepts_ || !traffic_.pause_longest;
            until_ = cycle_ + random_.between(1, accepts_ ? traffic_.accept_longest : traffic_.pause_longest);
        }
        top.deliver_ready = accepts_;
        offer();
    }

    void offer() {
        if (state_ == TELLING) return put({ABORT, 0, 0, 0, 0, 128 | number_, 0}, 0, nullptr, true);
        if (offered_) return;  // stays until it is taken
        top.send_valid = 0;
        if (state_ != ON || ends_at_ != NEVER) return;
        for (unsigned port = 0; port < PORTS && entry_ == 0; ++port)
            if (!told_[port] && (top.up >> port & 1)) {
                const Frame hello = hello_of(traffic_.seed, number_, run_.number);
                return put(hello.header, port, hello.payload, true);
            }
        if (!joined_ || sent_ == frames() || drawn(random_, traffic_.send_pause)) return;
        put(frame_.header, 0, frame_.payload + entry_ * ENTRY_BEATS * BEAT_WORDS, entry_ + 1 == frame_.header.entries());
    }
    void put(const Header& header, unsigned port, const uint32_t* payload, bool last) {
        top.send_valid = offered_ = true;
        uint32_t* out = top.send.data();
        const unsigned words = header.beats > 1 ? ENTRY_WORDS : header.beats * BEAT_WORDS;
        if (payload) std::memcpy(out, payload, 4 * words);
        const uint64_t tail = last | header.kind << 1 | header.beats << 4 | uint64_t(header.address) << 9 |
                              uint64_t(header.strips) << 25 | uint64_t(port) << 33;
        std::memcpy(out + ENTRY_WORDS, &tail, sizeof tail);
        offered_kind_ = header.kind, offered_port_ = port, offered_last_ = last;
    }

    // What the cycle that ends now has done.
    void follow() {
        if (offered_ && top.send_ready) accepted();
        if (top.deliver_valid) delivers();
        for (unsigned port = 0; port < PORTS; ++port) {
            const bool dead = top.dead >> port & 1;
            if (dead) arriving_[port].lost_rest = true;
            if (!dead) dead_since[port] = NEVER;
            else if (dead_since[port] == NEVER) dead_since[port] = cycle_;
        }
        if (state_ == TELLING && cycle_ - breaks_at_ > TELLING_CYCLES) offered_ = false, end(false);
        if (state_ != ON) return;
        if (ends_at_ == NEVER && complete()) ends_at_ = cycle_ + random_.between(1, 40 + traffic_.start_longest), ends_well_ = true;
        if (ends_at_ != NEVER) {
            if (cycle_ >= ends_at_) end(ends_well_);
        } else if ((run_.breaks_after && joined_ && cycle_ - joined_at_ >= run_.breaks_after) ||
                   cycle_ - heard_at_ >= traffic_.silence_limit ||
                   (joined_ && top.dead && traffic_.lost_cable == NEVER)) {
            breaks();
        }
    }

    void accepted() {
        offered_ = false;
        if (offered_kind_ == ABORT) return end(false);
        if (offered_kind_ == HELLO) {
            told_[offered_port_] = true;
        } else if (!offered_last_) {
            ++entry_;
        } else {
            entry_ = 0, ++sent_;
            sent_at_.of(number_, run_.number).push_back(cycle_);
            frame_ = frame_of(traffic_.seed, number_, run_.number, sent_);
        }
    }

    void delivers() {
        const uint32_t* words = top.deliver.data();
        if (!top.active) return fail("an entry is delivered while no run lasts");
        if (!top.deliver_ready) return;
        heard_at_ = cycle_;
        uint64_t tail;
        std::memcpy(&tail, words + ENTRY_WORDS, sizeof tail);
        const unsigned index = tail >> 1 & 15, port = tail >> 5 & 1;
        const Header header = Header::of(tail >> 6);
        Arriving& arriving = arriving_[port];
        if (index == 0) first_entry(port, header);
        else if (!arriving.open || index != arriving.entry || header != arriving.frame.header)
            fail("entry " + std::to_string(index) + " of a frame came that has not begun: " + header.text());
        if (!error.empty()) return;
        const unsigned beats = std::min(ENTRY_BEATS, arriving.frame.header.beats - index * ENTRY_BEATS);
        if (std::memcmp(words, arriving.frame.payload + index * ENTRY_WORDS, 32 * beats))
            return fail("entry " + std::to_string(index) + " has wrong data: " + header.text());
        const bool last = ++arriving.entry == header.entries();
        if (last != bool(tail & 1)) return fail("the frame ends with the wrong entry: " + header.text());
        if (last) arriving.open = false, whole_frame(port, header);
    }

    // A frame begins: is it the one that comes next this way?
    void first_entry(unsigned port, const Header& header) {
        Arriving& arriving = arriving_[port];
        if (arriving.open && !arriving.lost_rest) return fail("a frame begins within another: " + header.text());
        arriving.lost_rest = false;
        arriving.open = true, arriving.entry = 0;
        const unsigned from = header.origin;
        if (from >= boards_ || from == number_) return fail("nobody sent this: " + header.text());
        if (header.kind == HELLO) {
            arriving.frame = hello_of(traffic_.seed, from, run_.number);
            if (distance(from, port) != 1 || heard_[port]) return fail("HELLO comes twice or from afar: " + header.text());
        } else if (header.kind == ABORT) {
            arriving.frame.header = {ABORT, 0, boards_ / 2 - distance(from, port), from, unsigned(run_.number), 128 | from, 0};
        } else {
            const uint64_t number = expected_[from][port];
            if (number >= frames() || !joined_) return fail("a frame comes that nobody waits for: " + header.text());
            arriving.frame = frame_of(traffic_.seed, from, run_.number, number);
            arriving.frame.header.hops = unsigned(hops(from, port, number));
            if (traffic_.spoiled && delivered == 5) arriving.frame.payload[0] ^= 1;
        }
        if (header != arriving.frame.header)
            fail("got " + header.text() + "; to come was " + arriving.frame.header.text());
    }
    void whole_frame(unsigned port, const Header& header) {
        if (header.kind == HELLO) {
            heard_[port] = true;
        } else if (header.kind == ABORT) {
            if (ends_at_ == NEVER) ends_at_ = cycle_ + random_.between(1, 8), ends_well_ = false;
        } else {
            uint64_t& number = expected_[header.origin][port];
            longest = std::max(longest, cycle_ - sent_at_.of(header.origin, run_.number)[number]);
            number = next_from(header.origin, port, number + 1), ++delivered;
        }
    }

    struct Arriving {
        bool open = false, lost_rest = false;
        unsigned entry = 0;
        Frame frame{};
    };

    const Traffic& traffic_;
    const unsigned boards_, number_;
    SentAt& sent_at_;
    Random random_;
    std::deque<Run> runs_;
    State state_ = OFF;
    Run run_{};
    uint64_t cycle_ = 0, heard_at_ = 0, joined_at_ = 0, breaks_at_ = 0, wait_until_ = 0, cleared_at_ = 0, ends_at_ = NEVER, until_ = 0, sent_ = 0;
    bool ends_well_ = false, accepts_ = false, joined_ = false, told_[PORTS] = {}, heard_[PORTS] = {};
    Frame frame_{};
    unsigned entry_ = 0, offered_kind_ = 0, offered_port_ = 0;
    bool offered_ = false, offered_last_ = false;
    Arriving arriving_[PORTS];
    uint64_t expected_[MAX_BOARDS][PORTS] = {};
};

struct Statistics {
    uint64_t delivered, ended, broken, longest, up, dead, dead_since[PORTS];
};

// Board b's port 1 leads over cable b to port 0 of board b + 1.
struct NodeRing {
    NodeRing(unsigned boards, const Traffic& traffic, const LinkConfig& link, uint64_t kernel_period)
        : traffic(traffic), period(link.period), kernel_period(kernel_period), cables(boards) {
        for (unsigned b = 0; b < boards; ++b) {
            cables[b].configure(link, b, 0);
            this->boards.push_back(std::make_unique<Board>(this->traffic, boards, b, sent_at));
            next_kernel.push_back(kernel_period + b * kernel_period / boards);
            for (unsigned p = 0; p < PORTS; ++p) {
                this->boards[b]->links[p].cable = &cables[(b + boards - 1 + p) % boards];
                this->boards[b]->links[p].end = 1 - p;
                next_link.push_back(period + (2 * b + p) * period / (2 * boards));  // two clocks of a board never at once
            }
        }
    }

    bool idle() const {
        return std::all_of(boards.begin(), boards.end(), [](const auto& board) { return board->idle(); });
    }

    // For so many kernel cycles, or until no board has a run any more (1) or something is wrong (-1).
    int run(uint64_t cycles, bool until_idle) {
        for (const uint64_t end = cycle + cycles; cycle < end;) {
            now = std::min(*std::min_element(next_kernel.begin(), next_kernel.end()), *std::min_element(next_link.begin(), next_link.end()));
            for (unsigned b = 0; b < boards.size(); ++b) {
                Board& board = *boards[b];
                for (unsigned p = 0; p < PORTS; ++p)
                    if (next_link[2 * b + p] == now) board.link_edge(p, now, period), next_link[2 * b + p] += period;
                if (next_kernel[b] != now) continue;
                board.kernel_edge(cycle), next_kernel[b] += kernel_period;
                if (!board.error.empty()) return error = board.error, -1;
            }
            if (next_kernel.back() - kernel_period != now) continue;  // the last board's edge ends the cycle
            ++cycle;
            if (until_idle && idle()) return 1;
        }
        return 0;
    }

    const Traffic traffic;
    const uint64_t period, kernel_period;
    SentAt sent_at;
    std::vector<Cable<LinkWord>> cables;
    std::vector<std::unique_ptr<Board>> boards;
    std::vector<uint64_t> next_kernel, next_link;
    uint64_t now = 0, cycle = 0;
    std::string error;
};

}  // namespace

extern "C" {
NodeRing* ring_open(unsigned boards, const Traffic* traffic, const LinkConfig* link, uint64_t kernel_period) {
    return new NodeRing(boards, *traffic, *link, kernel_period);
}
void ring_close(NodeRing* ring) { delete ring; }
int ring_run(NodeRing* ring, uint64_t cycles, int until_idle) { return ring->run(cycles, until_idle); }
const char* ring_error(NodeRing* ring) { return ring->error.c_str(); }
const char* ring_state(NodeRing* ring) {
    ring->error.clear();
    for (const auto& board : ring->boards) ring->error += board->text() + "; ";
    return ring->error.c_str();
}
uint64_t ring_cycle(NodeRing* ring) { return ring->cycle; }
void ring_enqueue(NodeRing* ring, unsigned board, const Run* run) { ring->boards[board]->enqueue(*run); }
void ring_break(NodeRing* ring, unsigned board) { ring->boards[board]->break_run(); }
void ring_reset_channel(NodeRing* ring, unsigned cable) { ring->cables[cable].reset(ring->now); }
void ring_cut(NodeRing* ring, unsigned cable, int drops) { ring->cables[cable].cut(ring->now, drops); }
void ring_mend(NodeRing* ring, unsigned cable) { ring->cables[cable].mend(ring->now); }
void ring_statistics(NodeRing* ring, unsigned b, Statistics* out) {
    const Board& board = *ring->boards[b];
    *out = {board.delivered, board.ended, board.broken, board.longest, board.top.up, board.top.dead,
            {board.dead_since[0], board.dead_since[1]}};
}
}
