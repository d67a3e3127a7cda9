"""Cores with int8 weights take exactly the cycles of the gateware on the timing model."""

from __future__ import annotations

import dataclasses

import pytest

from host.compiler import compile_model
from host.compiler.model_choice import chosen_model
from hw.board.gpt2_map import ErrorCode, Flags
from hw.board.program import Program
from hw.gpt2.config import core_config
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.programs import random_case
from sim.programs.ring_case import random_ring_case
from sim.rtl.build import build_board
from sim.timing.comparison import gateware_run
from sim.timing.gateware import batch_run, case_run, folder_run
from sim.timing.ring_comparison import ring_gateware_run
from sim.timing.run_start import Request
from sim.timing.table import memories

FAST, SLOW = range(6), range(6, 41)
CHECKPOINT = "checkpoints/gpt2-tiny"
KINDS = tuple(name for name, _ in memories(0))


@pytest.fixture(scope="module")
def built():
    return build_board(core_config("16x4i8"))


def ran(run, built, memory, name=""):
    """The run on gateware; None if it met a value that is no number, of which the timing model knows nothing."""
    found = gateware_run(run, built, memory, name, max_cycles=2_000_000)
    assert found.counters["error"] in (ErrorCode.NONE, ErrorCode.NAN_LOGITS)
    return None if found.counters["error"] else found


def test_random_programs(built, tmp_path):
    compared = 0
    for seed in FAST:
        name, memory = memories(seed)[seed % 3]
        if found := ran(case_run(random_case(seed, built.config), tmp_path), built, memory, name):
            comparison = found.compared()
            assert not comparison.unequal() and not comparison.unattributed, f"seed {seed}, {name}"
            compared += 1
    assert compared > 3


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SLOW.start, SLOW.stop, 7))
def test_all_random_programs(built, tmp_path, first):
    for seed in range(first, first + 7):
        run = case_run(random_case(seed, built.config), tmp_path)
        for name, memory in memories(seed):
            if found := ran(run, built, memory, name):
                assert not found.compared().misses(), f"seed {seed}, {name}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    target = tmp_path_factory.mktemp("int8") / "gpt2-tiny"
    compile_model(chosen_model(CHECKPOINT), core_config("16x4i8"), target)
    return target


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_the_checkpoint(built, checkpoint, kind):
    found = ran(folder_run(checkpoint, 0, 4 + kind, 2), built, memories(kind)[kind][1])
    assert found and not found.compared().misses()


@pytest.mark.parametrize(("seed", "boards"), [(0, 2), (5, 3)])
def test_random_rings(built, tmp_path, seed, boards):
    runs = []
    for number, case in enumerate(random_ring_case(seed, built.config, boards).boards):
        (tmp_path / str(number)).mkdir()
        runs.append(case_run(case, tmp_path / str(number)))
    found = ring_gateware_run(runs, built, MemoryTiming(), "fixed", LinkTiming(hop_ns=500.0))
    assert not any(comparison.unequal() for comparison in found.compared())
    longer = found.compared(links=LinkTiming(hop_ns=510.0))
    assert any(comparison.unequal() for comparison in longer)


@pytest.mark.slow
def test_a_core_with_rows(tmp_path):
    """Random sequences and batches, and requests of different lengths of the checkpoint. Twin: all of one length."""
    built = build_board(core_config("16x4r4i8"))
    compared = {False: 0, True: 0}
    for seed in range(8):
        run = case_run(random_case(seed, built.config), tmp_path)
        name, memory = memories(seed)[seed % 3]
        if found := ran(run, built, memory, name):
            assert not found.compared().misses(), f"seed {seed}, {name}"
            compared[bool(run.registers["flags"] & Flags.BATCH)] += 1
    assert min(compared.values()) > 0
    compile_model(chosen_model(CHECKPOINT), built.config, tmp_path / "gpt2-tiny")
    board = Program.load(tmp_path / "gpt2-tiny")
    batch = batch_run("batch", board, {row: Request(0, 2 + row, 5 - row) for row in range(4)})
    found = ran(batch, built, MemoryTiming())
    assert found and not found.compared().misses()
    alike = batch_run("alike", board, {row: Request(0, 2, 5) for row in range(4)})
    assert dataclasses.replace(found, run=alike).compared().unequal()


TWINS = {
    "a row serves one strip": (("issue.h", "inner_ += served_;", "++inner_;"),),
    "results leave two a cycle": (("result_queue.h", "free_at_ = first + results;", "free_at_ = first + 1;"),),
    "an odd strip is free with the even one": (
        ("issue.h", "out.first_at + i + sizes_.written", "out.first_at + sizes_.written"),
    ),
    "no rows of scales": (("issue.h", "if (served_ == 2 && code_->first) ++rows_;", ""),),
    "parameters come one strip a cycle": (
        ("issue.h", "sizes_.param_strips / sizes_.strips_per_row", "sizes_.param_strips"),
    ),
}


@pytest.fixture(scope="module")
def gateware_runs(built, checkpoint, tmp_path_factory):
    """What the twins are compared with."""
    runs = [(folder_run(checkpoint, 0, 4, 2), MemoryTiming())]
    for seed in range(6):
        runs.append((case_run(random_case(seed, built.config), tmp_path_factory.mktemp(str(seed))), MemoryTiming()))
    found = [ran(run, built, memory) for run, memory in runs]
    return [one for one in found if one is not None]


def test_the_model_itself_differs_nowhere(gateware_runs, differs):
    assert len(gateware_runs) >= 4 and not any(map(differs, gateware_runs))


@pytest.mark.parametrize("twin", TWINS)
def test_twins_are_noticed(gateware_runs, changed_model, differs, twin):
    changed_model(*TWINS[twin])
    assert any(map(differs, gateware_runs))
