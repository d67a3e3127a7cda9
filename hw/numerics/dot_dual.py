"""Dot tile whose second operand is one vector of fp16 or two vectors of int8, on the same multipliers."""

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .dot import DotTile, Products
from .fp_format import FP32_NAN, round_to_fp32
from .golden_njit import golden_njit
from .pipeline import delayed, registered

__all__ = ["DualDotTile", "dot_tile_int8", "sign_magnitude"]

_INTEGER_EXPONENT = 25
"""The exponent field at which an fp16 significand of 11 bits is an integer: 2**(25 - 15 - 10) = 1."""


@golden_njit
def dot_tile_int8(a, w, mask, guard):
    """Golden model of one sum of `DualDotTile` in int8 mode.

    Parameters
    ----------
    a : uint16 array (width,)
        fp16 bit patterns of the activations.
    w : uint8 array (width,)
        Weights: bit 7 the sign, bits 6:0 the magnitude.
    mask : bool array (width,) or None
        True where an element takes part; None = everywhere.
    guard : int
        Extra low bits of the aligned products.

    Returns the fp32 bit pattern of the sum as uint32.
    """
    top = np.int64(0)
    nan = False
    for i in range(a.size):
        if mask is not None and not mask[i]:
            continue
        exponent = (np.int64(a[i]) >> 10) & 31
        if exponent == 31:
            nan = True
        if (a[i] & 0x7FFF) != 0:
            top = max(top, max(exponent, 1))
    if nan:
        return np.uint32(FP32_NAN)
    total = np.int64(0)
    for i in range(a.size):
        if mask is not None and not mask[i]:
            continue
        bits = np.int64(a[i])
        weight = np.int64(w[i])
        exponent = (bits >> 10) & 31
        significand = (bits & 0x3FF) | (np.int64(exponent != 0) << 10)
        distance = max(top - max(exponent, 1), 0)  # negative only if all activations are zero
        aligned = ((significand * (weight & 0x7F)) << guard) >> distance
        if (bits >> 15) ^ (weight >> 7):
            total -= aligned
        else:
            total += aligned
    if total < 0:
        return round_to_fp32(1, -total, top - _INTEGER_EXPONENT - guard)
    return round_to_fp32(0, total, top - _INTEGER_EXPONENT - guard)


def sign_magnitude(weights: np.ndarray) -> np.ndarray:
    """int8 weights -127..127 of any shape as the bytes that the tile takes: bit 7 the sign, bits 6:0 the magnitude.

    Raises ValueError for -128, which has no such form.
    """
    if weights.dtype != np.int8:
        raise ValueError(f"weights must be int8, got {weights.dtype}")
    if (weights == -128).any():
        raise ValueError("weights must be -127 to 127, got -128; quantise symmetrically")
    return np.abs(weights).view(np.uint8) | (weights.view(np.uint8) & 0x80)


class DualDotTile(DotTile):
    """`DotTile` with a mode: the row `b` is one vector of fp16, or two of int8 that meet the same activations.

    Parameters
    ----------
    width : int
        Elements per vector, a power of two, 4..64.
    guard : int
        As of `DotTile`.

    Members
    -------
    a, mask : as of `DotTile`.
    int8 : In(1)
        The mode of the vectors that stand at the inputs; it may change from cycle to cycle.
    b : In(16 * width)
        fp16 mode: as of `DotTile`. int8 mode: element i's weight of the even vector in bits 16*i+7 : 16*i, of the odd
        one in bits 16*i+15 : 16*i+8; of each weight bit 7 is the sign, bits 6:0 the magnitude (`sign_magnitude`).
    sum : Out(32)
        fp32 result; in int8 mode that of the even vector.
    odd : Out(32)
        fp32 result of the odd vector in int8 mode; no defined value in fp16 mode.

    Timing
    ------
    As of `DotTile`, latency included, in both modes.

    Numerics
    --------
    fp16 mode: the bits of `DotTile`. int8 mode: a product is the activation's significand (11 bits; subnormals:
    exponent -14 without hidden bit) times the magnitude of the weight: an exact integer of 18 bits, whose exponent is
    the activation's alone. It is shifted right by the activation's distance to the largest exponent of all activations
    of the word that take part and are not zero, whatever their weights, with `guard` extra bits, and truncated towards
    zero before the sign is applied. The sum of these integers is exact and is rounded once to fp32, nearest even; zero
    is always +0. An activation with exponent 31 that takes part gives NaN. Sums are those of the integer weights:
    scales are applied behind the accumulator.
    Error before the rounding: less than 2**(top - 10 - guard) for each product, `top` being the largest exponent; none
    for activations that are at most `guard` binades below it. Measured on 50,000 tiles of 64 standard normal
    activations and weights -127..127, all alike, guard 4: at most 2.6e-7 of the sum of absolute products, RMS 3.4e-8,
    mean 4e-12.

    An int8 weight is an fp16 operand with a significand of 7 bits and the exponent field 25, which makes it an integer;
    that it counts for the largest exponent even if it is zero makes the alignment that of the word, one for all lanes.

    One multiplier of 25 x 11 bits (one DSP48E2: 27 x 18 signed) does both: the magnitudes of the two weights stand 18
    bits apart, so their products with one significand, of 18 bits each, do not meet.

    Source
    ------
    Design, section 5; section 8 of the GPT-2 core sketch (two products of a multiplier).
    """

    def _members(self) -> dict[str, wiring.Member]:
        return {**super()._members(), "int8": In(1), "odd": Out(32)}

    def _outputs(self) -> tuple[Value, ...]:
        return self.sum, self.odd

    def _products(self, m: Module, stages: int) -> list[Products]:
        apart = delayed(m, self.int8, 1 + stages, "int8")
        return [self._multiply_either(m, i, stages, apart) for i in range(self.width)]

    def _multiply_either(self, m: Module, i: int, stages: int, apart: Value) -> Products:
        """`apart`: the mode when the product is there."""
        a, b = self.a[16 * i : 16 * i + 16], self.b[16 * i : 16 * i + 16]
        half = ~self.int8  # its copies: what only an fp16 operand has
        hidden = [operand[10:15].any() for operand in (a, b)]
        significand = Cat(a[:10], hidden[0])
        # bits 6:0 are the even weight's magnitude, or the fraction's low bits
        weight = Cat(b[:7], Mux(half, Cat(b[7:10], hidden[1]), 0), Const(0, 7), Mux(self.int8, b[8:15], 0))
        exponent_a = Cat(a[10] | ~hidden[0], a[11:15])
        exponent_b = Mux(self.int8, _INTEGER_EXPONENT, Cat(b[10] | ~hidden[1], b[11:15]))
        live = self.mask[i] & a[:15].any() & (self.int8 | b[:15].any())
        exponent = registered(m, Mux(live, exponent_a + exponent_b, 0), f"exponent{i}")
        even = registered(m, a[15] ^ Mux(self.int8, b[7], b[15]), f"sign{i}")
        odd = registered(m, a[15] ^ b[15], f"sign{i}_odd")
        product = self._multiplied(m, i, significand, weight, stages)
        upper = Mux(apart, 0, product[18:22])  # of an fp16 product; else of the odd one
        return Products(
            (Cat(product[:18], upper), product[18:36]),
            exponent,
            (even, odd),
            self.mask[i] & (a[10:15].all() | (half & b[10:15].all())),
        )
