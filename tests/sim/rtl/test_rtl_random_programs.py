"""Random legal programs: the gateware equals the functional executor bit for bit, under random memory latency.

Compared are tokens, the whole logits region, the hash of the key/value memory, the error register and the number of
tiles; the hardware's cycle counter equals the harness's ticks, and each of its cycles has a cause.
"""

from __future__ import annotations

import random

import pytest

from hw.board.gpt2_map import STALL_CAUSES
from hw.gpt2.config import core_config
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.programs import COMMITTED_SEEDS, random_case
from sim.programs.random_case import run_case
from sim.programs.replay import replay_command
from sim.programs.sensitivity import flip_word
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board

CORE = core_config("16x4")
CHUNK = 25
MAX_CYCLES = 1_000_000


@pytest.fixture(scope="module")
def built():
    return build_board(CORE)


def functional(case, folder):
    board = FunctionalBoard()
    result = run_case(case, board, folder)
    board.close()
    return result


@pytest.mark.parametrize("first", range(0, len(COMMITTED_SEEDS), CHUNK))
def test_rtl_equals_functional(built, tmp_path, first):
    for seed in COMMITTED_SEEDS[first : first + CHUNK]:
        case = random_case(seed, CORE)
        again = f"seed {seed}; to look into it: {replay_command(seed, CORE.name)}"
        print(again)  # for errors that the board raises
        with RtlBoard(built, timing=MemoryTiming.random(seed)) as board:
            got = run_case(case, board, tmp_path, MAX_CYCLES)
            counters = board.counters()
        assert got == functional(case, tmp_path), again
        assert counters["cycles"] == counters["ticks"], again
        assert counters["tiles"] == counters["harness_tiles"], again
        stalls = sum(counters[f"stall_{cause}"] for cause in STALL_CAUSES)
        assert counters["cycles"] == counters["tiles"] + stalls, again


def test_one_flipped_weight_differs(built, tmp_path):
    case = random_case(COMMITTED_SEEDS[3], CORE)
    with RtlBoard(built) as board:
        got = run_case(flip_word(case, random.Random(case.seed)), board, tmp_path, MAX_CYCLES)
    assert got != functional(case, tmp_path)


def test_memory_latency_changes_cycles_but_not_results(built, tmp_path):
    results, cycles = [], []
    slow = MemoryTiming(read_min=400, read_max=400)
    for timing in (MemoryTiming(), MemoryTiming.random(1), MemoryTiming.random(2), slow):
        with RtlBoard(built, timing=timing) as board:
            results.append(run_case(random_case(COMMITTED_SEEDS[5], CORE), board, tmp_path, MAX_CYCLES))
            cycles.append(board.counters()["cycles"])
    assert len(set(results)) == 1
    assert len(set(cycles)) == len(cycles)
