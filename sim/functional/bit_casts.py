"""Reinterpretation of fp32 bit patterns inside compiled functions, without a round trip through memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

__all__ = ["bits_to_float", "float_to_bits"]


def _bits_to_float(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = arguments[0]
        if word.type.width > 32:
            word = builder.trunc(word, ir.IntType(32))
        return builder.bitcast(word, ir.FloatType())

    return types.float32(bits), generate


def _float_to_bits(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


bits_to_float: Any = intrinsic(_bits_to_float)
"""float32 of a 32-bit pattern (an integer; its low 32 bits count); for compiled functions only."""

float_to_bits: Any = intrinsic(_float_to_bits)
"""uint32 bit pattern of a float32; for compiled functions only."""
