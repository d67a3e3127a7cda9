"""Runs with data, and what verilated boards make of them: their counters by the names that the timing model has."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import sys
import time
from collections.abc import Mapping, Sequence

from hw.board.board_model import BoardStuckError
from hw.board.gpt2_map import gpt2_register_map, row_register
from hw.board.program import MemoryImage, Program
from sim.programs.image_builder import write_image
from sim.programs.random_case import RandomCase
from sim.rtl.kernel_board import KernelBoard
from sim.timing.run_start import Request, RunStart

__all__ = ["Run", "batch_run", "board_runs", "case_run", "folder_run", "run_gateware", "run_ring_gateware"]

_CHUNK_CYCLES = 50_000
_REPORT_EVERY_S = 10.0


@dataclasses.dataclass(frozen=True)
class Run:
    """A program with its memory image and what the host writes before it starts.

    ``tokens`` fill the token window of each row from 0 on; ``registers`` are those that belong to the run.
    """

    name: str
    program: Program
    image: MemoryImage
    tokens: tuple[tuple[int, ...], ...]
    registers: Mapping[str, int]


def case_run(case: RandomCase, folder: pathlib.Path) -> Run:
    """A random case; ``folder`` takes its image files."""
    image = write_image(list(case.channels), case.channel_bytes, folder)
    return Run(f"random {case.seed}", case.program, image, (case.tokens, *case.row_tokens), case.run_registers)


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
            (tokens,),
            run | ({"ring_run": 1} if len(boards) > 1 else {}),
        )
        for program, image in boards
    )


def batch_run(name: str, board: tuple[Program, MemoryImage], requests: Mapping[int, Request], seed: int = 0) -> Run:
    """A batch of ``requests`` by row, with random tokens up to each one's ``prompt_end`` in place of its own."""
    program, image = board
    rng, rows = random.Random(seed), program.core.rows
    vocab = program.registers["vocab"]
    ends = [requests[row].prompt_end if row in requests else 0 for row in range(rows)]
    tokens = tuple(tuple(rng.randrange(vocab) for _ in range(end)) for end in ends)
    span = " ".join(f"{one.position}..{one.prompt_end}+{one.max_new_tokens}" for _, one in sorted(requests.items()))
    start = RunStart(requests, batch=True)
    return Run(f"{name} {program.core.name} {span}", program, image, tokens, start.registers())


def run_gateware(
    run: Run, board: KernelBoard, *, load: bool = True, max_cycles: int = 1 << 32
) -> tuple[dict[str, int], tuple[tuple[int, ...], ...]]:
    """Counters of the run, as in ``Comparison``, and of each row all tokens that it left; ``load``: load the program
    first.

    Raises BoardError; BoardStuckError for more than ``max_cycles``.
    """
    if load:
        board.load(run.program, run.image)
    _start(run, board)
    _await_end(run, board, max_cycles)
    return _counters(board), _tokens(board)


def run_ring_gateware(
    runs: Sequence[Run], boards: Sequence[KernelBoard], *, max_cycles: int = 1 << 32
) -> tuple[list[dict[str, int]], tuple[tuple[int, ...], ...]]:
    """The same for the boards of a ring, each with its run: counters of each, and the tokens, which all have alike."""
    for run, board in zip(runs, boards, strict=True):
        board.load(run.program, run.image)
    for run, board in zip(runs, boards, strict=True):
        _start(run, board)
    for run, board in zip(runs, boards, strict=True):
        _await_end(run, board, max_cycles)
    return [_counters(board) for board in boards], _tokens(boards[0])


def _start(run: Run, board: KernelBoard) -> None:
    table = gpt2_register_map(run.program.core)
    for row, tokens in enumerate(run.tokens):
        window = table.window(row_register("tokens", row))
        for index, token in enumerate(tokens):
            board.write_register(window.offset + window.stride * index, token)
    for name, value in run.registers.items():
        board.write_register(table[name].offset, value, table[name].bits // 8)
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
    for name in ("first_token_cycles", "error"):
        register = board.map[name]
        counters[name] = board.read_register(register.offset, register.bits // 8)
    return counters


def _tokens(board: KernelBoard) -> tuple[tuple[int, ...], ...]:
    return tuple(_row_tokens(board, row) for row in range(board.config.rows))


def _row_tokens(board: KernelBoard, row: int) -> tuple[int, ...]:
    window = board.map.window(row_register("tokens", row))
    valid = board.read_register(board.map[row_register("tokens_valid", row)].offset)
    return tuple(board.read_register(window.offset + window.stride * i) for i in range(valid))
