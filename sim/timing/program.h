// What a run works on, as the host wrote it.
#pragma once
#include <array>
#include <cstdint>
#include <vector>
#include "hardware.h"

namespace timing {

struct Program {
    std::vector<Instruction> instructions;
    std::vector<Access> descriptors;
    std::array<std::vector<int64_t>, MAX_ROWS> tokens;  // of each row those that are known

    // Token id of a row's position, -1 if nobody said what it will be.
    int64_t token(uint32_t row, uint64_t position) const {
        return position < tokens[row].size() ? tokens[row][position] : -1;
    }
};

}  // namespace timing
