"""Programs and images of one or several boards: made from a model, or read from the folder that holds them."""

from __future__ import annotations

from pathlib import Path

from host import compiler
from host.planner import PLAN_FILE
from host.runtime.ring_programs import check_programs
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import CoreConfig
from sw.models.weights import Progress, WeightTensors, unobserved

__all__ = ["Programs", "compile_programs", "load_programs"]

Programs = list[tuple[Program, MemoryImage]]  # of each board, in the order of the ring


def compile_programs(
    model: str | Path | WeightTensors,
    core: CoreConfig,
    out: Path,
    boards: int = 1,
    *,
    context: int | None = None,
    progress: Progress = unobserved,
) -> Programs:
    """Compile a model for so many boards into the folder `out`; returns each board's program. Raises CompileError."""
    if boards == 1:
        return [compiler.compile_model(model, core, out, context=context, progress=progress)]
    return list(compiler.compile_ring(model, core, out, boards, context=context, progress=progress).boards)


def load_programs(folder: Path) -> Programs:
    """Read what ``ringfly compile`` wrote: one program, or those of all boards of a ring beside their ``plan.json``.

    Raises ProgramError for anything missing, damaged or of another version, BadInput for programs that are not those of
    the plan.
    """
    if not (folder / PLAN_FILE).is_file():
        return [Program.load(folder)]
    programs = list(compiler.CompiledRing.load(folder).boards)
    check_programs([program for program, _ in programs])
    return programs
