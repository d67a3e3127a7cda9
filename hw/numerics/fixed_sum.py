"""Exact running sums of fp16 numbers and of their squares."""

import numpy as np
from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from .golden_njit import golden_njit
from .pipeline import delayed, reduced_pairs, registered

__all__ = ["Fp16FixedSum", "fixed_sums", "fixed_sums_limbs"]


@golden_njit
def fixed_sums_limbs(x):
    """Exact sums over a uint16 array of fp16 bit patterns (at most 2**13 elements).

    Returns (sum1, sum2_high, sum2_low, nan): the sum of x is sum1 * 2**-24, the sum of x*x is
    (sum2_high * 2**48 + sum2_low) * 2**-48, all int64, 0 <= sum2_low < 2**48; `nan` is True if an element has
    exponent 31 (such elements add nothing).
    """
    sum1 = np.int64(0)
    bins = np.zeros(4, np.int64)  # bin k: units of 2**(16*k)
    nan = False
    for i in range(x.size):
        bits = np.int64(x[i])
        exponent = (bits >> 10) & 31
        if exponent == 31:
            nan = True
            continue
        significand = (bits & 0x3FF) | (np.int64(exponent != 0) << 10)
        shift = max(exponent - 1, 0)
        value = significand << shift
        sum1 += -value if bits & 0x8000 else value
        bins[shift >> 3] += (significand * significand) << (2 * (shift & 7))
    carry = bins[0]
    low = carry & 0xFFFF
    carry = (carry >> 16) + bins[1]
    low |= (carry & 0xFFFF) << 16
    carry = (carry >> 16) + bins[2]
    low |= (carry & 0xFFFF) << 32
    return sum1, (carry >> 16) + bins[3], low, nan


def fixed_sums(x: np.ndarray) -> tuple[int, int, bool]:
    """Golden model of `Fp16FixedSum`: (sum of x in 2**-24, sum of x*x in 2**-48, nan) of a uint16 array."""
    sum1, high, low, nan = fixed_sums_limbs(np.ascontiguousarray(x, np.uint16))
    return int(sum1), (int(high) << 48) + int(low), bool(nan)


class Fp16FixedSum(wiring.Component):
    """Running sums of fp16 numbers and of their squares, exact, so that no order and no partition shows in them.

    Parameters
    ----------
    width : int
        Elements a beat, 1..64.
    squares : bool
        Whether the sum of squares is built too.

    Members
    -------
    x : In(16 * width)
        fp16 elements; element i lies at bits 16*i.
    mask : In(width)
        Bit i = 1: element i is added.
    valid : In(1)
        This cycle carries a beat.
    first : In(1)
        With `valid`: the sums start again with this beat.
    sum1 : Out(signed(56))
        Sum of x in units of 2**-24.
    sum2 : Out(96)
        Sum of x*x in units of 2**-48 (only with `squares`).
    nan : Out(1)
        An added element had exponent 31 since `first`; such elements add nothing.

    Timing
    ------
    Free-running; interval 1. The outputs include a beat `latency` = 5 + ceil(log4(width)) cycles after it and hold
    until the next. No reset: the outputs mean something once a beat with `first` has passed.

    Numerics
    --------
    Exact (no rounding) for at most 2**13 elements. An element with exponent field e is its 11-bit significand shifted
    by e - 1 places: the lower three bits of e - 1 shift inside the lane, the upper two choose one of four accumulators;
    these are added behind the accumulation. So no shifter and no adder tree is wider than 36 + log2(width) bits.

    Source
    ------
    Design, sections 4 (LayerNorm sums in fixed point) and 5; Kulisch, Computer Arithmetic and Validity, section 8.
    """

    def __init__(self, width: int, squares: bool = True):
        if not isinstance(width, int) or not 1 <= width <= 64:
            raise ValueError(f"width of a fixed-point sum must be an integer 1..64, got {width!r}")
        if not isinstance(squares, bool):
            raise TypeError(f"squares must be a bool, got {squares!r}")
        self.width = width
        self.squares = squares
        members = {"x": In(16 * width), "mask": In(width), "valid": In(1), "first": In(1), "sum1": Out(signed(56))}
        if squares:
            members["sum2"] = Out(96)
        super().__init__(members | {"nan": Out(1)})

    @property
    def latency(self) -> int:
        return 5 + (ceil_log2(self.width) + 1) // 2

    def elaborate(self, platform) -> Module:
        m = Module()
        stages = self.latency - 5
        values, squares, bins, nans = [], [], [], []
        for i in range(self.width):
            element = self.x[16 * i : 16 * i + 16]
            hidden = element[10:15].any()
            infinite = element[10:15].all()
            nans.append(self.mask[i] & infinite)
            significand = Cat(element[:10], hidden)
            square = registered(m, significand * significand, f"square{i}")
            significand = registered(m, significand, f"significand{i}")
            sign = registered(m, element[15], f"sign{i}")
            live = registered(m, self.mask[i] & ~infinite, f"live{i}")
            shift = registered(m, (element[10:15] - hidden)[:5], f"shift{i}")

            places = shift[:3]
            magnitude = Signal(18, name=f"magnitude{i}")
            m.d.comb += magnitude.eq(Mux(live, significand << places, 0))
            values.append(registered(m, Mux(sign, -magnitude, magnitude), f"value{i}"))
            if self.squares:
                wide = (square << Cat(0, places))[:36]
                squares.append(registered(m, Mux(live, wide, 0), f"shifted_square{i}"))
            bins.append(registered(m, shift[3:], f"bin{i}"))

        valid = delayed(m, self.valid, 2 + stages, "valid")
        first = delayed(m, self.first, 2 + stages, "first")
        nan_beat = delayed(m, Cat(*nans).any(), 2 + stages, "nan_beat")
        nan = Signal(reset_less=True)
        with m.If(valid):
            m.d.sync += nan.eq(nan_beat | (nan & ~first))

        # 13 bits for the number of elements, and the sign
        sums1 = self._accumulate(m, "sum1", values, bins, signed(18 + 13 + 1), valid, first)
        m.d.comb += [self.sum1.eq(self._combine(m, "sum1", sums1, 8)), self.nan.eq(delayed(m, nan, 2, "nan"))]
        if self.squares:
            sums2 = self._accumulate(m, "sum2", squares, bins, 36 + 13, valid, first)
            m.d.comb += self.sum2.eq(self._combine(m, "sum2", sums2, 16))
        return m

    def _accumulate(self, m: Module, name: str, terms: list, bins: list, shape, valid: Value, first: Value) -> list:
        """Four accumulators: the terms of each bin, added in a tree of two levels a stage, then over the beats."""
        totals = []
        for place in range(4):
            nodes = [Mux(which == place, term, 0) for term, which in zip(terms, bins, strict=True)]
            for stage in range(self.latency - 5):
                nodes = [
                    registered(m, node, f"{name}_bin{place}_{stage}_{k}")
                    for k, node in enumerate(reduced_pairs(nodes, lambda a, b: a + b, 2))
                ]
            total = Signal(shape, name=f"{name}_bin{place}", reset_less=True)
            with m.If(valid):
                m.d.sync += total.eq(nodes[0] + Mux(first, 0, total))
            totals.append(total)
        return totals

    @staticmethod
    def _combine(m: Module, name: str, totals: list[Value], places: int) -> Value:
        """Two stages: the sum of totals[k] * 2**(places * k)."""
        low = registered(m, totals[0] + (totals[1] << places), f"{name}_low")
        high = registered(m, totals[2] + (totals[3] << places), f"{name}_high")
        return registered(m, low + (high << (2 * places)), f"{name}_total")
