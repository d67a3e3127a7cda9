// AXI4 memory behind one port of the kernel: queues, latencies, protocol checks. One object a channel.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

// Delays in clock cycles. min == max gives a fixed latency; gaps and stalls happen with a probability of x / 1000 after a beat
// or address and last 1 to their maximum. All draws depend on the seed, the channel and the events alone, not on idle time.
struct Timing {
    uint32_t read_min, read_max, write_min, write_max;
    uint32_t gap_permille, gap_max;      // between read beats
    uint32_t stall_permille, stall_max;  // of arready, awready, wready
    uint32_t early_permille;             // bursts whose data are taken when the address is accepted, not when they leave
};

class Random {
public:
    explicit Random(uint64_t seed = 0) : state_(seed) {}
    uint64_t next() {
        uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    uint32_t between(uint32_t low, uint32_t high) { return high > low ? low + next() % (uint64_t(high) - low + 1) : low; }
    uint32_t pause(uint32_t permille, uint32_t longest) {
        return permille && next() % 1000 < permille ? between(1, longest) : 0;
    }

private:
    uint64_t state_;
};

// The model's ports of one channel. Data and wide fields point into the model.
template <class Address, class Strobe>
struct AxiPorts {
    uint8_t *arvalid, *arready, *arlen, *arsize, *arburst, *arid;
    Address* araddr;
    uint8_t *rvalid, *rready, *rlast, *rresp, *rid;
    uint32_t* rdata;
    uint8_t *awvalid, *awready, *awlen, *awsize, *awburst, *awid;
    Address* awaddr;
    uint8_t *wvalid, *wready, *wlast;
    const uint32_t* wdata;
    Strobe* wstrb;
    uint8_t *bvalid, *bready, *bresp, *bid;
};

template <class Address, class Strobe, unsigned PORT_BYTES>
class MemoryModel {
public:
    static constexpr unsigned MAX_BEATS = 16;   // longest burst of an HBM port
    static constexpr unsigned MAX_BURSTS = 64;  // addresses that the port takes before it stalls
    enum Response : uint8_t { OKAY = 0, SLVERR = 2 };

    AxiPorts<Address, Strobe> ports{};
    uint8_t* memory = nullptr;
    uint64_t bytes = 0, base = 0;
    uint64_t read_beats = 0, write_beats = 0;
    std::string violation;  // first broken protocol rule

    MemoryModel() {
        for (unsigned i = 0; i < PORT_BYTES; ++i) not_a_number_[i] = i % 2 ? 0x7E : 0x00;
    }

    void configure(const Timing& timing, uint64_t seed, unsigned channel) {
        timing_ = timing;
        const uint64_t own = seed * 1000003u + channel * 8u;
        read_random_ = Random(own), write_random_ = Random(own + 1);
        gap_random_ = Random(own + 2), ar_random_ = Random(own + 3), aw_random_ = Random(own + 4), w_random_ = Random(own + 5);
    }

    // Forget everything under way, as the port's reset does.
    void reset() {
        reads_.clear(), addresses_.clear(), complete_.clear(), writes_.clear();
        incoming_ = Write{};
        beat_ = 0, gap_until_ = ar_until_ = aw_until_ = w_until_ = 0;
        ar_held_ = aw_held_ = w_held_ = responding_ = reading_ = false;
        violation.clear();
        next_ = Next{};
        apply();
    }

    bool idle() const { return reads_.empty() && addresses_.empty() && complete_.empty() && writes_.empty() && incoming_.strobes.empty(); }

    std::string waiting() const {
        char text[160];
        std::snprintf(text, sizeof text, "%zu read bursts and %zu write bursts under way%s%s%s", reads_.size(),
                      addresses_.size() + writes_.size(), *ports.rvalid && !*ports.rready ? ", read data not taken" : "",
                      *ports.bvalid && !*ports.bready ? ", write response not taken" : "",
                      *ports.arvalid && !*ports.arready ? ", read address not taken" : "");
        return text;
    }

    // Look at the settled cycle `now`; returns whether anything moved. The answers take effect with apply().
    bool sample(uint64_t now) {
        bool moved = false;
        if (*ports.arvalid || ar_held_) moved |= sample_read_address(now);
        if (reading_ && *ports.rready) moved = true, finish_beat(now);
        if (*ports.awvalid || aw_held_) moved |= sample_write_address(now);
        if (*ports.wvalid || w_held_) moved |= sample_write_data(now);
        if (responding_ && *ports.bready) {
            moved = true;
            writes_.pop_front();
            responding_ = false;
        }
        prepare(now + 1);
        return moved;
    }

