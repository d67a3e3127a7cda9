"""Every cycle of a step is in exactly one bucket, and the useful ones are the model's own products."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import numpy as np
import pytest

import sim.timing.attribution as attribution
from host.compiler.compile import plan_program
from host.compiler.limits import all_problems
from host.compiler.shape import Shape
from hw.board.gpt2_map import STALL_CAUSES
from hw.board.program import Program
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.programs.random_case import random_case
from sim.timing.attribution import LOST, STALL_BUCKETS, AttributionError, Ledger, counter_attribution
from sim.timing.machine import Machine
from sim.timing.result import TimingResult
from sim.timing.run import run_timing
from sim.timing.steady_step import DecodeRun
from sw.models.gpt2_config import GPT2Config
from sw.models.named_sizes import NAMED_SIZES

TINY = GPT2Config(n_layer=4, n_head=4, n_embd=128, n_positions=256, vocab_size=512)  # checkpoints/gpt2-tiny
ODD = GPT2Config(n_layer=2, n_head=3, n_embd=36, n_positions=64, vocab_size=101)  # no size divides 16x4's tile
PADDED = GPT2Config(n_layer=2, n_head=3, n_embd=144, n_positions=192, vocab_size=1000)  # keys of 48 in words of 64
TWO_LAYERS = dataclasses.replace(NAMED_SIZES["gpt2-345m"], n_layer=2)
IDEAL, U280 = MemoryTiming(), HbmTiming(seed=3)
MEMORIES = {"ideal": IDEAL, "u280": U280, "slow": MemoryTiming(300, 300, 300, 300), "random": MemoryTiming.random(5)}
CASES = [
    *((TINY, "16x4", memory, k) for memory in MEMORIES for k in (1, 2, 16, 17, 130, 256)),
    *((ODD, "16x4", memory, k) for memory in MEMORIES for k in (1, 2, 3, 4, 5, 16, 33, 64)),
    *((PADDED, "64x16", memory, k) for memory in ("ideal", "u280") for k in (1, 2, 65, 192)),
    (TWO_LAYERS, "64x16", "u280", 129),
    (NAMED_SIZES["gpt2-124m"], "64x16", "ideal", 1024),
    (NAMED_SIZES["gpt2-xl"], "64x16", "ideal", 128),
]


def program_of(model: GPT2Config, core: str) -> Program:
    config = core_config(core)
    shape = Shape(model, config, min(model.n_positions, config.context))
    assert not all_problems(shape)
    return plan_program(shape)


def timed(model: GPT2Config, core: str, memory: object, attended: int) -> tuple[Ledger, DecodeRun, TimingResult]:
    program, run = program_of(model, core), DecodeRun.steady(attended)
    result = run.time(Machine((program,), memory))[0]  # type: ignore[arg-type]
    return Ledger(program, result, run.prompt_end), run, result


def model_products(model: GPT2Config, attended: int, *, decode: bool = True) -> int:
    """Products of a step as the model's definition has them: nothing of the core is in it."""
    d, inner = model.n_embd, model.n_inner
    layer = 4 * d * d + 2 * d * inner + 2 * d * attended
    return model.n_layer * layer + (d * model.vocab_size if decode else 0)


def test_every_cause_of_the_hardware_has_a_bucket() -> None:
    assert set(STALL_BUCKETS) == set(STALL_CAUSES)
    assert set(STALL_BUCKETS.values()) <= set(LOST)


