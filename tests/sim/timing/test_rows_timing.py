"""Sequences and batches of cores with several rows on the timing model alone: accounts, steps, events, bad input."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from host.compiler.compile import plan_program
from host.compiler.shape import Shape
from hw.board.gpt2_map import STALL_CAUSES, Flags
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.timing.attribution import LOST, AttributionError, Ledger, counter_attribution
from sim.timing.hardware import UNITS, core_sizes
from sim.timing.interpolation import TOLERANCE, prefill, prompt_rows, step_cycles, step_rows
from sim.timing.machine import Machine
from sim.timing.overrides import TimingOverrides
from sim.timing.run import run_batch_timing, run_timing
from sim.timing.run_start import Request, RunStart
from sim.timing.steady_step import DecodeRun
from sim.timing.trace import trace_json
from sim.timing.units import unit_work
from sw.models.gpt2_config import GPT2Config

TINY = GPT2Config(n_layer=2, n_head=4, n_embd=128, n_positions=256, vocab_size=500)
IDEAL, U280 = MemoryTiming(), HbmTiming(seed=3)
ROWS = (2, 4)
ATTENDED = 30


def program_of(rows, core="16x4", model=TINY):
    config = core_config(core, rows)
    return plan_program(Shape(model, config, min(model.n_positions, config.context)))


def model_products(attended, *, logits):
    """Products of one token as the model's definition has them."""
    d, inner = TINY.n_embd, TINY.n_inner
    return TINY.n_layer * (4 * d * d + 2 * d * inner + 2 * d * attended) + (d * TINY.vocab_size if logits else 0)


def whole(attribution):
    return attribution.useful_cycles + sum(attribution.lost_cycles.values()) == attribution.cycles


@pytest.mark.parametrize("memory", (IDEAL, U280))
@pytest.mark.parametrize("rows", ROWS)
def test_a_step_of_a_batch(rows, memory):
    """Every row's token is made; attention is one row's at a time, and that is what its idle rows are."""
    program, run = program_of(rows), DecodeRun.steady(ATTENDED, rows)
    result = run.time(Machine((program,), memory))[0]
    assert result.batch and result.token_rows == (*range(rows), *range(rows))
    cycles = np.array(result.token_cycles).reshape(2, rows)
    assert (np.diff(cycles, axis=1) == 2).all()
    ledger = Ledger(program, result, run.prompt_end)
    step = ledger.step(run.last)
    assert step.cycles == cycles[1, 0] - cycles[0, 0] and whole(step)
    assert step.useful_products == rows * model_products(ATTENDED, logits=True)
    of_attention = ledger.spans["attended"][ledger.at(run.last)] == ATTENDED  # one row's
    tiles = ledger.spans["tiles"][ledger.at(run.last)]
    by_rows = ledger.spans["rows"][ledger.at(run.last)]
    assert set(by_rows) == {1, rows} and (by_rows[of_attention] == 1).all()
    embedding = sum(tiles[ledger.spans["index"][ledger.at(run.last)] == index].sum() for index in (0, 1))
    idle = (tiles[by_rows == 1].sum() - embedding) * (rows - 1) * 64
    assert step.lost_slots["idle_rows"] == idle > 0
    if memory is IDEAL:
        assert step.lost_cycles["step_gap"] > 50 and step.lost_cycles["refresh"] == 0
    parts = [part for _, part in ledger.layers(run.last)]
    assert {name: sum(part.lost_slots[name] for part in parts) for name in LOST} == step.lost_slots


@pytest.mark.parametrize("prompt", (8, 9, 11))
@pytest.mark.parametrize("rows", ROWS)
def test_a_prompt_is_read_rows_at_a_time(rows, prompt):
    program = program_of(rows)
    result = run_timing(program, position=0, prompt_end=prompt, max_new_tokens=2, memory=U280)
    spans, ledger = result.spans, Ledger(program, result, prompt)
    ends = [min(first + rows, prompt) for first in range(0, prompt, rows)] + [prompt + 1]
    assert spans["position"][np.flatnonzero(np.diff(spans["step"], prepend=-1))].tolist() == [end - 1 for end in ends]
    assert result.token_rows == (0, 0) and not result.batch
    useful = 0
    for number, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        step, last = ledger.step(end - 1), len(ends) - 2
        own = sum(model_products(n, logits=n == end and number >= last) for n in range(first + 1, end + 1))
        assert step.useful_products == own and whole(step)
        # rows without a position, and in the last prompt step rows whose logits nobody wants
        assert (step.lost_slots["idle_rows"] > 0) == (end - first < rows or number == last), number
        assert (step.lost_slots["token_gap"] > 0) == (number > last)
        useful += own
    run = ledger.run()
    assert run.useful_products == useful and whole(run)
    counted = counter_attribution(result.counters, ledger)
    assert counted.useful_products == useful and whole(counted)
    assert counted.lost_slots["idle_rows"] == run.lost_slots["idle_rows"]
    with pytest.raises(AttributionError, match="position 0 belongs to 0 steps"):
        ledger.step(0)


