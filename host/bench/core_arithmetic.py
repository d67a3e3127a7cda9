"""The core's arithmetic on many positions at once, in the order the core has it and in the order it could have had.

All sums come from the kernels of the functional executor (tile products of 64 with guard bits, fp32 additions in the
program's order, drain unit), so a late LayerNorm here has the core's very bits; a test holds it to the executor's. An
early LayerNorm uses the same units in another order. One board, k words in natural order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hw.gpt2.isa import Params, Path
from hw.numerics.convert import fp16_to_fp32, fp32_to_fp16, fp32_to_fp16_array
from hw.numerics.fixed_sum import fixed_sums
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_mul import fp32_mul
from hw.numerics.fp_format import FP32_NAN
from hw.numerics.norm_scalars import norm_eps_term, norm_scalars
from sim.functional.bit_casts import bits_to_float, float_to_bits
from sim.functional.drain import drain
from sim.functional.lane_pool import for_ranges
from sim.functional.product import decode_words
from sim.functional.tile_sum import add_fp32, functional_njit, tile_sum

__all__ = [
    "GUARD_BITS",
    "TILE",
    "Bits32",
    "Half",
    "Single",
    "decoded",
    "drained",
    "layer_norm_scalars",
    "normalised",
    "product",
    "to_fp16",
]

TILE = 64
GUARD_BITS = 4
_SIGN = np.uint32(0x80000000)

Half = npt.NDArray[np.float16]
Single = npt.NDArray[np.float32]
Bits32 = npt.NDArray[np.uint32]


@functional_njit
def _product_columns(
    exponents: npt.NDArray[np.int16],
    values: Single,
    bad: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.uint16],
    columns: tuple[int, int],
    initial: Single,
    guard: int,
    out: Bits32,
) -> None:
    positions, words = exponents.shape[0], exponents.shape[1]
    totals = np.empty(positions, np.float32)
    for n in range(columns[0], columns[1]):
        totals[:] = initial[n]
        for w in range(words):
            tile = weights[n, w * TILE : (w + 1) * TILE]
            for p in range(positions):
                if bad[p, w]:
                    term = bits_to_float(np.uint32(FP32_NAN))
                else:
                    term = tile_sum(TILE, exponents[p, w], values[p, w], tile, guard)
                totals[p] = add_fp32(totals[p], term)
        for p in range(positions):
            out[p, n] = float_to_bits(totals[p])


@functional_njit
def _drain_all(
    accumulators: Bits32,
    path: int,
    params: int,
    bias: Bits32,
    column_sums: Bits32,
    scalars: Bits32,
    old: npt.NDArray[np.uint16],
    out: Bits32,
) -> None:
    for p in range(accumulators.shape[0]):
        for n in range(accumulators.shape[1]):
            out[p, n] = drain(
                accumulators[p, n], path, params, bias[n], column_sums[n], scalars[p, 0], scalars[p, 1], old[p, n]
            )


@functional_njit
def _normalise(
    x: npt.NDArray[np.uint16], scalars: Bits32, gamma: Bits32, beta: Bits32, out: npt.NDArray[np.uint16]
) -> None:
    for p in range(x.shape[0]):
        for i in range(x.shape[1]):
            unit = fp32_add(fp32_mul(fp16_to_fp32(x[p, i]), scalars[p, 0]), scalars[p, 1] ^ _SIGN)
            out[p, i] = fp32_to_fp16(fp32_add(fp32_mul(unit, gamma[i]), beta[i]))


def product(x: Half, weights: Half, initial: Single | None = None, guard_bits: int = GUARD_BITS) -> Bits32:
    """Accumulators of x @ weights as fp32 bit patterns [positions, columns].

    Parameters: `x` [positions, k] and `weights` [k, columns] in fp16, k a multiple of 64; `initial` [columns], what the
    accumulators start from (zero if not given); `guard_bits` of the tile products.
    """
    positions, inner = x.shape
    if inner % TILE or weights.shape[0] != inner:
        raise ValueError(f"k is {inner} for x and {weights.shape[0]} for the weights, need one multiple of {TILE}")
    exponents, values, bad = decoded(x)
    columns = np.ascontiguousarray(weights.T).view(np.uint16)
    start = np.zeros(len(columns), np.float32) if initial is None else initial.astype(np.float32)
    out = np.empty((positions, len(columns)), np.uint32)
    for_ranges(
        lambda part: _product_columns(exponents, values, bad, columns, part, start, guard_bits, out),
        len(columns),
        positions * weights.size,
    )
    return out


def decoded(x: Half) -> tuple[npt.NDArray[np.int16], Single, npt.NDArray[np.bool_]]:
    """Exponents and values [positions, words, 64] and NaN seen [positions, words] of activations."""
    halves = np.ascontiguousarray(x).view(np.uint16).reshape(-1, TILE)
    exponents, values = np.empty(halves.shape, np.int16), np.empty(halves.shape, np.float32)
    masks, bad = np.empty(halves.shape, np.uint16), np.empty(len(halves), np.bool_)
    decode_words(halves, np.ones(halves.shape, np.bool_), exponents, values, masks, bad)
    shape = (x.shape[0], -1, TILE)
    return exponents.reshape(shape), values.reshape(shape), bad.reshape(shape[:2])


def drained(
    accumulators: Bits32,
    path: Path,
    params: Params = Params.NONE,
    *,
    bias: Single | None = None,
    column_sums: Single | None = None,
    scalars: Bits32 | None = None,
    old: Half | None = None,
) -> Bits32:
    """What the drain unit makes of accumulators [positions, columns]: fp32 bit patterns (docs/core.md, section 3).

    Parameters: `bias`, `column_sums` [columns] and `scalars` [positions, 2] of a late LayerNorm; `old` [positions,
    columns], the residual.
    """
    positions, columns = accumulators.shape
    none = np.zeros(columns, np.uint32)
    out = np.empty_like(accumulators)
    _drain_all(
        accumulators,
        int(path),
        int(params),
        none if bias is None else np.ascontiguousarray(bias, np.float32).view(np.uint32),
        none if column_sums is None else np.ascontiguousarray(column_sums, np.float32).view(np.uint32),
        np.zeros((positions, 2), np.uint32) if scalars is None else scalars,
        np.zeros((positions, columns), np.uint16) if old is None else np.ascontiguousarray(old).view(np.uint16),
        out,
    )
    return out


def to_fp16(bits: Bits32) -> Half:
    """fp32 bit patterns rounded to fp16 as the core rounds them, any shape."""
    return fp32_to_fp16_array(np.ascontiguousarray(bits).reshape(-1)).view(np.float16).reshape(bits.shape)


def layer_norm_scalars(x: Half, epsilon: float) -> Bits32:
    """(r, r * mean) of each row as fp32 bit patterns [positions, 2], from exact sums over the fp16 row."""
    term = norm_eps_term(epsilon, x.shape[1])
    rows = []
    for row in np.ascontiguousarray(x).view(np.uint16):
        sum1, sum2, nan = fixed_sums(row)
        rows.append(norm_scalars(sum1, sum2, x.shape[1], term, nan))
    return np.array(rows, np.uint32)


def normalised(x: Half, scalars: Bits32, gamma: Single, beta: Single) -> Half:
    """An early LayerNorm: (x*r - r*mean)*gamma + beta in fp32 steps, rounded to fp16 once [positions, width]."""
    out = np.empty(x.shape, np.uint16)
    _normalise(
        np.ascontiguousarray(x).view(np.uint16),
        scalars,
        np.ascontiguousarray(gamma, np.float32).view(np.uint32),
        np.ascontiguousarray(beta, np.float32).view(np.uint32),
        out,
    )
    return out.view(np.float16)
