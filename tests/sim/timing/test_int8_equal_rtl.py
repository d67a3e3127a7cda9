"""Cores with int8 weights take exactly the cycles of the gateware on the timing model."""

from __future__ import annotations

import pytest

from host.compiler import compile_model
from host.compiler.model_choice import chosen_model
from hw.board.gpt2_map import ErrorCode
from hw.gpt2.config import core_config
from sim.devices.memory_timing import MemoryTiming
from sim.programs import random_case
from sim.rtl.build import build_board
from sim.timing.comparison import gateware_run
from sim.timing.gateware import case_run, folder_run
from sim.timing.prepared import TimingError
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


def differs(one):
    """Whether any counter does, or the timing model does not come to an end."""
    try:
        return bool(one.compared().unequal())
    except TimingError:
        return True


def test_the_model_itself_differs_nowhere(gateware_runs):
    assert len(gateware_runs) >= 4 and not any(map(differs, gateware_runs))


@pytest.mark.parametrize("twin", TWINS)
def test_twins_are_noticed(gateware_runs, changed_model, twin):
    changed_model(*TWINS[twin])
    assert any(map(differs, gateware_runs))
