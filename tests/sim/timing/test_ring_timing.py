"""Rings on the timing model: everything that is sent arrives, longer cables cost more, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.isa import Instruction, Op
from sim.devices.hbm_timing import HbmTiming
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.programs.ring_case import random_ring_case
from sim.timing.attribution import Attribution, AttributionError, Ledger
from sim.timing.machine import Machine
from sim.timing.overrides import TimingOverrides
from sim.timing.prepared import TimingError
from sim.timing.ring import run_ring_timing

CORE = core_config("16x4")
CASES = [(seed, boards) for seed in (3, 11, 24) for boards in (2, 3, 4, 5)] + [(9, 8)]


def programs_of(seed, boards):
    return [case.program for case in random_ring_case(seed, CORE, boards).boards]


def timed(programs, hop_ns=500.0, memory=None, **options):
    run = {"position": 2, "prompt_end": 4, "max_new_tokens": 2} | options
    return run_ring_timing(programs, memory=memory or MemoryTiming(), links=LinkTiming(hop_ns=hop_ns), **run)


def executed(program, prompt_steps, decode_steps):
    """Each instruction with the number of times that it runs."""
    code, repeat, inside = [Instruction.decode(word) for word in program.instructions], 1, 0
    for instruction in code:
        inside, repeat = (inside - 1, repeat) if inside else (0, 1)
        yield instruction, repeat * (decode_steps + (0 if instruction.decode_only else prompt_steps))
        if instruction.op == Op.LOOP:
            repeat, inside = instruction.strips, instruction.words


@pytest.mark.parametrize(("seed", "boards"), CASES)
def test_every_strip_and_every_frame_arrives_once(seed, boards):
    programs = programs_of(seed, boards)
    result = timed(programs)
    for program, stored in zip(programs, result.strips_stored, strict=True):
        steps = list(executed(program, prompt_steps=1, decode_steps=2))
        assert stored == sum(n * (one.strips - one.words) for one, n in steps if one.op == Op.GATHER) > 0
    for board in range(boards):
        right, left = result.ports[board][1], result.ports[(board + 1) % boards][0]
        assert (right.frames_sent, left.frames_sent) == (left.frames_received, right.frames_received)
        assert right.resends == left.resends == 0
    received = sum(port.frames_received for ports in result.ports for port in ports)
    sums = sum(n for one, n in executed(programs[0], 1, 2) if one.stats and one.send)
    hellos, least = 2 * boards, boards * (boards - 1) * (sums + 2)  # sums and two arg-maxima of each to each other
    assert received > hellos + least and (received - hellos) % (boards - 1) == 0
    assert len({len(board.token_cycles) for board in result.boards}) == 1


def test_an_announcement_more_than_is_sent_is_noticed():
    """Twin: one strip of another board that nobody sends."""
    programs = programs_of(3, 3)
    code = [Instruction.decode(word) for word in programs[1].instructions]
    at = next(i for i, one in enumerate(code) if one.op == Op.GATHER and one.words > 1)
    code[at] = dataclasses.replace(code[at], words=code[at].words - 1)
    programs[1] = dataclasses.replace(programs[1], instructions=tuple(one.encode() for one in code))
    with pytest.raises(TimingError, match=r"board 0: run stopped at instruction .*board 1: .*board 2: "):
        timed(programs, no_progress_cycles=3000)


def test_an_announcement_beyond_the_memory_is_refused():
    programs = programs_of(3, 3)
    code = [Instruction.decode(word) for word in programs[1].instructions]
    at = next(i for i, one in enumerate(code) if one.op == Op.GATHER)
    code[at] = dataclasses.replace(code[at], dst=programs[1].core.new_key_base)
    programs[1] = dataclasses.replace(programs[1], instructions=tuple(one.encode() for one in code))
    with pytest.raises(ValueError, match=rf"instruction {at} \(GATHER\): strips end at "):
        timed(programs)


@pytest.mark.parametrize("memory", (MemoryTiming(), HbmTiming(seed=4)), ids=("fixed", "hbm"))
@pytest.mark.parametrize("boards", (2, 3, 4))
def test_longer_cables_never_make_a_balanced_ring_faster(boards, memory):
    programs = programs_of(11, boards)
    cycles = [max(board.cycles for board in timed(programs, hop, memory).boards) for hop in (0, 50, 200, 500, 1000)]
    slack = 0 if memory == MemoryTiming() else 60  # a refresh may fall elsewhere
    assert all(later >= before - slack for before, later in itertools.pairwise(cycles)), cycles
    assert cycles[-1] > cycles[0]


def test_without_latency_boards_wait_for_each_other_only_as_long_as_the_gateware_takes():
    """Every wait for another board with no hop is short: a product's end, its drain, ports and nodes of two boards."""
    result = timed(programs_of(3, 2), hop_ns=0.0)
    waits = np.concatenate([board.spans["stall_link"] for board in result.boards])
    assert 0 < waits.max() < 800
    longer = timed(programs_of(3, 2), hop_ns=5000.0)
    assert max(board.spans["stall_link"].max() for board in longer.boards) > 1000


