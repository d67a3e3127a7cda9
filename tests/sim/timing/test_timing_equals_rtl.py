"""The timing model takes exactly the cycles of the gateware: every counter, with fixed, random and DRAM delays."""

from __future__ import annotations

import dataclasses

import pytest

from hw.board.gpt2_map import Flags
from hw.gpt2.config import core_config
from sim.devices.ddr_timing import DdrTiming
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.programs import COMMITTED_SEEDS, random_case
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board
from sim.timing.comparison import run_model
from sim.timing.gateware import case_run, run_gateware
from sim.timing.overrides import TimingOverrides
from sim.timing.run import run_timing
from sim.timing.table import memories

CORE = core_config("16x4")
FAST_SEEDS, SLOW_SEEDS = COMMITTED_SEEDS[:5], COMMITTED_SEEDS[5:]


@pytest.fixture(scope="module")
def built():
    return build_board(CORE)


def differences(run, built, memory, **changes):
    """Counters of gateware and timing model that differ, by name."""
    with RtlBoard(built, timing=memory) as board:
        rtl, tokens = run_gateware(run, board)
    timing = run_model(run, tokens, memory, TimingOverrides(**changes))
    return {name: (rtl[name], value) for name, value in timing.items() if rtl[name] != value}


@pytest.mark.parametrize("kind", range(3), ids=("fixed", "random", "hbm"))
@pytest.mark.parametrize("seed", FAST_SEEDS)
def test_random_programs(built, tmp_path, seed, kind):
    run = case_run(random_case(seed, CORE), tmp_path)
    assert not differences(run, built, memories(seed)[kind][1])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(SLOW_SEEDS), 15))
def test_all_random_programs(built, tmp_path, first):
    for seed in SLOW_SEEDS[first : first + 15]:
        run = case_run(random_case(seed, CORE), tmp_path)
        for name, memory in memories(seed):
            assert not differences(run, built, memory), f"seed {seed}, {name}"


@pytest.mark.parametrize(
    "memory",
    (
        DdrTiming(seed=3),
        HbmTiming(seed=3, refresh_interval_ns=1950.0),
        HbmTiming(seed=3, address_map="RBC", reads_outstanding=8),
        MemoryTiming(read_min=1, read_max=1, write_min=1, write_max=1),
        MemoryTiming(read_min=300, read_max=300, write_min=1500, write_max=1500),
    ),
    ids=("ddr", "hot", "few outstanding", "no delay", "long delay"),
)
def test_other_memories(built, tmp_path, memory):
    assert not differences(case_run(random_case(3, CORE), tmp_path), built, memory)


def changed(run, **registers):
    return dataclasses.replace(run, registers={**run.registers, **registers})


@pytest.mark.parametrize(
    ("seed", "registers"),
    (
        (11, {"position": 0, "prompt_end": 6, "max_new_tokens": 2}),
        (3, {"position": 8, "prompt_end": 9, "max_new_tokens": 1}),  # its image has the keys and values of the past
        (11, {"position": 0, "prompt_end": 1, "max_new_tokens": 1}),
        (11, {"position": 0, "prompt_end": 2, "max_new_tokens": 1000}),
        (11, {"flags": 0}),
    ),
    ids=("prompt", "past", "one token", "until the cache is full", "no logits"),
)
def test_other_runs(built, tmp_path, seed, registers):
    run = changed(case_run(random_case(seed, CORE), tmp_path), stop_count=0, **registers)
    run = dataclasses.replace(run, tokens=((*run.tokens[0], *range(6))[: run.registers["prompt_end"]],))
    for _, memory in memories(seed):
        assert not differences(run, built, memory)


