"""Cores with several rows take exactly the cycles of the gateware on the timing model: sequences and batches."""

from __future__ import annotations

import functools

import pytest

from host.compiler import chosen_core, compile_model
from host.compiler.model_choice import chosen_model
from hw.board.gpt2_map import ErrorCode, Flags, row_register
from hw.board.program import Program
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.programs import random_case
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board
from sim.timing.comparison import gateware_run, run_model
from sim.timing.gateware import batch_run, case_run, folder_run, run_gateware
from sim.timing.run import run_batch_timing
from sim.timing.run_start import Request
from sim.timing.table import memories

CORES = ("16x4r2", "16x4r4")
FAST, SLOW = range(5), range(5, 40)
CHECKPOINT = "checkpoints/gpt2-tiny"
KINDS = tuple(name for name, _ in memories(0))


@pytest.fixture(scope="module", params=CORES)
def built(request):
    return build_board(core_config(request.param))


@pytest.fixture(scope="module")
def built_4():
    return build_board(core_config("16x4r4"))


def ran(run, built, memory, name=""):
    """The run on gateware; None if it met a value that is no number, of which the timing model knows nothing."""
    found = gateware_run(run, built, memory, name, max_cycles=2_000_000)
    assert found.counters["error"] in (ErrorCode.NONE, ErrorCode.NAN_LOGITS)
    return None if found.counters["error"] else found


def test_random_programs(built, tmp_path):
    compared = {False: 0, True: 0}
    for seed in FAST:
        run = case_run(random_case(seed, built.config), tmp_path)
        name, memory = memories(seed)[seed % 3]
        if found := ran(run, built, memory, name):
            comparison = found.compared()
            assert not comparison.unequal() and not comparison.unattributed, f"seed {seed}, {name}"
            compared[bool(run.registers["flags"] & Flags.BATCH)] += 1
    assert min(compared.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SLOW.start, SLOW.stop, 7))
def test_all_random_programs(built, tmp_path, first):
    for seed in range(first, first + 7):
        run = case_run(random_case(seed, built.config), tmp_path)
        for name, memory in memories(seed):
            if found := ran(run, built, memory, name):
                assert not found.compared().misses(), f"seed {seed}, {name}"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folder of the shipped checkpoint, compiled for a core."""

    @functools.cache
    def folder(core_name):
        target = tmp_path_factory.mktemp(core_name) / "gpt2-tiny"
        compile_model(chosen_model(CHECKPOINT), chosen_core(core_name), target)
        return target

    return folder


@pytest.fixture(scope="module")
def checkpoint(built, checkpoints):
    return checkpoints(built.config.name)


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_a_prompt_of_the_checkpoint(built, checkpoint, kind):
    """A prompt whose last step is not full, then single positions in different rows."""
    run = folder_run(checkpoint, 0, 6 + kind, 2)
    found = ran(run, built, memories(kind)[kind][1])
    assert found and not found.compared().misses()


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_requests_of_different_lengths(built, checkpoint, kind):
    """Some decide while others have prompt left, and they end one after the other."""
    rows = built.config.rows
    requests = {row: Request(0, 2 + row, rows - row + 1) for row in range(rows)}
    run = batch_run("batch", Program.load(checkpoint), requests, seed=kind)
    found = ran(run, built, memories(kind)[kind][1])
    assert found and not found.compared().misses()
    assert [len(tokens) for tokens in found.tokens] == [3 + rows] * rows


def test_a_batch_that_has_a_hole_and_stops(built_4, checkpoints):
    """Rows 1 and 3 alone; row 1 ends at a stop id."""
    folder = checkpoints("16x4r4")
    free = batch_run("free", Program.load(folder), {1: Request(0, 3, 3), 3: Request(0, 5, 3)})
    memory = HbmTiming(seed=4)
    found = ran(free, built_4, memory)
    assert found and not found.compared().misses()
    stop = found.tokens[1][-2]
    stopping = batch_run("stopping", Program.load(folder), {1: Request(0, 3, 3, (stop,)), 3: Request(0, 5, 3)})
    stopped = ran(stopping, built_4, memory)
    assert stopped and not stopped.compared().misses()
    assert len(stopped.tokens[1]) < len(found.tokens[1]) and len(stopped.tokens[3]) == len(found.tokens[3])


def test_all_rows_write_logits_over_a_slow_memory(built, tmp_path):
    """The writers' queues fill up, so the arbiters between them decide what is written when."""
    memory = MemoryTiming(write_min=700, write_max=700)
    for seed in range(40):
        run = case_run(random_case(seed, built.config), tmp_path)
        batch = run.registers["flags"] & Flags.BATCH and run.registers["batch_rows"] == (1 << built.config.rows) - 1
        fills = batch and 2000 < run_model(run, run.tokens, memory)["stall_result"] < 20_000
        if fills and (found := ran(run, built, memory)):
            assert not found.compared().misses()
            return
    pytest.fail("no random program fills the logits writers")


