// AXI4 memory behind one port of the kernel: data, order and protocol checks. PortTiming decides when things happen.
// One object a channel.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <vector>
#include "port_timing.h"

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
    enum Response : uint8_t { OKAY = 0, SLVERR = 2 };

    AxiPorts<Address, Strobe> ports{};
    uint8_t* memory = nullptr;
    uint64_t bytes = 0, base = 0;
    uint64_t read_beats = 0, write_beats = 0;
    std::string violation;  // first broken protocol rule

    MemoryModel() {
        for (unsigned i = 0; i < PORT_BYTES; ++i) not_a_number_[i] = i % 2 ? 0x7E : 0x00;
    }

    void configure(const MemoryConfig& config, uint64_t seed, unsigned channel) {
        timing_.configure(config, seed, channel);
    }

    // Forget everything under way, as the port's reset does. Time begins at 0.
    void reset() {
        timing_.reset();
        reads_.clear(), addresses_.clear(), complete_.clear(), writes_.clear();
        incoming_ = Write{};
        beat_ = 0, next_beat_ = nullptr;
        ar_held_ = aw_held_ = w_held_ = false;
        violation.clear();
        apply();
    }

    bool idle() const { return timing_.idle(); }
    bool behind_refresh(uint64_t now) const { return timing_.behind_refresh(now); }
    const PortTiming& timing() const { return timing_; }

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
        if (timing_.rvalid && *ports.rready) moved = true, finish_beat(now);
        if (*ports.awvalid || aw_held_) moved |= sample_write_address(now);
        if (*ports.wvalid || w_held_) moved |= sample_write_data(now);
        if (timing_.bvalid && *ports.bready) {
            moved = true;
            writes_.pop_front();
            timing_.response_taken(now);
        }
        prepare(now + 1);
        return moved;
    }

    // Drive the inputs of the next cycle (after the clock edge).
    void apply() {
        *ports.arready = timing_.arready, *ports.awready = timing_.awready, *ports.wready = timing_.wready;
        *ports.rvalid = timing_.rvalid, *ports.bvalid = timing_.bvalid;
        if (next_beat_) {
            std::memcpy(ports.rdata, next_beat_, PORT_BYTES);
            *ports.rlast = timing_.rlast, *ports.rresp = reads_.front().response, *ports.rid = reads_.front().id;
            next_beat_ = nullptr;
        }
        if (timing_.bvalid) *ports.bresp = writes_.front().response, *ports.bid = writes_.front().id;
    }

private:
    struct Read {
        uint64_t offset;
        uint8_t id, response;
        unsigned beats;
        std::vector<uint8_t> taken;  // data, if taken early
    };
    struct Write {
        uint64_t offset = 0;
        uint8_t id = 0, response = OKAY;
        unsigned beats = 0;
        std::vector<uint8_t> data;
        std::vector<Strobe> strobes;
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
        Read read{offset, *ports.arid, response(offset, beats), beats, {}};
        const bool early = timing_.read_accepted(now, offset, beats);
        if (early && read.response == OKAY) read.taken.assign(memory + offset, memory + offset + beats * PORT_BYTES);
        reads_.push_back(std::move(read));
        return true;
    }

    void finish_beat(uint64_t now) {
        ++read_beats;
        if (++beat_ == reads_.front().beats) reads_.pop_front(), beat_ = 0;
        timing_.beat_taken(now);
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
        timing_.write_address_accepted(now, write.offset, write.beats);
        addresses_.push_back(std::move(write));
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
        timing_.write_data_accepted(now, *ports.wlast);
        return true;
    }

    void prepare(uint64_t next) {
        while (!complete_.empty() && !addresses_.empty()) {
            Write write = std::move(addresses_.front());
            if (write.beats != complete_.front().strobes.size())
                violate("W: last after %zu beats, the address said %u", complete_.front().strobes.size(), write.beats);
            write.data = std::move(complete_.front().data), write.strobes = std::move(complete_.front().strobes);
            addresses_.pop_front(), complete_.pop_front();
            writes_.push_back(std::move(write));
        }
        const bool responding = timing_.bvalid, reading = timing_.rvalid;
        timing_.prepare(next);
        if (timing_.bvalid && !responding) store(writes_.front());
        if (timing_.rvalid && !reading) {
            const Read& read = reads_.front();
            if (read.response != OKAY) next_beat_ = not_a_number_;
            else if (!read.taken.empty()) next_beat_ = read.taken.data() + beat_ * PORT_BYTES;
            else next_beat_ = memory + read.offset + uint64_t(beat_) * PORT_BYTES;
        }
    }

    void store(const Write& write) {
        if (write.response != OKAY) return;
        for (size_t beat = 0; beat < write.strobes.size() && beat < write.beats; ++beat)
            for (unsigned byte = 0; byte < PORT_BYTES; ++byte)
                if (write.strobes[beat] >> byte & 1)
                    memory[write.offset + beat * PORT_BYTES + byte] = write.data[beat * PORT_BYTES + byte];
    }

    PortTiming timing_;
    std::deque<Read> reads_;
    std::deque<Write> addresses_, complete_, writes_;  // without data; without address; both
    Write incoming_;
    const uint8_t* next_beat_ = nullptr;  // data of the beat that appears with apply()
    unsigned beat_ = 0;
    bool ar_held_ = false, aw_held_ = false, w_held_ = false;
    uint64_t ar_address_ = 0, aw_address_ = 0;
    Strobe w_strobe_ = 0;
    uint8_t w_data_[PORT_BYTES] = {};
    uint8_t not_a_number_[PORT_BYTES];
};