@pytest.mark.parametrize("cause", STALL_CAUSES)
def test_a_cause_without_a_bucket_is_noticed(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, run, result = timed(ODD, "16x4", IDEAL, 9)
    fewer = MappingProxyType({name: bucket for name, bucket in STALL_BUCKETS.items() if name != cause})
    monkeypatch.setattr(attribution, "STALL_BUCKETS", fewer)
    with pytest.raises(KeyError, match=cause):
        Ledger(program_of(ODD, "16x4"), result, run.prompt_end)
    with pytest.raises(KeyError, match=cause):
        counter_attribution(result.counters, ledger)


@pytest.mark.parametrize(("model", "core", "memory", "attended"), CASES)
def test_a_step_is_the_models_products_and_named_losses(
    model: GPT2Config, core: str, memory: str, attended: int
) -> None:
    ledger, run, result = timed(model, core, MEMORIES[memory], attended)
    step = ledger.step(run.last)
    if attended > 1:
        assert step.cycles == result.token_cycles[1] - result.token_cycles[0]
    assert step.useful_products == model_products(model, attended)
    assert step.useful_cycles + sum(step.lost_cycles.values()) == step.cycles  # exactly, also in floating point
    assert all(slots >= 0 for slots in step.lost_slots.values())
    assert step.lost_slots["run_end"] == step.lost_slots["link"] == 0
    assert (step.lost_slots["run_start"] > 0) == (attended == 1)
    for parts in (list(ledger.layers(run.last)), [part[1:] for part in ledger.instructions(run.last)]):
        assert sum(part.cycles for _, part in parts) == step.cycles
        assert sum(part.useful_products for _, part in parts) == step.useful_products
        assert {name: sum(part.lost_slots[name] for _, part in parts) for name in LOST} == step.lost_slots
    assert [name for name, _ in ledger.layers(run.last)][1:-1] == [f"layer {n}" for n in range(model.n_layer)]


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_run_is_its_steps_its_start_and_its_end(memory: str) -> None:
    program = program_of(TINY, "16x4")
    run = DecodeRun(attended=20, steps=3, position=4)
    result = run.time(Machine((program,), MEMORIES[memory]))[0]
    ledger = Ledger(program, result, run.prompt_end)
    whole, steps = ledger.run(), [ledger.step(position) for position in range(run.position, run.attended)]
    assert whole.cycles == result.cycles
    assert whole.useful_cycles + sum(whole.lost_cycles.values()) == result.cycles
    assert whole.useful_products == sum(step.useful_products for step in steps)
    for position, step in enumerate(steps, run.position):
        assert step.useful_products == model_products(TINY, position + 1, decode=position >= run.first)
        assert (step.lost_slots["run_start"] > 0) == (position == run.position)
    tail = whole.cycles - sum(step.cycles for step in steps)
    last_gap = result.tail["token"]
    assert tail == sum(result.tail.values()) and whole.lost_cycles["run_end"] == tail - last_gap > 0
    assert ledger.window(run.last)[1] == ledger.window(run.last)[0] + steps[-1].cycles
    counted = counter_attribution(result.counters, ledger)
    assert counted.cycles == result.cycles and counted.useful_products == whole.useful_products
    assert counted.lost_cycles["refresh"] == whole.lost_cycles["refresh"] == result.counters["refresh_stalls"]
    assert (whole.lost_cycles["refresh"] > 0) == (memory == "u280")
    moved = ("memory", "instruction", "token_gap", "run_start")  # what spans tell apart and counters do not
    for name in set(LOST) - set(moved):
        assert counted.lost_cycles[name] == whole.lost_cycles[name], name
    assert sum(counted.lost_slots[name] for name in moved) == sum(whole.lost_slots[name] for name in moved)


def test_the_row_of_a_generated_token_is_token_gap_that_of_a_given_one_is_not() -> None:
    gaps = {}
    for delay in (100, 400):
        program = program_of(TINY, "16x4")
        result = run_timing(
            program, position=5, prompt_end=7, max_new_tokens=2, memory=MemoryTiming(delay, delay, 32, 32)
        )
        ledger = Ledger(program, result, 7)
        gaps[delay] = [ledger.step(position).lost_cycles["token_gap"] for position in (5, 6, 7)]
    assert gaps[100][:2] == gaps[400][:2] == [0, 0]
    assert gaps[400][2] - gaps[100][2] == pytest.approx(300 * 200 / 225, abs=2)  # delays are port cycles


@pytest.mark.parametrize("core", ["16x4", "64x16"])
def test_random_programs_have_no_cycle_without_a_name(core: str) -> None:
    for seed in range(12):
        case = random_case(seed, core_config(core))
        registers = case.run_registers
        for memory in (IDEAL, MemoryTiming.random(seed), HbmTiming(seed=seed)):
            run = {name: registers[name] for name in ("position", "prompt_end", "max_new_tokens")}
            result = run_timing(case.program, **run, memory=memory)  # type: ignore[arg-type]
            ledger = Ledger(case.program, result, registers["prompt_end"])
            whole = ledger.run()
            assert whole.useful_cycles + sum(whole.lost_cycles.values()) == result.cycles
            assert all(slots >= 0 for slots in whole.lost_slots.values()), seed
            counter_attribution(result.counters, ledger)


def test_spans_that_do_not_tell_the_whole_run_are_noticed() -> None:
    _, run, result = timed(TINY, "16x4", U280, 40)
    program = program_of(TINY, "16x4")
    Ledger(program, result, run.prompt_end)
    middle = len(result.spans) // 2
    dropped = dataclasses.replace(result, spans=np.delete(result.spans, middle))
    with pytest.raises(AttributionError, match=f"span {middle} "):
        Ledger(program, dropped, run.prompt_end)
    for field in ("tiles", "params", "stall_norm", "last_issue"):
        spans = result.spans.copy()
        spans[field][middle] += 1
        with pytest.raises(AttributionError, match="its tiles and stalls are another number"):
            Ledger(program, dataclasses.replace(result, spans=spans), run.prompt_end)
    short = dataclasses.replace(result, tail={**result.tail, "drain": result.tail["drain"] - 1})
    with pytest.raises(AttributionError, match="product slots"):
        Ledger(program, short, run.prompt_end).run()
    ledger = Ledger(program, result, run.prompt_end)
    with pytest.raises(AttributionError, match="its program has"):
        counter_attribution({**result.counters, "tiles": result.counters["tiles"] - 1}, ledger)
    with pytest.raises(AttributionError, match="product slots"):
        counter_attribution({**result.counters, "stall_norm": 0}, ledger)


def test_padding_is_seen() -> None:
    """Twins of the useful products: the same core with a model that it fits exactly loses nothing, an odd one does."""
    fitting = GPT2Config(n_layer=2, n_head=2, n_embd=128, n_positions=192, vocab_size=1024)
    exact, padded = (timed(model, "64x16", IDEAL, 64)[0].step(63) for model in (fitting, PADDED))
    assert exact.lost_slots["padding"] == 0 and padded.lost_slots["padding"] > 0
    ledger, run, _ = timed(PADDED, "64x16", IDEAL, 64)
    lost = {name: part.lost_cycles["padding"] for _, name, part in ledger.instructions(run.last)}
    words = 3  # of the residual vector, the last with 16 of 64 elements
    assert lost["keys"] == lost["queries"] == 2 * (words * 3 * 4 - 144 * 144 / 1024)
    assert lost["scores, softmax, heads 0 to 2"] == 2 * 3 * (4 - 64 * 48 / 1024)


@pytest.mark.parametrize("vocabulary", [50257, 512])
def test_two_layers_of_345m_are_busy_with_ideal_memory(vocabulary: int) -> None:
    """The bar is 97 % useful products; it holds with and (nearly) without the language-model head."""
    model = dataclasses.replace(TWO_LAYERS, vocab_size=vocabulary, eos_token_id=None, bos_token_id=None)
    ledger, run, _ = timed(model, "64x16", IDEAL, 128)
    assert ledger.step(run.last).useful_fraction >= 0.97


@pytest.mark.parametrize(("attended", "steps", "position"), [(0, 1, 0), (4, 0, 0), (4, 5, 0), (4, 2, 3), (4, 2, -1)])
def test_runs_that_cannot_be(attended: int, steps: int, position: int) -> None:
    with pytest.raises(ValueError, match="needs 1 <= steps"):
        DecodeRun(attended, steps, position)
