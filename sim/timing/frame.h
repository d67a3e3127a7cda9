// Frames of the ring (docs/ring.md section 4) as the timing model knows them: what describes them, no payload.
#pragma once
#include "ring_hardware.h"

namespace timing {

struct Frame {
    int kind = FRAME_ACK;
    uint32_t beats = 0, hops = 0, origin = 0, address = 0, strips = 0;
};

// A part of a frame that node and core exchange in a cycle.
struct Entry {
    Frame frame;
    uint32_t index = 0;
    bool last = false;
    int port = 0;
};

}  // namespace timing
