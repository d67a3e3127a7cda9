"""Runs with data, and what verilated boards make of them: their counters by the names that the timing model has."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import sys
import time
from collections.abc import Mapping, Sequence

from hw.board.board_model import BoardStuckError
from hw.board.gpt2_map import gpt2_register_map
from hw.board.program import MemoryImage, Program
from sim.programs.image_builder import write_image
from sim.programs.random_case import RandomCase
from sim.rtl.kernel_board import KernelBoard

__all__ = ["Run", "board_runs", "case_run", "folder_run", "run_gateware", "run_ring_gateware"]

_CHUNK_CYCLES = 50_000
_REPORT_EVERY_S = 10.0


@dataclasses.dataclass(frozen=True)
class Run:
    """A program with its memory image and what the host writes before it starts.

    ``tokens`` fill the token window from 0 on; ``registers`` are those that belong to the run.
    """

    name: str
    program: Program
    image: MemoryImage
    tokens: tuple[int, ...]
    registers: Mapping[str, int]


def case_run(case: RandomCase, folder: pathlib.Path) -> Run:
    """A random case; ``folder`` takes its image files."""
    image = write_image(list(case.channels), case.channel_bytes, folder)
    return Run(f"random {case.seed}", case.program, image, case.tokens, case.run_registers)


def folder_run(path: pathlib.Path, position: int, prompt_end: int, new_tokens: int, seed: int = 0) -> Run:
    """A program folder with random tokens up to ``prompt_end``. Raises ProgramError for a bad folder."""
    return board_runs(path.name, [Program.load(path)], position, prompt_end, new_tokens, seed)[0]


def board_runs(
    name: str,
    boards: Sequence[tuple[Program, MemoryImage]],
    position: int,
    prompt_end: int,
    new_tokens: int,
    seed: int = 0,
) -> tuple[Run, ...]:
    """The same random tokens up to ``prompt_end`` for all boards that share a model, or for one that has it alone."""
    rng = random.Random(seed)
    tokens = tuple(rng.randrange(boards[0][0].registers["vocab"]) for _ in range(prompt_end))
    run = {"position": position, "prompt_end": prompt_end, "max_new_tokens": new_tokens, "flags": 0, "stop_count": 0}
    span = f"{position}..{prompt_end}+{new_tokens}"
    return tuple(
        Run(
            f"{name} {program.core.name} {span}",
            program,
            image,
            tokens,
            run | ({"ring_run": 1} if len(boards) > 1 else {}),
        )
        for program, image in boards
    )


def run_gateware(
    run: Run, board: KernelBoard, *, load: bool = True, max_cycles: int = 1 << 32
) -> tuple[dict[str, int], list[int]]:
    """Counters of the run, as in ``Comparison``, and all tokens that it left; ``load``: load the program first.

    Raises BoardError; BoardStuckError for more than ``max_cycles``.
    """
    if load:
        board.load(run.program, run.image)
    _start(run, board)
    _await_end(run, board, max_cycles)
    return _counters(board), _tokens(run, board)


def run_ring_gateware(
    runs: Sequence[Run], boards: Sequence[KernelBoard], *, max_cycles: int = 1 << 32
) -> tuple[list[dict[str, int]], list[int]]:
    """The same for the boards of a ring, each with its run: counters of each, and the tokens, which all have alike."""
    for run, board in zip(runs, boards, strict=True):
        board.load(run.program, run.image)
    for run, board in zip(runs, boards, strict=True):
        _start(run, board)
    for run, board in zip(runs, boards, strict=True):
        _await_end(run, board, max_cycles)
    return [_counters(board) for board in boards], _tokens(runs[0], boards[0])


def _start(run: Run, board: KernelBoard) -> None:
    table = gpt2_register_map(run.program.core)
    window = table.window("tokens")
    for index, token in enumerate(run.tokens):
        board.write_register(window.offset + window.stride * index, token)
    for name, value in run.registers.items():
        board.write_register(table[name].offset, value)
    board.write_register(table["ctrl"].offset, 1)


def _await_end(run: Run, board: KernelBoard, max_cycles: int) -> None:
    control = gpt2_register_map(run.program.core)["ctrl"].offset
    cycles, report = 0, time.monotonic() + _REPORT_EVERY_S
    while not board.read_register(control) & 2:
        if cycles >= max_cycles:
            raise BoardStuckError(f"{run.name} has not ended after {cycles} cycles; {board.waits_for()}")
        cycles += board.advance(_CHUNK_CYCLES)
        if time.monotonic() >= report:
            print(f"{run.name}: gateware at cycle {cycles}", file=sys.stderr, flush=True)
            report = time.monotonic() + _REPORT_EVERY_S


def _counters(board: KernelBoard) -> dict[str, int]:
    counters = board.counters()
    counters["refresh_stalls"] = counters["harness_refresh_stalls"]
    first = board.map["first_token_cycles"]
    counters["first_token_cycles"] = board.read_register(first.offset, first.bits // 8)
    return counters


def _tokens(run: Run, board: KernelBoard) -> list[int]:
    window = board.map.window("tokens")
    valid = board.read_register(board.map["tokens_valid"].offset)
    return [board.read_register(window.offset + window.stride * i) for i in range(valid)]
