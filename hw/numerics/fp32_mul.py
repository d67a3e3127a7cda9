"""Product of two fp32 numbers, correctly rounded."""

import numpy as np
from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .fp_format import FP32_BIAS, FP32_NAN, round_to_fp32
from .golden_njit import golden_njit
from .pipeline import delayed, registered, rounded_up

__all__ = ["Fp32Mul", "fp32_mul", "fp32_mul_array"]


@golden_njit
def fp32_mul(a, b):
    """Golden model of `Fp32Mul`: the product of two fp32 bit patterns as uint32 bit pattern."""
    a = np.int64(a) & 0xFFFFFFFF
    b = np.int64(b) & 0xFFFFFFFF
    exponent_a = (a >> 23) & 0xFF
    exponent_b = (b >> 23) & 0xFF
    if exponent_a == 255 or exponent_b == 255:
        return np.uint32(FP32_NAN)
    sign = (a ^ b) >> 31
    if exponent_a == 0 or exponent_b == 0:
        return np.uint32(sign << 31)
    product = ((a & 0x7FFFFF) | 0x800000) * ((b & 0x7FFFFF) | 0x800000)
    return round_to_fp32(sign, product, exponent_a + exponent_b - 2 * (127 + 23))


@golden_njit
def fp32_mul_array(a, b):
    """`fp32_mul` over two uint32 arrays of the same length; returns a uint32 array."""
    out = np.empty(a.size, np.uint32)
    for i in range(a.size):
        out[i] = fp32_mul(a[i], b[i])
    return out


class Fp32Mul(wiring.Component):
    """Product of two fp32 numbers, correctly rounded.

    Parameters
    ----------
    None.

    Members
    -------
    a, b : In(32)
        fp32 operands.
    out : Out(32)
        fp32 product.

    Timing
    ------
    Free-running; latency 3 cycles, interval 1, no reset. Pieces: two partial products (24 x 17 and 24 x 7 bits, one DSP
    each) | their sum | round | pack (drives `out`).

    Numerics
    --------
    Round to nearest even of the exact 48-bit product: the error is at most half a unit of the last place (compared with
    SoftFloat on corner products and random operands). Subnormal operands count as zero of their sign, a result below
    2**-126 after rounding becomes zero of its sign, overflow and operands with exponent 255 give NaN (0x7FC00000), also
    times zero.

    Source
    ------
    Design, section 5; vector unit of section 5 of the GPT-2 core sketch.
    """

    a: In(32)
    b: In(32)
    out: Out(32)

    latency = 3

    def elaborate(self, platform) -> Module:
        m = Module()
        exponent_a, exponent_b = self.a[23:31], self.b[23:31]
        significand_a, significand_b = Cat(self.a[:23], Const(1, 1)), Cat(self.b[:23], Const(1, 1))
        low = registered(m, significand_a * significand_b[:17], "product_low")
        high = registered(m, significand_a * significand_b[17:], "product_high")
        exponent = registered(m, exponent_a + exponent_b, "exponent")
        sign = registered(m, self.a[31] ^ self.b[31], "sign")
        zero = registered(m, ~exponent_a.any() | ~exponent_b.any(), "zero")
        nan = registered(m, exponent_a.all() | exponent_b.all(), "nan")

        product = registered(m, (low + (high << 17))[:48], "product")
        exponent = registered(m, exponent, "exponent_d1")

        # round: the product is in [2**46, 2**48)
        two = product[47]
        normal = Signal(48)
        with m.If(two):
            m.d.comb += normal.eq(product)
        with m.Else():
            m.d.comb += normal.eq(product << 1)
        increment = rounded_up(normal[24:], normal[23], normal[:23].any())
        significand = registered(m, normal[24:] + increment, "significand")
        biased = Signal(signed(11))
        m.d.comb += biased.eq(exponent + two - FP32_BIAS)
        biased = registered(m, biased, "biased")
        sign = delayed(m, sign, 2, "sign")
        zero = delayed(m, zero, 2, "zero")
        nan = delayed(m, nan, 2, "nan")

        # pack: rounding up to 2**24 leaves a zero fraction
        final = Signal(signed(11))
        m.d.comb += final.eq(biased + significand[24])
        with m.If(nan):
            m.d.comb += self.out.eq(FP32_NAN)
        with m.Elif(zero | (final < 1)):
            m.d.comb += self.out.eq(Cat(Const(0, 31), sign))
        with m.Elif(final > 254):
            m.d.comb += self.out.eq(FP32_NAN)
        with m.Else():
            m.d.comb += self.out.eq(Cat(significand[:23], final[:8], sign))
        return m
