"""Rows that the memory delivers to the matrix unit, in the order of the access program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BoardError, BoardStuckError
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Access, AccessKind, Operand

from .requests import RowWork, StepWork

__all__ = ["RowStream"]


class RowStream:
    """The FIFO between memory and matrix unit, for one run.

    Instructions take rows without knowing which descriptor asked for them, as on the board: a wrong access program
    gives wrong operands, rows that nobody took stand before the next step's, and too few rows are a stuck board. ("Row"
    is a row of memory here, but for the core's rows in what a step is.)

    Parameters
    ----------
    descriptors : sequence of Access
        Up to and including NEXT.
    registers : sequence of mapping
        For each row of the core, its register values by name, sampled at start.
    row_limit : int
        Rows that a channel holds.
    """

    def __init__(
        self, descriptors: Sequence[Access], registers: Sequence[Mapping[str, int]], config: CoreConfig, row_limit: int
    ) -> None:
        self._descriptors = tuple(descriptors)
        self._registers = registers
        self._config = config
        self._row_limit = row_limit
        self._rows: NDArray[np.int64] = np.empty(0, np.int64)
        self._taken = 0
        self.rows_taken = 0

    def begin_step(self, step: StepWork) -> None:
        """Append the rows of one step."""
        spans = self._spans(step)
        for start, count in spans:
            if start + count > self._row_limit:
                raise BoardError(
                    f"access program reads rows {start} to {start + count - 1} at {step.text()}; "
                    f"a channel has {self._row_limit}"
                )
        rest = self._rows[self._taken :]
        self._rows = np.concatenate([rest, *(np.arange(start, start + count) for start, count in spans)])
        self._taken = 0

    def take(self, count: int) -> NDArray[np.int64]:
        """The next rows. Raises BoardStuckError if the access program asked for fewer."""
        if self._taken + count > self._rows.size:
            raise BoardStuckError(
                f"matrix unit waits for {count} rows, the access program delivers {self._rows.size - self._taken} more "
                f"in this step; derive it with hw.gpt2.access.derive_access"
            )
        self._taken += count
        self.rows_taken += count
        return self._rows[self._taken - count : self._taken]

    def _spans(self, step: StepWork) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        pointer = self._registers[0]["weight_base"]
        index = 0
        while index < len(self._descriptors):
            access = self._descriptors[index]
            index += 1
            if access.decode_only and step.prompt:
                continue
            if access.kind == AccessKind.NEXT:
                break
            body, repeats = [access], 1
            if access.kind == AccessKind.LOOP:
                body, repeats = list(self._descriptors[index : index + access.length]), access.count
                index += access.length
            for layer in range(repeats):
                for inner in body:
                    if inner.decode_only and step.prompt:
                        continue
                    if inner.kind == AccessKind.WEIGHTS:
                        spans.append((pointer, inner.count))
                        pointer += inner.count
                    else:
                        for work in _repeated(inner, step):
                            spans += self._other(inner, work, layer)
        return spans

    def _other(self, access: Access, work: RowWork, layer: int) -> list[tuple[int, int]]:
        registers, config = self._registers[work.row], self._config
        heads = range(access.head0, access.head0 + access.heads)
        if access.kind == AccessKind.EMBED:
            base, index = registers["position_base"], work.position
            if access.operand == Operand.TOKEN:
                base, index = registers["token_base"], work.token
            return [(base + index // config.tile * registers["embed_strips"] + access.offset, access.count)]
        if access.kind == AccessKind.KEYS:
            base = registers["key_base"] + layer * registers["key_layer_rows"]
            count = (work.position // config.lanes + 1) * registers["key_words"]
            return [(base + head * registers["key_head_rows"], count) for head in heads]
        if access.kind == AccessKind.VALUES:
            base = registers["value_base"] + layer * registers["value_layer_rows"]
            count = (work.position // config.tile + 1) * registers["value_strips"]
            return [(base + head * registers["value_head_rows"], count) for head in heads]
        raise BoardError(f"access descriptor {access.kind.name} stands in a loop; derive the access program again")


def _repeated(access: Access, step: StepWork) -> tuple[RowWork, ...]:
    """For which rows of the core a descriptor that is not WEIGHTS is executed: each, or once for all (the last one)."""
    by_row = step.batch or (access.kind == AccessKind.EMBED and access.operand == Operand.TOKEN)
    return step.rows if by_row else step.rows[-1:]
