"""exp(x) of fp32 numbers x <= 0 as fp16, by table and linear interpolation."""

from decimal import Decimal, localcontext

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .fp_format import FP16_NAN, FP16_ONE, FP32_BIAS
from .golden_njit import golden_njit
from .pipeline import delayed, registered, rounded_up, shifted_right

__all__ = ["ExpNegative", "exp_negative", "exp_negative_array"]

SEGMENTS = 256
BASE_BITS = 21
SLOPE_BITS = 14
LOG2_E = 189_097
"""log2(e) in units of 2**-17 (relative error 4.2e-7)."""


def exponential_table() -> tuple[np.ndarray, np.ndarray]:
    """Return (bases, slopes): int64 arrays (256,); in segment i, 2**-u = base * 2**-20 - slope * 2**-22 * t."""
    with localcontext() as context:
        context.prec = 40
        points = [Decimal(2) ** (Decimal(-i) / SEGMENTS) for i in range(SEGMENTS + 1)]
        bases = [int((p * 2**20).to_integral_value()) for p in points[:-1]]
        slopes = [int(((points[i] - points[i + 1]) * 2**22).to_integral_value()) for i in range(SEGMENTS)]
    return np.array(bases, np.int64), np.array(slopes, np.int64)


_BASES, _SLOPES = exponential_table()


@golden_njit
def exp_negative(x):
    """Golden model of `ExpNegative`: exp of an fp32 bit pattern (x <= 0) as uint16 fp16 bit pattern."""
    x = np.int64(x) & 0xFFFFFFFF
    exponent = (x >> 23) & 0xFF
    if exponent == 255:
        return np.uint16(FP16_NAN)
    if exponent == 0 or x >> 31 == 0:
        return np.uint16(FP16_ONE)
    if exponent >= 127 + 5:
        return np.uint16(0)
    significand = (x & 0x7FFFFF) | 0x800000
    power = (significand * LOG2_E) >> min(145 - exponent, 63)  # -x*log2(e) in units of 2**-22
    whole = power >> 22
    if whole >= 26:
        return np.uint16(0)
    segment = (power >> 14) & 0xFF
    fall = (_SLOPES[segment] * (power & 0x3FFF)) >> 12
    value = (_BASES[segment] << 4) - fall  # 2**-frac in units of 2**-24
    drop = 13 + max(whole - 13, 0)
    half = np.int64(1) << (drop - 1)
    rest = value & ((half << 1) - 1)
    kept = value >> drop
    if rest > half or (rest == half and kept & 1):
        kept += 1
    return np.uint16((max(13 - whole, 0) << 10) + kept)


@golden_njit
def exp_negative_array(x):
    """`exp_negative` over a uint32 array; returns a uint16 array."""
    out = np.empty(x.size, np.uint16)
    for i in range(x.size):
        out[i] = exp_negative(x[i])
    return out


class ExpNegative(wiring.Component):
    """exp(x) for x <= 0, rounded to fp16: the numerator of a softmax whose maximum was subtracted.

    Parameters
    ----------
    None.

    Members
    -------
    x : In(32)
        fp32 operand; one above zero counts as zero.
    out : Out(16)
        fp16 result in 0..1.

    Timing
    ------
    Free-running; latency 6 cycles, interval 1, no reset. Pieces: significand times the low part of log2(e) | add the
    high part | fixed point | table (block RAM, 256 x 35 bits) | slope times fraction | value, subnormal shift | round
    (drives `out`).

    Numerics
    --------
    u = -x*log2(e) in units of 2**-22, truncated; 2**-frac(u) by 256 segments with linear interpolation in units of
    2**-24; shifted by the integer part of u and rounded to nearest even, subnormals included, +0 from u >= 26 on.
    exp(0) is exactly 1.0; exponent 255 gives NaN (0x7E00).

    Error against float64, in units of the last place of fp16 at the exact value (0.5 is the rounding alone): over every
    fp16 input at most 0.503; over 1,073,000 fp32 inputs stratified by exponent (2**-24 to 2**5) at most 0.507. Bounds
    held by the tests.

    Source
    ------
    Design, section 5; table method as in Tang, Table-lookup algorithms for elementary functions, ARITH 1991.
    """

    x: In(32)
    out: Out(16)

    latency = 6

    def elaborate(self, platform) -> Module:
        m = Module()
        bases, slopes = exponential_table()
        rows = [int(base) | int(slope) << BASE_BITS for base, slope in zip(bases, slopes, strict=True)]
        m.submodules.table = table = Memory(shape=BASE_BITS + SLOPE_BITS, depth=SEGMENTS, init=rows)

        # significand times log2(e): 16 bits in a DSP, its highest bit by an adder
        exponent = self.x[23:31]
        significand = Cat(self.x[:23], Const(1, 1))
        low = registered(m, significand * (LOG2_E - (1 << 17)), "log2e_low")
        shift = Signal(6)
        with m.If(exponent > FP32_BIAS + 4):
            m.d.comb += shift.eq(0)
        with m.Elif(exponent < 145 - 63):
            m.d.comb += shift.eq(63)
        with m.Else():
            m.d.comb += shift.eq(145 - exponent)
        shift = registered(m, shift, "shift")
        significand = registered(m, significand, "significand")
        one = registered(m, ~self.x[31] | ~exponent.any(), "one")
        zero = registered(m, exponent > FP32_BIAS + 4, "zero")
        nan = registered(m, exponent.all(), "nan")

        scaled = registered(m, (low + (significand << 17))[:42], "log2e")
        shift = registered(m, shift, "shift_d1")

        # fixed point: at least 14 places to the right
        power = registered(m, (scaled[14:] >> (shift - 14)[:6])[:28], "power")
        one = delayed(m, one, 2, "one")
        zero = delayed(m, zero, 2, "zero")

        # table
        read = table.read_port()
        m.d.comb += read.addr.eq(power[14:22])
        fraction = registered(m, power[:14], "fraction")
        whole = power[22:]
        # below 2**-13 each further halving shifts the fp16 value by one place
        subnormal = registered(m, Mux(whole > 13, whole - 13, 0)[:4], "subnormal")
        field = registered(m, Mux(whole > 13, 0, 13 - whole)[:4], "field")
        zero = registered(m, (zero | (whole >= 26)) & ~one, "no_value")
        one = registered(m, one, "one_value")

        # slope times fraction
        fall = registered(m, read.data[BASE_BITS:] * fraction, "fall")
        base = registered(m, read.data[:BASE_BITS], "base")

        # value in units of 2**-24, shifted to the fp16 grid
        value = Signal(25)
        m.d.comb += value.eq(Cat(Const(0, 4), base) - fall[12:])
        shifted, lost = shifted_right(m, value[12:], delayed(m, subnormal, 1, "subnormal"), "shift_out")
        kept = registered(m, shifted[1:], "kept")
        half = registered(m, shifted[0], "half")
        sticky = registered(m, lost | value[:12].any(), "sticky")
        field = delayed(m, field, 2, "field")

        one = delayed(m, one, 2, "one_value")
        zero = delayed(m, zero, 2, "no_value")
        nan = delayed(m, nan, 5, "nan")
        with m.If(nan):
            m.d.comb += self.out.eq(FP16_NAN)
        with m.Elif(one):
            m.d.comb += self.out.eq(FP16_ONE)
        with m.Elif(zero):
            m.d.comb += self.out.eq(0)
        with m.Else():
            m.d.comb += self.out.eq(Cat(Const(0, 10), field) + kept + rounded_up(kept, half, sticky))
        return m
