"""GPT-2's GELU (tanh form) of fp32 numbers by table and linear interpolation."""

import numpy as np
from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .fp32_mul import Fp32Mul, fp32_mul
from .fp_format import FP32_BIAS, FP32_ONE, round_to_fp32
from .gelu_table import BASE_BITS, SCALES, SEGMENTS, SLOPE_BITS, SLOPE_SHIFTS, gelu_table
from .golden_njit import golden_njit
from .pipeline import delayed, normalised, registered

__all__ = ["Gelu", "gelu", "gelu_array"]

_BASES, _SLOPES = gelu_table()
_SCALES = np.array(SCALES, np.int64)
_SLOPE_SHIFTS = np.array(SLOPE_SHIFTS, np.int64)


@golden_njit
def _gate(x):
    """G(x) for a finite fp32 bit pattern, as fp32 bit pattern (exact: it has at most 24 bits)."""
    sign = x >> 31
    exponent = (x >> 23) & 0xFF
    if exponent >= 127 + 3:
        return np.uint32(0 if sign else FP32_ONE)
    significand = (x & 0x7FFFFF) | 0x800000
    position = (significand << 1) >> min(129 - exponent, 31)  # |x| in units of 2**-22
    segment = position >> 16
    unit = position >> 22
    fall = (_SLOPES[segment] * (position & 0xFFFF)) >> (13 - _SLOPE_SHIFTS[unit])
    tail = (_BASES[segment] << 3) - fall  # units of 2**-(scale + 3)
    if sign:
        return round_to_fp32(0, tail, -_SCALES[unit] - 3)
    return round_to_fp32(0, (np.int64(1) << 24) - (tail >> (_SCALES[unit] - 21)), -24)


@golden_njit
def gelu(x):
    """Golden model of `Gelu`: gelu of an fp32 bit pattern as uint32 bit pattern."""
    return fp32_mul(x, _gate(np.int64(x) & 0xFFFFFFFF))


@golden_njit
def gelu_array(x):
    """`gelu` over a uint32 array; returns a uint32 array."""
    out = np.empty(x.size, np.uint32)
    for i in range(x.size):
        out[i] = gelu(x[i])
    return out


class Gelu(wiring.Component):
    """GPT-2's activation: gelu(x) = x * G(x), G(x) = 0.5*(1 + tanh(sqrt(2/pi)*(x + 0.044715*x**3))).

    Parameters
    ----------
    None.

    Members
    -------
    x : In(32)
        fp32 operand.
    out : Out(32)
        fp32 result.

    Timing
    ------
    Free-running; latency 8 cycles, interval 1, no reset. Pieces: fixed point | table (block RAM, 512 x 36 bits) | slope
    times fraction | tail | gate as fp32 | the four of `Fp32Mul` (the last drives `out`).

    Numerics
    --------
    The table holds the tail T = 1 - G of |x| in [0, 8): 512 segments, 21-bit base and 15-bit slope, scaled per unit
    interval so that the tail keeps its relative accuracy; G(-x) = T(x). The gate is exact in fp32 (24 bits), the
    product is rounded to nearest even. |x| >= 8: x for positive x, -0 for negative x. gelu(+-0) = +-0; exponent 255
    gives NaN; subnormals as in `Fp32Mul`.

    Error after rounding to fp16, against float64, in units of the last place of fp16 at the exact value (0.5 is the
    rounding alone): over every fp16 input at most 1.079 (at x = -3.89), for positive x 0.504; over 1,066,000 fp32
    inputs stratified by exponent (2**-26 to 2**15, both signs) at most 1.248 (at x = -3.89), for x > -3 0.806, for
    positive x 0.507. Absolute error of the fp32 result for |x| < 8: at most 4.7e-6. Bounds held by the tests.

    Source
    ------
    Design, section 5; Hendrycks and Gimpel, Gaussian Error Linear Units, section 2 (tanh form).
    """

    x: In(32)
    out: Out(32)

    latency = 5 + Fp32Mul.latency

    def elaborate(self, platform) -> Module:
        m = Module()
        bases, slopes = gelu_table()
        rows = [int(base) | int(slope) << BASE_BITS for base, slope in zip(bases, slopes, strict=True)]
        m.submodules.table = table = Memory(shape=BASE_BITS + SLOPE_BITS, depth=SEGMENTS, init=rows)
        m.submodules.product = product = Fp32Mul()

        # fixed point: |x| in units of 2**-22
        exponent = self.x[23:31]
        shift = Signal(5)
        with m.If(exponent < FP32_BIAS + 2 - 31):
            m.d.comb += shift.eq(31)
        with m.Else():
            m.d.comb += shift.eq(FP32_BIAS + 2 - exponent)
        position = registered(m, Cat(Const(0, 1), self.x[:23], Const(1, 1)) >> shift, "position")
        beyond = registered(m, exponent > FP32_BIAS + 2, "beyond")
        x = registered(m, self.x, "x")

        # table
        read = table.read_port()
        m.d.comb += read.addr.eq(position[16:])
        fraction = registered(m, position[:16], "fraction")
        unit = registered(m, position[22:], "unit")

        # slope times fraction
        fall = registered(m, read.data[BASE_BITS:] * fraction, "fall")
        base = registered(m, read.data[:BASE_BITS], "base")
        unit = registered(m, unit, "unit_d1")

        # tail in units of 2**-(scale + 3)
        falls = Array([fall >> (13 - shift) for shift in SLOPE_SHIFTS])
        tail = registered(m, (Cat(Const(0, 3), base) - falls[unit])[:24], "tail")
        unit = registered(m, unit, "unit_d2")

        # gate as fp32: the tail normalised, or 1 - tail, which is at least one half
        x = delayed(m, x, 3, "x")
        beyond = delayed(m, beyond, 3, "beyond")
        normal, places = normalised(m, tail, "normalise")
        tail_exponent = Signal(8)
        m.d.comb += tail_exponent.eq(Array([FP32_BIAS + 23 - 3 - scale for scale in SCALES])[unit] - places)
        gate = Signal(32)
        one_minus = Signal(25)
        m.d.comb += one_minus.eq((1 << 24) - Array([tail >> (scale - 21) for scale in SCALES])[unit])
        with m.If(beyond):
            m.d.comb += gate.eq(Mux(x[31], 0, FP32_ONE))
        with m.Elif(x[31]):
            m.d.comb += gate.eq(Mux(normal[-1], Cat(normal[:23], tail_exponent), 0))
        with m.Elif(one_minus[24]):
            m.d.comb += gate.eq(FP32_ONE)
        with m.Else():
            m.d.comb += gate.eq(Cat(one_minus[:23], Const(FP32_BIAS - 1, 8)))
        m.d.comb += [
            product.a.eq(delayed(m, x, 1, "x_product")),
            product.b.eq(registered(m, gate, "gate")),
            self.out.eq(product.out),
        ]
        return m