def test_requests_end_one_after_the_other():
    """Rows 0 and 3 of four: their tokens alternate until one has ended, and every cycle has a name."""
    requests = {0: Request(0, 3, 4), 3: Request(4, 6, 1, tokens=(0,) * 6)}
    result = run_batch_timing(program_of(4), requests, memory=IDEAL)
    assert result.token_rows == (3, 0, 0, 0, 0)  # row 3's prompt is over a step earlier
    assert list(result.token_cycles) == sorted(result.token_cycles)
    ledger = Ledger(program_of(4), result, 0)
    assert whole(ledger.run()) and ledger.spans["step"][-1] == 5
    assert sum(result.counters[f"stall_{cause}"] for cause in STALL_CAUSES) + result.counters["tiles"] == result.cycles
    counter_attribution(result.counters, ledger)
    with pytest.raises(AttributionError, match="position 4 belongs to 2 steps"):
        ledger.step(4)


def test_a_stop_id_ends_its_row_alone():
    free = {row: Request(0, 1, 3, tokens=(0, 5, 6, 7)) for row in range(2)}
    stopping = free | {1: dataclasses.replace(free[1], stop_ids=(9, 5))}
    assert run_batch_timing(program_of(2), free, memory=IDEAL).token_rows == (0, 1) * 3
    assert run_batch_timing(program_of(2), stopping, memory=IDEAL).token_rows == (0, 1, 0, 0)


def test_only_steps_behind_a_token_wait_for_memory():
    """A prompt's next step begins while the last instructions of the one before are at issue."""
    program, delay = program_of(2), MemoryTiming(300, 300)
    result = run_batch_timing(program, {row: Request(0, 4, 3) for row in range(2)}, memory=delay)
    ledger = Ledger(program, result, 0)
    gaps = [ledger.step(position).lost_cycles["step_gap"] for position in range(6)]
    assert gaps[:4] == [0, 0, 0, 0] and gaps[4] > 300 * 200 / 225 < gaps[5]
    assert ledger.step(0).lost_cycles["run_start"] > 300 * 200 / 225
    assert all(ledger.step(position).lost_cycles["token_gap"] < 100 for position in range(6))


@pytest.mark.parametrize("rows", ROWS)
def test_rows_of_a_step_are_the_tiles_that_it_issues(rows):
    program = program_of(rows)

    def issued(result, last):
        own = result.spans[Ledger(program, result, 0).at(last)]
        return int(own["tiles"].sum() + own["params"].sum())

    batch = run_batch_timing(program, {r: Request(6, 7, 1) for r in range(rows)}, memory=IDEAL)
    assert step_rows(program, 7, requests=rows) == issued(batch, 6)
    prompt = run_timing(program, position=0, prompt_end=2 * rows + 1, max_new_tokens=1, memory=IDEAL)
    for first, end in ((0, rows), (rows, 2 * rows), (2 * rows, 2 * rows + 1)):
        rows_streamed = step_rows(program, end, prompt=end <= 2 * rows, tokens=end - first)
        assert rows_streamed == issued(prompt, end - 1)
    assert prompt_rows(Machine((program,), IDEAL), 2 * rows + 1) == prompt.counters["tiles"]


