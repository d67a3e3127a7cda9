"""Checkpoint + core -> program folder: planned and checked completely before the first byte is written."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

from host.compiler.errors import CompileError, Problem
from host.compiler.image import write_image
from host.compiler.model_choice import cannot_compile, chosen_model, chosen_shape
from host.compiler.regions import Layout, initial_registers
from host.compiler.schedule import schedule
from host.compiler.shape import Shape
from host.compiler.weights import WeightSource
from hw.board.board_model import BANK_BYTES
from hw.board.program import MemoryImage, Program, ProgramError
from hw.gpt2.access import derive_access
from hw.gpt2.config import CoreConfig
from hw.gpt2.legality import check_program
from sw.models.key_values import KeyValues, SeededKeyValues
from sw.models.weights import Progress, WeightTensors, unobserved

__all__ = ["compile_model", "plan_program"]


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
        at the position behind them.
    key_values : KeyValues, optional
        Keys and values to hold instead of drawn ones.
    progress : callable
        Takes (what, done, total) as it works.

    Raises CheckpointError for what is wrong with the checkpoint, CompileError for all that does not fit, ModelError for
    a seed out of range, ValueError for `key_values` beside `seeded_positions`.
    """
    target = Path(out)
    weights = chosen_model(model) if isinstance(model, str | Path) else model
    _check_target(target)  # before the weights are read, which takes long
    shape = chosen_shape(weights, core, context)
    if seeded_positions:
        if key_values is not None:
            raise ValueError("give either seeded_positions or key_values")
        key_values = SeededKeyValues(weights.config, seeded_positions, kv_seed)
    problems = shape.problems(channel_bytes)
    source = WeightSource(weights, shape)
    problems += _key_value_problems(shape, key_values)
    problems += source.range_problems(lambda done, total: progress("checking values", done, total))
    if problems:
        raise cannot_compile(weights, core, problems)
    program = plan_program(shape, weights.digest(progress), key_values)
    scratch = _scratch_beside(target)
    try:
        image = write_image(scratch, Layout.of(shape), schedule(shape), source, key_values, channel_bytes, progress)
        program.save(scratch, image)
        _replace(target, scratch)
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return program, dataclasses.replace(image, files=tuple(target / path.name for path in image.files))


def _key_value_problems(shape: Shape, key_values: KeyValues | None) -> list[Problem]:
    """Positions with keys and values must leave one to compute, and be of this model."""
    if key_values is None:
        return []
    found = []
    if key_values.positions >= shape.context:
        limit = f"at most {shape.context - 1}"
        found.append(Problem("positions with keys and values", key_values.positions, limit, "a step needs one more"))
    if key_values.config != shape.model:
        found.append(Problem("model of the keys and values", key_values.config, str(shape.model)))
    return found


def plan_program(shape: Shape, digest: str = "", key_values: KeyValues | None = None) -> Program:
    """The program of a shape without problems; it needs no weights, so cycles can be counted for any size.

    `key_values` are those that the image will hold; the notes say so, and the driver lets a run start behind them.
    Raises RuntimeError if the compiler broke a rule of docs/core.md section 5 (a bug, never the user's fault).
    """
    layout, steps = Layout.of(shape), schedule(shape)
    instructions = [step.instruction for step in steps]
    registers = initial_registers(layout)
    broken = check_program(instructions, registers, shape.core)
    if broken:
        raise RuntimeError("the compiler made an illegal program, please report it: " + "; ".join(broken))
    return Program(
        core=shape.core,
        model_digest=digest,
        board=0,
        boards=1,
        instructions=tuple(instruction.encode() for instruction in instructions),
        descriptors=tuple(access.encode() for access in derive_access(instructions, shape.core)),
        regions=layout.regions(),
        registers=registers,
        notes={
            "model": dataclasses.asdict(shape.model),
            "context": shape.context,
            "instruction_names": [step.name for step in steps],
            **({} if key_values is None else {"cached_positions": key_values.positions, "cache": key_values.label}),
        },
    )


def _check_target(target: Path) -> None:
    """Raise CompileError unless `target` may be made or replaced."""
    hint = "Give a folder that does not exist yet."
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        message = f"{target} is a file; the output must be a folder."
        raise CompileError(message, value=str(target), hint=hint, kind="output")
    if target.is_dir() and any(target.iterdir()):
        try:
            Program.load(target)
        except ProgramError as error:
            raise CompileError(
                f"{target} is not empty and holds no program of this Ringfly ({error}); it is left as it is.",
                value=str(target),
                hint=hint,
                kind="output",
            ) from error
    try:
        above = next(folder for folder in target.absolute().parents if folder.exists())
        os.rmdir(tempfile.mkdtemp(prefix=f".{target.name}-", dir=above))
    except OSError as error:
        raise _cannot_write(target, error) from error


def _scratch_beside(target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise _cannot_write(target, error) from error


def _replace(target: Path, scratch: Path) -> None:
    """Rename `scratch` to `target`; an earlier program goes only after its successor is complete."""
    scratch.chmod(0o755)  # mkdtemp makes it private
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        target.rename(old / "program")
        scratch.rename(target)
        shutil.rmtree(old)
    else:
        scratch.rename(target)


def _cannot_write(target: Path, error: OSError) -> CompileError:
    return CompileError(
        f"{target} cannot be written: {error.strerror or error}.",
        value=str(target),
        hint="Give a folder on a disk that can be written and has room for the weights.",
        kind="output",
    )