def test_a_run_repeats_and_the_boards_memories_differ():
    programs = programs_of(24, 4)
    first, again = (timed(programs, memory=HbmTiming(seed=8)) for _ in range(2))
    assert [board.counters for board in first.boards] == [board.counters for board in again.boards]
    other = timed(programs, memory=HbmTiming(seed=9))
    assert [board.counters for board in first.boards] != [board.counters for board in other.boards]


@pytest.mark.parametrize(
    ("field", "extra"),
    (
        ("slots", -60),  # hardly any credits
        ("frame_strips", -62),  # a frame for two strips
        ("read_ahead", -3),
        ("clear_cycles", 50),
        ("norm_latency", 9),
    ),
)
def test_twins_of_the_rings_parts_change_the_cycles(field, extra):
    programs = programs_of(11, 4)
    plain = timed(programs)
    changed = timed(programs, overrides=TimingOverrides(extra_cycles={field: extra}))
    assert [board.counters for board in plain.boards] != [board.counters for board in changed.boards]
    assert plain.strips_stored == changed.strips_stored


def test_cycles_of_all_boards_are_in_buckets_exactly():
    programs = programs_of(24, 3)
    result = timed(programs, memory=HbmTiming(seed=1))
    parts = [Ledger(program, board, 4).step(4) for program, board in zip(programs, result.boards, strict=True)]
    ring = Attribution.of_ring(parts)
    assert ring.cycles == max(part.cycles for part in parts) and ring.boards == 3
    assert ring.useful_cycles + sum(ring.lost_cycles.values()) == 3 * ring.cycles
    assert ring.lost_cycles["link"] >= sum(part.lost_cycles["link"] for part in parts) > 0
    assert 0 < ring.useful_fraction < 1
    with pytest.raises(AttributionError, match="product slots"):
        dataclasses.replace(ring, boards=2)


def test_a_stop_position_ends_all_boards():
    programs = programs_of(3, 3)
    machine = Machine(tuple(programs), MemoryTiming())
    stopped = machine.run(1, 5, 1, stop_position=3)
    whole = machine.run(1, 5, 1)
    for one, other in zip(stopped, whole, strict=True):
        last = one.spans[one.spans["position"] == 3]
        assert len(last) and last["first_issue"][0] == other.spans["first_issue"][other.spans["position"] == 3][0]
        assert one.cycles < other.cycles


def test_what_is_no_ring_is_refused():
    programs = programs_of(3, 3)
    with pytest.raises(ValueError, match="2 to 8 boards, got 1"):
        timed(programs[:1])
    with pytest.raises(ValueError, match="program 0 of 3 is made for board 1 of 3"):
        timed([programs[1], programs[0], programs[2]])
    with pytest.raises(ValueError, match="program 0 of 2 is made for board 0 of 3"):
        timed(programs[:2])
    other = dataclasses.replace(programs[1], core=core_config("64x16"))
    with pytest.raises(ValueError, match="board 1 has core '64x16', board 0 '16x4'"):
        timed([programs[0], other, programs[2]])
    with pytest.raises(ValueError, match="without faults only, got frame_error_rate"):
        run_ring_timing(
            programs,
            position=0,
            prompt_end=1,
            max_new_tokens=1,
            memory=MemoryTiming(),
            links=LinkTiming(frame_error_rate=0.01),
        )
    with pytest.raises(ValueError, match="no stage or latency is called 'credits'"):
        timed(programs, overrides=TimingOverrides(extra_cycles={"credits": 1}))
    with pytest.raises(ValueError, match="no stage or latency is called 'slots'"):
        Machine((programs[0],), MemoryTiming(), overrides=TimingOverrides(extra_cycles={"slots": 1})).run(0, 1, 1)
