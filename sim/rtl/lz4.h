// The two functions of the LZ4 library that Verilator's FST writer calls, for machines without its headers. The block that
// they make is valid LZ4 but not compressed: one run of literals (the FST writer keeps the smaller of both where it may choose).
// Format: https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
#pragma once
#include <cstring>

inline int LZ4_compressBound(int size) { return size + size / 255 + 16; }

inline int LZ4_compress_default(const char* source, char* target, int size, int capacity) {
    if (capacity < LZ4_compressBound(size)) return 0;
    char* out = target;
    *out++ = char((size < 15 ? size : 15) << 4);  // token: number of literals, no match
    if (size >= 15) {
        int more = size - 15;
        for (; more >= 255; more -= 255) *out++ = char(255);
        *out++ = char(more);
    }
    std::memcpy(out, source, size);
    return int(out - target) + size;
}
