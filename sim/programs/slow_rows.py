"""A second reading of docs/rows.md: the rows of a core one after the other, each as a core that has one position."""

from __future__ import annotations

from typing import NamedTuple

from hw.board.gpt2_map import Flags

from .random_case import RandomCase
from .slow_core import SlowCore, fresh_memory

__all__ = ["SlowRows", "Step"]


class Step(NamedTuple):
    """One step of a run on several rows: (row, position) of those at work, and whether it was a prompt step."""

    rows: tuple[tuple[int, int], ...]
    prompt: bool


class SlowRows:
    """A case on a core with several rows, position by position (docs/rows.md, section 2); ``kind`` is the core's class.

    ``steps`` are those that the run takes; ``failure`` is error_info of a run that NaN logits have ended.
    """

    def __init__(self, case: RandomCase, kind: type[SlowCore] = SlowCore) -> None:
        self.case = case
        self.rows = case.program.core.rows
        self.steps: list[Step] = []
        self.failure: int | None = None
        self.memory = fresh_memory(case)
        self.cores = [kind(case, row, self.memory) for row in range(self.rows)]

    def run(self) -> tuple[tuple[tuple[int, ...], ...], str, str]:
        """Tokens of each row, hashes of logits, keys and values."""
        if self.case.run_registers["flags"] & Flags.BATCH:
            mask = self.case.run_registers["batch_rows"]
            self._batch([core for row, core in enumerate(self.cores) if mask >> row & 1])
        else:
            self._sequence(self.cores[0])
        tokens = tuple(tuple(core.tokens[i] for i in range(core.valid_tokens)) for core in self.cores)
        return tokens, *self.cores[0].hashes()

    def _sequence(self, core: SlowCore) -> None:
        end, done = core.r["prompt_end"], False
        while not done:
            p = core.p
            q = p if p + 1 >= end else min((p | (self.rows - 1)) + 1, end) - 1
            self.steps.append(Step(tuple((i % self.rows, i) for i in range(p, q + 1)), q + 1 < end))
            for _ in range(p, q + 1):
                core.begin()
                if core.nan:
                    self.failure = core.p
                    return
                done = core.next()

    def _batch(self, active: list[SlowCore]) -> None:
        while active:
            for core in active:
                core.begin()
            rows = tuple((self.cores.index(core), core.p) for core in active)
            self.steps.append(Step(rows, all(core.prompt for core in active)))
            for (row, p), core in zip(rows, active, strict=True):
                if core.nan:
                    self.failure = p | row << 24
                    return
            active = [core for core in active if not core.next()]
