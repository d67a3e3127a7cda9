"""What a row's logits decide: the arg-max, or where its request samples the token that the sampler draws."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BoardError
from hw.gpt2.sampled_token import BoardSampling, sampled_token
from hw.numerics.fp32_max import max_tree

from .exchange import Best

__all__ = ["RowChoice"]


class RowChoice:
    """The choice of a row in one step after the other (docs/core.md, section 6; docs/sampling.md).

    Parameters
    ----------
    registers : mapping
        The row's register values by name, sampled at start: of ``seed``, ``sampling``, ``vocab``, ``token_offset`` and
        ``ring_boards``. On several boards nothing is drawn.
    """

    def __init__(self, registers: Mapping[str, int]) -> None:
        self._registers = registers
        self._alone = registers["ring_boards"] <= 1
        self._best = Best()
        self._drawn_from: list[NDArray[np.uint32]] = []

    def begin(self) -> None:
        """Forget the step before."""
        self._best, self._drawn_from = Best(), []

    def take(self, logits: NDArray[np.uint32], first_column: int) -> None:
        """Take fp32 bit patterns of this board's columns ``first_column`` and on, which follow those before."""
        r = self._registers
        valid = np.arange(first_column, first_column + logits.size) < r["vocab"]
        value, index, found, nan = max_tree(logits, valid)
        self._best.take(Best(r["token_offset"] + first_column + int(index), bool(nan), bool(found), int(value)))
        if self._alone and r["sampling"]:
            self._drawn_from.append(logits[valid])

    def decided(self, position: int) -> Best:
        """The choice from the logits of ``position``. Raises BoardError for a register ``sampling`` out of range."""
        if not self._drawn_from or self._best.nan:
            return self._best
        r = self._registers
        try:
            sampling = BoardSampling.of_registers(r["seed"], r["sampling"])
        except ValueError as error:
            raise BoardError(f"register sampling {r['sampling']:#x}: {error}") from None
        if sampling is None:
            return self._best
        token = sampled_token(np.concatenate(self._drawn_from), sampling, position + 1)
        return self._best if token is None else Best(token, False, True, self._best.value)
