"""One model for several boards: a plan, and for each board a program and an image of its part."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from host.compiler.compile import cache_labels, checked_key_values, plan_program, read_problems, write_boards
from host.compiler.errors import Problem
from host.compiler.limits import all_problems, size_problems
from host.compiler.model_choice import SizedModel, cannot_compile, chosen_model, chosen_shape, chosen_sizes
from host.compiler.output_folder import check_target, written_beside
from host.compiler.regions import Layout
from host.compiler.ring_cost import BusiestBoard
from host.compiler.shape import Shape
from host.compiler.weights import WeightSource
from host.planner.partition import Partition, slice_limits
from host.planner.plan import Estimate, Plan, PlannedBoard
from host.planner.search import choose_partition, neighbours, preference
from hw.board.board_model import BANK_BYTES
from hw.board.gpt2_map import MAX_BOARDS
from hw.board.program import MemoryImage, Program, ProgramError
from hw.gpt2.config import CoreConfig
from hw.gpt2.ring_set import check_ring
from sw.models.key_values import KeyValues
from sw.models.weights import Progress, WeightTensors, unobserved

__all__ = [
    "CompiledRing",
    "PartitionCost",
    "PlannedRing",
    "board_folder",
    "compile_ring",
    "plan_ring",
    "ring_shapes",
]

SHORTLIST = 12  # partitions that a slow cost is asked about first; then it may go on to as many others


class PartitionCost(Protocol):
    """What partitions are compared by."""

    def __call__(self, partition: Partition) -> Any:
        """The cost: anything that compares (`host.planner.search.Cost`)."""

    def estimate(self, partition: Partition) -> Estimate:
        """Cycles of a decode step, with their source."""


@dataclasses.dataclass(frozen=True)
class PlannedRing:
    """A plan and the program of every board, in order."""

    plan: Plan
    programs: tuple[Program, ...]


@dataclasses.dataclass(frozen=True)
class CompiledRing:
    """A plan and, for every board in order, program and memory image."""

    plan: Plan
    boards: tuple[tuple[Program, MemoryImage], ...]

    @classmethod
    def load(cls, folder: str | Path) -> CompiledRing:
        """Read what `compile_ring` wrote. Raises ProgramError for anything missing, damaged or of another plan."""
        plan = Plan.load(Path(folder))
        boards = []
        for board in range(plan.partition.boards):
            place = board_folder(Path(folder), board)
            program, image = Program.load(place)
            if (program.board, program.boards) != (board, plan.partition.boards):
                raise ProgramError(f"{place} holds the program of board {program.board} of {program.boards}")
            if program.boards > 1 and program.registers.get("ring_key") != plan.key:
                raise ProgramError(
                    f"{place} was not compiled with {folder}/plan.json: its key is "
                    f"{program.registers.get('ring_key', 0):016x}, the plan's is {plan.key:016x}"
                )
            boards.append((program, image))
        return cls(plan, tuple(boards))


def board_folder(folder: Path, board: int) -> Path:
    """Where in the folder of a ring the program of a board lies."""
    return folder / f"board{board}"


def plan_ring(
    model: str | Path | SizedModel,
    core: CoreConfig,
    boards: int,
    *,
    context: int | None = None,
    channel_bytes: int = BANK_BYTES,
    partition: Partition | None = None,
    cost: PartitionCost | None = None,
) -> PlannedRing:
    """Plan and programs of `boards` boards from sizes alone, so cycles can be counted for any model.

    Parameters are those of `compile_ring`. Raises CheckpointError, CompileError.
    """
    sizes = chosen_sizes(model) if isinstance(model, str | Path) else model
    shapes, estimate = ring_shapes(sizes, core, boards, context, channel_bytes, partition, cost)
    return _planned(shapes, estimate, channel_bytes, "", ())


def compile_ring(
    model: str | Path | WeightTensors,
    core: CoreConfig,
    out: str | Path,
    boards: int,
    *,
    context: int | None = None,
    channel_bytes: int = BANK_BYTES,
    partition: Partition | None = None,
    cost: PartitionCost | None = None,
    seeded_positions: int = 0,
    kv_seed: int = 0,
    key_values: KeyValues | None = None,
    progress: Progress = unobserved,
) -> CompiledRing:
    """Write ``plan.json`` and the program folders ``board0``, ``board1``, ... into `out` and return what they hold.

    Parameters
    ----------
    boards : int
        Boards of the ring, 1 to 8 and no more than heads.
    partition : Partition, optional
        Slices of the boards; the best by `cost` if not given.
    cost : PartitionCost, optional
        What decides between the partitions with the fewest rows on the busiest board, such as
        `host.compiler.timed_cost.TimedCost`; without it those rows alone do (`host.compiler.ring_cost.BusiestBoard`).

    The other parameters and the errors are those of `compile_model`; every tensor is read once for all boards, the
    embedding of the tokens twice. ValueError for a partition of another model or number of boards.
    """
    target = Path(out)
    weights = chosen_model(model) if isinstance(model, str | Path) else model
    check_target(target)
    caches = checked_key_values(weights, core.rows, seeded_positions, kv_seed, key_values)
    shapes, estimate = ring_shapes(weights, core, boards, context, channel_bytes, partition, cost)
    source = WeightSource(weights)
    problems = read_problems(source, shapes[0], caches, progress)
    if problems:
        raise cannot_compile(weights, core, problems)
    planned = _planned(shapes, estimate, channel_bytes, weights.digest(progress), caches)
    with written_beside(target) as scratch:
        parts = []
        for shape, program in zip(shapes, planned.programs, strict=True):
            folder = board_folder(scratch, shape.board)
            folder.mkdir()
            parts.append((folder, shape, program))
        images = write_boards(parts, source, caches, channel_bytes, progress)
        planned.plan.save(scratch)
    placed = [
        dataclasses.replace(image, files=tuple(board_folder(target, board) / path.name for path in image.files))
        for board, image in enumerate(images)
    ]
    return CompiledRing(planned.plan, tuple(zip(planned.programs, placed, strict=True)))


def ring_shapes(
    weights: SizedModel,
    core: CoreConfig,
    boards: int,
    context: int | None = None,
    channel_bytes: int = BANK_BYTES,
    partition: Partition | None = None,
    cost: PartitionCost | None = None,
) -> tuple[tuple[Shape, ...], Estimate]:
    """The part of every board, without problems, and the expected cycles. Raises CompileError with all problems.

    Other parameters and ValueError as for `compile_ring`.
    """
    model = weights.config
    problems = _count_problems(weights, core, boards)
    if problems:
        raise cannot_compile(weights, core, problems)
    whole = chosen_shape(weights, core, context)

    def shapes_of(chosen: Partition) -> tuple[Shape, ...]:
        if chosen.boards == 1:
            return (whole,)
        return tuple(dataclasses.replace(whole, partition=chosen, board=board) for board in range(boards))

    def excess(candidate: Partition) -> int:
        """Bytes of the channels that are missing on all boards; any other problem outweighs them."""
        shapes = shapes_of(candidate)
        others = sum(len(size_problems(shape)) for shape in shapes)
        missing = sum(max(0, shape.channel_bytes_used - channel_bytes) for shape in shapes)
        return others * boards * BANK_BYTES + missing

    quick = BusiestBoard(model, core, whole.context)
    if boards == 1:  # nothing to choose, and no ring to time
        cost = None
    if partition is None:
        even = Partition.even(model, boards)
        of_even = shapes_of(even)
        problems = _common_problems([all_problems(shape, channel_bytes) for shape in of_even])
        if any(all(problem in size_problems(shape) for shape in of_even) for problem in problems):
            raise cannot_compile(weights, core, problems)  # what no partition mends
        partition = choose_partition(model, boards, quick, excess)
        if partition is None:
            raise cannot_compile(weights, core, problems)
        if cost is not None:
            near = [other for other in neighbours(partition) if other.vocabulary == partition.vocabulary]
            near.sort(key=lambda other: preference(quick(other), other))
            starts = [even, partition, *near][:SHORTLIST]
            partition = choose_partition(model, boards, cost, excess, starts=starts, evaluations=2 * SHORTLIST)
            assert partition is not None
    elif partition.boards != boards:
        raise ValueError(f"the partition is one of {partition.boards} boards, asked for {boards}")
    else:
        partition.check(model)
        problems = _common_problems([all_problems(shape, channel_bytes) for shape in shapes_of(partition)])
        if problems:
            raise cannot_compile(weights, core, problems)
    return shapes_of(partition), (cost or quick).estimate(partition)


def _planned(
    shapes: Sequence[Shape], estimate: Estimate, channel_bytes: int, digest: str, key_values: Sequence[KeyValues]
) -> PlannedRing:
    first = shapes[0]
    plan = Plan(
        model=first.model,
        model_digest=digest,
        core_name=first.core.name,
        core_digest=first.core.digest,
        context=first.context,
        channel_bytes=channel_bytes,
        partition=first.partition or Partition.even(first.model, 1),
        boards=tuple(
            PlannedBoard(
                shape.weight_rows,
                {region.name: (region.offset, region.bytes) for region in Layout.of(shape).regions_of_channel(0)},
            )
            for shape in shapes
        ),
        estimate=estimate,
        cache=f"{key_values[0].positions} positions, {cache_labels(key_values)}" if key_values else "",
    )
    programs = tuple(plan_program(shape, digest, key_values, plan.key) for shape in shapes)
    broken = check_ring(programs) if len(programs) > 1 else []
    if broken:
        raise RuntimeError(
            "the compiler made programs that do not belong together, please report it: " + "; ".join(broken)
        )
    return PlannedRing(plan, programs)


def _count_problems(weights: SizedModel, core: CoreConfig, boards: int) -> list[Problem]:
    """What is wrong with the number of boards."""
    if not 1 <= boards <= MAX_BOARDS:
        return [Problem("boards", boards, f"1 to {MAX_BOARDS}")]
    if boards > 1 and core.rows > 1:
        hint = f"core {core.name} has {core.rows} rows, and a core with more than one has no ring: use one with one row"
        return [Problem("boards", boards, "1", hint)]
    return [
        Problem("boards", boards, f"at most {most}", f"{weights.label} has {what} to share out, at least one for each")
        for most, what in slice_limits(weights.config).values()
        if boards > most
    ]


def _common_problems(of_boards: Sequence[list[Problem]]) -> list[Problem]:
    """Problems of all boards: once what all have alike, with the board what only some have."""
    found: list[Problem] = []
    for board, problems in enumerate(of_boards):
        for problem in problems:
            if all(problem in others for others in of_boards):
                if problem not in found:
                    found.append(problem)
            else:
                found.append(dataclasses.replace(problem, what=f"{problem.what} of board {board}"))
    return found
