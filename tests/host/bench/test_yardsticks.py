"""Yardsticks: rows of a tiny model by the same code as the design's, and the design's table itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from host.bench.published import Quantity
from host.bench.published_figures import best_published
from host.bench.step_time import time_step
from host.bench.timed_program import TimedProgram
from host.bench.yardstick_gateware import gateware_rows
from host.bench.yardstick_table import RTL_SECONDS_BAR, RTL_YARDSTICKS, YARDSTICKS
from host.bench.yardsticks import Case, Yardstick, limits, yardstick_rows
from sim.timing.run import run_timing

TINY = str(Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny")
KEYS = {
    "work",
    "value",
    "unit",
    "ms",
    "bar",
    "limit",
    "met",
    "cycles_source",
    "conditions",
    "cycles",
    "best_published",
    "seconds",
}


def _tiny(**facts: object) -> Case:
    return Case(TINY, core="16x4", **facts)  # type: ignore[arg-type]


def test_a_step_and_a_prompt() -> None:
    step, prompt = _tiny(attended=40), _tiny(prompt=12)
    rows = yardstick_rows([Yardstick(step, 1.0), Yardstick(prompt, 1e-3), Yardstick(step, None)])
    timed = TimedProgram.of_model(TINY, "16x4", None, "u280", 0)
    run = run_timing(timed.program, position=0, prompt_end=12, max_new_tokens=1, memory=timed.memory)
    assert [row["cycles"] for row in rows[:2]] == [time_step(timed, 40, None)["cycles"], run.token_cycles[0]]
    assert [row["met"] for row in rows] == [True, False, None]
    assert [row["bar"] for row in rows] == [1.0, 1e-3, None]
    for row in rows:
        assert set(row) >= KEYS and row["cycles_source"] == "timing" and len(row["verilog_sha256"]) == 64
        assert row["ms"] == row["cycles"] / 200e3 and 0.5 * row["ms"] < row["limit"] < row["ms"]
        assert row["limit"] == row["limit_even_split"]  # one board has all heads
        conditions = row["conditions"]
        assert "section 8" in conditions["bar_source"] and "placed and routed" in conditions["clocks"]
        assert conditions["boards"] == 1 and conditions["memory"] == "u280"
    assert rows[1]["conditions"]["meaning"].endswith("every position simulated")


def test_exposed_synchronisation() -> None:
    case = _tiny(attended=40, boards=2, hop_ns=1000.0)
    exposed, near, step = yardstick_rows(
        [
            Yardstick(case, 0.9, share=True),
            Yardstick(dataclasses.replace(case, hop_ns=0.0), 1e-6, share=True),
            Yardstick(case, 0.01),
        ]
    )
    report = time_step(TimedProgram.of_model(TINY, "16x4", None, "u280", 0, boards=2, hop_ns=1000.0), 40, None)
    assert step["cycles"] == report["cycles"] and step["met"] is False
    assert exposed["fraction_of_step"] == pytest.approx(report["exposed_sync_fraction"]) and exposed["met"]
    assert exposed["bar"] == 0.9 * step["ms"] and exposed["limit"] == 0.0
    assert exposed["ms"] == pytest.approx(step["ms"] * exposed["fraction_of_step"])
    assert "1,000 ns a hop" in exposed["work"] and exposed["conditions"]["link_parameters"]["hop_ns"] == 1000.0
    assert near["ms"] == 0 and near["met"]  # twin: without length cables cost nothing


def test_gateware_agrees_with_the_timing_model() -> None:
    case = _tiny(attended=40)
    cycles, seconds = gateware_rows([Yardstick(case, 1.0)], {case: 1e-9})
    assert cycles["cycles_source"] == seconds["cycles_source"] == "rtl"
    assert cycles["met"] is True and cycles["ms"] == cycles["cycles"] / 200e3
    assert cycles["conditions"]["equal_to_timing_model"] is True
    assert cycles["conditions"]["timing_model_cycles"] == [cycles["cycles"]]
    assert seconds["met"] is False and seconds["ms"] == pytest.approx(1000 * seconds["seconds"], abs=10)
    assert (seconds["bar"], seconds["unit"], seconds["value"]) == (1e-9, "s", pytest.approx(seconds["ms"] / 1000))


def test_cores_with_rows_and_int8_weights_are_cases_too() -> None:
    """By the core's name alone: their limits are lower, and no figure is below its limit."""
    cases = [
        _tiny(attended=40),
        Case(TINY, core="16x4i8", attended=40),
        _tiny(prompt=24),
        Case(TINY, core="16x4r2", prompt=24),
        Case(TINY, core="16x4r2", attended=40, requests=2),
    ]
    rows = yardstick_rows([Yardstick(case, None) for case in cases])
    assert all(row["limit"] < row["ms"] for row in rows)
    step, int8, prompt, prompt_of_two, two_requests = (row["limit"] for row in rows)
    assert step / 2 < int8 < step < two_requests < 2 * step
    assert 0.45 * prompt < prompt_of_two < 0.6 * prompt
    assert "int8, 1 board, core 16x4i8" in rows[1]["work"] and rows[4]["work"].endswith("of 2 requests")


