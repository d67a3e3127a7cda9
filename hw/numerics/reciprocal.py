"""Reciprocal of an unsigned fixed-point sum as fp32, correctly rounded."""

import numpy as np
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .digit_recurrence import QUOTIENT_DIGITS, DigitDivider, quotient_to_fp32
from .fp_format import FP32_BIAS, FP32_NAN, bit_length, round_to_fp32
from .golden_njit import golden_njit
from .pipeline import normalised

__all__ = ["Reciprocal", "reciprocal_fixed"]


@golden_njit
def reciprocal_fixed(value):
    """Golden model of `Reciprocal`: 1/(value * 2**-24) = 2**24/value as uint32 fp32 bit pattern, 0 <= value < 2**46."""
    value = np.int64(value)
    if value == 0:
        return np.uint32(FP32_NAN)
    shift = 46 - bit_length(value)
    divisor = value << shift
    high = (np.int64(1) << 62) // divisor
    rest = ((np.int64(1) << 62) % divisor) << 16
    quotient = (high << 16) | (rest // divisor)
    return round_to_fp32(0, (quotient << 1) | (rest % divisor != 0), 24 + shift - 62 - 16 - 1)


class Reciprocal(wiring.Component):
    """1/s of an unsigned fixed-point number s, for instance the sum of a softmax.

    Parameters
    ----------
    width : int
        Bits of `value`, 16..46.
    bits_per_cycle : int
        Digits of the quotient a cycle, 1..8.

    Members
    -------
    start : In(1)
        Takes `value` and `nan`; ignored while `busy`.
    value : In(width)
        s in units of 2**-24.
    nan : In(1)
        The result shall be NaN.
    busy : Out(1)
        An operation is in progress, from the cycle after `start` to the one before `done`.
    done : Out(1)
        1 for one cycle, `latency` cycles after `start`.
    out : Out(32)
        fp32 result, valid with `done` and held until the next `done`.

    Timing
    ------
    Latency 3 + ceil(26 / bits_per_cycle) cycles (16 at two digits a cycle), one operation at a time. Reset ends it.

    Numerics
    --------
    2**24 / value rounded to nearest even: correctly rounded, since the division is exact. 0 gives NaN (0x7FC00000).

    Source
    ------
    Design, section 5 (softmax divides after score x V).
    """

    def __init__(self, width: int = 40, bits_per_cycle: int = 2):
        if not isinstance(width, int) or not 16 <= width <= 46:
            raise ValueError(f"width of a reciprocal must be an integer 16..46, got {width!r}")
        self.width = width
        self._divider = DigitDivider(width, QUOTIENT_DIGITS, bits_per_cycle)
        super().__init__(
            {
                "start": In(1),
                "value": In(width),
                "nan": In(1),
                "busy": Out(1),
                "done": Out(1),
                "out": Out(32),
            }
        )

    @property
    def latency(self) -> int:
        return 2 + self._divider.latency

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.divider = divider = self._divider
        accepted = Signal()
        m.d.comb += accepted.eq(self.start & ~self.busy)

        # normalise in two steps, the first with `start`
        coarse, coarse_count = normalised(m, self.value, "coarse", [s for s in (32, 16, 8) if s < self.width])
        held = Signal(self.width, reset_less=True)
        count = Signal(len(coarse_count), reset_less=True)
        nan = Signal(reset_less=True)
        with m.If(accepted):
            m.d.sync += [held.eq(coarse), count.eq(coarse_count), nan.eq(self.nan | (self.value == 0))]
        fine, fine_count = normalised(m, held, "fine", (4, 2, 1))
        with m.If(divider.start):
            m.d.sync += count.eq(count | fine_count)
        m.d.comb += [divider.dividend.eq(1 << (self.width - 1)), divider.divisor.eq(fine)]
        m.d.sync += divider.start.eq(accepted)

        exponent = FP32_BIAS + 25 - self.width + count
        with m.If(divider.done):
            m.d.sync += self.out.eq(Mux(nan, FP32_NAN, quotient_to_fp32(divider.quotient, divider.rest, exponent)))
        m.d.sync += self.done.eq(divider.done)
        with m.If(accepted):
            m.d.sync += self.busy.eq(1)
        with m.Elif(divider.done):
            m.d.sync += self.busy.eq(0)
        return m
