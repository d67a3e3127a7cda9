"""Gumbel-distributed numbers from uniform 64-bit words, in fixed point."""

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Array, Cat, Const, Module, Mux, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .cubic_table import PLACE_BITS, CubicTable, cubic
from .gumbel_table import SEGMENTS, ln2_multiples, logarithm_ratio_rows, logarithm_rows
from .pipeline import delayed, normalised, registered

__all__ = ["GUMBEL_BITS", "Gumbel", "gumbel_fixed"]

GUMBEL_BITS = 50
"""Bits of a number with its sign, in units of 2**-43 (``cubic_table.UNIT_BITS``)."""

_UNIFORM_BITS = 53  # of the odd number that stands for u or 1 - u, in units of 2**-54
_LOG_BITS = 49  # of -ln(u) up to 54*ln(2), in units of 2**-43
_TOP_SEGMENT = SEGMENTS.bit_length() - 1  # bits of a segment
_INSIDE = _TOP_SEGMENT + PLACE_BITS  # bits of a segment and a place in it


def _segment_and_place(bits: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of numbers of `_INSIDE` bits."""
    return bits >> PLACE_BITS, (bits & (1 << PLACE_BITS) - 1) - (1 << PLACE_BITS - 1)


def _logarithm(value: npt.NDArray[np.int64], width: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(z, ln m) with value = m * 2**(width - 1 - z), 1 <= m < 2, for 0 < value < 2**width, width <= 53."""
    zeros = width - np.frexp(value.astype(np.float64))[1].astype(np.int64)
    fraction = (value << zeros) & (1 << width - 1) - 1
    return zeros, cubic(logarithm_rows(), *_segment_and_place(fraction >> width - 1 - _INSIDE))


def gumbel_fixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Golden model of `Gumbel`: numbers [n] in units of 2**-43 of the words [n]."""
    large = (words >> np.uint64(63)).astype(np.int64)
    bits = (words >> np.uint64(11)).astype(np.int64) & (1 << _UNIFORM_BITS - 1) - 1
    near = ((bits ^ -large) & (1 << _UNIFORM_BITS - 1) - 1) << 1 | 1
    zeros, fraction = _logarithm(near, _UNIFORM_BITS)
    log = ln2_multiples(2, 64)[zeros] - fraction
    ratio = cubic(logarithm_ratio_rows(), *_segment_and_place(near >> _UNIFORM_BITS - _INSIDE))
    zeros, fraction = _logarithm(log, _LOG_BITS)
    return np.where(large == 1, log - ratio, ln2_multiples(-5, 8)[zeros] - fraction)


class Gumbel(wiring.Component):
    """-ln(-ln(u)) of u = (floor(word / 2**11) + 1/2) * 2**-53: a standard Gumbel number of a uniform word.

    Parameters
    ----------
    None.

    Members
    -------
    word : In(64)
    out : Out(signed(50))
        In units of 2**-43, from -3.63 to 37.43.

    Timing
    ------
    Free-running; latency 20 cycles, interval 1, no reset. Pieces: three to normalise | the seven of `CubicTable` | l |
    normalise | the seven of `CubicTable` | sum (drives `out`).

    Numerics
    --------
    x = m * 2**-e is 1 - u if u >= 1/2 (exact), else u; l = e*ln(2) - ln(m) is -ln(x). Where u >= 1/2 the result is
    l - ln(-ln(1-x)/x), where u < 1/2 it is -ln(l), by a second logarithm. All functions by 256 segments and cubic
    polynomials, the place inside a segment cut to 27 bits, which makes nearly all of the error.

    Absolute error against exact arithmetic, at most 2**-35 over all words tried (2**-35.2 measured): words of every
    number of leading zeros and ones, the ends, and 1,000,000 random ones. Held by the tests.

    Source
    ------
    Gumbel, Statistical theory of extreme values, 1954; table method as in Tang, Table-lookup algorithms for elementary
    functions, ARITH 1991.
    """

    word: In(64)
    out: Out(signed(GUMBEL_BITS))

    latency = 20

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.inner = inner = CubicTable(logarithm_rows())
        m.submodules.outer = outer = CubicTable(np.concatenate([logarithm_rows(), logarithm_ratio_rows()], axis=1))

        def place(bits: Value) -> Value:
            return Cat(bits[: PLACE_BITS - 1], ~bits[PLACE_BITS - 1]).as_signed()

        # x, and its leading one at the highest place
        large = self.word[63]
        x = Cat(Const(1, 1), self.word[11:63] ^ large.replicate(_UNIFORM_BITS - 1))
        near = registered(m, x[_UNIFORM_BITS - _INSIDE :], "near")
        large = registered(m, large, "large")
        normal, zeros = x, Const(0, 6)
        for i, steps in enumerate(((32, 16), (8, 4), (2, 1))):
            normal, more = normalised(m, normal, f"x{i}", steps)
            normal = registered(m, normal, f"normal{i}")
            zeros = registered(m, zeros | more, f"zeros{i}")

        # l = -ln(x)
        fraction = normal[: _UNIFORM_BITS - 1][-_INSIDE:]
        m.d.comb += [inner.segment.eq(fraction[PLACE_BITS:]), inner.place.eq(place(fraction))]
        multiples = Array([Const(int(c), _LOG_BITS) for c in ln2_multiples(2, 64)])
        zeros = delayed(m, zeros, CubicTable.latency - 1, "zeros_log")
        log = registered(m, (registered(m, multiples[zeros], "e_ln2") - inner.out)[:_LOG_BITS], "log")

        # the second function: ln(-ln(1-x)/x), or ln of l with its leading one at the highest place
        large = delayed(m, large, 3 + CubicTable.latency, "large_log")
        near = delayed(m, near, 3 + CubicTable.latency, "near_log")
        normal, zeros = normalised(m, log, "log", (4, 2, 1))
        fraction = Mux(large, near, normal[: _LOG_BITS - 1][-_INSIDE:])
        fraction = registered(m, fraction, "fraction")
        m.d.comb += [
            outer.segment.eq(Cat(fraction[PLACE_BITS:], registered(m, large, "use_ratio"))),
            outer.place.eq(place(fraction)),
        ]
        multiples = Array([Const(int(c), signed(GUMBEL_BITS)) for c in ln2_multiples(-5, 8)])
        base = Mux(large, log, multiples[zeros[:3]])
        base = delayed(m, base, 1 + CubicTable.latency, "base")
        m.d.comb += self.out.eq(registered(m, (base - outer.out)[:GUMBEL_BITS].as_signed(), "number"))
        return m
