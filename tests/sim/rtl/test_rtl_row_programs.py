"""Batches on cores with rows: refused starts, NaN logits, what a cancelled batch leaves, and what one weight does."""

from __future__ import annotations

import dataclasses
import pathlib
import random

import pytest

from hw.board.gpt2_map import ErrorCode, Flags, gpt2_register_map, row_register
from hw.gpt2.config import core_config
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.programs import CaseResult, RandomCase, random_case, run_case
from sim.programs.random_case import await_end, start_case
from sim.programs.sensitivity import flip_word
from sim.rtl.board import RtlBoard
from sim.rtl.build import BuiltBoard, build_board

CORES = ("16x4r2", "16x4r4")
MAX_CYCLES = 1_000_000
BATCHES = {"16x4r2": 3, "16x4r4": 3}
"""Seed of a batch in which all rows take part."""


@pytest.fixture(scope="module", params=CORES)
def built(request: pytest.FixtureRequest) -> BuiltBoard:
    return build_board(core_config(request.param))


def _functional(case: RandomCase, folder: pathlib.Path) -> CaseResult:
    board = FunctionalBoard()
    result = run_case(case, board, folder)
    board.close()
    return result


def _gateware(case: RandomCase, built: BuiltBoard, folder: pathlib.Path) -> CaseResult:
    with RtlBoard(built, timing=MemoryTiming.random(case.seed)) as board:
        return run_case(case, board, folder, MAX_CYCLES)


def _batch(built: BuiltBoard, **run: int) -> RandomCase:
    case = random_case(BATCHES[built.config.name], built.config)
    assert case.run_registers["flags"] & Flags.BATCH
    return dataclasses.replace(case, run_registers=case.run_registers | run)


def test_one_flipped_weight_differs(built: BuiltBoard, tmp_path: pathlib.Path) -> None:
    case = _batch(built)
    got = _gateware(flip_word(case, random.Random(case.seed)), built, tmp_path)
    assert got != _functional(case, tmp_path)


@pytest.mark.parametrize(
    "run",
    [
        {"batch_rows": 0},
        {"batch_rows": 1 << 2},  # of a core with two rows: none
        {"prompt_end_1": 0},
        {"max_new_tokens": 0, "position_1": 3, "prompt_end_1": 3},
        {"context_limit": 5000},
        {"ring_boards": 2},
    ],
)
def test_refused_starts(built: BuiltBoard, run: dict[str, int], tmp_path: pathlib.Path) -> None:
    case = _batch(built, **run)
    want = _functional(case, tmp_path)
    if run.get("batch_rows") != 1 << 2 or built.config.rows == 2:
        assert want.error == ErrorCode.START
    assert _gateware(case, built, tmp_path) == want


def test_the_run_after_a_cancelled_batch(built: BuiltBoard, tmp_path: pathlib.Path) -> None:
    case = _batch(built, max_new_tokens=6, max_new_tokens_1=6)
    table = gpt2_register_map(built.config)
    want = _functional(case, tmp_path)
    with RtlBoard(built) as board:
        assert run_case(case, board, tmp_path, MAX_CYCLES) == want
        start_case(case, board)
        board.advance(3000)
        board.write_register(table["cancel"].offset, 1)
        cancelled = await_end(case, board, MAX_CYCLES)
        assert cancelled.error == ErrorCode.CANCELLED
        for row, tokens in enumerate((cancelled.tokens, *cancelled.row_tokens)):
            end = case.run_registers[row_register("prompt_end", row)]
            assert end <= len(tokens) and tokens == (want.tokens, *want.row_tokens)[row][: len(tokens)]
        start_case(case, board)
        assert await_end(case, board, MAX_CYCLES) == want


def test_memory_latency_changes_nothing(built: BuiltBoard, tmp_path: pathlib.Path) -> None:
    case, results, cycles = _batch(built), set(), set()
    for timing in (MemoryTiming(), MemoryTiming.random(7), MemoryTiming(read_min=400, read_max=400)):
        with RtlBoard(built, timing=timing) as board:
            results.add(run_case(case, board, tmp_path, MAX_CYCLES))
            cycles.add(board.counters()["cycles"])
    assert len(results) == 1 and len(cycles) == 3
