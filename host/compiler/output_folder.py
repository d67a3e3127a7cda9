"""The folder that a compilation makes: checked before the work, written beside its place, renamed when complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from host.compiler.errors import CompileError
from host.planner.plan import Plan
from hw.board.program import Program, ProgramError

__all__ = ["check_target", "written_beside"]


def check_target(target: Path) -> None:
    """Raise CompileError unless `target` may be made, or replaced since it holds programs of this Ringfly."""
    hint = "Give a folder that does not exist yet."
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        message = f"{target} is a file; the output must be a folder."
        raise CompileError(message, value=str(target), hint=hint, kind="output")
    if target.is_dir() and any(target.iterdir()):
        try:
            if (target / "plan.json").exists():
                Plan.load(target)
            else:
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


@contextlib.contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` that takes its place at the end; after a failure nothing of it is left.

    An OSError inside becomes CompileError ``output``.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise _cannot_write(target, error) from error
    try:
        yield scratch
        _replace(target, scratch)
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
