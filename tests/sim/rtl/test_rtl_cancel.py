"""Cancel on the real gateware: at any moment, under random memory latency, and the next run finds nothing of it."""

from __future__ import annotations

import random

import pytest

from hw.board.gpt2_map import ErrorCode
from hw.gpt2.config import core_config
from hw.gpt2.isa import Op
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.programs.random_case import await_end, run_case, start_case
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board
from sim.rtl.detection import CANCEL_CYCLES, full_cache_cases

CORE = core_config("16x4")
SEED = 5
BOARDS, CANCELS_OF_A_BOARD = 4, 5
MAX_CYCLES = 1_000_000


@pytest.fixture(scope="module")
def case():
    """With attention, from position 0 until the cache is full: a run writes all that its result is made of."""
    return next(c for c in full_cache_cases(CORE) if {Op.SC, Op.AV} <= {i.op for i in c.instructions})


@pytest.fixture(scope="module")
def want(case, tmp_path_factory):
    board = FunctionalBoard()
    result = run_case(case, board, tmp_path_factory.mktemp("functional"))
    board.close()
    return result


@pytest.fixture
def loaded(case, want, tmp_path, request):
    """A board that has run the case once."""
    with RtlBoard(build_board(CORE), timing=MemoryTiming.random(request.param)) as board:
        assert run_case(case, board, tmp_path, MAX_CYCLES) == want
        yield board


def read(board, name):
    register = board.map[name]
    return board.read_register(register.offset, register.bits // 8)


def cancel_after(board, case, cycles):
    """Start, cancel after so many cycles, and wait; returns the cycles that the run still took."""
    start_case(case, board)
    board.advance(cycles)
    assert not read(board, "ctrl") & 2
    board.write_register(board.map["cancel"].offset, 1)
    passed = board.advance(CANCEL_CYCLES)
    assert read(board, "ctrl") & 2, f"still in state {read(board, 'state')} {passed} cycles after cancel"
    assert read(board, "error") == ErrorCode.CANCELLED
    return passed


@pytest.mark.parametrize("loaded", range(BOARDS), indirect=True, ids=lambda seed: f"memory seed {seed}")
def test_cancelled_run_ends_and_the_next_is_right(loaded, case, want):
    memory_seed = loaded.timing.seed
    run_cycles = read(loaded, "cycles")
    rng = random.Random(SEED * 1000 + memory_seed)
    for _ in range(CANCELS_OF_A_BOARD):
        after = rng.randrange(1, run_cycles * 9 // 10)
        passed = cancel_after(loaded, case, after)
        print(f"case {case.seed}, memory {memory_seed}: cancel in cycle {after} of {run_cycles}, ended {passed} later")
        start_case(case, loaded)
        assert await_end(case, loaded, MAX_CYCLES) == want


@pytest.mark.parametrize("loaded", [BOARDS], indirect=True)
def test_twin_what_a_cancelled_run_broke_is_noticed(loaded, case, want):
    """One flipped bit of a weight, as a write to the wrong place would leave it."""
    cancel_after(loaded, case, 1000)
    row, rows = case.product_rows[-1]
    offset = (row + rows // 2) * CORE.port_bytes
    (half,) = loaded.read_memory(0, offset + 1, 1)
    loaded.write_memory(0, offset + 1, bytes([half ^ 2]))  # the highest fraction bit
    start_case(case, loaded)
    assert await_end(case, loaded, MAX_CYCLES) != want


@pytest.mark.parametrize("loaded", [BOARDS + 1], indirect=True)
def test_twin_lost_cancel_is_noticed(loaded, case, monkeypatch):
    cancel, write = loaded.map["cancel"].offset, loaded.write_register

    def write_all_but_cancel(offset, value, bytes=4):
        if offset != cancel:
            write(offset, value, bytes)

    monkeypatch.setattr(loaded, "write_register", write_all_but_cancel)
    with pytest.raises(AssertionError, match=r"still in state|CANCELLED"):
        cancel_after(loaded, case, 1000)
