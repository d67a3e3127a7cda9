"""What the host writes before it starts a run: registers and tokens, of one sequence or of a batch of requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hw.board.gpt2_map import Flags, row_register
from hw.gpt2.sampled_token import BoardSampling
from sim.timing.hardware import MAX_ROWS, STOP_IDS

__all__ = ["Request", "RunStart"]


@dataclasses.dataclass(frozen=True)
class Request:
    """One sequence: the registers that belong to it (docs/core.md section 2), and its tokens as far as they are known.

    ``tokens`` are ids from position 0 on, generated ones included. ``sampling`` is how the board draws; None: the
    arg-max. Raises ValueError for more stop ids than the core
    compares.
    """

    position: int
    prompt_end: int
    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    sampling: BoardSampling | None = None

    def __post_init__(self) -> None:
        if len(self.stop_ids) > STOP_IDS:
            raise ValueError(f"{len(self.stop_ids)} stop ids, the core compares {STOP_IDS}")

    def registers(self, row: int) -> dict[str, int]:
        """By the names that they have for a row."""
        values = {name: getattr(self, name) for name in ("position", "prompt_end", "max_new_tokens")}
        values["stop_count"] = len(self.stop_ids)
        drawn = self.sampling
        values |= {"seed": 0 if drawn is None else drawn.seed, "sampling": 0 if drawn is None else drawn.register}
        values |= {f"stop_{i}": stop for i, stop in enumerate(self.stop_ids)}
        return {row_register(name, row): value for name, value in values.items()}


@dataclasses.dataclass(frozen=True)
class RunStart:
    """A sequence, or with ``batch`` the requests of some rows (docs/rows.md section 2).

    Parameters
    ----------
    requests : mapping from int to Request
        By row; a sequence is that of row 0.
    batch : bool
    flags : int
        Register of that name, but for what ``batch`` says.

    Raises ValueError for a batch without requests, rows that no core has, or a sequence with the flag of a batch.
    """

    requests: Mapping[int, Request]
    batch: bool = False
    flags: int = 0

    def __post_init__(self) -> None:
        rows = sorted(self.requests)
        if not rows or rows[0] < 0 or rows[-1] >= MAX_ROWS or not (self.batch or rows == [0]):
            what = (
                f"a batch has requests for some of rows 0 to {MAX_ROWS - 1}" if self.batch else "a sequence is row 0's"
            )
            raise ValueError(f"{what}, got rows {rows}")
        if not self.batch and self.flags & Flags.BATCH:
            raise ValueError(f"flags {self.flags!r} say that it is a batch: give requests by row")

    def registers(self) -> dict[str, int]:
        """Start registers by name; row 0's are 0, as after a reset, if it has no request."""
        values = {"flags": self.flags | (int(Flags.BATCH) if self.batch else 0)}
        values["batch_rows"] = sum(1 << row for row in self.requests) if self.batch else 0
        for row, request in {0: Request(0, 0, 0), **self.requests}.items():
            values |= request.registers(row)
        return values
