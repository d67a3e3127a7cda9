"""What the rows of a core work on: requests, the steps of a run and how each request ends (docs/rows.md, section 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hw.board.gpt2_map import row_register

from .register_file import RegisterFile

__all__ = ["Request", "RowWork", "StepWork", "batch_step", "sequence_step"]


@dataclasses.dataclass(frozen=True)
class RowWork:
    """One row's part of a step: its position, the token there, and whether its logits decide on a token."""

    row: int
    position: int
    token: int
    decides: bool


@dataclasses.dataclass(frozen=True)
class StepWork:
    """One step: the active rows in order.

    ``prompt``: instructions with ``decode_only`` are skipped. ``batch``: each row attends to keys and values of its
    own.
    """

    rows: tuple[RowWork, ...]
    prompt: bool
    batch: bool

    def text(self) -> str:
        """For messages: the positions, in a batch with their rows."""
        if self.batch:
            return ", ".join(f"position {work.position} of row {work.row}" for work in self.rows)
        first, last = self.rows[0].position, self.rows[-1].position
        return f"position {first}" if first == last else f"positions {first} to {last}"


class Request:
    """Tokens that one row (of a sequence: row 0) has to make.

    Parameters
    ----------
    row : int
    registers : RegisterFile
        Read for what the request asks, written for ``tokens_valid``.
    tokens : list of int
        The row's token window.

    ``position`` is the next one to process.
    """

    def __init__(self, row: int, registers: RegisterFile, tokens: list[int]) -> None:
        self.row = row
        self.tokens = tokens
        self._registers = registers
        self._made = 0
        self.position = self["position"]

    def __getitem__(self, name: str) -> int:
        return self._registers[row_register(name, self.row)]

    def in_range(self) -> bool:
        """Whether the start registers make sense."""
        limit = self._registers["context_limit"]
        return self["position"] < self["prompt_end"] <= limit and self["max_new_tokens"] > 0

    def append(self, position: int, token: int) -> bool:
        """Take the token that follows a position; True if it was the last one."""
        self.tokens[position + 1] = token
        self._registers[row_register("tokens_valid", self.row)] = position + 2
        self._made += 1
        stops = [self[f"stop_{i}"] for i in range(min(self["stop_count"], 4))]
        full = position + 1 == self._registers["context_limit"]
        return self._made == self["max_new_tokens"] or token in stops or full


def sequence_step(request: Request, rows: int) -> StepWork:
    """The positions that a core of ``rows`` rows takes next of one sequence: the prompt's rest in a group of rows."""
    first, end = request.position, request["prompt_end"]
    last = first if first + 1 >= end else min((first | (rows - 1)) + 1, end) - 1
    prompt = last + 1 < end
    taken = range(first, last + 1)
    work = tuple(RowWork(p % rows, p, request.tokens[p], not prompt and p == last) for p in taken)
    return StepWork(work, prompt, batch=False)


def batch_step(requests: Sequence[Request]) -> StepWork:
    """The next position of each request; only those whose prompt ends there decide."""
    work = tuple(RowWork(r.row, r.position, r.tokens[r.position], r.position + 1 >= r["prompt_end"]) for r in requests)
    return StepWork(work, prompt=not any(row.decides for row in work), batch=True)
