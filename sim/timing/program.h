// What a run works on, as the host wrote it.
#pragma once
#include <cstdint>
#include <vector>
#include "hardware.h"

namespace timing {

struct Program {
    std::vector<Instruction> instructions;
    std::vector<Access> descriptors;
    std::vector<int64_t> tokens;  // those that are known

    // Token id of a position, -1 if nobody said what it will be.
    int64_t token(uint64_t position) const { return position < tokens.size() ? tokens[position] : -1; }
};

}  // namespace timing