def test_a_case_is_a_step_or_a_prompt() -> None:
    for wrong in ({}, {"attended": 3, "prompt": 3}):
        with pytest.raises(ValueError, match="a step or a prompt"):
            Case("gpt2-345m", **wrong)


def test_the_designs_table() -> None:
    """Bars, limits and published figures of the design's section 8, row by row."""
    table = [
        (
            one.case.model,
            one.case.boards,
            one.case.core,
            one.case.attended or one.case.prompt,
            one.case.requests,
            one.bar,
            one.best and round(one.best.step_ms or one.best.value, 2),
        )
        for one in YARDSTICKS
        if not one.share
    ]
    assert table == [
        ("gpt2-345m", 1, "64x16", 128, 1, 1.83, 5.4),
        ("gpt2-345m", 1, "64x16", 1000, 1, 2.05, None),
        ("gpt2-1.5b-dfx", 4, "64x16", 128, 1, 1.86, 6.93),
        ("gpt2-xl", 4, "64x16", 128, 1, 2.08, None),
        ("gpt2-345m", 4, "64x16", 128, 1, 0.48, 2.43),
        ("gpt2-345m", 1, "64x16i8", 128, 1, 0.94, 4.36),  # StreamTensor's fastest: 229.6 tokens/s
        ("gpt2-345m", 1, "64x16", 64, 1, 99.0, 349.1),
        ("gpt2-345m", 1, "64x16r2", 64, 1, 50.0, 349.1),
        ("gpt2-345m", 1, "64x16r4", 64, 1, 25.5, 349.1),
        ("gpt2-345m", 1, "64x16r4", 128, 4, 1.93, None),
    ]
    even = [round(limits(one.case)["limit_even_split"], 3) for one in YARDSTICKS if not one.share]
    assert even == [1.757, 1.966, 1.776, 1.979, 0.439, 0.894, 95.122, 47.691, 23.975, 1.849]
    shares = [(one.case.model, one.case.boards, one.case.hop_ns, one.bar) for one in YARDSTICKS if one.share]
    assert shares == [("gpt2-1.5b-dfx", 4, hop, bar) for hop, bar in ((200.0, None), (500.0, 0.02), (1000.0, None))]
    assert all(one.bar is None or one.share or one.bar > limits(one.case)["limit"] for one in YARDSTICKS)
    assert [one.case for one in RTL_YARDSTICKS] == [YARDSTICKS[0].case, YARDSTICKS[3].case]
    assert list(RTL_SECONDS_BAR.items()) == [(YARDSTICKS[0].case, 30.0)]
    sync = best_published(quantity=Quantity.SYNC_FRACTION)
    assert sync is not None and sync.value == 0.173
