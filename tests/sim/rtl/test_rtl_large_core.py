"""The 64x16 core is the same code: random programs on its gateware equal the functional executor bit for bit."""

import pytest

from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard
from sim.programs.random_case import random_case, run_case
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board
from sim.rtl.harness import MemoryTiming

CORE = core_config("64x16")
SEEDS = range(12)
COMPILE_FLAGS = ("-std=c++20", "-O1", "-fPIC")  # the runs are short, so compiling decides
MAX_CYCLES = 300_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rtl_equals_functional_at_64x16(tmp_path):
    built = build_board(CORE, compile_flags=COMPILE_FLAGS)
    for seed in SEEDS:
        case = random_case(seed, CORE)
        board = FunctionalBoard()
        want = run_case(case, board, tmp_path)
        board.close()
        with RtlBoard(built, timing=MemoryTiming.random(seed)) as gateware:
            assert run_case(case, gateware, tmp_path, MAX_CYCLES) == want, f"seed {seed}"
            counters = gateware.counters()
        assert counters["cycles"] == counters["ticks"], f"seed {seed}"
