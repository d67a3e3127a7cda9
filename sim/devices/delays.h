// Memory of fixed or random delays: no DRAM, latencies and pauses drawn from a seed. All in port cycles.
#pragma once
#include <cstdint>
#include <deque>
#include "memory_config.h"

class Random {
public:
    explicit Random(uint64_t seed = 0) : state_(seed) {}
    uint64_t next() {
        uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    uint32_t between(uint32_t low, uint32_t high) {
        return high > low ? low + next() % (uint64_t(high) - low + 1) : low;
    }
    uint32_t pause(uint32_t permille, uint32_t longest) {
        return permille && next() % 1000 < permille ? between(1, longest) : 0;
    }

private:
    uint64_t state_;
};

// Seed of one of a channel's independent streams of draws.
inline uint64_t stream_seed(uint64_t seed, unsigned channel, unsigned stream) {
    return seed * 1000003u + channel * 8u + stream;
}

// min == max gives a fixed latency; gaps and stalls happen with a probability of x / 1000 after a beat or address and
// last 1 to their maximum. All draws depend on the seed, the channel and the events alone, not on idle time.
class DelayPort {
public:
    static constexpr unsigned MAX_BURSTS = 64;  // addresses that the port takes before it stalls

    bool arready = false, awready = false, wready = false, rvalid = false, rlast = false, bvalid = false;

    void configure(const MemoryConfig& config, uint64_t seed, unsigned channel) {
        config_ = config;
        Random* const streams[] = {&read_random_, &write_random_, &gap_random_, &ar_random_, &aw_random_, &w_random_};
        unsigned stream = 0;
        for (Random* random : streams) *random = Random(stream_seed(seed, channel, stream++));
    }

    void reset() {
        reads_.clear(), addresses_ = complete_ = 0, writes_.clear();
        beat_ = 0, gap_until_ = ar_until_ = aw_until_ = w_until_ = 0;
        incoming_ = false;
        arready = awready = wready = rvalid = rlast = bvalid = false;
    }

    bool idle() const { return reads_.empty() && !addresses_ && !complete_ && writes_.empty() && !incoming_; }

    bool read_accepted(uint64_t now, unsigned beats) {
        reads_.push_back({now + read_random_.between(config_.read_min, config_.read_max), beats});
        const bool early = config_.early_permille && read_random_.next() % 1000 < config_.early_permille;
        ar_until_ = now + 1 + ar_random_.pause(config_.stall_permille, config_.stall_max);
        return early;
    }

    void beat_taken(uint64_t now) {
        rvalid = false;
        if (++beat_ == reads_.front().beats) reads_.pop_front(), beat_ = 0;
        if (config_.gap_permille) gap_until_ = now + 1 + gap_random_.pause(config_.gap_permille, config_.gap_max);
    }

    void write_address_accepted(uint64_t now) {
        ++addresses_;
        aw_until_ = now + 1 + aw_random_.pause(config_.stall_permille, config_.stall_max);
    }

    void write_data_accepted(uint64_t now, bool last) {
        incoming_ = !last;
        complete_ += last;
        w_until_ = now + 1 + w_random_.pause(config_.stall_permille, config_.stall_max);
    }

    void response_taken() {
        writes_.pop_front();
        bvalid = false;
    }

    void prepare(uint64_t next) {
        for (; complete_ && addresses_; --complete_, --addresses_)
            writes_.push_back(next - 1 + write_random_.between(config_.write_min, config_.write_max));
        bvalid = bvalid || (!writes_.empty() && writes_.front() <= next);
        rvalid = rvalid || (!reads_.empty() && reads_.front().ready <= next && gap_until_ <= next);
        rlast = rvalid && beat_ + 1 == reads_.front().beats;
        arready = reads_.size() < MAX_BURSTS && ar_until_ <= next;
        awready = addresses_ + writes_.size() < MAX_BURSTS && aw_until_ <= next;
        wready = complete_ < MAX_BURSTS && w_until_ <= next;
    }

private:
    struct Read {
        uint64_t ready;
        unsigned beats;
    };

    MemoryConfig config_{};
    Random read_random_, write_random_, gap_random_, ar_random_, aw_random_, w_random_;
    std::deque<Read> reads_;
    std::deque<uint64_t> writes_;            // complete ones, by the cycle of their response
    unsigned addresses_ = 0, complete_ = 0;  // write addresses without data, data without address
    unsigned beat_ = 0;
    uint64_t gap_until_ = 0, ar_until_ = 0, aw_until_ = 0, w_until_ = 0;
    bool incoming_ = false;  // data of a write that is not complete
};
