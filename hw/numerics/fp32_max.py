"""Order of fp32 numbers, and the maximum of several."""

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from .golden_njit import golden_njit
from .pipeline import reduced_pairs, registered

__all__ = ["MaxTree", "fp32_key", "fp32_key_expr", "fp32_less", "fp32_less_expr", "max_tree"]


@golden_njit
def fp32_key(x):
    """Integer (0 < key < 2**32, as int64) that orders fp32 bit patterns; all with exponent 0 count as +0."""
    x = np.int64(x) & 0xFFFFFFFF
    if x & 0x7F800000 == 0:
        return np.int64(0x80000000)
    return x ^ 0xFFFFFFFF if x >> 31 else x | 0x80000000


@golden_njit
def fp32_less(a, b):
    """Golden model of `fp32_less_expr`: a < b; NaN operands have no meaning here."""
    return fp32_key(a) < fp32_key(b)


@golden_njit
def max_tree(x, mask):
    """Golden model of `MaxTree`.

    Parameters
    ----------
    x : uint32 array (width,)
        fp32 bit patterns.
    mask : bool array (width,)
        True where a lane takes part.

    Returns (value, index, any_valid, any_nan): the maximum (a zero always +0) over the lanes that take part and are
    not NaN and the lowest lane that holds it; 0, 0, False if there is none; whether a lane that takes part is NaN.
    """
    best = np.int64(0)
    index = 0
    nan = False
    for i in range(x.size):
        if not mask[i]:
            continue
        if (np.int64(x[i]) >> 23) & 0xFF == 255:
            nan = True
            continue
        key = fp32_key(x[i])
        if key > best:
            best = key
            index = i
    if best == 0:
        return np.uint32(0), 0, False, nan
    value = best ^ 0x80000000 if best >> 31 else best ^ 0xFFFFFFFF
    return np.uint32(value), index, True, nan


def fp32_key_expr(x: Value) -> Value:
    """The 32-bit unsigned value (never 0) that orders the fp32 values `x`; all with exponent 0 count as +0."""
    x = Value.cast(x)
    if len(x) != 32:
        raise ValueError(f"an fp32 value must have 32 bits, got {len(x)}")
    return Mux(x[23:31].any(), Cat(x[:31] ^ x[31].replicate(31), ~x[31]), Const(1 << 31, 32))


def fp32_less_expr(a: Value, b: Value) -> Value:
    """One bit: the fp32 value `a` is less than `b`, zeros of both signs being equal; NaN has no meaning here."""
    return fp32_key_expr(a) < fp32_key_expr(b)


class MaxTree(wiring.Component):
    """Maximum of several fp32 numbers and the lowest lane that holds it.

    Parameters
    ----------
    width : int
        Number of lanes, 2..64.

    Members
    -------
    x : In(32 * width)
        fp32 operands; lane i lies at bits 32*i.
    mask : In(width)
        Bit i = 1: lane i takes part.
    value : Out(32)
        The maximum, a zero always as +0; 0 if no lane is valid.
    index : Out(ceil_log2(width))
        Its lowest lane; 0 if no lane is valid.
    any_valid : Out(1)
        A lane takes part and is not NaN.
    any_nan : Out(1)
        A lane takes part and is NaN (exponent 255); it is left out of the maximum.

    Timing
    ------
    Free-running; latency 2 cycles, interval 1, no reset; the comparator levels are spread over three pieces, the last
    of which drives the outputs.

    Numerics
    --------
    Exact. Order of sign-magnitude numbers, operands with exponent 0 of either sign being equal to +0.

    Source
    ------
    Design, sections 4 (arg-max, lowest index wins ties) and 5.
    """

    latency = 2

    def __init__(self, width: int):
        if not isinstance(width, int) or not 2 <= width <= 64:
            raise ValueError(f"width of a maximum tree must be an integer 2..64, got {width!r}")
        self.width = width
        super().__init__(
            {
                "x": In(32 * width),
                "mask": In(width),
                "value": Out(32),
                "index": Out(ceil_log2(width)),
                "any_valid": Out(1),
                "any_nan": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        levels = ceil_log2(self.width)
        first = levels // 3
        second = (levels - first + 1) // 2

        def higher(low_lane: tuple[Value, Value], high_lane: tuple[Value, Value]) -> tuple[Value, Value]:
            wins = high_lane[0] > low_lane[0]
            return Mux(wins, high_lane[0], low_lane[0]), Mux(wins, high_lane[1], low_lane[1])

        nodes, nans = [], []
        for i in range(self.width):
            lane = self.x[32 * i : 32 * i + 32]
            nan = lane[23:31].all()
            nans.append(self.mask[i] & nan)
            nodes.append((Mux(self.mask[i] & ~nan, fp32_key_expr(lane), 0), Const(i, levels)))  # key 0: not valid
        any_nan = Cat(*nans).any()
        for piece, count in enumerate((first, second)):
            nodes = [
                (registered(m, key, f"key{piece}_{k}"), registered(m, index, f"index{piece}_{k}"))
                for k, (key, index) in enumerate(reduced_pairs(nodes, higher, count))
            ]
            any_nan = registered(m, any_nan, f"any_nan{piece}")
        [(key, index)] = reduced_pairs(nodes, higher, levels - first - second)
        valid = key != 0
        m.d.comb += [
            self.value.eq(Mux(valid, Cat(key[:31] ^ (~key[31]).replicate(31), ~key[31]), 0)),
            self.index.eq(index),
            self.any_valid.eq(valid),
            self.any_nan.eq(any_nan),
        ]
        return m
