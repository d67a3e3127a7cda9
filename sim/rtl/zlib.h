// The part of zlib that Verilator's FST writer calls, for machines without its headers (see sim/rtl/verilator.py). What
// compress2 makes is a valid zlib stream of stored blocks, not compressed; the FST writer keeps the smaller of both.
// Formats: RFC 1950 (zlib), RFC 1951 section 3.2.4 (stored blocks).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

using Bytef = unsigned char;
using uLong = unsigned long;
using uLongf = unsigned long;
constexpr int Z_OK = 0, Z_BUF_ERROR = -5;

namespace stored_zlib {
constexpr uLong BLOCK_BYTES = 65535, BLOCK_HEADER_BYTES = 5, FRAME_BYTES = 6;  // FRAME: header 2, Adler-32 4

inline uint32_t adler32(const Bytef* data, uLong size) {
    uint32_t low = 1, high = 0;
    for (uLong i = 0; i < size; ++i) low = (low + data[i]) % 65521, high = (high + low) % 65521;
    return high << 16 | low;
}
}  // namespace stored_zlib

inline uLong compressBound(uLong size) {
    const uLong blocks = size ? (size + stored_zlib::BLOCK_BYTES - 1) / stored_zlib::BLOCK_BYTES : 1;
    return size + blocks * stored_zlib::BLOCK_HEADER_BYTES + stored_zlib::FRAME_BYTES;
}

// `target_size`: capacity before, bytes written after. The level is not used.
inline int compress2(Bytef* target, uLongf* target_size, const Bytef* source, uLong size, int) {
    if (*target_size < compressBound(size)) return Z_BUF_ERROR;
    Bytef* out = target;
    *out++ = 0x78, *out++ = 0x01;  // deflate, window of 32 KiB, lowest level
    uLong left = size;
    do {
        const uLong block = left < stored_zlib::BLOCK_BYTES ? left : stored_zlib::BLOCK_BYTES;
        *out++ = block == left;  // last block; type 00 is stored
        *out++ = Bytef(block), *out++ = Bytef(block >> 8), *out++ = Bytef(~block), *out++ = Bytef(~block >> 8);
        if (block) std::memcpy(out, source + (size - left), block);
        out += block, left -= block;
    } while (left);
    const uint32_t check = stored_zlib::adler32(source, size);
    for (int shift = 24; shift >= 0; shift -= 8) *out++ = Bytef(check >> shift);
    *target_size = uLongf(out - target);
    return Z_OK;
}
