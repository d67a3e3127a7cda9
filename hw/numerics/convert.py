"""Conversions between fp16 and fp32."""

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .fp_format import FP16_BIAS, FP16_NAN, FP32_BIAS, FP32_NAN
from .golden_njit import golden_njit
from .pipeline import registered, rounded_up, shifted_right

__all__ = [
    "Fp32ToFp16",
    "fp16_to_fp32",
    "fp16_to_fp32_array",
    "fp16_to_fp32_expr",
    "fp32_to_fp16",
    "fp32_to_fp16_array",
]


@golden_njit
def fp16_to_fp32(half):
    """Golden model of `fp16_to_fp32_expr`: an fp16 bit pattern as uint32 fp32 bit pattern, exact."""
    half = np.int64(half) & 0xFFFF
    sign_bit = (half >> 15) << 31
    exponent = (half >> 10) & 0x1F
    fraction = half & 0x3FF
    if exponent == 31:
        return np.uint32(FP32_NAN)
    if exponent == 0:
        if fraction == 0:
            return np.uint32(sign_bit)
        exponent = np.int64(1)
        while fraction < 0x400:
            fraction <<= 1
            exponent -= 1
    return np.uint32(sign_bit | ((exponent + 112) << 23) | ((fraction & 0x3FF) << 13))


@golden_njit
def fp32_to_fp16(single):
    """Golden model of `Fp32ToFp16`: an fp32 bit pattern rounded (nearest even) to a uint16 fp16 bit pattern."""
    single = np.int64(single) & 0xFFFFFFFF
    sign_bit = (single >> 31) << 15
    exponent = (single >> 23) & 0xFF
    if exponent == 255 or exponent > 127 + 15:
        return np.uint16(FP16_NAN)
    if exponent < 127 - 25:  # below half of the smallest subnormal
        return np.uint16(sign_bit)
    significand = (single & 0x7FFFFF) | 0x800000
    if exponent >= 127 - 14:
        drop = np.int64(13)
        base = (exponent - (127 - 14)) << 10  # the hidden bit adds the missing 1
    else:
        drop = 13 + (127 - 14) - exponent
        base = np.int64(0)
    half = np.int64(1) << (drop - 1)
    rest = significand & ((half << 1) - 1)
    significand >>= drop
    if rest > half or (rest == half and significand & 1):
        significand += 1
    result = base + significand
    if result >= 0x7C00:
        return np.uint16(FP16_NAN)
    return np.uint16(sign_bit | result)


@golden_njit
def fp16_to_fp32_array(half):
    """`fp16_to_fp32` over a uint16 array; returns a uint32 array."""
    out = np.empty(half.size, np.uint32)
    for i in range(half.size):
        out[i] = fp16_to_fp32(half[i])
    return out


@golden_njit
def fp32_to_fp16_array(single):
    """`fp32_to_fp16` over a uint32 array; returns a uint16 array."""
    out = np.empty(single.size, np.uint16)
    for i in range(single.size):
        out[i] = fp32_to_fp16(single[i])
    return out


def fp16_to_fp32_expr(half: Value) -> Value:
    """The fp32 value (32 bits) of the 16-bit `half`: combinational and exact; exponent 31 gives NaN (0x7FC00000)."""
    half = Value.cast(half)
    if len(half) != 16:
        raise ValueError(f"an fp16 value must have 16 bits, got {len(half)}")
    fraction, exponent = half[:10], half[10:15]
    subnormal = Const(0, 31)
    for place in range(10):  # the highest 1 wins: it becomes the hidden bit
        normal = Cat(Const(0, 13 + 10 - place), fraction[:place], Const(FP32_BIAS - 24 + place, 8))
        subnormal = Mux(fraction[place], normal, subnormal)
    normal = Cat(Const(0, 13), fraction, (exponent + (FP32_BIAS - FP16_BIAS))[:8])
    magnitude = Mux(exponent.any(), normal, subnormal)
    return Mux(exponent.all(), Const(FP32_NAN, 32), Cat(magnitude, half[15]))


class Fp32ToFp16(wiring.Component):
    """fp32 rounded to fp16.

    Parameters
    ----------
    None.

    Members
    -------
    x : In(32)
        fp32 operand.
    out : Out(16)
        fp16 result.

    Timing
    ------
    Free-running; latency 1 cycle, interval 1, no reset. Pieces: shift to the fp16 grid | round and pack (drives `out`).

    Numerics
    --------
    Round to nearest even, subnormal results included: at most half a unit of the last place (compared with SoftFloat).
    Results of 2**16 - 16 or more in magnitude and operands with exponent 255 give NaN (0x7E00). Signs of zeros are
    kept.

    Source
    ------
    Design, section 5.
    """

    x: In(32)
    out: Out(16)

    latency = 1

    def elaborate(self, platform) -> Module:
        m = Module()
        exponent = self.x[23:31]
        smallest_normal = FP32_BIAS - 14
        subnormal = exponent < smallest_normal
        shift = Signal(4)
        with m.If(exponent < smallest_normal - 12):
            m.d.comb += shift.eq(15)  # below half of the smallest subnormal
        with m.Elif(subnormal):
            m.d.comb += shift.eq(smallest_normal - exponent)
        # eleven bits to keep and one to decide
        shifted, lost = shifted_right(m, Cat(self.x[12:23], Const(1, 1)), shift, "shift")
        field = Signal(5)
        m.d.comb += field.eq(Mux(subnormal, 0, exponent - (smallest_normal - 1)))
        kept = registered(m, shifted[1:], "kept")
        half = registered(m, shifted[0], "half")
        sticky = registered(m, lost | self.x[:12].any(), "sticky")
        field = registered(m, field, "field")
        nan = registered(m, exponent > FP32_BIAS + 15, "nan")
        sign = registered(m, self.x[31], "sign")

        packed = Signal(15)
        m.d.comb += packed.eq(Cat(kept[:10], field) + rounded_up(kept, half, sticky))
        m.d.comb += self.out.eq(Mux(nan | packed[10:].all(), FP16_NAN, Cat(packed, sign)))
        return m
