"""The timing model alone: its accounts, its events, what each size does to it, its errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hw.board.gpt2_map import STALL_CAUSES
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.programs import random_case
from sim.timing.hardware import UNITS, core_sizes
from sim.timing.overrides import CHANGEABLE, TimingOverrides
from sim.timing.run import TimingError, run_timing

CORE = core_config("16x4")
SEEDS = range(12)
STALLS = [f"stall_{cause}" for cause in STALL_CAUSES]


def timed(seed, memory, **options):
    case = random_case(seed, options.pop("core", CORE))
    registers = case.run_registers
    return run_timing(
        case.program,
        position=registers["position"],
        prompt_end=registers["prompt_end"],
        max_new_tokens=min(registers["max_new_tokens"], 3),
        flags=registers["flags"],
        tokens=case.tokens,
        memory=memory,
        **options,
    )


@pytest.mark.parametrize("core", ("16x4", "64x16"))
@pytest.mark.parametrize("memory", (MemoryTiming(), MemoryTiming.random(4), HbmTiming(seed=4)))
def test_every_cycle_is_in_one_place(core, memory):
    for seed in range(4):
        result = timed(seed, memory, core=core_config(core))
        spans = result.spans
        for name in STALLS:
            cause = name.removeprefix("stall_")
            assert int(spans[name].sum()) + result.tail[cause] == result.counters[name]
        tiles = int(spans["tiles"].sum() + spans["params"].sum())
        assert tiles == result.counters["tiles"]
        assert tiles + sum(result.counters[name] for name in STALLS) == result.cycles
        assert int(spans["refresh"].sum()) == result.counters["refresh_stalls"] <= result.counters["stall_stream"]
        assert (spans["refresh"] <= spans["stall_stream"]).all()


def test_spans_follow_one_another():
    result = timed(3, HbmTiming(seed=1))
    spans = result.spans
    assert (spans["first_issue"][1:] > spans["last_issue"][:-1]).all()
    stalls = sum(spans[name] for name in STALLS)
    length = spans["last_issue"] - np.concatenate([[-1], spans["last_issue"][:-1]])
    assert (spans["tiles"] + spans["params"] + stalls == length).all()
    assert (spans["last_result"] >= spans["last_issue"]).all()
    cycles = result.token_cycles
    assert list(cycles) == sorted(set(cycles)) and cycles[-1] < result.cycles


def test_events_of_every_unit():
    result = timed(3, HbmTiming(seed=1), events=True)
    assert {event.unit for event in result.events} == set(UNITS)
    assert all(0 <= event.start < event.end <= result.cycles for event in result.events if event.unit != "refresh")
    assert result.cycles == timed(3, HbmTiming(seed=1)).cycles


# Sizes that these programs cannot show, each with the reason.
UNSEEN = {
    "context": "compared with context_limit and nothing else",
    "commands": "a power of two",
    "join_channels": "the join takes two stages whatever it is",
    "acc_depth": "size of a table",
    "strip_addresses": "size of a table",
    "new_key_base": "place in a table",
    "new_value_base": "place in a table",
    "score_rows": "has a test of its own",
    "result_queue": "of cores with int8 weights",
    "total": "where the result queue begins",
    **{f"sampler_{what}": "of runs that sample" for what in ("ways", "first", "strip", "score", "hold")},
}
FULL = core_sizes(CORE)
SCARCE = {
    name: few - getattr(FULL, name)
    for name, few in {
        "fifo_words": 44,
        "reader_runs": 1,
        "bursts": 3,
        "writes": 2,
        "logits_depth": FULL.logits_margin + 2,
    }.items()
}
"""Leaves few of what these programs never use up, so that one more shows."""


@pytest.mark.parametrize("name", [name for name in CHANGEABLE if name not in UNSEEN])
def test_every_size_counts(name):
    """One more of any size, or one cycle more of any latency, and some counter of some program differs."""
    slow = MemoryTiming(64, 64, 900, 900)
    for memory in (MemoryTiming(), slow, MemoryTiming.random(1), HbmTiming(seed=1)):
        for extra in ({}, SCARCE):
            more = TimingOverrides(extra_cycles={**extra, name: extra.get(name, 0) + 1})
            for seed in SEEDS:
                before = timed(seed, memory, overrides=TimingOverrides(extra_cycles=extra))
                if timed(seed, memory, overrides=more).counters != before.counters:
                    return
    pytest.fail(f"one more {name} changes nothing")


def test_score_rows_count():
    """Few enough of them stall the scores."""
    few = TimingOverrides(extra_cycles={"score_rows": 4 - FULL.score_rows})
    results = [timed(seed, MemoryTiming(), overrides=few) for seed in SEEDS]
    assert sum(result.counters["stall_score_room"] for result in results) > 0


def test_refresh_costs_cycles():
    few = TimingOverrides(fifo_words=64)
    off = HbmTiming(seed=1, refresh_interval_ns=0.0)
    with_refresh = timed(2, HbmTiming(seed=1), overrides=few)
    without = timed(2, off, overrides=few)
    assert with_refresh.counters["refresh_stalls"] > 0 == without.counters["refresh_stalls"]
    assert with_refresh.cycles > without.cycles


def test_an_unknown_token_is_no_stop_id():
    case = random_case(3, CORE)
    run = {"position": 0, "prompt_end": 1, "max_new_tokens": 3, "memory": MemoryTiming()}
    known = run_timing(case.program, tokens=[0, 7], stop_ids=[7], **run)
    unknown = run_timing(case.program, tokens=[0], stop_ids=[7, 0], **run)
    assert (len(known.token_cycles), len(unknown.token_cycles)) == (1, 3)


def test_a_run_can_stop_at_a_position():
    whole, part = timed(3, MemoryTiming()), timed(3, MemoryTiming(), stop_position=7)
    begin = whole.spans["first_issue"][whole.spans["position"] == 7][0]
    assert part.cycles == begin == part.spans["first_issue"][-1]
    assert (part.spans["last_issue"][:-1] == whole.spans["last_issue"][: len(part.spans) - 1]).all()


def test_errors():
    case = random_case(3, CORE)
    run = {"position": 0, "prompt_end": 1, "max_new_tokens": 3, "memory": MemoryTiming()}
    with pytest.raises(TimingError, match="no tile for 500 cycles"):  # nothing to read: the stream never comes
        lost = dataclasses.replace(
            case.program, descriptors=case.program.descriptors[:1] + case.program.descriptors[-1:]
        )
        run_timing(lost, no_progress_cycles=500, **run)
    with pytest.raises(TimingError, match="more than 100 cycles"):
        run_timing(case.program, max_cycles=100, **run)
    with pytest.raises(ValueError, match="holds 64"):
        run_timing(dataclasses.replace(case.program, descriptors=case.program.descriptors[:1] * 65), **run)
    with pytest.raises(ValueError, match="5 stop ids"):
        run_timing(case.program, stop_ids=[1] * 5, **run)
    with pytest.raises(
        ValueError, match=r"does not fit core '16x4i8': .* rule 1: .* must be even"
    ):  # a row serves two strips there
        run_timing(dataclasses.replace(case.program, core=core_config("16x4i8")), **run)
    with pytest.raises(ValueError, match="compiled for a core's lanes, strips_per_row; can differ: context, "):
        TimingOverrides(extra_cycles={"strips_per_row": 1, "lanes": 4})
    with pytest.raises(ValueError, match="no stage or latency is called 'speed'"):
        run_timing(case.program, overrides=TimingOverrides(extra_cycles={"speed": 1}), **run)
