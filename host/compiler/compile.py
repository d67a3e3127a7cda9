"""Checkpoint + core -> program folder: planned and checked completely before the first byte is written."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from host.compiler.errors import CompileError
from host.compiler.image import write_image
from host.compiler.regions import Layout, initial_registers
from host.compiler.schedule import schedule
from host.compiler.shape import Shape
from host.compiler.weights import WeightSource
from hw.board.board_model import BANK_BYTES
from hw.board.program import MemoryImage, Program, ProgramError
from hw.gpt2.access import derive_access
from hw.gpt2.config import CoreConfig
from hw.gpt2.legality import check_program
from sw.models.checkpoint import Checkpoint

__all__ = ["compile_model", "model_digest", "plan_program"]

_HASH_BLOCK = 1 << 22
Progress = Callable[[str, int, int], None]


def _silent(what: str, done: int, total: int) -> None:
    del what, done, total


def compile_model(
    checkpoint_dir: str | Path,
    core: CoreConfig,
    out: str | Path,
    *,
    context: int | None = None,
    channel_bytes: int = BANK_BYTES,
    progress: Progress = _silent,
) -> tuple[Program, MemoryImage]:
    """Write the program folder `out` for one board and return what `Program.load(out)` would.

    Parameters
    ----------
    checkpoint_dir : str or Path
        HuggingFace GPT-2 directory.
    core : CoreConfig
        The core it is compiled for.
    out : str or Path
        Folder to make. It must not exist, or be empty, or hold an earlier program, which is replaced. Everything is
        written to a folder beside it that is renamed at the end, so a failure leaves nothing half written.
    context : int, optional
        Positions of the cache; the smaller of the model's and the core's if not given.
    channel_bytes : int
        Memory of one channel.
    progress : callable
        Takes (what, done, total) as it works.

    Raises CheckpointError for what is wrong with the checkpoint, CompileError for all that does not fit.
    """
    checkpoint = Checkpoint(checkpoint_dir)
    model = checkpoint.config
    shape = Shape(model, core, min(model.n_positions, core.context) if context is None else context)
    problems = shape.problems(channel_bytes)
    source = WeightSource(checkpoint, shape)
    problems += source.range_problems(lambda done, total: progress("checking values", done, total))
    if problems:
        raise CompileError(
            f"{checkpoint.directory} cannot be compiled for core {core.name}: {len(problems)} "
            f"{'problem' if len(problems) == 1 else 'problems'}.",
            problems,
            kind="fp16_range" if all("finite" in problem.expected for problem in problems) else "does_not_fit",
        )
    target = Path(out)
    _check_target(target)
    program = plan_program(shape, model_digest(checkpoint, progress))
    scratch = _scratch_beside(target)
    try:
        image = write_image(scratch, Layout.of(shape), schedule(shape), source, channel_bytes, progress)
        program.save(scratch, image)
        _replace(target, scratch)
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return program, dataclasses.replace(image, files=tuple(target / path.name for path in image.files))


def model_digest(checkpoint: Checkpoint, progress: Progress = _silent) -> str:
    """SHA-256 over config.json and the weight files of a checkpoint, in order of their names, hexadecimal."""
    digest = hashlib.sha256()
    paths = [checkpoint.directory / "config.json", *checkpoint.files]
    total = sum(path.stat().st_size for path in paths)
    done = 0
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(_HASH_BLOCK):
                digest.update(block)
                done += len(block)
                progress("hashing the checkpoint", done, total)
    return digest.hexdigest()


def plan_program(shape: Shape, digest: str = "") -> Program:
    """The program of a shape without problems; it needs no weights, so cycles can be counted for any size.

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
