"""The two clocks of a kernel: every run finds the same phase, so cycles repeat; any ratio gives the same results."""

import dataclasses

import pytest

from hw.gpt2.config import core_config
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.programs import COMMITTED_SEEDS, random_case
from sim.programs.random_case import await_end, run_case, start_case
from sim.rtl import build
from sim.rtl.board import RtlBoard
from sim.rtl.verilator import QUICK_COMPILE_FLAGS

CORE = core_config("16x4")
CASE = random_case(COMMITTED_SEEDS[2], CORE)
MAX_CYCLES = 1_000_000


def cycles_after_looks(built, folder):
    """Cycles of the same run, each behind another number of register reads, on one board."""
    cycles, results = [], set()
    with RtlBoard(built, timing=MemoryTiming.random(5)) as board:
        results.add(run_case(CASE, board, folder, MAX_CYCLES))
        cycles.append(board.counters()["cycles"])
        for looks in (1, 2, 3, 5, 8):
            for _ in range(looks):
                board.read_register(board.map["state"].offset)
            start_case(CASE, board)
            results.add(await_end(CASE, board, MAX_CYCLES))
            cycles.append(board.counters()["cycles"])
    assert len(results) == 1
    return cycles


def test_a_run_takes_as_many_cycles_however_often_the_host_looked(tmp_path):
    assert len(set(cycles_after_looks(build.build_board(CORE), tmp_path))) == 1


def test_twin_without_alignment_of_the_clocks_does_not_repeat(tmp_path, monkeypatch):
    real = build.build_library

    def unaligned(name, *, sources, **rest):
        line = "else if (board.idle()) board.align();"
        assert sources["harness.cpp"].count(line) == 1
        return real(name, sources=sources | {"harness.cpp": sources["harness.cpp"].replace(line, "")}, **rest)

    monkeypatch.setattr(build, "build_library", unaligned)
    built = build.build_board(CORE, compile_flags=QUICK_COMPILE_FLAGS)
    assert len(set(cycles_after_looks(built, tmp_path))) > 1


@pytest.mark.slow
@pytest.mark.parametrize("core_mhz, port_mhz", [(200, 200), (200, 450), (300, 225), (250, 61)])
def test_any_ratio_gives_the_same_results(tmp_path, core_mhz, port_mhz):
    config = dataclasses.replace(CORE, core_clock_mhz=core_mhz, port_clock_mhz=port_mhz)
    built = build.build_board(config, compile_flags=QUICK_COMPILE_FLAGS)
    for seed in COMMITTED_SEEDS[:12]:
        print(f"seed {seed}")
        case = random_case(seed, config)
        functional = FunctionalBoard()
        want = run_case(case, functional, tmp_path)
        functional.close()
        with RtlBoard(built, timing=MemoryTiming.random(seed)) as board:
            assert run_case(case, board, tmp_path, MAX_CYCLES) == want
