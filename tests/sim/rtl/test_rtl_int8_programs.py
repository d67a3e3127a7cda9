"""Cores with int8 weights and rows, and rings of them: gateware equals the functional executor on random programs.

Of the core with one row alone see test_rtl_core_configs.py.
"""

from __future__ import annotations

import pathlib
import random

import pytest

from hw.gpt2.config import core_config
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.programs import random_case, run_case
from sim.programs.agreement import disagreement
from sim.programs.ring_agreement import ring_disagreement
from sim.programs.sensitivity import flip_word
from sim.rtl.board import RtlBoard
from sim.rtl.build import BuiltBoard, build_board

MAX_CYCLES = 1_000_000


@pytest.fixture(scope="module")
def built() -> BuiltBoard:
    return build_board(core_config("16x4i8"))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20, 10))
def test_four_rows_with_int8_weights(first: int) -> None:
    four = build_board(core_config("16x4r4i8"))
    seeds = range(first, first + 10)
    assert [text for seed in seeds if (text := disagreement(seed, four.config, four))] == []


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))])
def test_a_ring_of_two_boards(built: BuiltBoard, seed: int) -> None:
    assert ring_disagreement(seed, built.config, built, boards=2) == ""


def test_one_flipped_weight_differs(built: BuiltBoard, tmp_path: pathlib.Path) -> None:
    case = random_case(1, built.config)
    board = FunctionalBoard()
    want = run_case(case, board, tmp_path)
    board.close()
    flipped = (flip_word(case, random.Random(seed)) for seed in range(3))
    with RtlBoard(built, timing=MemoryTiming.random(case.seed)) as gateware:
        assert any(run_case(one, gateware, tmp_path, MAX_CYCLES) != want for one in flipped)
