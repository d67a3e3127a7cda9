// What a word on a cable tells the timing model: no payload; a trailer's fields with the last word of a frame.
#pragma once
#include "frame.h"

namespace timing {

struct LinkWord {
    bool last = false;
    Frame frame;
    uint8_t seq = 0, ack = 0, freed = 0;
};

}  // namespace timing
