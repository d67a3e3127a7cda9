"""What waiting for other boards costs a decode step: the step minus the same step with cables of no length."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from host.bench.timed_program import TimedProgram
from sim.timing.attribution import Attribution, Ledger
from sim.timing.steady_step import DecodeRun

__all__ = ["USUAL_HOPS_NS", "ExposedSync", "TimedStep", "steps_by_hop"]

USUAL_HOPS_NS = (200.0, 500.0, 1000.0)


@dataclasses.dataclass(frozen=True)
class TimedStep:
    """Where the cycles of a decode step went, on each board and on all together."""

    boards: tuple[Attribution, ...]

    @classmethod
    def of(cls, timed: TimedProgram, run: DecodeRun) -> TimedStep:
        """The last step of `run`. Raises TimingError."""
        pairs = zip(timed.programs, run.time(timed.machine), strict=True)
        return cls(tuple(Ledger(program, result, run.prompt_end).step(run.last) for program, result in pairs))

    @property
    def whole(self) -> Attribution:
        """As long as on the slowest board."""
        return Attribution.of_ring(self.boards)


@dataclasses.dataclass(frozen=True)
class ExposedSync:
    """A decode step with hops of `hop_ns` nanoseconds: its cycles, and those of the same step with hops of 0 ns.

    What ports and nodes take is part of both, and so is a hop's one cycle at least.
    """

    hop_ns: float
    cycles: int
    cycles_without_hops: int

    @property
    def exposed_cycles(self) -> int:
        """Cycles that the length of the cables costs; refreshes that fall elsewhere can make it a few less than 0."""
        return self.cycles - self.cycles_without_hops

    @property
    def fraction(self) -> float:
        """The same as a part of the step."""
        return self.exposed_cycles / self.cycles if self.cycles else 0.0

    def facts(self) -> dict[str, object]:
        """The figures for `--json`."""
        return {
            "hop_ns": self.hop_ns,
            "cycles": self.cycles,
            "exposed_cycles": self.exposed_cycles,
            "exposed_sync_fraction": self.fraction,
        }


def steps_by_hop(timed: TimedProgram, run: DecodeRun, hops_ns: Collection[float]) -> dict[float, TimedStep]:
    """The last step of `run` with each of `hops_ns`, two at a time if there are processors. Raises TimingError."""
    hops = sorted(set(hops_ns))

    def step(hop_ns: float) -> TimedStep:
        return TimedStep.of(timed.with_hop(hop_ns), run)

    with ThreadPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as pool:
        return dict(zip(hops, pool.map(step, hops), strict=True))
