// The kernel's pins of one Aurora core, and the end of a cable behind them.
#pragma once
#include <cstdint>
#include <cstring>
#include "link_timing.h"

struct LinkWord {
    uint32_t data[8];
    uint32_t keep;
    bool last;

    void flip(unsigned bit) { data[bit / 32] ^= 1u << bit % 32; }
    // Whether it belongs to a frame that carries something: all but ACK, which is a single trailer of kind 0
    // (docs/ring.md section 4) and goes out for ever, whatever the boards do.
    bool carries() const { return !last || (data[1] & 7) != 0; }
};

// Pointers into the model.
struct LinkPins {
    uint8_t *clk, *up, *tx_ready;
    const uint8_t *tx_valid, *tx_last;
    const uint32_t *tx_data, *tx_keep;
    uint8_t *rx_valid, *rx_last;
    uint32_t *rx_data, *rx_keep;

    void clear() const { *clk = *up = *tx_ready = *rx_valid = 0; }
};

// One port of a board; times are the ring's.
struct LinkEnd {
    LinkPins pins{};
    Cable<LinkWord>* cable = nullptr;
    unsigned end = 0;

    // The edge at `now`, before it: what the core takes. Returns whether something went in or out that is not an ACK.
    bool sample(uint64_t now) {
        bool moved = *pins.rx_valid && received_.carries();
        LinkWord sent;
        const bool taken = *pins.tx_valid && *pins.tx_ready;
        if (taken) {
            std::memcpy(sent.data, pins.tx_data, sizeof sent.data);
            sent.keep = *pins.tx_keep, sent.last = *pins.tx_last;
            moved |= sent.carries();
        }
        cable->transmit_cycle(end, now, taken ? &sent : nullptr);
        return moved;
    }

    // After an edge: the inputs of the cycle that ends with the edge at `next`.
    void apply(uint64_t next) {
        *pins.up = cable->up(next);
        *pins.tx_ready = cable->ready(end, next);
        *pins.rx_valid = cable->receive(end, next, received_);
        if (!*pins.rx_valid) return;
        std::memcpy(pins.rx_data, received_.data, sizeof received_.data);
        *pins.rx_keep = received_.keep, *pins.rx_last = received_.last;
    }

private:
    LinkWord received_{};
};
