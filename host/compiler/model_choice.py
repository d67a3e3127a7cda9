"""The model that a user names, a checkpoint folder or a known size with seeded weights, and whether it fits a core."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from host.compiler.errors import CompileError, Problem
from host.compiler.limits import all_problems
from host.compiler.shape import Shape
from hw.board.board_model import BANK_BYTES
from hw.gpt2.config import CoreConfig
from sw.errors import CheckpointError, ModelError
from sw.models.gpt2_config import GPT2Config, load_config
from sw.models.named_sizes import NAMED_SIZES
from sw.models.seeded_weights import SeededCheckpoint
from sw.models.weights import WeightTensors

__all__ = ["SizedModel", "cannot_compile", "chosen_model", "chosen_shape", "chosen_sizes", "fitting_shape"]

DEFAULT_SEED = 0


class SizedModel(Protocol):
    """A model of which the sizes are known; its weights may be anywhere or nowhere.

    Members: `config`; `label`: what messages call the model.
    """

    @property
    def config(self) -> GPT2Config:
        """Its sizes."""

    @property
    def label(self) -> str:
        """What messages call it."""


@dataclasses.dataclass(frozen=True)
class _Sizes:
    config: GPT2Config
    label: str


def chosen_model(model: str | Path, seed: int | None = None) -> WeightTensors:
    """The weights that `model` stands for.

    Parameters
    ----------
    model : str or Path
        A HuggingFace GPT-2 directory; or, where no such directory exists, a name of `NAMED_SIZES`.
    seed : int, optional
        Of a named size's weights; 0 if not given.

    Raises CheckpointError (see `Checkpoint`; ``missing_path`` names the known sizes) and ModelError ``bad_seed``, also
    for a seed beside a directory. Only a directory needs torch.
    """
    name = str(model)
    if name in NAMED_SIZES and not Path(model).is_dir():
        return SeededCheckpoint(NAMED_SIZES[name], DEFAULT_SEED if seed is None else seed, name)
    if not Path(model).exists():
        raise CheckpointError(
            "missing_path",
            f"{name} does not exist, and is no size that is known by name.",
            value=name,
            expected=["a directory", *NAMED_SIZES],
            hint="Give the directory that holds config.json and model.safetensors, or one of "
            + ", ".join(NAMED_SIZES)
            + ".",
        )
    if seed is not None:
        raise ModelError(
            "bad_seed",
            f"A seed ({seed}) beside {name}, which is a directory.",
            value=seed,
            expected="no seed",
            hint="Only sizes known by name have seeded weights: " + ", ".join(NAMED_SIZES) + ".",
        )
    from sw.models.checkpoint import Checkpoint  # needs torch: 125 MB of memory and a second

    return Checkpoint(model)


def chosen_sizes(model: str | Path) -> SizedModel:
    """The sizes that `model` stands for, named as for `chosen_model`; of a directory only config.json is read.

    Raises CheckpointError. Needs no torch.
    """
    name = str(model)
    if name in NAMED_SIZES and not Path(model).is_dir():
        return _Sizes(NAMED_SIZES[name], name)
    if not Path(model).exists():
        return chosen_model(model)  # which says what is known
    return _Sizes(load_config(model), name)


def chosen_shape(weights: SizedModel, core: CoreConfig, context: int | None = None) -> Shape:
    """Sizes of a model on a core, which may have problems; `context` None: as many positions as both have."""
    model = weights.config
    return Shape(model, core, min(model.n_positions, core.context) if context is None else context)


def fitting_shape(
    weights: SizedModel, core: CoreConfig, context: int | None = None, channel_bytes: int = BANK_BYTES
) -> Shape:
    """As `chosen_shape`; raises CompileError, which lists everything that does not fit."""
    shape = chosen_shape(weights, core, context)
    found = all_problems(shape, channel_bytes)
    if found:
        raise cannot_compile(weights, core, found)
    return shape


def cannot_compile(weights: SizedModel, core: CoreConfig, found: Sequence[Problem]) -> CompileError:
    """The error that lists the problems `found`, of which there is one or more."""
    return CompileError(
        f"{weights.label} cannot be compiled for core {core.name}: {len(found)} "
        f"{'problem' if len(found) == 1 else 'problems'}.",
        found,
        kind="fp16_range" if all("finite" in problem.expected for problem in found) else "does_not_fit",
    )
