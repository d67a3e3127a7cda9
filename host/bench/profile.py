"""Where the cycles of a decode step and of its run went, by bucket, layer, instruction and unit: `ringfly profile`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from host.bench.exposed_sync import ExposedSync, TimedStep
from host.bench.timed_program import TimedProgram, announce, milliseconds
from host.errors import BadInput
from host.runtime.program_folders import load_programs
from hw.board.program import Program
from sim.rtl.build import BuiltBoard, build_board
from sim.rtl.verilog_record import verilog_sha256
from sim.timing.attribution import LOST, Attribution, Ledger, counter_attribution
from sim.timing.comparison import Comparison, compare
from sim.timing.gateware import Run, board_runs
from sim.timing.result import TimingResult
from sim.timing.ring_comparison import ring_gateware_run
from sim.timing.steady_step import DecodeRun
from sim.timing.trace import trace_json
from sim.timing.units import unit_losses, unit_work

__all__ = ["GatewareProfile", "StepProfile", "chosen_run", "profile_gateware", "profile_step"]

_STEADY_STEPS, _DEFAULT_ATTENDED = 2, 128
_RUN_LIMIT = 4  # times the cycles that timing says


@dataclasses.dataclass(frozen=True)
class StepProfile:
    """A run on the timing model, with everything that is known about its last step on one of its boards.

    Members: `board`: which; `result`, `ledger`: of it; `step`: of all boards; `exposed`: what the length of the cables
    costs, none on one board.
    """

    timed: TimedProgram
    run: DecodeRun
    board: int
    result: TimingResult
    ledger: Ledger
    step: TimedStep
    exposed: ExposedSync | None

    @property
    def program(self) -> Program:
        """What the board runs."""
        return self.timed.programs[self.board]

    def facts(self) -> dict[str, object]:
        """The report for `--json`. `step` is of all boards together; what is finer is of the one board."""
        ledger, last, whole = self.ledger, self.run.last, self.step.whole
        return {
            **_head(self.timed, self.run),
            "executor": "timing",
            "cycles_source": "timing",
            "verilog_sha256": verilog_sha256(self.program.core),
            "step": {**whole.facts(), "ms_at_200mhz": milliseconds(whole.cycles)},
            "exposed_sync_fraction": 0 if self.exposed is None else self.exposed.fraction,
            "exposed_sync": [] if self.exposed is None else [self.exposed.facts()],
            "board_cycles": [part.cycles for part in self.step.boards],
            "board": self.board,
            "board_step": self.step.boards[self.board].facts(),
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
        """The run of the board for chrome://tracing and ui.perfetto.dev."""
        facts = {**_head(self.timed, self.run), "board": self.board, **self.timed.conditions()}
        return trace_json(self.program, self.result, self.ledger, {**facts, "cycles_source": "timing"})


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
    as has to be computed. A run on gateware starts at position 0 or behind seeded rows. On a core with rows it is a
    batch of so many requests; on gateware one sequence. Raises BadInput.
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
    if on_gateware:
        return DecodeRun(attended, steps, min(timed.cached, first))
    return DecodeRun(attended, steps, first, timed.rows)


def profile_step(timed: TimedProgram, run: DecodeRun, board: int = 0) -> StepProfile:
    """Run it on the timing model and look at one board. Raises TimingError, BadInput for a board that is not there."""
    if not 0 <= board < timed.boards:
        raise BadInput(
            f"board must be 0 to {timed.boards - 1}, got {board}", value=board, expected=f"0 to {timed.boards - 1}"
        )
    several = timed.boards > 1
    cycles = run.steps * timed.step_rows(run.attended, requests=run.requests)
    announce(f"{run.steps} decode steps", (2 if several else 1) * cycles)
    results = run.time(timed.machine, events=True)
    pairs = zip(timed.programs, results, strict=True)
    ledgers = [Ledger(program, result, run.prompt_end) for program, result in pairs]
    step = TimedStep(tuple(ledger.step(run.last) for ledger in ledgers))
    exposed = None
    if several:
        without = TimedStep.of(timed.with_hop(0.0), run)
        exposed = ExposedSync(timed.links.hop_ns, step.whole.cycles, without.whole.cycles)
    return StepProfile(timed, run, board, results[board], ledgers[board], step, exposed)


def profile_gateware(timed: TimedProgram, run: DecodeRun, folder: Path, seed: int) -> GatewareProfile:
    """Run `folder` on its gateware, which is built if need be, and on the timing model.

    `seed` draws the prompt's token ids. Raises BoardError, BoardStuckError, BuildError, ToolMissingError, TimingError.
    """
    results = run.time(timed.machine)
    built = build_board(timed.program.core)
    cycles = max(result.cycles for result in results)
    announce(f"the run of {folder} on gateware", timed.boards * cycles)
    runs = board_runs(folder.name, load_programs(folder), run.position, run.prompt_end, run.steps, seed)
    compared = _compared(runs, built, timed, _RUN_LIMIT * cycles)
    gateware, timing = [], []
    for program, result, one in zip(timed.programs, results, compared, strict=True):
        ledger = Ledger(program, result, run.prompt_end)
        gateware.append(counter_attribution(one.rtl, ledger))
        timing.append(counter_attribution(one.timing, ledger))
    sides = Attribution.of_ring(gateware), Attribution.of_ring(timing)
    return GatewareProfile(timed, run, *sides, built.verilog_sha256)


def _compared(runs: Sequence[Run], built: BuiltBoard, timed: TimedProgram, max_cycles: int) -> Sequence[Comparison]:
    if timed.boards == 1:
        return [compare(runs[0], built, timed.memory, name=timed.memory_name, max_cycles=max_cycles)]
    ran = ring_gateware_run(runs, built, timed.memory, timed.memory_name, timed.links, max_cycles=max_cycles)
    return ran.compared()


def _head(timed: TimedProgram, run: DecodeRun) -> dict[str, object]:
    return {
        "model": timed.label,
        "core": timed.program.core.name,
        "memory": timed.memory_name,
        "boards": timed.boards,
        "rows": timed.rows,
        "requests": run.requests,
        "hop_ns": timed.links.hop_ns if timed.boards > 1 else None,
        "kv": run.attended,
        "tokens": run.steps,
        "first_position": run.position,
        "prompt_end": run.prompt_end,
    }
