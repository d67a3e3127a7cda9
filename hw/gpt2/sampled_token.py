"""Golden model of the sampler on the board, and the registers that it is told by (docs/sampling.md)."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from hw.gpt2.sampler_list import ID_BITS
from hw.numerics.cubic_table import UNIT_BITS
from hw.numerics.gumbel import gumbel_fixed
from hw.numerics.scaled_logit import FRACTION_BITS, MANTISSA_BITS, inverse_temperature, scaled_logits
from hw.numerics.splitmix import splitmix

__all__ = ["TOP_K_LIMIT", "BoardSampling", "sampled_token"]

TOP_K_LIMIT = 64
"""Largest ``top_k`` that a board knows."""

_MAX_WORD = 2**64 - 1
_EXPONENT_BITS, _TOP_K_AT, _TOP_K_BITS = 6, 48, 7  # of the register ``sampling``


@dataclasses.dataclass(frozen=True)
class BoardSampling:
    """How a board draws its tokens, as its registers say it.

    Parameters
    ----------
    seed : int
        0 to 2^64 - 1.
    top_k : int
        Only the so many largest logits take part, equal ones by lower id: 1 to 64; 0: all.
    inverse_mantissa, inverse_exponent : int
        1/temperature is mantissa * 2^(exponent - 39); 2^39 <= mantissa < 2^40, -16 <= exponent <= 16.

    Raises ValueError for values out of range.
    """

    seed: int
    top_k: int
    inverse_mantissa: int
    inverse_exponent: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _MAX_WORD:
            raise ValueError(f"seed must lie in 0 to 2^64 - 1, got {self.seed!r}")
        if not 0 <= self.top_k <= TOP_K_LIMIT:
            raise ValueError(f"a board's top-k must be 0 (all) or 1 to {TOP_K_LIMIT}, got {self.top_k!r}")
        if not 1 << MANTISSA_BITS - 1 <= self.inverse_mantissa < 1 << MANTISSA_BITS:
            raise ValueError(f"the inverse temperature's mantissa must have 40 bits, got {self.inverse_mantissa!r}")
        if not -16 <= self.inverse_exponent <= 16:
            raise ValueError(f"the inverse temperature's exponent must be -16 to 16, got {self.inverse_exponent!r}")

    @classmethod
    def of(cls, temperature: float, top_k: int, seed: int, vocab: int) -> BoardSampling | None:
        """The registers for a host sampler's settings over ``vocab`` tokens; None if a board cannot do it.

        A board draws at temperatures from 2^-16 to 2^16 with ``top_k`` 0, up to 64, or the whole vocabulary and above.
        """
        kept = 0 if top_k >= vocab else top_k
        if kept > TOP_K_LIMIT:
            return None
        try:
            mantissa, exponent = inverse_temperature(temperature)
        except ValueError:
            return None
        return cls(seed, kept, mantissa, exponent)

    @classmethod
    def of_registers(cls, seed: int, sampling: int) -> BoardSampling | None:
        """What stands in the registers ``seed`` and ``sampling``; None: arg-max. Raises ValueError as on creation."""
        mantissa = sampling & (1 << MANTISSA_BITS) - 1
        if mantissa == 0:
            return None
        exponent = sampling >> MANTISSA_BITS & (1 << _EXPONENT_BITS) - 1
        signed = exponent - (exponent >> _EXPONENT_BITS - 1 << _EXPONENT_BITS)
        return cls(seed, sampling >> _TOP_K_AT & (1 << _TOP_K_BITS) - 1, mantissa, signed)

    @property
    def register(self) -> int:
        """Value of the register ``sampling``; ``seed`` has its own."""
        exponent = self.inverse_exponent & (1 << _EXPONENT_BITS) - 1
        return self.inverse_mantissa | exponent << MANTISSA_BITS | self.top_k << _TOP_K_AT


def _largest(keys: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Ids of the ``count`` largest, equal ones by lower id."""
    ids = np.arange(len(keys), dtype=np.int64)
    if count == 0 or count >= len(keys):
        return ids
    ranks = keys << ID_BITS | (1 << ID_BITS) - 1 - ids
    return np.argpartition(ranks, len(keys) - count)[len(keys) - count :]


def sampled_token(logits: npt.NDArray[np.uint32], sampling: BoardSampling, position: int) -> int | None:
    """The token for ``position`` that a board draws, or None if a logit is NaN.

    Parameters
    ----------
    logits : uint32 array (vocab,)
        fp32 bit patterns of the step before ``position``; 1 to 2^20 of them.
    sampling : BoardSampling
    position : int
        That of the token being chosen, 1 to 2^16 - 1.
    """
    fields = (logits >> np.uint32(23)) & np.uint32(0xFF)
    if (fields == 0xFF).any():
        return None
    signed = logits.astype(np.int64)
    keys = np.where(signed >> 31 == 1, signed ^ 0xFFFFFFFF, signed | 0x80000000)
    keys[fields == 0] = 0x80000000
    ids = _largest(keys, sampling.top_k)
    start = splitmix(sampling.seed, np.array([1], np.uint64))[0]
    row = splitmix(int(start), np.array([position], np.uint64))[0]
    numbers = gumbel_fixed(splitmix(int(row), ids.astype(np.uint64) + np.uint64(1))) >> UNIT_BITS - FRACTION_BITS
    whole, fraction = scaled_logits(logits[ids], sampling.inverse_mantissa, sampling.inverse_exponent)
    fraction = fraction + (numbers & (1 << FRACTION_BITS) - 1)
    whole = whole + (numbers >> FRACTION_BITS) + (fraction >> FRACTION_BITS)
    fraction = fraction & (1 << FRACTION_BITS) - 1
    best = whole == whole.max()
    best &= fraction == fraction[best].max()
    return int(ids[best].min())
