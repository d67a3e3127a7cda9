"""The two number formats, as constants, and rounding to them, as golden functions on integers."""

import numpy as np

from .golden_njit import golden_njit

__all__ = [
    "FP16_BIAS",
    "FP16_NAN",
    "FP16_ONE",
    "FP32_BIAS",
    "FP32_NAN",
    "FP32_ONE",
    "bit_length",
    "round_to_fp32",
]

FP16_BIAS = 15
FP16_NAN = 0x7E00
FP16_ONE = 0x3C00
FP32_BIAS = 127
FP32_NAN = 0x7FC00000
FP32_ONE = 0x3F800000


@golden_njit
def bit_length(value):
    """Number of bits of `value` (0 <= value < 2**63) without leading zeros; 0 for 0."""
    length = 0
    value = np.int64(value)
    for step in (32, 16, 8, 4, 2, 1):
        if value >> step:
            value >>= step
            length += step
    return length + value


@golden_njit
def round_to_fp32(sign, magnitude, exponent):
    """Round ``(-1)**sign * magnitude * 2**exponent`` to fp32, nearest even.

    `magnitude` (0 <= magnitude < 2**62) may hold a sticky bit in bit 0 if it has more than 25 bits. Magnitude zero
    gives a zero of the given sign; a result below 2**-126 after rounding with unbounded exponent likewise; a result
    of 2**128 or more gives NaN. Returns the bit pattern as uint32.
    """
    sign_bit = np.int64(sign) << 31
    if magnitude == 0:
        return np.uint32(sign_bit)
    length = bit_length(magnitude)
    drop = length - 24
    if drop > 0:
        half = np.int64(1) << (drop - 1)
        rest = magnitude & ((half << 1) - 1)
        significand = magnitude >> drop
        if rest > half or (rest == half and significand & 1):
            significand += 1
            if significand == 1 << 24:
                significand >>= 1
                drop += 1
    else:
        significand = magnitude << -drop
    biased = exponent + drop + 23 + FP32_BIAS
    if biased < 1:
        return np.uint32(sign_bit)
    if biased > 254:
        return np.uint32(FP32_NAN)
    return np.uint32(sign_bit | (biased << 23) | (significand & 0x7FFFFF))