def test_a_start_out_of_range(built, tmp_path):
    """A batch without rows, and one of whose requests has nothing to do, while others have."""
    case = random_case(3, built.config)
    run = case_run(case, tmp_path)
    wrong = {row_register("max_new_tokens", built.config.rows - 1): 0, "batch_rows": (1 << built.config.rows) - 1}
    for changes in (wrong, {"batch_rows": 0}):
        run.registers.update(changes | {"flags": int(Flags.BATCH)})
        with RtlBoard(built) as board:
            rtl, _ = run_gateware(run, board)
        assert rtl["error"] == ErrorCode.START
    requests = {row: Request(0, 1, int(row < built.config.rows - 1)) for row in range(built.config.rows)}
    result = run_batch_timing(run.program, requests, memory=MemoryTiming())
    assert (result.cycles, result.counters["stall_drain"]) == (rtl["cycles"], rtl["stall_drain"])


TWINS = {
    "no idle cycles between rows in the writer": (
        ("kv_writer.h", "state_ = PRODUCTS;\n            return;", "return;"),
    ),
    "the writer writes one row": (("kv_writer.h", "now_.rows &= now_.rows - 1;", "now_.rows = 0;"),),
    "the writer turns slots by the head": (("kv_writer.h", "head_ * sizes_.rows", "head_"),),
    "softmax of row 0 for all": (("issue.h", "h.rows[r].softmax", "h.rows[0].softmax"),),
    "scalars of row 0 for all": (("issue.h", "h.rows[r].statistics", "h.rows[0].statistics"),),
    "vector of row 0 for all": (("core.h", "now < rows_[r].statistics.free_at", "now < rows_[0].statistics.free_at"),),
    "one token of a step is read": (("fetch.h", "tokens_left_ = sizes_.rows", "tokens_left_ = 1"),),
    "ended rows are not asked": (("fetch.h", "++row_ != sizes_.rows)", "++row_ != sizes_.rows && alive_ >> row_)"),),
    "the reader repeats nothing": (("reader.h", "if (by_row_ && step_.rows & ~done_rows_)", "if (false)"),),
    "the reader takes row 0's position": (("reader.h", "step_.positions[of_row()]", "step_.positions[0]"),),
    "writers take turns": (
        ("write_arbiter.h", "urgent_valid && !shown_;", "urgent_valid && !shown_ && !turn_;"),
        ("write_arbiter.h", "if (!urgent_turn) shown_", "turn_ = !turn_;\n        if (!urgent_turn) shown_"),
        ("write_arbiter.h", "bool shown_ = false;", "bool shown_ = false, turn_ = false;"),
    ),
}


@pytest.fixture(scope="module")
def gateware_runs(built_4, checkpoints, tmp_path_factory):
    """What the twins are compared with: a sequence and a batch of the checkpoint, and random programs."""
    folder = checkpoints("16x4r4")
    batch = batch_run("batch", Program.load(folder), {row: Request(0, 1 + row, 3 - row // 2) for row in range(4)})
    runs = [(folder_run(folder, 0, 7, 2), MemoryTiming()), (batch, MemoryTiming())]
    for seed in range(6):
        folder = tmp_path_factory.mktemp(str(seed))
        runs.append((case_run(random_case(seed, built_4.config), folder), MemoryTiming(write_min=900, write_max=900)))
    found = [ran(run, built_4, memory) for run, memory in runs]
    return [one for one in found if one is not None]


def test_the_model_itself_differs_nowhere(gateware_runs, differs):
    assert len(gateware_runs) >= 6 and not any(map(differs, gateware_runs))


@pytest.mark.parametrize("twin", TWINS)
def test_twins_are_noticed(gateware_runs, changed_model, differs, twin):
    changed_model(*TWINS[twin])
    assert any(map(differs, gateware_runs))


def test_a_reader_that_runs_ahead_in_a_batch_is_noticed(gateware_runs, changed_model, differs):
    """It takes the next step's positions for granted instead of waiting for fetch to begin it."""
    step = "step_ = batch_ ? in.step : sequence_step(sizes_, cfg_, position_);"
    ahead = "if (batch_ && steps) each_row(step_.rows, [&](uint32_t r) { ++step_.positions[r]; }); else "
    changed_model(
        ("reader.h", "if (batch_ && in.steps == steps) break;", "if (batch_ && !in.steps) break;"),
        ("reader.h", f"steps = in.steps;\n                {step}", f"{ahead}{step} ++steps;"),
        ("fetch.h", "if (batch_ && read != steps) break;", ""),
    )
    batches = [one for one in gateware_runs if one.run.registers["flags"] & Flags.BATCH]
    assert any(map(differs, batches))
    assert not any(differs(one) for one in gateware_runs if one not in batches)
