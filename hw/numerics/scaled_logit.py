"""fp32 logits divided by a temperature, as fixed-point numbers to which random numbers can be added."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .pipeline import delayed, registered, shifted_right_by_four_way

__all__ = [
    "FRACTION_BITS",
    "MANTISSA_BITS",
    "MAX_TEMPERATURE",
    "MIN_TEMPERATURE",
    "SCALED_BITS",
    "ScaledLogit",
    "inverse_temperature",
    "scaled_logits",
]

FRACTION_BITS = 40
"""Scaled logits are in units of 2**-40."""

SCALED_BITS = 72
"""Bits of a scaled logit with its sign."""

MANTISSA_BITS = 40
"""Bits of an inverse temperature's mantissa."""

MIN_TEMPERATURE, MAX_TEMPERATURE = 2.0**-16, 2.0**16

_LARGEST = SCALED_BITS - 1 - FRACTION_BITS  # a scaled logit lies below 2**31
_LEFT = 8  # the product of 64 bits, shifted left so far, fills 72 bits
_NO_SHIFT = 127 + 22 + _LEFT  # sum of both exponents at which the product is then in units of 2**-40
_NARROW = 17


def inverse_temperature(temperature: float) -> tuple[int, int]:
    """(mantissa, exponent) with 1/temperature = mantissa * 2**(exponent - 39), relative error at most 2**-40.

    The mantissa has 40 bits, the highest of them 1. Raises ValueError unless 2**-16 <= temperature <= 2**16.
    """
    if not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ValueError(f"a board's temperature must lie in 2^-16 to 2^16, got {temperature!r}")
    inverse = 1 / Fraction(temperature)
    exponent = 16
    while inverse < Fraction(2) ** exponent:
        exponent -= 1
    mantissa = round(inverse * Fraction(2) ** (MANTISSA_BITS - 1 - exponent))
    if mantissa == 1 << MANTISSA_BITS:
        return 1 << MANTISSA_BITS - 1, exponent + 1
    return mantissa, exponent


def scaled_logits(
    logits: npt.NDArray[np.uint32], mantissa: int, exponent: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Golden model of `ScaledLogit` for fp32 bit patterns [n].

    Returns (whole [n], fraction [n]), 0 <= fraction < 2**40: the result is whole + fraction * 2**-40.
    """
    bits = logits.astype(np.uint64)
    field = ((bits >> np.uint64(23)) & np.uint64(0xFF)).astype(np.int64)
    significand = np.where(field == 0, np.uint64(0), (bits & np.uint64(0x7FFFFF)) | np.uint64(0x800000))
    product = significand * np.uint64(mantissa)
    shift = field + (exponent - (_NO_SHIFT - _LEFT))  # to the left, below _LEFT + 1 unless the result is too large
    right = product >> np.clip(-shift, 0, 63).astype(np.uint64)
    right[shift <= -64] = 0
    left = np.clip(shift, 0, _LEFT).astype(np.uint64)
    mask = np.uint64((1 << FRACTION_BITS) - 1)
    whole = np.where(shift < 0, right >> np.uint64(FRACTION_BITS), product >> (np.uint64(FRACTION_BITS) - left))
    fraction = np.where(shift < 0, right, product << left) & mask
    large = ((shift > _LEFT) & (product != 0)) | (whole >> np.uint64(_LARGEST) != 0)
    whole = np.where(large, (1 << _LARGEST) - 1, whole.astype(np.int64))
    fraction = np.where(large, np.int64(mask), fraction.astype(np.int64))
    negative = logits >> np.uint32(31) == 1
    below = negative & (fraction != 0)
    return np.where(negative, -whole, whole) - below, np.where(below, (1 << FRACTION_BITS) - fraction, fraction)


class ScaledLogit(wiring.Component):
    """logit / temperature as a fixed-point number.

    Parameters
    ----------
    None.

    Members
    -------
    x : In(32)
        fp32 logit; NaN has no meaning here.
    mantissa : In(40)
    exponent : In(signed(6))
        The inverse temperature is mantissa * 2**(exponent - 39), the mantissa's highest bit is 1, the exponent lies in
        -16..16 (`inverse_temperature`).
    out : Out(signed(72))
        In units of 2**-40.

    Timing
    ------
    Free-running; latency 5 cycles, interval 1, no reset. Pieces: three products of 24 by 17 bits | sum | two of a
    shift | sign (drives `out`).

    Numerics
    --------
    The product of logit and inverse temperature, rounded toward zero to a multiple of 2**-40. Magnitudes from 2**31 on
    become 2**31 - 2**-40. Both zeros and all fp32 subnormals are 0.

    Source
    ------
    docs/sampling.md.
    """

    x: In(32)
    mantissa: In(MANTISSA_BITS)
    exponent: In(signed(6))
    out: Out(signed(SCALED_BITS))

    latency = 5

    def elaborate(self, platform) -> Module:
        m = Module()
        field = self.x[23:31]
        sign = delayed(m, self.x[31], 4, "sign")
        zero = registered(m, ~field.any(), "zero")

        significand = Cat(self.x[:23], Const(1, 1))
        parts = [
            registered(m, significand * self.mantissa[low : low + _NARROW], f"part{low}")
            for low in range(0, MANTISSA_BITS, _NARROW)
        ]
        places = registered(m, (_NO_SHIFT - field - self.exponent)[:9].as_signed(), "places")

        # product, and how far to the right it goes from 72 bits
        product = registered(
            m, Mux(zero, 0, sum((p << _NARROW * (i + 1) for i, p in enumerate(parts[1:])), parts[0])[:64]), "product"
        )
        large = registered(m, (places < 0) & ~zero, "large")
        places = registered(m, Mux(places > SCALED_BITS, SCALED_BITS, places)[:7], "places_right")

        coarse = shifted_right_by_four_way(Cat(Const(0, _LEFT), product), places[4:6], 16)
        coarse = registered(m, Mux(places[6], coarse >> 64, coarse)[:SCALED_BITS], "coarse")
        places = registered(m, places[:4], "places_fine")
        large = registered(m, large, "large_coarse")

        fine = Signal(SCALED_BITS)
        m.d.comb += fine.eq(shifted_right_by_four_way(shifted_right_by_four_way(coarse, places[2:], 4), places[:2], 1))
        magnitude = registered(m, fine[:-1] | (large | fine[-1]).replicate(SCALED_BITS - 1), "magnitude")

        signs = sign.replicate(SCALED_BITS)
        m.d.comb += self.out.eq(registered(m, (Cat(magnitude, Const(0, 1)) ^ signs) + sign, "scaled"))
        return m
