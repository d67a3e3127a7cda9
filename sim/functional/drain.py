"""What the drain unit does to a finished accumulator (docs/core.md, section 3), per lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from hw.gpt2.isa import Params, Path
from hw.numerics.convert import fp16_to_fp32
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_mul import fp32_mul
from hw.numerics.fp_format import FP32_ONE
from hw.numerics.gelu import gelu

from .tile_sum import functional_njit

__all__ = ["drain", "scaled"]

_NORM = int(Params.NORM)
_GELU = int(Path.GELU)
_RESIDUAL = int(Path.RESIDUAL)
_SIGN = np.uint32(0x80000000)
_ZERO = np.uint32(0)


@functional_njit
def scaled(accumulator: Any, factor: Any) -> Any:
    """``add(mul(accumulator, factor), +0.0)`` on fp32 bit patterns: scores and attention results."""
    return fp32_add(fp32_mul(accumulator, factor), _ZERO)


@functional_njit
def drain(accumulator: Any, path: int, params: int, bias: Any, column_sum: Any, r: Any, r_mean: Any, old: Any) -> Any:
    """The fp32 bit pattern of a result.

    Parameters
    ----------
    accumulator, bias, column_sum, r, r_mean : uint32
        fp32 bit patterns; all but the first are used with params NORM only.
    path, params : int
        Of the instruction.
    old : uint16
        The fp16 element at the destination, used with path RESIDUAL.
    """
    if params == _NORM:
        shift = fp32_add(bias, fp32_mul(r_mean, column_sum) ^ _SIGN)
        result = fp32_add(fp32_mul(accumulator, r), shift)
    elif path == _RESIDUAL:
        result = fp32_add(fp32_mul(accumulator, np.uint32(FP32_ONE)), fp16_to_fp32(old))
    else:
        result = scaled(accumulator, np.uint32(FP32_ONE))
    return gelu(result) if path == _GELU else result
