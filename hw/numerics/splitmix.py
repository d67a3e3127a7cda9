"""SplitMix64's output function over a counter: 64 random bits for every (base, number)."""

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Cat, Const, Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .pipeline import registered

__all__ = ["GOLDEN", "NUMBER_BITS", "SplitMix", "splitmix"]

GOLDEN = 0x9E3779B97F4A7C15  # odd: 2**64 / golden ratio
NUMBER_BITS = 21

_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFTS = (30, 27, 31)

# a DSP48E2 multiplies 27 by 18 bits with signs, so 26 by 17 without
_WIDE, _NARROW = 26, 17


def splitmix(base: int, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Golden model of `SplitMix`: words [n] of the `numbers` [n] above `base` (0 to 2**64 - 1)."""
    word = np.uint64(base) + numbers * np.uint64(GOLDEN)
    for shift, factor in zip(_SHIFTS, (_MIX_1, _MIX_2), strict=False):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    return word ^ (word >> np.uint64(_SHIFTS[-1]))


def _low_product(m: Module, value: Value, factor: int, name: str, addend: Value | None = None) -> Value:
    """The lowest 64 bits of value * factor + addend, three cycles later: products of pieces, two sums of three."""
    terms = [] if addend is None else [registered(m, addend, f"{name}_addend")]
    for low in range(0, len(value), _WIDE):
        for place in range(0, 64, _NARROW):
            offset = low + place
            if offset < 64:  # only bits that reach the result take part
                piece = value[low : min(low + _WIDE, low + 64 - offset)]
                part = factor >> place & (1 << min(_NARROW, 64 - offset)) - 1
                product = registered(m, (piece * part)[: 64 - offset], f"{name}_{low}_{place}")
                terms.append(Cat(Const(0, offset), product))
    for level in range(2):
        sums = [sum(terms[i + 1 : i + 3], terms[i])[:64] for i in range(0, len(terms), 3)]
        terms = [registered(m, total, f"{name}_sum{level}_{i}") for i, total in enumerate(sums)]
    [total] = terms
    return total


class SplitMix(wiring.Component):
    """mix(base + number * GOLDEN), the finaliser of SplitMix64: a bijection of 64-bit words for every base.

    Parameters
    ----------
    None.

    Members
    -------
    base : In(64)
    number : In(21)
    out : Out(64)

    Timing
    ------
    Free-running; latency 9 cycles, interval 1, no reset. Three products modulo 2**64, each: products of 26 by 17 bits
    (a DSP48E2 each; 4, 8 and 8 of them) | sums of three | sum of the sums. The last exclusive or drives `out`.

    Numerics
    --------
    Exact.

    Source
    ------
    Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014 (the function mix64variant13).
    """

    base: In(64)
    number: In(NUMBER_BITS)
    out: Out(64)

    latency = 9

    def elaborate(self, platform) -> Module:
        m = Module()
        word = _low_product(m, self.number, GOLDEN, "counter", self.base)
        for i, factor in enumerate((_MIX_1, _MIX_2)):
            word = _low_product(m, word ^ (word >> _SHIFTS[i]), factor, f"mix{i}")
        m.d.comb += self.out.eq(word ^ (word >> _SHIFTS[-1]))
        return m
