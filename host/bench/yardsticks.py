"""The yardsticks of GPT-2: what the design promises, what no core could beat, and what the timing model says.

A `Yardstick` names a case (model, boards, positions or prompt), its bar and the best published figure. `yardstick_rows`
simulates every case that any of them needs once, two at a time, and makes the rows that ``ringfly bench yardsticks``
prints. The table of the design is `host.bench.yardstick_table`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from host.bench.exposed_sync import ExposedSync, TimedStep
from host.bench.published import Published
from host.bench.streamed_work import HALF_BITS, Work, even_split_cycles, limit_cycles
from host.bench.timed_program import ASSUMED_CLOCK_MHZ, TimedProgram, milliseconds
from host.compiler import chosen_core, chosen_sizes
from hw.gpt2.config import CoreConfig
from sim.rtl.verilog_record import verilog_sha256
from sim.timing.interpolation import prefill
from sim.timing.steady_step import DecodeRun
from sw.models.weights import Progress, unobserved

__all__ = ["BARS_SOURCE", "Case", "Simulated", "Yardstick", "limits", "verilog_of", "yardstick_rows"]

BARS_SOURCE = "the project's design, section 8"
LIMIT_MEANING = (
    "weights and K/V at the full rate of all multipliers, divided evenly over the boards, nothing else; "
    "`limit_even_split`: on the busiest board of the most even split of whole heads and of steps of 16 columns"
)
_CORE = "64x16"
_WHOLE = 1 << 62  # rows of the longest prompt that is simulated whole: of any


@dataclasses.dataclass(frozen=True)
class Case:
    """What is timed: a decode step with `attended` positions or a prompt of `prompt` tokens, one of the two.

    Parameters: `model`: as for `TimedProgram.of_model`; `boards`, with cables of `hop_ns`; `core`, whose name may say
    rows and int8 weights (``64x16r4``, ``64x16i8``); `requests` that share a decode step, at most the core's rows.
    """

    model: str
    boards: int = 1
    attended: int | None = None
    prompt: int | None = None
    hop_ns: float = 500.0
    core: str = _CORE
    requests: int = 1

    def __post_init__(self) -> None:
        if (self.attended is None) == (self.prompt is None):
            raise ValueError(f"a case is a step or a prompt, got attended {self.attended}, prompt {self.prompt}")

    @property
    def text(self) -> str:
        """In words."""
        boards = "1 board" if self.boards == 1 else f"{self.boards} boards"
        what = f"prompt of {self.prompt}" if self.attended is None else f"decode step at KV {self.attended:,}"
        core = "" if self.core == _CORE else f", core {self.core}"
        shared = "" if self.requests == 1 else f" of {self.requests} requests"
        return f"{self.model} {chosen_core(self.core).weights}, {boards}{core}, {what}{shared}"

    @property
    def work(self) -> Work:
        """What has to be streamed."""
        if self.attended is not None:
            return Work.decode(self.attended, self.requests)
        return Work.prompt(self.prompt or 0, chosen_core(self.core).rows)

    @property
    def program_key(self) -> tuple[str, int, str]:
        """Cases with the same one run the same programs."""
        return self.model, self.boards, self.core


@dataclasses.dataclass(frozen=True)
class Simulated:
    """A case on the timing model: `cycles`; `timed`: programs, memory and cables; `seconds` of wall clock."""

    cycles: int
    timed: TimedProgram
    seconds: float

    @classmethod
    def of(cls, case: Case, timed: TimedProgram) -> Simulated:
        """Simulate; a prompt whole, position by position. Raises BadInput for sizes outside the cache, TimingError."""
        started = time.monotonic()
        if case.attended is not None:
            timed.check_positions("kv", case.attended)
            cycles = TimedStep.of(timed, DecodeRun.steady(case.attended, case.requests)).whole.cycles
        else:
            prompt = case.prompt or 0
            timed.check_positions("prompt", prompt)
            cycles = prefill(timed.machine, prompt, exact_rows=_WHOLE).cycles
        return cls(cycles, timed, time.monotonic() - started)


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """One promise.

    Parameters
    ----------
    case : what is timed.
    bar : most milliseconds, or of a `share` the largest part of the step; None if it is only printed.
    best : the best published figure, None if there is none.
    share : False: the case's time. True: its exposed synchronisation, the step minus the step with hops of 0 ns.
    """

    case: Case
    bar: float | None
    best: Published | None = None
    share: bool = False

    @property
    def cases(self) -> tuple[Case, ...]:
        """What has to be simulated."""
        return (self.case, dataclasses.replace(self.case, hop_ns=0.0)) if self.share else (self.case,)

    def row(self, simulated: Mapping[Case, Simulated]) -> dict[str, Any]:
        """The row, from the simulated `cases`: `ms`, `bar` and `limit` in milliseconds at an assumed 200 MHz."""
        own = simulated[self.case]
        if self.share:
            return self._share_row(own, simulated[self.cases[1]])
        row = _row(self, milliseconds(own.cycles), self.bar, own)
        return row | {"cycles": own.cycles, **limits(self.case)}

    def _share_row(self, own: Simulated, without: Simulated) -> dict[str, Any]:
        exposed = ExposedSync(self.case.hop_ns, own.cycles, without.cycles)
        bar_ms = None if self.bar is None else self.bar * milliseconds(own.cycles)
        row = _row(self, milliseconds(exposed.exposed_cycles), bar_ms, own)
        row["work"] = f"{self.case.text}: synchronisation exposed at {self.case.hop_ns:,.0f} ns a hop"
        share = {"fraction_of_step": exposed.fraction, "bar_fraction_of_step": self.bar}
        return row | {"cycles": exposed.exposed_cycles, "limit": 0.0, "limit_even_split": 0.0, **share}


def limits(case: Case) -> dict[str, float]:
    """`limit` and `limit_even_split` of a case in milliseconds at an assumed 200 MHz."""
    core, config = chosen_core(case.core), chosen_sizes(case.model).config
    # a row of memory has tile x lanes keys or values, and of int8 weights those of `mm_strips` = 2 strips
    rate, bits = core.tile * core.lanes, HALF_BITS // core.mm_strips
    even = even_split_cycles(config, case.work, case.boards, products_per_cycle=rate, weight_bits=bits)
    least = limit_cycles(config, case.work, case.boards, products_per_cycle=rate, weight_bits=bits)
    cycles_per_ms = 1000 * ASSUMED_CLOCK_MHZ
    return {"limit": least / cycles_per_ms, "limit_even_split": even / cycles_per_ms}


@functools.cache
def verilog_of(core: CoreConfig) -> str:
    """SHA-256 of a core's Verilog, as it is when first asked for: making it can take minutes."""
    return verilog_sha256(core)


