"""One run of a board, step after step: which rows work on what, and how it ends (docs/rows.md, section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hw.board.gpt2_map import MAX_BOARDS, ErrorCode, Flags, row_register
from hw.gpt2.config import CoreConfig

from .core_step import CoreStep, IllegalInstructionError
from .exchange import BoardExchange, Waits
from .register_file import RegisterFile
from .requests import Request, StepWork, batch_step, sequence_step

__all__ = ["BoardRun", "Ending"]


class Ending(NamedTuple):
    """Why a run has ended: contents of ``error`` and ``error_info``."""

    error: ErrorCode
    info: int = 0


class BoardRun:
    """A run from its start to its end.

    Parameters
    ----------
    config : CoreConfig
    registers : RegisterFile
        Of the board; the run keeps ``tokens_valid`` of each row, ``tiles`` and the state dump up to date.
    tokens : sequence of list of int
        Token window of each row; the run writes new tokens to them.
    core : CoreStep
    """

    def __init__(
        self, config: CoreConfig, registers: RegisterFile, tokens: Sequence[list[int]], core: CoreStep
    ) -> None:
        self._config = config
        self._registers = registers
        self._core = core
        self._batch = config.rows > 1 and bool(registers["flags"] & Flags.BATCH)
        mask = registers["batch_rows"] if self._batch else 1
        self._active = [Request(row, registers, tokens[row]) for row in range(config.rows) if mask >> row & 1]
        for row in range(config.rows):
            registers[row_register("tokens_valid", row)] = registers[row_register("prompt_end", row)]
        self.refused = self._refusal()
        registers["dump_position"] = registers["position"]
        if self.refused is None:
            self._begin_step()

    def _refusal(self) -> Ending | None:
        """Error START for registers out of range: info is the position of the lowest such row, else of row 0."""
        r = self._registers
        if wrong := [request for request in self._active if not request.in_range()]:
            return Ending(ErrorCode.START, wrong[0].position)
        most_boards = MAX_BOARDS if self._config.has_ring else 1
        alone = r["ring_boards"] <= 1
        if (
            not self._active
            or r["context_limit"] > self._config.context
            or not (alone or r["ring_board"] < r["ring_boards"] <= most_boards)
        ):
            return Ending(ErrorCode.START, r["position"])
        return None

    def join(self, exchange: BoardExchange) -> None:
        """Process the positions of this run together with other boards."""
        self._core.join(exchange)

    def _begin_step(self) -> None:
        step = batch_step(self._active) if self._batch else sequence_step(self._active[0], self._config.rows)
        self._step: StepWork = step
        self._registers["dump_position"] = step.rows[0 if self._batch else -1].position

    def step(self) -> Waits[Ending | None]:
        """Process one step; the result is how the run has ended, None if it goes on. Yields what it waits for."""
        step, r = self._step, self._registers
        try:
            best = yield from self._core.run(step)
        except IllegalInstructionError as error:
            return Ending(ErrorCode.ILLEGAL, error.index)
        r["tiles"], r["dump_committed"] = self._core.tiles, self._core.committed
        for work in step.rows:
            if work.decides and best[work.row].nan:
                return Ending(ErrorCode.NAN_LOGITS, work.position | (work.row << 24 if self._batch else 0))
        self._end_step(step, {work.row: best[work.row].token for work in step.rows if work.decides})
        if not self._active:
            return Ending(ErrorCode.NONE)
        self._begin_step()
        return None

    def _end_step(self, step: StepWork, decided: dict[int, int]) -> None:
        """NEXT: tokens are appended, requests that are complete leave, the others go on behind the step."""
        going_on = []
        for request in self._active:
            last = [work for work in step.rows if work.row == request.row or not self._batch][-1]
            request.position = last.position + 1
            if not (last.decides and request.append(last.position, decided[last.row])):
                going_on.append(request)
        self._active = going_on
