"""Keys and values of the positions before a decode step: given as arrays, or drawn from a seed.

With them one step at context length n needs no n-1 steps before it. A judge (PyTorch with a cache) takes the same ones.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sw.errors import ModelError
from sw.models.gpt2_config import GPT2Config
from sw.models.seeded_weights import DEVIATION, checked_seed, keyed_generator

__all__ = ["GivenKeyValues", "KeyValues", "SeededKeyValues", "stacked"]

GENERATOR = "ringfly-seeded-key-values/1"

Half = npt.NDArray[np.float16]


class KeyValues(Protocol):
    """Keys and values of the first `positions` positions of one sequence.

    Members: `config` of the model that they belong to; `positions`; `label`: where they come from.
    """

    config: GPT2Config
    positions: int
    label: str

    def keys(self, layer: int) -> Half:
        """fp16 [n_head, positions, head_size] of a layer."""

    def values(self, layer: int) -> Half:
        """As `keys`."""


class SeededKeyValues:
    """Keys and values as a pure function of (seed, layer, head, position), whatever `positions` is.

    Parameters: `config`; `positions`: 0 or more; `seed`: 0 to 2^64 - 1.

    N(0, 0.02 * sqrt(n_embd)): what GPT-2's initialisation makes of a normalised vector. Raises ModelError ``bad_seed``
    and ``bad_position``.
    """

    def __init__(self, config: GPT2Config, positions: int, seed: int = 0) -> None:
        self.config = config
        self.seed = checked_seed(seed)
        if positions < 0:
            raise ModelError("bad_position", f"{positions} seeded positions; it must be 0 or more.", value=positions)
        self.positions = positions
        self.label = f"seed {seed}"
        self._deviation = np.float32(DEVIATION * math.sqrt(config.n_embd))

    def keys(self, layer: int) -> Half:
        """fp16 [n_head, positions, head_size] of a layer."""
        return self._drawn("keys", layer)

    def values(self, layer: int) -> Half:
        """As `keys`."""
        return self._drawn("values", layer)

    def _drawn(self, kind: str, layer: int) -> Half:
        drawn = np.empty((self.config.n_head, self.positions, self.config.head_size), np.float32)
        for head, rows in enumerate(drawn):
            generator = keyed_generator(f"{GENERATOR}\n{self.seed}\n{kind}\n{layer}\n{head}")
            generator.standard_normal(out=rows, dtype=np.float32)  # in order: a longer draw only goes on
        drawn *= self._deviation
        return drawn.astype(np.float16)


class GivenKeyValues:
    """Keys and values that somebody has.

    Parameters: `config`; `keys`, `values`: fp16 [n_layer, n_head, positions, head_size]; `label`.
    Raises ModelError ``bad_cache`` for another type or shape.
    """

    def __init__(self, config: GPT2Config, keys: Half, values: Half, label: str = "given") -> None:
        for what, array in (("keys", keys), ("values", values)):
            wanted = (config.n_layer, config.n_head, keys.shape[2] if keys.ndim == 4 else 0, config.head_size)
            if array.dtype != np.float16 or array.shape != wanted:
                raise ModelError(
                    "bad_cache",
                    f"The {what} are {array.dtype} {list(array.shape)}, wanted float16 {list(wanted)}.",
                    value=array.shape,
                    expected=wanted,
                    hint="Give fp16 arrays [layers, heads, positions, head size], both of the same positions.",
                )
        self.config = config
        self.positions = keys.shape[2]
        self.label = label
        self._keys, self._values = keys, values

    def keys(self, layer: int) -> Half:
        """fp16 [n_head, positions, head_size] of a layer."""
        return self._keys[layer]

    def values(self, layer: int) -> Half:
        """As `keys`."""
        return self._values[layer]


def stacked(key_values: KeyValues) -> tuple[Half, Half]:
    """(keys, values) of all layers as arrays [n_layer, n_head, positions, head_size], for a judge."""
    layers = range(key_values.config.n_layer)
    return np.stack([key_values.keys(i) for i in layers]), np.stack([key_values.values(i) for i in layers])
