"""Checks that tell a faulty kernel from a sound one: each compares gateware with the functional executor.

The checks are those of the regression in short: random programs under random memory latency, ends of runs, arg-max
ties, cancel, counters, and, if the caller brings one, a whole model.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from hw.board.board_model import BoardError, BoardModel
from hw.board.gpt2_map import STALL_CAUSES, ErrorCode, Flags, gpt2_register_map
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import CoreConfig
from hw.gpt2.sampled_token import BoardSampling
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.programs.random_case import CaseResult, RandomCase, await_end, random_case, run_case, start_case
from sim.programs.sampled_case import mixed_case
from sim.rtl.board import RtlBoard
from sim.rtl.build import BuiltBoard

__all__ = ["CANCEL_CYCLES", "CHECKS", "Finding", "ModelRun", "full_cache_cases", "inspect"]

CANCEL_CYCLES = 10_000  # a cancelled run must have ended by then
_MAX_CYCLES = 500_000
_PROGRAM_SEEDS = range(40)
_TIED_TOP_K = 3


@dataclasses.dataclass(frozen=True)
class ModelRun:
    """A compiled model with a prompt: ``tokens`` are given, ``new_tokens`` are generated."""

    program: Program
    image: MemoryImage
    tokens: tuple[int, ...]
    new_tokens: int


@dataclasses.dataclass(frozen=True)
class Finding:
    """The first check that failed and what it saw."""

    check: str
    detail: str


class _Mismatch(Exception):
    """A check saw something that a sound kernel does not do."""


def inspect(built: BuiltBoard, model: ModelRun | None = None, checks: Iterable[str] | None = None) -> Finding | None:
    """Run the checks (all of :data:`CHECKS`, or those named) on a kernel; the first finding, None if it is sound."""
    for name in CHECKS if checks is None else checks:
        try:
            if name == "model":
                if model is not None:
                    _model(built, model)
            else:
                _CASE_CHECKS[name](built)
        except (_Mismatch, BoardError) as error:
            return Finding(name, f"{type(error).__name__.lstrip('_')}: {error}".splitlines()[0][:200])
    return None


def _functional(case: RandomCase) -> CaseResult:
    board = FunctionalBoard()
    with tempfile.TemporaryDirectory() as folder:
        result = run_case(case, board, pathlib.Path(folder))
    board.close()
    return result


def _gateware(built: BuiltBoard, case: RandomCase, timing: MemoryTiming) -> tuple[CaseResult, dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder, RtlBoard(built, timing=timing) as board:
        result = run_case(case, board, pathlib.Path(folder), _MAX_CYCLES)
        return result, board.counters()


def _compare(what: str, got: CaseResult, want: CaseResult) -> None:
    names = [f.name for f in dataclasses.fields(CaseResult) if getattr(got, f.name) != getattr(want, f.name)]
    if names:
        raise _Mismatch(f"{what}: {', '.join(names)} differ from the functional executor")


def _compare_cases(built: BuiltBoard, what: str, cases: Iterable[RandomCase]) -> None:
    for case in cases:
        timing = MemoryTiming.random(case.seed)
        got, counters = _gateware(built, case, timing)
        _compare(f"{what}, seed {case.seed}", got, _functional(case))
        stalls = sum(counters[f"stall_{cause}"] for cause in STALL_CAUSES)
        if not counters["cycles"] == counters["ticks"] == counters["tiles"] + stalls:
            raise _Mismatch(
                f"{what}, seed {case.seed}: {counters['cycles']} cycles counted, {counters['ticks']} ticks, "
                f"{counters['tiles']} tiles and {stalls} stalls"
            )


def _programs(built: BuiltBoard) -> None:
    """Random programs, every other one with requests that sample."""
    _compare_cases(built, "random program", (mixed_case(seed, built.config) for seed in _PROGRAM_SEEDS))


def full_cache_cases(config: CoreConfig) -> Iterator[RandomCase]:
    """Random cases of one sequence that begin at position 0 and run until the cache is full."""
    for seed in range(1000, 1100):
        case = random_case(seed, config)
        if case.run_registers["position"] == 0 and not case.run_registers["flags"] & Flags.BATCH:
            run = case.run_registers | {"max_new_tokens": 1000, "stop_count": 0}
            full = dataclasses.replace(case, run_registers=run)
            if config.rows == 1 or not _functional(full).error:  # some on several rows have a NaN
                yield full


def _ends(built: BuiltBoard) -> None:
    """Full cache, stop ids in every place, ties: by the arg-max, and among those that take part in a draw."""
    full = next(full_cache_cases(built.config))
    tokens = _functional(full).tokens
    first = full.run_registers["prompt_end"]
    cases = [full]
    for count in range(1, 5):
        absent = next(id_ for id_ in range(full.program.registers["vocab"]) if id_ not in tokens)
        ids = {f"stop_{i}": absent for i in range(4)} | {f"stop_{count - 1}": tokens[first + 1]}
        cases.append(dataclasses.replace(full, run_registers=full.run_registers | {"stop_count": count, **ids}))
    equal = dataclasses.replace(full, channels=np.zeros_like(full.channels))  # all logits are
    drawn = BoardSampling.of(1.0, _TIED_TOP_K, 0, full.program.registers["vocab"])
    assert drawn is not None
    sampled = equal.run_registers | {"seed": drawn.seed, "sampling": drawn.register}
    cases += [equal, dataclasses.replace(equal, run_registers=sampled)]
    _compare_cases(built, "end of run", cases)


def _control(built: BuiltBoard) -> None:
    """Done count, error register, tokens while running, cancel, and a run after each."""
    case = next(full_cache_cases(built.config))
    want = _functional(case)
    table = gpt2_register_map(built.config)
    with tempfile.TemporaryDirectory() as folder, RtlBoard(built) as board:

        def read(name: str) -> int:
            return board.read_register(table[name].offset, table[name].bits // 8)

        _compare("run", run_case(case, board, pathlib.Path(folder), _MAX_CYCLES), want)
        for number in range(2, 4):
            start_case(case, board)
            _compare("run after a run", await_end(case, board, _MAX_CYCLES), want)
            if read("done_count") != number or read("start_count") != number:
                raise _Mismatch(f"{read('done_count')} dones and {read('start_count')} starts after {number} runs")
        start_case(case, board)
        board.advance(500)
        board.write_register(table["cancel"].offset, 1)
        cycles = 0
        while not read("ctrl") & 2:
            if cycles > CANCEL_CYCLES:
                raise _Mismatch(f"a cancelled run still goes on after {cycles} cycles")
            cycles += board.advance(100)
        if read("error") != ErrorCode.CANCELLED:
            raise _Mismatch(f"error register is {read('error')} after cancel, not {ErrorCode.CANCELLED}")
        start_case(case, board)
        _watch_tokens(board, read, case, want)
        _compare("run after cancel", await_end(case, board, _MAX_CYCLES), want)


def _watch_tokens(board: BoardModel, read: Callable[[str], int], case: RandomCase, want: CaseResult) -> None:
    """Every token that counts as valid during the run is the final one."""
    window = gpt2_register_map(case.program.core).window("tokens")
    seen = 0
    while not read("ctrl") & 2:
        valid = read("tokens_valid")
        if valid != seen:
            got = tuple(board.read_register(window.offset + window.stride * i) for i in range(valid))
            if got != want.tokens[:valid]:
                raise _Mismatch(f"tokens {got} were valid during the run, its tokens are {want.tokens[:valid]}")
            seen = valid
        board.advance(3)


def _model(built: BuiltBoard, run: ModelRun) -> None:
    """A whole model: tokens, logits, keys and values."""
    case = RandomCase(
        seed=0,
        program=run.program,
        instructions=(),
        channels=np.zeros((0, 0), np.uint16),
        channel_bytes=run.image.channel_bytes,
        tokens=run.tokens,
        run_registers={
            "position": 0,
            "prompt_end": len(run.tokens),
            "max_new_tokens": run.new_tokens,
            "flags": 1,
            "stop_count": 0,
        },
        product_rows=(),
        wanted=(),
    )
    results = []
    functional, gateware = FunctionalBoard(), RtlBoard(built, timing=MemoryTiming.random(1))
    for board in (functional, gateware):
        board.load(run.program, run.image)
        start_case(case, board)
        results.append(await_end(case, board, 100_000 * (len(run.tokens) + run.new_tokens)))
        board.close()
    _compare("model", results[1], results[0])


_CASE_CHECKS: dict[str, Callable[[BuiltBoard], None]] = {"programs": _programs, "ends": _ends, "control": _control}
CHECKS = (*_CASE_CHECKS, "model")