    // Drive the inputs of the next cycle (after the clock edge).
    void apply() {
        *ports.arready = next_.arready, *ports.awready = next_.awready, *ports.wready = next_.wready;
        *ports.rvalid = reading_, *ports.bvalid = responding_;
        if (next_.beat) {
            const Read& read = reads_.front();
            std::memcpy(ports.rdata, next_.beat, PORT_BYTES);
            *ports.rlast = beat_ + 1 == read.beats, *ports.rresp = read.response, *ports.rid = read.id;
            next_.beat = nullptr;
        }
        if (responding_) *ports.bresp = writes_.front().response, *ports.bid = writes_.front().id;
    }

private:
    struct Read {
        uint64_t offset, ready;
        uint8_t id, response;
        unsigned beats;
        std::vector<uint8_t> taken;  // data, if taken early
    };
    struct Write {
        uint64_t offset = 0, ready = 0;
        uint8_t id = 0, response = OKAY;
        unsigned beats = 0;
        std::vector<uint8_t> data;
        std::vector<Strobe> strobes;
    };
    struct Next {
        bool arready = false, awready = false, wready = false;
        const uint8_t* beat = nullptr;
    };

    template <class... Values>
    void violate(const char* format, Values... values) {
        if (!violation.empty()) return;
        char text[200];
        std::snprintf(text, sizeof text, format, values...);
        violation = text;
    }

    void check_burst(const char* which, uint64_t address, unsigned beats, unsigned size, unsigned burst) {
        if (burst != 1) violate("%s: burst type %u is not INCR", which, burst);
        if (1u << size != PORT_BYTES) violate("%s: size %u is not the full width of %u bytes", which, size, PORT_BYTES);
        if (address % PORT_BYTES) violate("%s: address 0x%llx is not aligned", which, (unsigned long long)address);
        if (beats > MAX_BEATS) violate("%s: %u beats, at most %u are allowed", which, beats, MAX_BEATS);
        if (address / 4096 != (address + beats * PORT_BYTES - 1) / 4096)
            violate("%s: %u beats at 0x%llx cross a 4 KB boundary", which, beats, (unsigned long long)address);
    }

    uint8_t response(uint64_t offset, unsigned beats) const {
        return offset < bytes && uint64_t(beats) * PORT_BYTES <= bytes - offset ? OKAY : SLVERR;
    }

    bool sample_read_address(uint64_t now) {
        if (ar_held_ && (!*ports.arvalid || *ports.araddr != ar_address_))
            violate("AR: valid or address changed before ready");
        ar_held_ = *ports.arvalid && !*ports.arready;
        ar_address_ = *ports.araddr;
        if (!*ports.arvalid || !*ports.arready) return false;
        const unsigned beats = *ports.arlen + 1u;
        check_burst("AR", *ports.araddr, beats, *ports.arsize, *ports.arburst);
        const uint64_t offset = uint64_t(*ports.araddr) - base;
        Read read{offset, now + read_random_.between(timing_.read_min, timing_.read_max), *ports.arid, response(offset, beats), beats, {}};
        const bool early = timing_.early_permille && read_random_.next() % 1000 < timing_.early_permille;
        if (early && read.response == OKAY) read.taken.assign(memory + offset, memory + offset + beats * PORT_BYTES);
        reads_.push_back(std::move(read));
        ar_until_ = now + 1 + ar_random_.pause(timing_.stall_permille, timing_.stall_max);
        return true;
    }

    void finish_beat(uint64_t now) {
        ++read_beats;
        reading_ = false;
        if (++beat_ == reads_.front().beats) reads_.pop_front(), beat_ = 0;
        if (timing_.gap_permille) gap_until_ = now + 1 + gap_random_.pause(timing_.gap_permille, timing_.gap_max);
    }

