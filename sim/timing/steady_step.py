"""Which run stands for a decode step, and where in it the step is."""

from __future__ import annotations

import dataclasses

from sim.timing.machine import Machine
from sim.timing.result import TimingResult

__all__ = ["STEP_MEANING", "DecodeRun"]

STEP_MEANING = (
    "the last of {steps} decode steps{batch} at consecutive positions, from the last tile of the position before to "
    "its own last tile"
)


@dataclasses.dataclass(frozen=True)
class DecodeRun:
    """A run of decode steps that ends with ``attended`` positions attended, the newest included.

    ``steps`` tokens are generated. With ``requests`` above 1 it is a batch of so many that are all alike, and each step
    makes a token for each of them. ``position`` is where it starts: the positions from there to the first generated
    token are prompt steps. The steady step is the second of two; with one position attended there is only one.
    Raises ValueError for sizes below 1 or positions below 0.
    """

    attended: int
    steps: int
    position: int
    requests: int = 1

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ValueError(f"requests must be 1 or more, got {self.requests!r}")
        if not 1 <= self.steps <= self.attended or not 0 <= self.position <= self.first:
            raise ValueError(
                f"needs 1 <= steps <= attended and 0 <= position <= attended - steps, got steps {self.steps!r}, "
                f"attended {self.attended!r}, position {self.position!r}"
            )

    @classmethod
    def steady(cls, attended: int, requests: int = 1) -> DecodeRun:
        """Two decode steps, of which the second is the steady one; with one position attended the only one."""
        steps = min(2, attended)
        return cls(attended, steps, attended - steps, requests)

    @property
    def first(self) -> int:
        """Position of the first decode step."""
        return self.attended - self.steps

    @property
    def last(self) -> int:
        """Position of the last decode step."""
        return self.attended - 1

    @property
    def prompt_end(self) -> int:
        """Tokens that are given; the rest is generated."""
        return self.first + 1

    @property
    def step_meaning(self) -> str:
        """What the last step is, in words."""
        if self.position == self.last:
            return "the only step of a run, from the run's start to its last tile"
        batch = f" of a batch of {self.requests} requests" if self.requests > 1 else ""
        return STEP_MEANING.format(steps=self.steps, batch=batch)

    def time(self, machine: Machine, *, events: bool = False) -> tuple[TimingResult, ...]:
        """Run it on the timing model; the result of each board.

        Raises TimingError; ValueError as ``Machine.run`` and ``Machine.run_batch``.
        """
        if self.requests > 1:
            return machine.run_batch(self.requests, self.position, self.prompt_end, self.steps, events=events)
        return machine.run(self.position, self.prompt_end, self.steps, events=events)