def _row(yardstick: Yardstick, ms: float, bar_ms: float | None, own: Simulated) -> dict[str, Any]:
    case = yardstick.case
    return {
        "work": case.text,
        "value": ms,
        "unit": "ms",
        "ms": ms,
        "bar": bar_ms,
        "met": None if bar_ms is None else ms <= bar_ms,
        "cycles_source": "timing",
        "best_published": None if yardstick.best is None else yardstick.best.facts(),
        "verilog_sha256": verilog_of(own.timed.program.core),
        "seconds": round(own.seconds, 2),
        "conditions": {
            **own.timed.conditions(),
            "positions_attended": case.attended,
            "prompt": case.prompt,
            "meaning": _meaning(case),
            "bar_source": BARS_SOURCE,
            "limit_meaning": LIMIT_MEANING,
        },
    }


def _meaning(case: Case) -> str:
    if case.attended is None:
        return "from start to the first new token, every position simulated"
    return DecodeRun.steady(case.attended, case.requests).step_meaning


def yardstick_rows(yardsticks: Sequence[Yardstick], progress: Progress = unobserved) -> list[dict[str, Any]]:
    """The rows of `yardsticks`, in their order. Raises what `TimedProgram.of_model` and `Simulated.of` raise."""
    cases = dict.fromkeys(case for one in yardsticks for case in one.cases)
    programs = {case.program_key: _programs(case) for case in cases}
    timed = {case: _with_cables(programs[case.program_key], case) for case in cases}
    longest_first = sorted(cases, key=lambda case: case.attended is not None)
    done: list[Case] = []

    def simulate(case: Case) -> Simulated:
        found = Simulated.of(case, timed[case])
        done.append(case)
        progress(f"timed {case.text}", len(done), len(cases))
        return found

    with ThreadPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as pool:  # the model runs outside Python's lock
        simulated = dict(zip(longest_first, pool.map(simulate, longest_first), strict=True))
    return [one.row(simulated) for one in yardsticks]


def _programs(case: Case) -> TimedProgram:
    return TimedProgram.of_model(case.model, case.core, None, "u280", 0, boards=case.boards)


def _with_cables(timed: TimedProgram, case: Case) -> TimedProgram:
    return timed if case.boards == 1 else timed.with_hop(case.hop_ns)
