"""Dot products of whole tiles at machine speed: the bits of ``hw.numerics.dot_tile`` by float arithmetic that is exact.

fp16 products are exact in fp32, and so is their scaling by powers of two; truncation to int32 then is the alignment of
the golden model. The exponent of a product is the sum of its operands' exponent fields, as in the golden model, not
the exponent of the product.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hw.numerics
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp_format import FP32_NAN
from hw.numerics.golden_njit import cached_njit

from .bit_casts import bits_to_float, float_to_bits

__all__ = ["add_fp32", "decode_word", "functional_njit", "tile_sum"]

functional_njit = cached_njit(Path(hw.numerics.__file__).parent, Path(__file__).parent, nogil=True)
"""Decorator of the executor's kernels: compiled, cached, released from the interpreter's lock."""

_inlined = cached_njit(Path(hw.numerics.__file__).parent, Path(__file__).parent, nogil=True, inline="always")

ZERO_EXPONENT = np.int16(-64)
_NO_EXPONENT = np.int16(-128)
_FRACTION_SCALE = np.float32(2.0**-24)


@functional_njit
def decode_word(
    halves: NDArray[np.uint16],
    take: NDArray[np.bool_],
    exponents: NDArray[np.int16],
    values: NDArray[np.float32],
    mask: NDArray[np.uint16],
) -> bool:
    """Decode one activation word.

    Parameters
    ----------
    halves : uint16 array (tile,)
        fp16 bit patterns.
    take : bool array (tile,)
        Elements that take part; the others count as zero products.
    exponents, values, mask : int16, float32, uint16 arrays (tile,)
        Outputs: exponent field (subnormal 1, zero ``ZERO_EXPONENT``), value, all ones where the element takes part.

    Returns True if an element that takes part is NaN or infinite.
    """
    bad = False
    for i in range(halves.size):
        bits = np.int32(halves[i]) if take[i] else np.int32(0)
        mask[i] = 0xFFFF if take[i] else 0
        exponent = (bits >> 10) & 31
        magnitude = bits & 0x7FFF
        if exponent == 31:
            bad = True
        exponents[i] = ZERO_EXPONENT if magnitude == 0 else max(exponent, 1)
        if exponent == 0:
            value = np.float32(magnitude) * _FRACTION_SCALE
        else:
            value = bits_to_float(np.int32((magnitude << 13) + (112 << 23)))
        values[i] = -value if bits & 0x8000 else value
    return bad


@functional_njit
def _aligned(bits16: int, value: float, scale: float) -> Any:
    """One product, aligned and truncated, as int32."""
    bits = np.int32(bits16)
    magnitude = bits & np.int32(0x7FFF)
    normal = bits_to_float(np.int32((magnitude << 13) + np.int32(112 << 23)))
    subnormal = np.float32(magnitude) * _FRACTION_SCALE
    unsigned = float_to_bits(normal if magnitude >= 0x400 else subnormal)
    weight = bits_to_float(np.uint32(unsigned | (np.uint32(bits & 0x8000) << np.uint32(16))))
    return np.int32(value * weight * scale)


def _fast_tile(width: int) -> Callable[..., Any]:
    """Tile sum of one width; a product has 22 bits and guard <= 6 more, so four of them fit 32 bits."""
    part = 16

    @functional_njit
    def fast_tile(
        exponents: NDArray[np.int16], values: NDArray[np.float32], weights: NDArray[np.uint16], guard: int
    ) -> Any:
        top: Any = _NO_EXPONENT
        worst: Any = np.int16(0)
        for i in range(width):
            magnitude = np.int16(weights[i] & np.uint16(0x7FFF))
            field = np.int16(magnitude >> np.int16(10))
            worst = max(worst, field)
            exponent = np.int16(max(field, np.int16(1)) + exponents[i])
            top = max(top, exponent if magnitude != 0 else _NO_EXPONENT)
        if worst == 31:
            return bits_to_float(np.uint32(FP32_NAN))
        if top < 0:
            return np.float32(0)
        scale = bits_to_float(np.int32((127 + 50 + guard - np.int32(top)) << 23))
        total = np.int64(0)
        for i in range(part):
            group = _aligned(weights[i], values[i], scale)
            for k in range(part, width, part):
                group = np.int32(group + _aligned(weights[k + i], values[k + i], scale))
            total += np.int64(group)
        return np.float32(total) * bits_to_float(np.int32((127 - 50 - guard + np.int32(top)) << 23))

    return fast_tile


_FAST_16 = _fast_tile(16)
_FAST_32 = _fast_tile(32)
_FAST_64 = _fast_tile(64)


@_inlined
def tile_sum(
    width: int, exponents: NDArray[np.int16], values: NDArray[np.float32], weights: NDArray[np.uint16], guard: int
) -> Any:
    """Sum of one tile as float32, bit for bit ``dot_tile``'s, for ``width`` 16, 32 or 64 and guard <= 6.

    ``exponents`` and ``values`` come from :func:`decode_word`, which must have found no NaN; ``weights`` (uint16) must
    be zero where the word's mask is. Fast where the caller knows ``width`` when it is compiled.
    """
    if width == 64:
        total = _FAST_64(exponents, values, weights, guard)
    elif width == 32:
        total = _FAST_32(exponents, values, weights, guard)
    else:
        total = _FAST_16(exponents, values, weights, guard)
    return total


@functional_njit
def add_fp32(a: Any, b: Any) -> Any:
    """``fp32_add`` on float32 values that are not subnormal (none inside the core is).

    The machine's sum is the golden one unless it is zero, subnormal, infinite or NaN; then the golden model is called.
    """
    total = float_to_bits(a + b)
    exponent = total & np.uint32(0x7F800000)
    if exponent != 0 and exponent != 0x7F800000:
        return bits_to_float(total)
    return bits_to_float(fp32_add(float_to_bits(a), float_to_bits(b)))
