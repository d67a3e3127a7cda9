"""Checkpoint + core -> program folder: planned and checked completely before the first byte is written.

`host.compiler.ring` does the same for several boards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from host.compiler.errors import Problem
from host.compiler.image import BoardImage, write_images
from host.compiler.limits import all_problems
from host.compiler.model_choice import cannot_compile, chosen_model, chosen_shape
from host.compiler.output_folder import check_target, written_beside
from host.compiler.regions import Layout, initial_registers
from host.compiler.schedule import schedule
from host.compiler.shape import Shape
from host.compiler.weights import WeightSource
from host.planner.partition import KINDS
from hw.board.board_model import BANK_BYTES
from hw.board.program import MemoryImage, Program
from hw.gpt2.access import derive_access
from hw.gpt2.config import CoreConfig
from hw.gpt2.legality import check_program
from sw.models.key_values import KeyValues, SeededKeyValues
from sw.models.weights import Progress, WeightTensors, unobserved

__all__ = ["cache_labels", "checked_key_values", "compile_model", "plan_program", "read_problems", "write_boards"]


def compile_model(
    model: str | Path | WeightTensors,
    core: CoreConfig,
    out: str | Path,
    *,
    context: int | None = None,
    channel_bytes: int = BANK_BYTES,
    seeded_positions: int = 0,
    kv_seed: int = 0,
    key_values: KeyValues | None = None,
    progress: Progress = unobserved,
) -> tuple[Program, MemoryImage]:
    """Write the program folder `out` for one board and return what `Program.load(out)` would.

    Parameters
    ----------
    model : str, Path or WeightTensors
        HuggingFace GPT-2 directory, name of a known size (`chosen_model`), or the weights themselves.
    core : CoreConfig
        The core it is compiled for.
    out : str or Path
        Folder to make. It must not exist, or be empty, or hold an earlier program, which is replaced. Everything is
        written to a folder beside it that is renamed at the end, so a failure leaves nothing half written.
    context : int, optional
        Positions of the cache; the smaller of the model's and the core's if not given.
    channel_bytes : int
        Memory of one channel.
    seeded_positions, kv_seed : int
        Positions whose keys and values the image holds already, drawn from a seed (`SeededKeyValues`): a run may start
        at the position behind them. On a core with rows every request has its own, request r those of `kv_seed` + r.
    key_values : KeyValues, optional
        Keys and values to hold instead of drawn ones, the same for every request.
    progress : callable
        Takes (what, done, total) as it works.

    Raises CheckpointError for what is wrong with the checkpoint, CompileError for all that does not fit, ModelError for
    a seed out of range, ValueError for `key_values` beside `seeded_positions`.
    """
    target = Path(out)
    weights = chosen_model(model) if isinstance(model, str | Path) else model
    check_target(target)  # before the weights are read, which takes long
    shape = chosen_shape(weights, core, context)
    caches = checked_key_values(weights, core.rows, seeded_positions, kv_seed, key_values)
    source = WeightSource(weights)
    found = all_problems(shape, channel_bytes) + read_problems(source, shape, caches, progress)
    if found:
        raise cannot_compile(weights, core, found)
    program = plan_program(shape, weights.digest(progress), caches)
    with written_beside(target) as scratch:
        [image] = write_boards([(scratch, shape, program)], source, caches, channel_bytes, progress)
    return program, dataclasses.replace(image, files=tuple(target / path.name for path in image.files))


def checked_key_values(
    weights: WeightTensors, requests: int, seeded_positions: int, kv_seed: int, key_values: KeyValues | None
) -> tuple[KeyValues, ...]:
    """The keys and values that images are to hold, of each of `requests` requests, or none.

    Raises ValueError if both ways to give them are used, ModelError for a seed out of range.
    """
    if seeded_positions and key_values is not None:
        raise ValueError("give either seeded_positions or key_values")
    if seeded_positions:
        return tuple(SeededKeyValues(weights.config, seeded_positions, kv_seed + r) for r in range(requests))
    return () if key_values is None else (key_values,) * requests


def read_problems(
    source: WeightSource, shape: Shape, key_values: Sequence[KeyValues], progress: Progress
) -> list[Problem]:
    """What is wrong with the values: keys and values of another model or too many, weights that fp16 cannot hold."""
    found = []
    for cache in key_values[:1]:  # all requests have as many, of one model
        if cache.positions >= shape.context:
            limit = f"at most {shape.context - 1}"
            found.append(Problem("positions with keys and values", cache.positions, limit, "a step needs one more"))
        if cache.config != shape.model:
            found.append(Problem("model of the keys and values", cache.config, str(shape.model)))
    return found + source.range_problems(
        shape.core.has_int8, lambda done, total: progress("checking values", done, total)
    )


def write_boards(
    boards: Sequence[tuple[Path, Shape, Program]],
    source: WeightSource,
    key_values: Sequence[KeyValues],
    channel_bytes: int,
    progress: Progress,
) -> list[MemoryImage]:
    """Write image and program of each (folder, shape, program); `key_values` of every request. Raises OSError."""
    targets = [BoardImage(folder, Layout.of(shape), schedule(shape)) for folder, shape, _ in boards]
    images = write_images(targets, source, key_values, channel_bytes, progress)
    for (folder, _, program), image in zip(boards, images, strict=True):
        program.save(folder, image)
    return images


def plan_program(shape: Shape, digest: str = "", key_values: Sequence[KeyValues] = (), ring_key: int = 0) -> Program:
    """The program of a shape without problems; it needs no weights, so cycles can be counted for any size.

    `key_values` are those that the image will hold of every request, as many positions of each, or none; the notes say
    so, and the driver lets a run start behind them.
    `ring_key` is the plan's, the same on all boards of a ring.
    Raises RuntimeError if the compiler broke a rule of docs/core.md section 5 (a bug, never the user's fault).
    """
    layout, steps = Layout.of(shape), schedule(shape)
    instructions = [step.instruction for step in steps]
    registers = initial_registers(layout, ring_key)
    broken = check_program(instructions, registers, shape.core)
    if broken:
        raise RuntimeError("the compiler made an illegal program, please report it: " + "; ".join(broken))
    return Program(
        core=shape.core,
        model_digest=digest,
        board=shape.board,
        boards=shape.boards,
        instructions=tuple(instruction.encode() for instruction in instructions),
        descriptors=tuple(access.encode() for access in derive_access(instructions, shape.core)),
        regions=layout.regions(),
        registers=registers,
        notes={
            "model": dataclasses.asdict(shape.model),
            "context": shape.context,
            "instruction_names": [step.name for step in steps],
            **({"cached_positions": key_values[0].positions, "cache": cache_labels(key_values)} if key_values else {}),
            **({} if shape.boards == 1 else {"slices": _slices(shape)}),
        },
    )


def cache_labels(key_values: Sequence[KeyValues]) -> str:
    """Where the keys and values come from, request by request where they differ."""
    labels = [cache.label for cache in key_values]
    return labels[0] if len(set(labels)) == 1 else ", ".join(f"request {r}: {label}" for r, label in enumerate(labels))


def _slices(shape: Shape) -> dict[str, dict[str, int]]:
    """The board's heads and columns, for the notes."""
    return {kind: {"first": shape.own(kind).start, "count": len(shape.own(kind))} for kind in KINDS}
