"""The gateware before HBM and DDR as they behave: results stay the same, cycles follow the memory."""

from __future__ import annotations

import dataclasses

import pytest

from hw.gpt2.config import core_config
from sim.devices.ddr_timing import DdrTiming
from sim.devices.hbm_timing import HbmTiming
from sim.functional import FunctionalBoard
from sim.programs import COMMITTED_SEEDS, random_case
from sim.programs.random_case import run_case
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board

CORE = core_config("16x4")
MAX_CYCLES = 1_000_000


@pytest.fixture(scope="module")
def built():
    return build_board(CORE)


def gateware(built, case, folder, timing):
    with RtlBoard(built, timing=timing) as board:
        return run_case(case, board, folder, MAX_CYCLES), board.counters()["cycles"]


@pytest.mark.parametrize("kind", [HbmTiming, DdrTiming])
def test_rtl_equals_functional(built, tmp_path, kind):
    for seed in COMMITTED_SEEDS[:8]:
        case = random_case(seed, CORE)
        board = FunctionalBoard()
        expected = run_case(case, board, tmp_path)
        board.close()
        assert gateware(built, case, tmp_path, kind(seed=seed))[0] == expected, seed


def test_cycles_follow_the_memory(built, tmp_path):
    case = random_case(COMMITTED_SEEDS[2], CORE)
    hbm = HbmTiming(seed=1)
    result, cycles = gateware(built, case, tmp_path, hbm)
    assert gateware(built, case, tmp_path, hbm) == (result, cycles)
    for change in ({"refresh_interval_ns": 0.0}, {"seed": 2}, {"converter_cycles": 60}):
        other, other_cycles = gateware(built, case, tmp_path, dataclasses.replace(hbm, **change))
        assert other == result
        assert other_cycles != cycles, change
