"""Random programs that sample: gateware equals functional executor, also behind a run cancelled while it sampled."""

from __future__ import annotations

import dataclasses

import pytest

from hw.board.gpt2_map import ErrorCode, row_register
from hw.gpt2.config import core_config
from hw.gpt2.sampled_token import BoardSampling
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.programs import random_case
from sim.programs.random_case import await_end, run_case, start_case
from sim.programs.sampled_case import sampled_case
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board
from sim.rtl.detection import CANCEL_CYCLES, full_cache_cases

QUICK, SLOW = range(12), range(12, 60)
MAX_CYCLES = 1_000_000
SAMPLED = BoardSampling.of(0.9, 64, 11, 1000)  # of more tokens than there are: the list takes longest


@pytest.fixture(scope="module", params=["16x4", "16x4r4"])
def built(request):
    return build_board(core_config(request.param))


def functional(case, folder):
    board = FunctionalBoard()
    result = run_case(case, board, folder)
    board.close()
    return result


def gateware(case, built, folder):
    with RtlBoard(built, timing=MemoryTiming.random(case.seed)) as board:
        result = run_case(case, board, folder, MAX_CYCLES)
        counters = board.counters()
    assert counters["cycles"] == counters["ticks"]
    return result


def differing(seeds, built, folder, changed=lambda case: case):
    """Seeds whose cases differ; the functional executor runs them as ``changed``."""
    cases = [sampled_case(random_case(seed, built.config)) for seed in seeds]
    return [case.seed for case in cases if gateware(case, built, folder) != functional(changed(case), folder)]


def test_gateware_equals_functional(built, tmp_path):
    assert differing(QUICK, built, tmp_path) == []


@pytest.mark.slow
def test_gateware_equals_functional_in_many_programs(built, tmp_path):
    assert differing(SLOW, built, tmp_path) == []


@pytest.mark.parametrize("name", ["seed", "sampling"])
def test_twin_other_registers_are_noticed(built, tmp_path, name):
    """Another seed; the arg-max instead."""

    def other(case):
        value = case.run_registers[name] ^ 1 if name == "seed" else 0
        changes = {row_register(name, row): value for row in range(built.config.rows)}
        return dataclasses.replace(case, run_registers=case.run_registers | changes)

    assert differing(QUICK, built, tmp_path, other) != []


def read(board, name):
    register = board.map[name]
    return board.read_register(register.offset, register.bits // 8)


def test_a_run_cancelled_while_it_samples_leaves_nothing(tmp_path):
    """The sampler works for two hundred cycles in front of the first token; memory is as slow in each run."""
    built = build_board(core_config("16x4"))
    greedy = next(full_cache_cases(built.config))
    registers = greedy.run_registers | {"seed": SAMPLED.seed, "sampling": SAMPLED.register}
    case = dataclasses.replace(greedy, run_registers=registers)
    arg_max = dataclasses.replace(greedy, run_registers=registers | {"sampling": 0})
    want, plain = functional(case, tmp_path), functional(arg_max, tmp_path)
    assert want.tokens != plain.tokens
    with RtlBoard(built, timing=MemoryTiming()) as board:
        assert run_case(case, board, tmp_path, MAX_CYCLES) == want
        first = read(board, "first_token_cycles")
        for number, before in enumerate((200, 120, 60, 30)):
            start_case(case, board)
            board.advance(first - before)
            board.write_register(board.map["cancel"].offset, 1)
            board.advance(CANCEL_CYCLES)
            assert read(board, "ctrl") & 2 and read(board, "error") == ErrorCode.CANCELLED
            assert read(board, "tokens_valid") == case.run_registers["prompt_end"]  # the cancel came first
            then, result = [(case, want), (arg_max, plain)][number % 2]
            start_case(then, board)
            assert await_end(then, board, MAX_CYCLES) == result