    bool sample_write_address(uint64_t now) {
        if (aw_held_ && (!*ports.awvalid || *ports.awaddr != aw_address_))
            violate("AW: valid or address changed before ready");
        aw_held_ = *ports.awvalid && !*ports.awready;
        aw_address_ = *ports.awaddr;
        if (!*ports.awvalid || !*ports.awready) return false;
        Write write;
        write.beats = *ports.awlen + 1u;
        check_burst("AW", *ports.awaddr, write.beats, *ports.awsize, *ports.awburst);
        write.offset = uint64_t(*ports.awaddr) - base;
        write.id = *ports.awid;
        write.response = response(write.offset, write.beats);
        addresses_.push_back(std::move(write));
        aw_until_ = now + 1 + aw_random_.pause(timing_.stall_permille, timing_.stall_max);
        return true;
    }

    bool sample_write_data(uint64_t now) {
        if (w_held_ && (!*ports.wvalid || *ports.wstrb != w_strobe_ || std::memcmp(ports.wdata, w_data_, PORT_BYTES)))
            violate("W: valid, data or strobes changed before ready");
        w_held_ = *ports.wvalid && !*ports.wready;
        if (w_held_) w_strobe_ = *ports.wstrb, std::memcpy(w_data_, ports.wdata, PORT_BYTES);
        if (!*ports.wvalid || !*ports.wready) return false;
        ++write_beats;
        const uint8_t* data = reinterpret_cast<const uint8_t*>(ports.wdata);
        incoming_.data.insert(incoming_.data.end(), data, data + PORT_BYTES);
        incoming_.strobes.push_back(*ports.wstrb);
        if (*ports.wlast) complete_.push_back(std::move(incoming_)), incoming_ = Write{};
        w_until_ = now + 1 + w_random_.pause(timing_.stall_permille, timing_.stall_max);
        return true;
    }

    void prepare(uint64_t next) {
        while (!complete_.empty() && !addresses_.empty()) {
            Write write = std::move(addresses_.front());
            if (write.beats != complete_.front().strobes.size())
                violate("W: last after %zu beats, the address said %u", complete_.front().strobes.size(), write.beats);
            write.data = std::move(complete_.front().data), write.strobes = std::move(complete_.front().strobes);
            write.ready = next - 1 + write_random_.between(timing_.write_min, timing_.write_max);
            addresses_.pop_front(), complete_.pop_front();
            writes_.push_back(std::move(write));
        }
        if (!responding_ && !writes_.empty() && writes_.front().ready <= next) {
            responding_ = true;
            store(writes_.front());
        }
        if (!reading_ && !reads_.empty() && reads_.front().ready <= next && gap_until_ <= next) {
            const Read& read = reads_.front();
            reading_ = true;
            if (read.response != OKAY) next_.beat = not_a_number_;
            else if (!read.taken.empty()) next_.beat = read.taken.data() + beat_ * PORT_BYTES;
            else next_.beat = memory + read.offset + uint64_t(beat_) * PORT_BYTES;
        }
        next_.arready = reads_.size() < MAX_BURSTS && ar_until_ <= next;
        next_.awready = addresses_.size() + writes_.size() < MAX_BURSTS && aw_until_ <= next;
        next_.wready = complete_.size() < MAX_BURSTS && w_until_ <= next;
    }

    void store(const Write& write) {
        if (write.response != OKAY) return;
        for (size_t beat = 0; beat < write.strobes.size() && beat < write.beats; ++beat)
            for (unsigned byte = 0; byte < PORT_BYTES; ++byte)
                if (write.strobes[beat] >> byte & 1)
                    memory[write.offset + beat * PORT_BYTES + byte] = write.data[beat * PORT_BYTES + byte];
    }

    Timing timing_{1, 1, 1, 1, 0, 1, 0, 1, 0};
    Random read_random_, write_random_, gap_random_, ar_random_, aw_random_, w_random_;
    std::deque<Read> reads_;
    std::deque<Write> addresses_, complete_, writes_;  // without data; without address; both
    Write incoming_;
    Next next_;
    unsigned beat_ = 0;
    uint64_t gap_until_ = 0, ar_until_ = 0, aw_until_ = 0, w_until_ = 0;
    bool reading_ = false, responding_ = false;  // rvalid, bvalid
    bool ar_held_ = false, aw_held_ = false, w_held_ = false;
    uint64_t ar_address_ = 0, aw_address_ = 0;
    Strobe w_strobe_ = 0;
    uint8_t w_data_[PORT_BYTES] = {};
    uint8_t not_a_number_[PORT_BYTES];
};
