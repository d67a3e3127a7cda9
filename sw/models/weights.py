"""What every source of a GPT-2's weights offers: a checkpoint on disk or seeded weights, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from sw.models.gpt2_config import GPT2Config

__all__ = ["Progress", "WeightTensors", "expected_shapes", "unobserved"]

Progress = Callable[[str, int, int], None]
"""Takes (what, done, total) of a long step."""


def unobserved(what: str, done: int, total: int) -> None:
    """The `Progress` of a caller who does not look."""
    del what, done, total


class WeightTensors(Protocol):
    """The weights of one GPT-2 by name; names and shapes are those of `expected_shapes(config)`.

    Members: `config`; `names`: every weight, in the order of computation; `label`: what messages call the model;
    `largest_magnitude`: no value of any tensor is larger (so all are finite), or None if only reading them tells.
    """

    config: GPT2Config
    names: tuple[str, ...]
    label: str
    largest_magnitude: float | None

    def tensor(self, name: str) -> np.ndarray:
        """Weight `name` as fp32, an array of the caller's own. KeyError for an unknown name."""

    def digest(self, progress: Progress = unobserved) -> str:
        """SHA-256 of all that decides the weights, hexadecimal."""


def expected_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a GPT-2, in the order of computation; projections are [in, out]."""
    width, inner = config.n_embd, config.n_inner
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config.vocab_size, width),
        "wpe.weight": (config.n_positions, width),
    }
    for layer in range(config.n_layer):
        block = f"h.{layer}."
        for norm, projection, n_in, n_out in (
            ("ln_1", "attn.c_attn", width, 3 * width),
            ("", "attn.c_proj", width, width),
            ("ln_2", "mlp.c_fc", width, inner),
            ("", "mlp.c_proj", inner, width),
        ):
            if norm:
                shapes[f"{block}{norm}.weight"] = (width,)
                shapes[f"{block}{norm}.bias"] = (width,)
            shapes[f"{block}{projection}.weight"] = (n_in, n_out)
            shapes[f"{block}{projection}.bias"] = (n_out,)
    shapes["ln_f.weight"] = (width,)
    shapes["ln_f.bias"] = (width,)
    return shapes