def test_a_stop_id_ends_both(built, tmp_path):
    run = changed(case_run(random_case(11, CORE), tmp_path), stop_count=0, max_new_tokens=4)
    memory = MemoryTiming()
    with RtlBoard(built, timing=memory) as board:
        free, tokens = run_gateware(run, board)
    stopping = changed(run, stop_count=1, stop_0=tokens[0][-2])
    with RtlBoard(built, timing=memory) as board:
        stopped, fewer = run_gateware(stopping, board)
    assert len(fewer[0]) < len(tokens[0]) and stopped["cycles"] < free["cycles"]
    assert run_model(stopping, fewer, memory)["cycles"] == stopped["cycles"]
    assert run_model(run, tokens, memory)["cycles"] == free["cycles"]


def test_the_guard_of_a_model_of_one_layer(built, tmp_path):
    """Keys of the position before must be in memory: with slow writes that binds, and in the same cycles."""
    seed = next(s for s in range(1000) if random_case(s, CORE).program.registers["layers"] == 1)
    run = changed(case_run(random_case(seed, CORE), tmp_path), stop_count=0)
    slow, fast = MemoryTiming(write_min=3000, write_max=3000), MemoryTiming()
    assert not differences(run, built, slow)
    cycles = [run_model(run, run.tokens, memory)["cycles"] for memory in (slow, fast)]
    assert cycles[0] > cycles[1] + 1000


def test_earlier_runs_do_not_matter(built, tmp_path):
    run, memory = case_run(random_case(2, CORE), tmp_path), HbmTiming(seed=5)
    with RtlBoard(built, timing=memory) as board:
        first = run_gateware(run, board)
        board.read_register(board.map["cycles"].offset, 8)
        second = run_gateware(run, board, load=False)
    assert first[0]["cycles"] == second[0]["cycles"] == run_model(run, second[1], memory)["cycles"]


def test_a_start_out_of_range(built, tmp_path):
    run = changed(case_run(random_case(2, CORE), tmp_path), max_new_tokens=0)
    with RtlBoard(built) as board:
        rtl, _ = run_gateware(run, board)
    registers = run.registers
    result = run_timing(
        run.program,
        position=registers["position"],
        prompt_end=registers["prompt_end"],
        max_new_tokens=0,
        memory=MemoryTiming(),
    )
    assert (result.cycles, result.counters["stall_drain"]) == (rtl["cycles"], rtl["stall_drain"])


@pytest.mark.parametrize(
    ("memory", "change"),
    (
        (MemoryTiming(), {"extra_cycles": {"accumulator_latency": 4}}),
        (MemoryTiming.random(1), {"fifo_words": 64}),
        (MemoryTiming(), {"extra_cycles": {"written": 1}}),
    ),
    ids=("accumulator", "fifo", "written"),
)
def test_a_departure_is_seen(built, tmp_path, memory, change):
    assert differences(case_run(random_case(1, CORE), tmp_path), built, memory, **change)


SLOW_WRITES = MemoryTiming(write_min=1500, write_max=1500)


@pytest.mark.parametrize(
    ("seed", "change"),
    (
        (
            21,  # fills a channel with writes
            (
                "memory_ports.h",
                "channel.writes_outstanding + 2 <= sizes_.writes",
                "channel.writes_outstanding < sizes_.writes",
            ),
        ),
        (3, ("memory_ports.h", "writes_outstanding_ || write.valid;", "false;")),
        (3, ("core.h", "const bool drained = drained_;\n        drained_ =", "const bool drained =")),
    ),
    ids=("room for one write", "nothing unanswered", "drained at once"),
)
def test_a_departure_of_the_memory_side_is_seen(built, tmp_path, changed_model, seed, change):
    run = case_run(random_case(seed, CORE), tmp_path)
    assert not differences(run, built, SLOW_WRITES)
    changed_model(change)
    assert differences(run, built, SLOW_WRITES)


def test_flags_are_those_of_the_hardware(tmp_path):
    """The run without logits above is another run than the one with them."""
    run = case_run(random_case(11, CORE), tmp_path)
    assert run.registers["flags"] == Flags.WRITE_LOGITS
    slow = MemoryTiming(write_min=400, write_max=400)
    cycles = [run_model(changed(run, flags=flags), run.tokens, slow)["cycles"] for flags in (0, 1)]
    assert cycles[0] != cycles[1]
