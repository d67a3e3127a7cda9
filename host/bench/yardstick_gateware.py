"""Yardsticks whose decode step runs through the gateware itself: its cycles, and how long simulating them takes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from host.bench.gateware_step import StepRun, compile_step, run_step, timed_step
from host.bench.timed_program import ASSUMED_CLOCK_MHZ, milliseconds
from host.bench.yardsticks import BARS_SOURCE, LIMIT_MEANING, Case, Yardstick, limits
from host.compiler import chosen_core, chosen_model
from sim.devices.link_timing import LinkTiming
from sw.models.key_values import SeededKeyValues
from sw.models.weights import Progress, unobserved

__all__ = ["gateware_rows"]

_SEED, _TOKEN = 1, 262


def gateware_rows(
    yardsticks: Sequence[Yardstick],
    seconds_bars: Mapping[Case, float],
    progress: Progress = unobserved,
) -> list[dict[str, Any]]:
    """For each yardstick, whose case is a decode step, a row of its cycles and one of the simulation's time.

    `seconds_bars`: most seconds of simulation, where there is a bar. Models are compiled into a folder that goes with
    them: 0.9 GB for gpt2-345m, 3.5 GB for gpt2-xl. Raises BuildError, ToolMissingError, CompileError.
    """
    rows = []
    for number, yardstick in enumerate(yardsticks):
        progress(f"gateware, {yardstick.case.text}", number, len(yardsticks))
        ran, timing = _run(yardstick.case, progress)
        rows += [_cycles_row(yardstick, ran, timing), _seconds_row(yardstick.case, ran, timing, seconds_bars)]
    return rows


def _run(case: Case, progress: Progress) -> tuple[StepRun, list[int]]:
    """The step through the gateware, and the cycles of each board for the same run on the timing model."""
    attended, core = case.attended or 0, chosen_core(case.core)
    weights = chosen_model(case.model, None if Path(case.model).is_dir() else _SEED)
    cache = SeededKeyValues(weights.config, attended - 1, _SEED)
    links = None if case.boards == 1 else LinkTiming(hop_ns=case.hop_ns)
    with tempfile.TemporaryDirectory(prefix="ringfly-bench-") as folder:
        programs = compile_step(weights, core, Path(folder) / "model", cache, boards=case.boards, progress=progress)
        progress(f"gateware, {case.text}: running", 0, 1)
        ran = run_step("rtl", programs, _TOKEN, attended, links=links)
        return ran, timed_step(programs, _TOKEN, attended, links)


def _cycles_row(yardstick: Yardstick, ran: StepRun, timing: Sequence[int]) -> dict[str, Any]:
    ms = milliseconds(max(ran.board_cycles))
    return {
        "work": f"{yardstick.case.text}, through the gateware",
        "value": ms,
        "unit": "ms",
        "ms": ms,
        "cycles": max(ran.board_cycles),
        "bar": yardstick.bar,
        **limits(yardstick.case),
        "met": None if yardstick.bar is None else ms <= yardstick.bar,
        "best_published": None if yardstick.best is None else yardstick.best.facts(),
        **_facts(yardstick.case, ran, timing),
    }


def _seconds_row(case: Case, ran: StepRun, timing: Sequence[int], seconds_bars: Mapping[Case, float]) -> dict[str, Any]:
    bar = seconds_bars.get(case)
    return {
        "work": f"{case.text}: simulating it through the gateware",
        "value": ran.seconds,
        "unit": "s",
        "ms": 1000 * ran.seconds,
        "cycles": max(ran.board_cycles),
        "bar": bar,
        "limit": None,
        "limit_even_split": None,
        "met": None if bar is None else ran.seconds <= bar,
        "best_published": None,
        **_facts(case, ran, timing),
    }


def _facts(case: Case, ran: StepRun, timing: Sequence[int]) -> dict[str, Any]:
    return {
        "cycles_source": "rtl",
        "verilog_sha256": ran.verilog_sha256,
        "seconds": round(ran.seconds, 2),
        "conditions": {
            "meaning": "one run of one decode step, from start to done, its start and end included",
            "weights": f"seeded, seed {_SEED}; keys and values of the positions before are seeded too",
            "core": case.core,
            "boards": case.boards,
            "hop_ns": case.hop_ns if case.boards > 1 else None,
            "memory": "u280",
            "board_cycles": ran.board_cycles,
            "timing_model_cycles": list(timing),
            "equal_to_timing_model": list(timing) == ran.board_cycles,
            "simulation_seconds": round(ran.seconds, 2),
            "processor_seconds": round(ran.processor_seconds, 2),
            "memory_bytes": ran.memory,
            "assumed_clock_mhz": ASSUMED_CLOCK_MHZ,
            "clocks": "assumed: nothing has been placed and routed",
            "bar_source": BARS_SOURCE,
            "limit_meaning": LIMIT_MEANING,
        },
    }
