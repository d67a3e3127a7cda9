"""Runs that sample on the board: the timing model equals the gateware in every counter, the queue's stalls included."""

import dataclasses

import pytest
import torch

from host.compiler.compile import compile_model
from host.compiler.core_choice import chosen_core
from host.compiler.model_choice import chosen_model
from hw.board.program import Program
from hw.gpt2.config import core_config
from hw.gpt2.sampled_token import BoardSampling
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.rtl.build import build_board
from sim.timing.comparison import gateware_run
from sim.timing.gateware import batch_run, folder_run
from sim.timing.overrides import TimingOverrides
from sim.timing.run_start import Request
from sw.models.gpt2 import GPT2, GPT2Config
from sw.train.save import save_model

CHECKPOINT = "checkpoints/gpt2-tiny"
VOCAB = 1202  # of a head one word wide: a strip every cycle, the last one with two columns
ALL = BoardSampling.of(0.9, 0, 7, 50_000)
LARGEST = BoardSampling.of(0.9, 40, 7, 50_000)


def compiled(model, core, folder):
    compile_model(chosen_model(model), chosen_core(core), folder)
    return folder


def sampling(run, drawn):
    registers = {"seed": drawn.seed, "sampling": drawn.register}
    return dataclasses.replace(run, registers={**run.registers, **registers})


@pytest.fixture(scope="module")
def built():
    return build_board(core_config("16x4"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return compiled(CHECKPOINT, "16x4", tmp_path_factory.mktemp("tiny") / "program")


@pytest.fixture(scope="module")
def narrow_model(tmp_path_factory):
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("narrow")
    save_model(GPT2(GPT2Config(n_layer=1, n_head=1, n_embd=16, n_positions=32, vocab_size=VOCAB)), folder)
    return folder


@pytest.fixture(scope="module")
def narrow(narrow_model):
    return compiled(narrow_model, "16x4", narrow_model / "program")


@pytest.fixture(scope="module")
def narrow_int8(narrow_model):
    return compiled(narrow_model, "16x4i8", narrow_model / "int8")


def ran(run, built, memory):
    return gateware_run(run, built, memory, "memory", max_cycles=2_000_000)


@pytest.fixture(scope="module")
def runs(built, tiny, narrow):
    """All logits and the largest of them at a strip every few cycles, all at a strip a cycle; two tokens each."""
    memory = HbmTiming(seed=2)
    return {
        "all": ran(sampling(folder_run(tiny, 0, 2, 2), ALL), built, memory),
        "largest": ran(sampling(folder_run(tiny, 0, 2, 2), LARGEST), built, memory),
        "narrow": ran(sampling(folder_run(narrow, 0, 2, 2), ALL), built, MemoryTiming()),
    }


@pytest.mark.parametrize("which", ["all", "largest", "narrow"])
def test_sampled_runs(runs, which):
    assert not runs[which].compared().misses()


def test_a_narrow_head_waits_for_the_sampler(runs, narrow, built):
    greedy = ran(folder_run(narrow, 0, 2, 2), built, MemoryTiming())
    more = {name: runs["narrow"].counters[name] - greedy.counters[name] for name in ("cycles", "stall_result")}
    least = 2 * (VOCAB * 3 // 4 - 4 * 128)  # two heads: four cycles a strip instead of one, but for a full queue
    assert least < more["stall_result"] <= more["cycles"]
    assert not greedy.compared().misses()


@pytest.mark.parametrize(
    ("which", "size"),
    [
        ("all", "sampler_score"),
        ("all", "sampler_strip"),
        ("all", "sampler_ways"),
        ("narrow", "sampler_first"),
        ("narrow", "logits_margin"),
        ("largest", "sampler_hold"),
    ],
)
def test_twins_one_more_of_a_size_is_noticed(runs, which, size):
    assert runs[which].compared(overrides=TimingOverrides(extra_cycles={size: 1})).unequal()


@pytest.mark.parametrize(
    "change",
    [
        ("sampler.h", "begins_.front() <= now", "begins_.front() < now"),
        ("sampler.h", "coming_.front() < now", "coming_.front() <= now"),
        ("sampler.h", "std::clamp<int64_t>(left, 1, sizes_.lanes)", "int64_t(sizes_.lanes)"),
    ],
    ids=["leaves late", "comes early", "no vocabulary"],
)
def test_twins_of_the_queue_are_noticed(runs, changed_model, change):
    changed_model(change)
    assert runs["narrow"].compared().unequal()


@pytest.fixture(scope="module")
def built_4():
    return build_board(core_config("16x4r4"))


@pytest.fixture(scope="module")
def tiny_4(tmp_path_factory):
    return compiled(CHECKPOINT, "16x4r4", tmp_path_factory.mktemp("rows") / "program")


@pytest.mark.parametrize("drawn", [ALL, LARGEST], ids=["all", "largest"])
def test_a_prompt_on_several_rows_is_drawn_as_row_0_says(built_4, tiny_4, changed_model, drawn):
    """Rows 1 and 2 decide. Twin: each of them as its own registers say, which is the arg-max."""
    found = ran(sampling(folder_run(tiny_4, 0, 6, 2), drawn), built_4, HbmTiming(seed=2))
    assert not found.compared().misses()
    changed_model(("sampler.h", "cfg.row[is_batch(sizes, cfg) ? r : 0]", "cfg.row[r]"))
    assert found.compared().unequal()


def test_int8_weights_bring_two_strips_a_row(narrow_int8):
    """The head does not wait, its queue holds them; the token does. Twin: one token a cycle is taken apart."""
    found = ran(sampling(folder_run(narrow_int8, 0, 2, 2), ALL), build_board(core_config("16x4i8")), MemoryTiming())
    assert not found.compared().misses() and found.counters["stall_token"] > VOCAB // 2
    assert found.compared(overrides=TimingOverrides(extra_cycles={"sampler_ways": -1})).unequal()


def test_requests_that_sample_each_in_its_way(built_4, tiny_4):
    """The step ends when the last row has its token. Twin: as if the first row's were all."""
    ways = (None, LARGEST, ALL, None)
    requests = {row: Request(0, 1 + row % 2, 2, sampling=drawn) for row, drawn in enumerate(ways)}
    found = ran(batch_run("batch", Program.load(tiny_4), requests), built_4, MemoryTiming())
    assert not found.compared().misses()
    changed = {**found.run.registers, "sampling_1": 0}
    assert dataclasses.replace(found, run=dataclasses.replace(found.run, registers=changed)).compared().unequal()