@pytest.mark.parametrize("memory", (IDEAL, U280))
@pytest.mark.parametrize("rows", ROWS)
def test_an_interpolated_prompt_is_as_long_as_a_simulated_one(rows, memory):
    machine = Machine((program_of(rows),), memory)
    for prompt in (12 * rows, 12 * rows + 1, 14 * rows - 1):
        simulated, lines = prefill(machine, prompt), prefill(machine, prompt, exact_rows=0)
        steps = -(-prompt // rows)
        assert (simulated.steps, simulated.simulated, simulated.proofs) == (steps, steps, ())
        assert lines.steps == steps and lines.proofs
        assert lines.cycles == pytest.approx(simulated.cycles, rel=20 * TOLERANCE)
    for attended in (rows, 4 * rows + 1, 256):
        with pytest.raises(ValueError, match=f"attended must be {2 * rows} to {256 - rows}, a multiple of {rows},"):
            step_cycles(machine, attended, prompt=True)


def test_progress_of_a_prompt_counts_positions():
    told = []
    prefill(Machine((program_of(4),), IDEAL), 50, exact_rows=0, progress=lambda *step: told.append(step))
    positions = [int(what.split()[4]) for what, *_ in told]
    assert positions[-2:] == [4, 50] and all(position % 4 == 0 for position in positions[:-1])
    assert [done for _, done, _ in told] == list(range(len(told)))


def test_events_and_work_of_every_row():
    program, run = program_of(4), DecodeRun.steady(ATTENDED, 4)
    result = run.time(Machine((program,), U280), events=True)[0]
    names = {unit: {event.name for event in result.events if event.unit == unit} for unit in UNITS}
    assert {f"head {head}, row {row}" for head in range(4) for row in range(4)} == names["exponential"]
    assert names["reciprocal"] == names["exponential"]
    assert {f"set {s}, row {row}" for s in range(2) for row in range(4)} == names["norm_scalars"]
    ledger = Ledger(program, result, run.prompt_end)
    work = {one.unit: one for one in unit_work(ledger, result, run.last)}
    strips = 32 + TINY.n_layer * (4 * 32 + 128 + 32) + 125
    attention = TINY.n_layer * 4 * (8 + 8)
    assert work["drain_unit"].worked == strips + 3 * 32 + 4 * attention
    assert all(one.worked is None or one.worked <= one.cycles for one in work.values())
    assert trace_json(program, result, ledger, {})["traceEvents"]


def test_logits_of_rows_are_events_of_their_own():
    requests = {row: Request(0, 1, 1) for row in range(2)}
    result = run_batch_timing(program_of(2), requests, memory=IDEAL, flags=Flags.WRITE_LOGITS, events=True)
    names = [event.name for event in result.events if event.unit == "logits_writer"]
    words = TINY.vocab_size * 4 // 32 + 1
    assert len(names) == len(set(names)) == 2 * words
    assert {name.rpartition(", ")[2] for name in names} == {"row 0", "row 1"}


@pytest.mark.parametrize("batch", (False, True))
def test_score_rows_of_each_row_count(batch):
    program = program_of(4)
    full = core_sizes(program.core)
    few = TimingOverrides(extra_cycles={"score_rows": 16 - full.score_rows})
    if batch:
        requests = {row: Request(50, 51, 1) for row in range(4)}
        result = run_batch_timing(program, requests, memory=IDEAL, overrides=few)
    else:
        result = run_timing(program, position=48, prompt_end=52, max_new_tokens=1, memory=IDEAL, overrides=few)
    assert result.counters["stall_score_room"] > 0


def test_bad_input():
    program, alone = program_of(4), program_of(1)
    with pytest.raises(ValueError, match="'16x4' has no batch of rows \\[0\\]: it has 1"):
        run_batch_timing(alone, {0: Request(0, 1, 1)}, memory=IDEAL)
    with pytest.raises(ValueError, match="'16x4r2' has no batch of rows \\[0, 2\\]: it has 2"):
        run_batch_timing(program_of(2), {0: Request(0, 1, 1), 2: Request(0, 1, 1)}, memory=IDEAL)
    for rows in ((), (-1,), (0, 4)):
        with pytest.raises(ValueError, match="a batch has requests for some of rows 0 to 3, got rows"):
            run_batch_timing(program, {row: Request(0, 1, 1) for row in rows}, memory=IDEAL)
    with pytest.raises(ValueError, match="a sequence is row 0's, got rows \\[1\\]"):
        RunStart({1: Request(0, 1, 1)})
    with pytest.raises(ValueError, match="say that it is a batch"):
        run_timing(program, position=0, prompt_end=1, max_new_tokens=1, memory=IDEAL, flags=Flags.BATCH)
    with pytest.raises(ValueError, match="requests must be 1 or more, got 0"):
        DecodeRun.steady(4, 0)
    with pytest.raises(ValueError, match="a batch runs on one board, got 2"):
        Machine((alone, alone), IDEAL).run_batch(2, 0, 1, 1)
