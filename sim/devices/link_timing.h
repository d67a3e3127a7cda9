// A cable between two Aurora 64B/66B cores of an Alveo U280: when its words leave and arrive, which are lost or changed,
// and whether the channel is up. The RTL harness sends words with data, the timing executor words without; both decide
// by this file alone. Figures: shared/reference/u280.md (b).
//
// Times are whole numbers of the unit of LinkConfig (sim/devices/link_timing.py chooses it so that all clocks have whole
// periods). Both ends have the same frequency, their phases may differ.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>
#include "delays.h"

// Python fills it in; link_timing.py reads the names from here. Probabilities are in 2^-64.
// clang-format off
#define LINK_CONFIG_FIELDS(X) \
    X(period)             /* of the link's clock */ \
    X(hop)                /* from the edge that takes a word to the first edge that may deliver it, at least */ \
    X(jitter)             /* longest additional delay of a word */ \
    X(cut_at)             /* time after the channel first came up from which all is lost; all ones: never */ \
    X(cut_drops_channel)  /* whether the channel then goes down too */ \
    X(word_drop) \
    X(word_corrupt) \
    X(frame_error)        /* a frame has exactly one changed word */ \
    X(seed)
// clang-format on

struct LinkConfig {
#define LINK_CONFIG_FIELD(name) uint64_t name;
    LINK_CONFIG_FIELDS(LINK_CONFIG_FIELD)
#undef LINK_CONFIG_FIELD
};

constexpr uint64_t NEVER = ~uint64_t(0);
constexpr uint64_t CHANNEL_DOWN_CYCLES = 500;  // from the reset of an end until the channel is up
constexpr unsigned LINK_DATA_BITS = 256;
constexpr unsigned FRAME_WORDS = 17;  // longest frame of the ring, trailer included

// In which cycles of its clock an Aurora core takes no word, after the time at which the channel came up.
class TransmitStalls {
public:
    static constexpr uint64_t GEARBOX_CYCLES = 33, COMPENSATION_CYCLES = 4992, COMPENSATION_STALL = 8;

    TransmitStalls() = default;
    explicit TransmitStalls(Random random)
        : gearbox_(random.next() % GEARBOX_CYCLES), compensation_(random.next() % COMPENSATION_CYCLES) {}

    bool ready(uint64_t cycle) const {
        return (cycle + gearbox_) % GEARBOX_CYCLES != GEARBOX_CYCLES - 1 &&
               (cycle + compensation_) % COMPENSATION_CYCLES >= COMPENSATION_STALL;
    }

private:
    uint64_t gearbox_ = 0, compensation_ = 0;
};

// One direction. Word: any struct with `bool last`; with `void flip(unsigned bit)` (data bits 0 to 255) if it has data.
// The sender's thread calls ready() and transmit_cycle(), the receiver's receive(); they may run at the same time as long
// as no time that they give is further than the shortest hop from the last exchange(), which one thread calls for both.
template <class Word>
class Link {
public:
    struct Counters {
        uint64_t words_sent, words_lost, words_corrupted, words_received;
    };

    // `direction` numbers the directions of a ring, so that each has draws of its own.
    void configure(const LinkConfig& config, unsigned direction) {
        config_ = config;
        unsigned stream = 0;
        for (Random* random : {&drop_random_, &corrupt_random_, &frame_random_, &jitter_random_})
            *random = Random(stream_seed(config.seed, direction, stream++));
        stalls_ = TransmitStalls(Random(stream_seed(config.seed, direction, stream)));
        clear();
        sent_ = dropped_ = corrupted_ = received_ = lost_on_the_way_ = 0;
    }

    // The channel went down: what is under way is lost.
    void clear() {
        for (const std::deque<Flight>* words : {&leaving_, &under_way_}) lost_on_the_way_ += words->size();
        leaving_.clear(), under_way_.clear();
        cycle_ = last_arrival_ = 0, frame_word_ = 0;
    }

    // Sender's side: whether the core takes a word in the present cycle of its clock.
    bool ready() const { return stalls_.ready(cycle_); }
    // The edge that ends this cycle, at time `now`, while the channel is up; `word`: what the core took, or null.
    // Everything is lost that has not arrived at time `cut_at`.
    void transmit_cycle(uint64_t now, const Word* word, uint64_t cut_at = NEVER) {
        ++cycle_;
        if (word) send(now, *word, cut_at);
    }

    // Receiver's side: the word of the cycle that ends with an edge at time `at`; whether there is one.
    bool receive(uint64_t at, Word& word, uint64_t cut_at = NEVER) {
        while (!under_way_.empty() && under_way_.front().arrival <= at) {
            word = under_way_.front().word;
            const bool lost = under_way_.front().arrival >= cut_at;
            under_way_.pop_front();
            if (!lost) return ++received_, true;
            ++lost_on_the_way_;
        }
        return false;
    }

    // Between both: hand over what was sent.
    void exchange() {
        for (; !leaving_.empty(); leaving_.pop_front()) under_way_.push_back(leaving_.front());
    }

    // Words between the two ends for which count(word) holds; after exchange().
    template <class Count>
    uint64_t under_way(Count count) const {
        uint64_t words = 0;
        for (const Flight& flight : under_way_) words += count(flight.word);
        return words;
    }
    bool empty() const { return under_way_.empty() && leaving_.empty(); }
    // When the next word can be received; NEVER if none is under way. After exchange().
    uint64_t next_arrival() const { return under_way_.empty() ? NEVER : under_way_.front().arrival; }

