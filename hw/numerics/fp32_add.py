"""Addition of two fp32 numbers, correctly rounded."""

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .fp_format import FP32_NAN, round_to_fp32
from .golden_njit import golden_njit
from .pipeline import add_or_subtract, delayed, normalised, registered, rounded_up, shifted_right

__all__ = ["Fp32Add", "fp32_add", "fp32_add_array"]


@golden_njit
def fp32_add(a, b):
    """Golden model of `Fp32Add`: the sum of two fp32 bit patterns as uint32 bit pattern."""
    a = np.int64(a) & 0xFFFFFFFF
    b = np.int64(b) & 0xFFFFFFFF
    if (a & 0x7FFFFFFF) < (b & 0x7FFFFFFF):
        a, b = b, a
    exponent_a = (a >> 23) & 0xFF
    exponent_b = (b >> 23) & 0xFF
    if exponent_a == 255:
        return np.uint32(FP32_NAN)
    if exponent_a == 0:  # both are zero
        return np.uint32(a & b & 0x80000000)
    if exponent_b == 0:
        return np.uint32(a)
    # 32 extra low bits; an operand that lies below all of them acts as a sticky bit
    magnitude_a = ((a & 0x7FFFFF) | 0x800000) << 32
    magnitude_b = ((b & 0x7FFFFF) | 0x800000) << 32
    distance = exponent_a - exponent_b
    if distance > 32:
        magnitude_b = np.int64(1)
    else:
        magnitude_b >>= distance  # exact: the low 32 bits were zero
    sign_a = a >> 31
    if sign_a == b >> 31:
        magnitude = magnitude_a + magnitude_b
    else:
        magnitude = magnitude_a - magnitude_b
    if magnitude == 0:
        return np.uint32(0)
    return round_to_fp32(sign_a, magnitude, exponent_a - 127 - 23 - 32)


@golden_njit
def fp32_add_array(a, b):
    """`fp32_add` over two uint32 arrays of the same length; returns a uint32 array."""
    out = np.empty(a.size, np.uint32)
    for i in range(a.size):
        out[i] = fp32_add(a[i], b[i])
    return out


class Fp32Add(wiring.Component):
    """Sum of two fp32 numbers, correctly rounded.

    Parameters
    ----------
    None.

    Members
    -------
    a, b : In(32)
        fp32 operands.
    out : Out(32)
        fp32 sum.

    Timing
    ------
    Free-running; latency 3 cycles, interval 1, no reset. Four pieces of logic around three registers: compare and
    swap | align | add, coarse normalise | fine normalise, round (drives `out`). Made for an accumulator loop of four
    cycles whose memory write follows `out` directly.

    Numerics
    --------
    Round to nearest even by guard, round and sticky bit: the error is at most half a unit of the last place (compared
    with SoftFloat on corner products and random operands). Subnormal operands count as zero of their sign, a result
    below 2**-126 becomes zero of its sign, overflow and operands with exponent 255 give NaN (0x7FC00000).
    x + (-x) = +0, -0 + -0 = -0.

    Source
    ------
    Design, section 5; accumulator loop of section 2 of the GPT-2 core sketch.
    """

    a: In(32)
    b: In(32)
    out: Out(32)

    latency = 3

    def elaborate(self, platform) -> Module:
        m = Module()
        # compare and swap
        swap = Signal()
        large = Signal(32)
        small = Signal(32)
        m.d.comb += [
            swap.eq(self.a[:31] < self.b[:31]),
            large.eq(Mux(swap, self.b, self.a)),
            small.eq(Mux(swap, self.a, self.b)),
        ]
        large_present = large[23:31].any()
        small_present = small[23:31].any()
        distance = Signal(8)
        m.d.comb += distance.eq(large[23:31] - small[23:31])
        large_significand = registered(m, Mux(large_present, Cat(large[:23], Const(1, 1)), 0), "large_significand")
        small_significand = registered(m, Mux(small_present, Cat(small[:23], Const(1, 1)), 0), "small_significand")
        shift = registered(m, distance[:5] | distance[5:].any().replicate(5), "shift")
        subtract = registered(m, large[31] ^ small[31], "subtract")
        sign = registered(m, large[31], "sign")
        exponent = registered(m, large[23:31], "exponent")
        nan = registered(m, large[23:31].all(), "nan")

        # align: two more bits and a sticky bit below the last place
        aligned, sticky = shifted_right(m, Cat(Const(0, 2), small_significand), shift, "align")
        aligned = registered(m, Cat(sticky, aligned), "aligned")
        large_significand = registered(m, large_significand, "large_significand_d1")
        subtract = registered(m, subtract, "subtract_d1")

        # add, coarse normalise
        total = Signal(28)
        extended = Cat(Const(0, 3), large_significand)
        m.d.comb += total.eq(add_or_subtract(extended, aligned, subtract))
        coarse, coarse_count = normalised(m, total, "coarse", (16, 8))
        coarse = registered(m, coarse, "coarse")
        coarse_count = registered(m, coarse_count, "coarse_count_d1")
        subtract = registered(m, subtract, "subtract_d2")
        sign = delayed(m, sign, 2, "sign")
        exponent = delayed(m, exponent, 2, "exponent")
        nan = delayed(m, nan, 2, "nan")

        # fine normalise, round, pack
        normal, fine_count = normalised(m, coarse, "fine", (4, 2, 1))
        increment = rounded_up(normal[4:], normal[3], normal[:3].any())
        biased = Signal(signed(10))
        packed = Signal(32)
        m.d.comb += [
            biased.eq(exponent + 1 - (coarse_count | fine_count)),
            packed.eq(Cat(normal[4:27], biased[:9]) + increment),
        ]
        with m.If(nan):
            m.d.comb += self.out.eq(FP32_NAN)
        with m.Elif(~normal[27]):  # the sum is zero
            m.d.comb += self.out.eq(Cat(Const(0, 31), sign & ~subtract))
        with m.Elif(biased < 1):
            m.d.comb += self.out.eq(Cat(Const(0, 31), sign))
        with m.Elif(packed[23:] >= 255):
            m.d.comb += self.out.eq(FP32_NAN)
        with m.Else():
            m.d.comb += self.out.eq(Cat(packed[:31], sign))
        return m
