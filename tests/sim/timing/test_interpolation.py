"""Interpolated prompts and steps against simulated ones, and contexts that a line would get wrong."""

from __future__ import annotations

import pytest

from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.programs import random_case
from sim.timing.interpolation import TOLERANCE, Curve, prefill, step_cycles, step_rows
from sim.timing.machine import Machine
from sim.timing.run import run_timing

PROGRAM = random_case(7, core_config("16x4")).program
LIMIT = PROGRAM.registers["context_limit"]
ALONE = Machine((PROGRAM,), MemoryTiming())


@pytest.mark.parametrize("memory", (MemoryTiming(), HbmTiming(seed=2)))
def test_an_interpolated_prompt_is_as_long_as_a_simulated_one(memory):
    whole = prefill(Machine((PROGRAM,), memory), LIMIT - 1)
    lines = prefill(Machine((PROGRAM,), memory), LIMIT - 1, exact_rows=0)
    assert (whole.simulated, whole.proofs) == (LIMIT - 1, ())
    assert lines.proofs and lines.cycles == pytest.approx(whole.cycles, rel=20 * TOLERANCE)
    assert prefill(Machine((PROGRAM,), memory), 1, exact_rows=0).simulated == 1


def test_progress_is_told_before_each_simulation():
    told = []
    lines = prefill(ALONE, LIMIT - 1, exact_rows=0, progress=lambda *step: told.append(step))
    assert [done for _, done, _ in told] == list(range(lines.simulated))
    assert [needed for *_, needed in told] == sorted(needed for *_, needed in told)
    assert told[-1][2] == lines.simulated and all(needed > done for _, done, needed in told)
    positions = [what.removeprefix("timing a prompt, position ") for what, *_ in told]
    assert len(set(positions)) == len(told) and f"{LIMIT - 1} of {LIMIT - 1}" in positions


def test_rows_of_a_step_are_the_tiles_that_it_issues():
    for prompt in (False, True):
        for attended in (2, 5, LIMIT - 1):
            end = attended + 1 if prompt else attended
            result = run_timing(PROGRAM, position=attended - 1, prompt_end=end, max_new_tokens=1, memory=MemoryTiming())
            own = result.spans[result.spans["position"] == attended - 1]
            tiles = int(own["tiles"].sum() + own["params"].sum())
            assert step_rows(PROGRAM, attended, prompt=prompt) == tiles


def test_a_steady_step_is_the_second_of_two():
    result = run_timing(PROGRAM, position=4, prompt_end=5, max_new_tokens=3, memory=MemoryTiming())
    first, second, third = result.token_cycles
    assert step_cycles(ALONE, 6) == second - first
    assert step_cycles(ALONE, 7) == pytest.approx(third - second, abs=9)  # phase of the clocks
    for attended, prompt in ((1, False), (LIMIT + 1, False), (LIMIT, True)):
        with pytest.raises(ValueError, match="attended must be 2 to"):
            step_cycles(ALONE, attended, prompt=prompt)
    with pytest.raises(ValueError, match="prompt_tokens must be 1 to"):
        prefill(ALONE, LIMIT + 1)


def rows(attended):
    return 100_000 + 64 * -(-attended // 4) + 256 * -(-attended // 16)


@pytest.mark.parametrize(
    "cycles",
    (
        lambda n: rows(n) + 500,
        lambda n: 100_000 + 128 * -(-n // 4) + 256 * -(-n // 16),  # a row of keys costs two cycles
        lambda n: rows(n) + (0 if n < 300 else 40_000),  # something fills up
        lambda n: rows(n) + (rows(n) - 100_000) ** 2 // 10_000,
    ),
    ids=("straight", "keys", "jump", "curved"),
)
def test_a_line_is_drawn_only_where_it_holds(cycles):
    asked = []
    curve = Curve(lambda n: asked.append(n) or cycles(n), rows, 16)
    steps = dict(curve.steps(2, 700))
    assert list(steps) == list(range(2, 701))
    worst = max(abs(steps[n] / cycles(n) - 1) for n in steps)
    assert worst <= 5 * TOLERANCE
    assert sum(steps.values()) == pytest.approx(curve.total(2, 700))
    assert len(asked) == len(set(asked)) == len(curve.samples)
    assert all(
        proof.error <= TOLERANCE and proof.first < min(proof.between) <= max(proof.between) < proof.last
        for proof in curve.proofs
    )


def test_a_straight_curve_needs_four_samples_and_a_bent_one_more():
    straight, bent = (Curve(lambda n, k=k: rows(n) + k * (rows(n) - 100_000) ** 2 // 10_000, rows, 16) for k in (0, 1))
    assert straight.total(2, 700) > 0 < bent.total(2, 700)
    assert (len(straight.samples), len(straight.proofs)) == (4, 1) and len(bent.samples) > 10
