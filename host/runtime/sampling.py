"""Seeded sampling whose random numbers depend on (seed, position, token id) only, so every executor draws alike.

The token is the arg-max of logit/temperature + gumbel(seed, position, id) over the `top_k` largest logits (the
Gumbel-max trick: the result has softmax's distribution). The uniform word is SplitMix64's output function (Steele
et al., 2014) over a counter; all arithmetic behind it is float64.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from host.errors import BadInput

__all__ = ["Sampler", "gumbel"]

_GOLDEN = 0x9E3779B97F4A7C15  # odd: 2^64 / golden ratio
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
MAX_SEED = 2**64 - 1
_HALF, _LAST_STEP = np.uint64(1 << 52), np.uint64((1 << 53) - 1)


def _mix(word: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64-bit words."""
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


def gumbel(seed: int, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard Gumbel numbers of token `ids` [n] at `position` (that of the token being chosen)."""
    start = np.array([(seed + _GOLDEN) & MAX_SEED], np.uint64)
    row = _mix(_mix(start) + np.array([position * _GOLDEN & MAX_SEED], np.uint64))
    words = _mix(row + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
    steps = words >> np.uint64(11)  # u = (steps + 0.5) * 2^-53
    below = (np.minimum(steps, _HALF).astype(np.float64) + 0.5) * 2.0**-53  # u, exact below 1/2
    above = ((_LAST_STEP - np.maximum(steps, _HALF)).astype(np.float64) + 0.5) * 2.0**-53  # 1 - u, exact from 1/2 on
    rate = np.where(steps < _HALF, -np.log(below), -np.log1p(-above))
    return -np.log(rate)


@dataclasses.dataclass(frozen=True)
class Sampler:
    """How the next token is chosen.

    Parameters
    ----------
    temperature : float
        0 is arg-max (lowest id wins ties); above 0 the logits are divided by it.
    top_k : int
        Only the so many largest logits take part, ties by lower id; 0 or more than there are: all.
    seed : int
        0 to 2^64 - 1; with `temperature` 0 it has no effect.

    Raises BadInput for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise BadInput(
                f"temperature must be a number from 0, got {self.temperature!r}",
                value=self.temperature,
                expected=">= 0",
                hint="0 always takes the most probable token; 0.8 is a usual choice.",
            )
        if self.top_k < 0:
            raise BadInput(f"top-k must be 0 or more, got {self.top_k!r}", value=self.top_k, expected=">= 0")
        if not 0 <= self.seed <= MAX_SEED:
            raise BadInput(f"seed must lie in 0 to 2^64 - 1, got {self.seed!r}", value=self.seed)

    @property
    def greedy(self) -> bool:
        """Whether the choice is the arg-max, which the board makes by itself."""
        return self.temperature == 0

    def choose(self, logits: npt.NDArray[np.float32], position: int) -> int:
        """The token for `position` from the logits [vocab] of the position before it."""
        candidates = self.candidates(logits)
        if self.greedy:
            return int(candidates[0])
        scores = logits[candidates].astype(np.float64) / self.temperature + gumbel(self.seed, position, candidates)
        best = np.flatnonzero(scores == scores.max())
        return int(candidates[best].min())

    def candidates(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Ids that may be chosen, largest logit first, ties by lower id."""
        size = len(logits)
        count = 1 if self.greedy else min(self.top_k or size, size)
        order = np.argsort(-logits, kind="stable")  # -0 equals +0, as on the board
        return order[:count].astype(np.int64)
