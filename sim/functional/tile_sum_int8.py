"""int8 dot products of whole tiles at machine speed: the bits of ``hw.numerics.dot_dual.dot_tile_int8``.

The alignment depends on the activations alone, so it is done once a word: every activation, scaled by a power of two so
that truncation of a product to int32 is the golden model's. Products have 18 bits and are exact in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hw.numerics
from hw.numerics.golden_njit import cached_njit

from .bit_casts import bits_to_float
from .tile_sum import ZERO_EXPONENT, functional_njit

__all__ = ["align_word", "int8_tile_sums"]

_inlined = cached_njit(Path(hw.numerics.__file__).parent, Path(__file__).parent, nogil=True, inline="always")


@functional_njit
def align_word(
    exponents: NDArray[np.int16], values: NDArray[np.float32], guard: int, aligned: NDArray[np.float32]
) -> Any:
    """Scale a word's activations to the unit of its tile sums.

    Parameters
    ----------
    exponents, values : int16, float32 arrays (tile,)
        Of ``sim.functional.tile_sum.decode_word``, which must have found no NaN.
    guard : int
        Guard bits of the tile, at most 6.
    aligned : float32 array (tile,)
        Output: the activations in units of ``unit``.

    Returns ``unit``, float32: what 1 in a tile's integer sum is worth.
    """
    top = ZERO_EXPONENT
    for i in range(exponents.size):
        top = max(top, exponents[i])
    if top == ZERO_EXPONENT:
        top = np.int16(1)
    # 25: at this exponent field the significand of 11 bits is an integer
    scale = bits_to_float(np.int32((127 + 25 + guard - np.int32(top)) << 23))
    for i in range(values.size):
        aligned[i] = values[i] * scale
    return bits_to_float(np.int32((127 - 25 - guard + np.int32(top)) << 23))


@functional_njit
def _integer(aligned: float, sign_magnitude: int) -> Any:
    """One product, truncated, as int32; bits 7:0 are the weight's."""
    magnitude = np.float32(sign_magnitude & np.int32(0x7F))
    product = np.int32(aligned * magnitude)
    sign = np.int32(sign_magnitude << np.int32(24)) >> np.int32(31)
    return np.int32((product ^ sign) - sign)


def _int8_sums(width: int) -> Callable[..., Any]:
    """Both sums of one width; a product has 18 bits and guard <= 6 more, so 64 of them fit 32 bits."""

    @functional_njit
    def int8_sums(aligned: NDArray[np.float32], weights: NDArray[np.uint16]) -> Any:
        even, odd = np.int32(0), np.int32(0)
        for i in range(width):
            pair = np.int32(weights[i])
            even = np.int32(even + _integer(aligned[i], pair))
            odd = np.int32(odd + _integer(aligned[i], pair >> np.int32(8)))
        return even, odd

    return int8_sums


_SUMS_16 = _int8_sums(16)
_SUMS_32 = _int8_sums(32)
_SUMS_64 = _int8_sums(64)


@_inlined
def int8_tile_sums(width: int, aligned: NDArray[np.float32], weights: NDArray[np.uint16], unit: float) -> Any:
    """(sum with the even weights, sum with the odd ones) of a tile as float32, bit for bit ``dot_tile_int8``'s.

    ``aligned`` and ``unit`` come from :func:`align_word`; ``weights`` (uint16) hold an element's even weight in the low
    byte and the odd one in the high byte, each bit 7 the sign and bits 6:0 the magnitude. Weights of elements that take
    no part may be anything. ``width`` is 16, 32 or 64. Fast where the caller knows ``width`` when it is compiled.
    """
    if width == 64:
        even, odd = _SUMS_64(aligned, weights)
    elif width == 32:
        even, odd = _SUMS_32(aligned, weights)
    else:
        even, odd = _SUMS_16(aligned, weights)
    return np.float32(even) * unit, np.float32(odd) * unit
