// Receiving half of a link port (hw/link/receiver.py), on cables that lose and change nothing.
#pragma once
#include "link_word.h"

namespace timing {

class Receiver {
public:
    // What a good frame told, in the cycle behind its verdict.
    bool heard = false;
    uint8_t heard_ack = 0, heard_freed = 0;
    uint8_t expected = 0;

    explicit Receiver(const RingSizes& sizes) : sizes_(sizes) {}

    // One cycle of the link's clock; `word`: what came, or null; `freed`: frames whose slots the core has freed.
    // Returns the frame that is taken, or null.
    const Frame* clock(const LinkWord* word, uint8_t freed) {
        heard = valid_[2] && words_[2].last;
        const bool follows = heard && words_[2].frame.kind != FRAME_ACK && words_[2].seq == expected && !full_;
        if (heard) heard_ack = words_[2].ack, heard_freed = words_[2].freed;
        if (follows) taken_ = words_[2].frame, ++expected;
        full_ = uint8_t(expected - freed) == sizes_.slots;
        for (int i = 2; i > 0; --i) {
            if (valid_[i - 1]) words_[i] = words_[i - 1];
            valid_[i] = valid_[i - 1];
        }
        valid_[0] = word;
        if (word) words_[0] = *word;
        return follows ? &taken_ : nullptr;
    }

private:
    const RingSizes& sizes_;
    LinkWord words_[3];
    bool valid_[3] = {false, false, false}, full_ = false;
    Frame taken_;
};

}  // namespace timing
