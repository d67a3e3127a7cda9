"""Where the cycles of a decode step and of its run went, by bucket, layer, instruction and unit: `ringfly profile`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from host.bench.timed_program import TimedProgram, announce, milliseconds
from host.errors import BadInput
from sim.rtl.build import build_board
from sim.rtl.verilog_record import verilog_sha256
from sim.timing.attribution import LOST, Attribution, Ledger, counter_attribution
from sim.timing.comparison import compare, folder_run
from sim.timing.interpolation import step_rows
from sim.timing.result import TimingResult
from sim.timing.steady_step import DecodeRun
from sim.timing.trace import trace_json
from sim.timing.units import unit_losses, unit_work

__all__ = ["GatewareProfile", "StepProfile", "chosen_run", "profile_gateware", "profile_step"]

_STEADY_STEPS, _DEFAULT_ATTENDED = 2, 128
_RUN_LIMIT = 4  # times the cycles that timing says


@dataclasses.dataclass(frozen=True)
class StepProfile:
    """A run on the timing model, with everything that is known about its last step."""

    timed: TimedProgram
    run: DecodeRun
    result: TimingResult
    ledger: Ledger

    @property
    def step(self) -> Attribution:
        """The last step."""
        return self.ledger.step(self.run.last)

    def facts(self) -> dict[str, object]:
        """The report for `--json`."""
        ledger, last = self.ledger, self.run.last
        return {
            **_head(self.timed, self.run),
            "executor": "timing",
            "cycles_source": "timing",
            "verilog_sha256": verilog_sha256(self.timed.program.core),
            "step": {**self.step.facts(), "ms_at_200mhz": milliseconds(self.step.cycles)},
            "run": ledger.run().facts(),
            "layers": [
                {"name": name, **part.facts(), "lost_by_unit": unit_losses(part)} for name, part in ledger.layers(last)
            ],
            "instructions": [
                {"index": index, "name": name, **part.facts()} for index, name, part in ledger.instructions(last)
            ],
            "units": [
                {
                    "unit": work.unit,
                    "worked_cycles": work.worked,
                    "share": work.share,
                    "lost_cycles": dict(work.lost_cycles),
                }
                for work in unit_work(ledger, self.result, last)
            ],
            "conditions": {**self.timed.conditions(), "step": self.run.step_meaning},
        }

    def trace(self) -> dict[str, object]:
        """The run for chrome://tracing and ui.perfetto.dev."""
        facts = {**_head(self.timed, self.run), **self.timed.conditions(), "cycles_source": "timing"}
        return trace_json(self.timed.program, self.result, self.ledger, facts)


@dataclasses.dataclass(frozen=True)
class GatewareProfile:
    """One run on the gateware and on the timing model, each by its own counters."""

    timed: TimedProgram
    run: DecodeRun
    gateware: Attribution
    timing: Attribution
    verilog_sha256: str

    def rows(self) -> list[tuple[str, int | float, int | float]]:
        """(name, cycles of the gateware, cycles of the timing model): all cycles, useful ones, and each bucket."""
        first, second = self.gateware, self.timing
        lost = ((name, first.lost_cycles[name], second.lost_cycles[name]) for name in LOST)
        return [
            ("cycles", first.cycles, second.cycles),
            ("useful", first.useful_cycles, second.useful_cycles),
            *lost,
        ]

    def facts(self) -> dict[str, object]:
        """The report for `--json`."""
        return {
            **_head(self.timed, self.run),
            "executor": "rtl",
            "cycles_source": "rtl",
            "verilog_sha256": self.verilog_sha256,
            "run": self.gateware.facts(),
            "timing_run": self.timing.facts(),
            "difference": {name: timing - gateware for name, gateware, timing in self.rows()},
            "conditions": {
                **self.timed.conditions(),
                "weights": "those of the program folder; the prompt's token ids are drawn from the seed",
                "buckets": "by the hardware's stall registers and the harness's refresh counter, for the whole run; "
                "tiles are split by the program",
            },
        }


def chosen_run(timed: TimedProgram, attended: int | None, steps: int | None, *, on_gateware: bool) -> DecodeRun:
    """The run that is profiled: `steps` tokens, of which the last attends to `attended` positions.

    Without `attended`: 128, or what the cache has; on gateware, and for a folder with seeded keys and values, as little
    as has to be computed. A run on gateware starts at position 0 or behind seeded rows. Raises BadInput.
    """
    if steps is not None:
        timed.check_positions("tokens", steps)
    if attended is None:
        least = max(timed.cached + 1, steps or min(_STEADY_STEPS, timed.context))
        attended = least if on_gateware or timed.cached else min(_DEFAULT_ATTENDED, timed.context)
    timed.check_positions("kv", attended)
    steps = min(_STEADY_STEPS, attended) if steps is None else steps
    if steps > attended:
        raise BadInput(
            f"{steps} tokens need as many positions, the last of them attends to {attended}",
            value=steps,
            expected=f"at most {attended}",
            hint="Give a larger --kv or fewer --tokens.",
        )
    first = attended - steps
    return DecodeRun(attended, steps, min(timed.cached, first) if on_gateware else first)


def profile_step(timed: TimedProgram, run: DecodeRun) -> StepProfile:
    """Run it on the timing model. Raises TimingError."""
    announce(f"{run.steps} decode steps", run.steps * step_rows(timed.program, run.attended))
    result = run.time(timed.program, timed.memory, events=True)
    return StepProfile(timed, run, result, Ledger(timed.program, result, run.prompt_end))


def profile_gateware(timed: TimedProgram, run: DecodeRun, folder: Path, seed: int) -> GatewareProfile:
    """Run `folder` on its gateware, which is built if need be, and on the timing model.

    `seed` draws the prompt's token ids. Raises BoardError, BoardStuckError, BuildError, ToolMissingError, TimingError.
    """
    result = run.time(timed.program, timed.memory)
    built = build_board(timed.program.core)
    announce(f"the run of {folder} on gateware", result.cycles)
    compared = compare(
        folder_run(folder, run.position, run.prompt_end, run.steps, seed),
        built,
        timed.memory,
        name=timed.memory_name,
        max_cycles=_RUN_LIMIT * result.cycles,
    )
    ledger = Ledger(timed.program, result, run.prompt_end)
    gateware, timing = (counter_attribution(counters, ledger) for counters in (compared.rtl, compared.timing))
    return GatewareProfile(timed, run, gateware, timing, built.verilog_sha256)


def _head(timed: TimedProgram, run: DecodeRun) -> dict[str, object]:
    return {
        "model": timed.label,
        "core": timed.program.core.name,
        "memory": timed.memory_name,
        "boards": 1,
        "kv": run.attended,
        "tokens": run.steps,
        "first_position": run.position,
        "prompt_end": run.prompt_end,
    }
