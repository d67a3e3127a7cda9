"""What one start of the kernel runs: a sequence, or on a core with rows a batch of requests."""

from __future__ import annotations

import dataclasses

from host.driver.run_request import RunRequest

__all__ = ["KernelRun", "RunPart"]


@dataclasses.dataclass(frozen=True)
class RunPart:
    """A request of a run: `row` whose registers and token window it uses, `cache`: the row whose keys, values and
    logits it works on, None for memory that the program does not name."""

    request: RunRequest
    row: int
    cache: int | None


@dataclasses.dataclass(frozen=True)
class KernelRun:
    """One start of the kernel: a sequence, which has one part, or a batch. `start` is what ``start_count`` then shows,
    0 before it."""

    parts: tuple[RunPart, ...]
    batch: bool
    start: int = 0

    @property
    def rows_mask(self) -> int:
        """Value of the register ``batch_rows``."""
        return sum(1 << part.row for part in self.parts)

    @property
    def write_logits(self) -> bool:
        """Whether decode steps write their logits."""
        return self.parts[0].request.write_logits

    def request_on(self, row: int) -> int | None:
        """Number of the request on a row, None if there is none."""
        return next((number for number, part in enumerate(self.parts) if part.row == row), None)