    Counters counters() const { return {sent_, dropped_ + lost_on_the_way_, corrupted_, received_}; }

private:
    struct Flight {
        uint64_t arrival;
        Word word;
    };

    static bool drawn(Random& random, uint64_t probability) { return probability && random.next() < probability; }

    void send(uint64_t now, Word word, uint64_t cut_at) {
        ++sent_;
        const bool wrong = wrong_in_frame(word.last);
        const bool corrupt = drawn(corrupt_random_, config_.word_corrupt);
        const bool dropped = drawn(drop_random_, config_.word_drop);
        uint64_t arrival = now + config_.hop;
        if (config_.jitter) arrival += jitter_random_.next() % (config_.jitter + 1);
        arrival = std::max(arrival, last_arrival_ + config_.period);  // in order, one a cycle
        if (corrupt || wrong) change(word, corrupt);
        if (dropped || now >= cut_at) {
            ++dropped_;
            return;
        }
        corrupted_ += corrupt || wrong;
        last_arrival_ = arrival;
        leaving_.push_back({arrival, word});
    }

    // Whether this is the word that is wrong in a frame that has one: a drawn one of the first FRAME_WORDS, or the last
    // if the frame is shorter.
    bool wrong_in_frame(bool last) {
        if (!config_.frame_error) return false;
        if (frame_word_ == 0) {
            const bool drawn_wrong = drawn(frame_random_, config_.frame_error);
            wrong_word_ = drawn_wrong ? frame_random_.between(0, FRAME_WORDS - 1) : NEVER;
        }
        const bool wrong = wrong_word_ != NEVER && (frame_word_ == wrong_word_ || (last && frame_word_ < wrong_word_));
        frame_word_ = last ? 0 : frame_word_ + 1;
        return wrong;
    }

    // Changes one to eight neighbouring bits of data, or now and then the mark of the last word of a frame.
    void change(Word& word, bool any) {
        const uint64_t draw = corrupt_random_.next();
        if (any && draw >> 60 == 0) {
            word.last = !word.last;
            return;
        }
        if constexpr (requires { word.flip(0u); }) {
            const uint32_t pattern = (draw >> 32 & 0xFF) | 1;
            for (unsigned bit = 0; bit < 8; ++bit)
                if (pattern >> bit & 1) word.flip((draw + bit) % LINK_DATA_BITS);
        }
    }

    LinkConfig config_{};
    TransmitStalls stalls_;
    Random drop_random_, corrupt_random_, frame_random_, jitter_random_;
    std::deque<Flight> leaving_, under_way_;
    uint64_t cycle_ = 0, last_arrival_ = 0, frame_word_ = 0, wrong_word_ = NEVER;
    uint64_t sent_ = 0, dropped_ = 0, corrupted_ = 0;   // the sender counts
    uint64_t received_ = 0, lost_on_the_way_ = 0;       // the receiver counts
};

// Both directions and the channel's state. End 0 sends by links[0] and receives from links[1], end 1 the other way round.
// What changes the channel (reset, cut, mend) is called between exchanges only.
template <class Word>
class Cable {
public:
    Link<Word> links[2];

    // `number` of the cable in its ring; draws and counters begin anew, the channel is as after a reset. A cable that was
    // cut by hand stays cut.
    void configure(const LinkConfig& config, unsigned number, uint64_t now) {
        config_ = config;
        for (unsigned end = 0; end < 2; ++end) links[end].configure(config, 2 * number + end);
        reset(now);
        if (cut_by_hand_) return;
        cut_at_ = config.cut_at == NEVER ? NEVER : up_at_ + config.cut_at;
        drops_ = config.cut_drops_channel;
    }

    // An end was reset: the channel is down at both for CHANNEL_DOWN_CYCLES.
    void reset(uint64_t now) {
        for (Link<Word>& link : links) link.clear();
        up_at_ = now + CHANNEL_DOWN_CYCLES * config_.period;
    }

    // From `now` on everything is lost; `drops_channel`: and the channel is down.
    void cut(uint64_t now, bool drops_channel) { cut_at_ = now, drops_ = drops_channel, cut_by_hand_ = true; }

    // Whole again; a channel that was down comes up as after a reset.
    void mend(uint64_t now) {
        if (now >= cut_at_ && drops_) reset(now);
        cut_at_ = NEVER, cut_by_hand_ = false;
    }

    bool up(uint64_t now) const { return now >= up_at_ && !(drops_ && now >= cut_at_); }
    bool ready(unsigned end, uint64_t now) const { return up(now) && links[end].ready(); }
    // The edge of `end`'s clock at `now`: what its core took in the cycle before it (null: nothing).
    void transmit_cycle(unsigned end, uint64_t now, const Word* word) {
        if (up(now)) links[end].transmit_cycle(now, word, cut_at_);
    }
    bool receive(unsigned end, uint64_t at, Word& word) {
        return links[1 - end].receive(at, word, up(at) ? cut_at_ : 0);  // on a channel that is down all is lost
    }
    void exchange() {
        for (Link<Word>& link : links) link.exchange();
    }

private:
    LinkConfig config_{};
    uint64_t up_at_ = 0, cut_at_ = NEVER;
    bool drops_ = true, cut_by_hand_ = false;
};
