// What a row has for itself and issue waits for (hw/gpt2/row.py): its softmax and its statistics.
#pragma once
#include "softmax.h"
#include "statistics.h"

namespace timing {

struct Row {
    Softmax softmax;
    Statistics statistics;

    Row(const Sizes& sizes, uint32_t row, Record& record) : softmax(sizes, row, record), statistics(sizes, row, record) {}
};

}  // namespace timing
