// A write command to the memory ports, as writers show it.
#pragma once
#include <cstdint>

namespace timing {

struct WriteCommand {
    bool valid = false;
    uint64_t row = 0;
    uint32_t channels = 0;  // bit per channel
};

}  // namespace timing
