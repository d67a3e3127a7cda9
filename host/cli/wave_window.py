"""The part of a run that ``ringfly sim --waves`` writes: checked before the run, and again when its length is known."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from host.cli.output_file import check_output_file

if TYPE_CHECKING:
    from hw.board.board_model import BoardModel

__all__ = ["WaveWindow"]


@dataclasses.dataclass(frozen=True)
class WaveWindow:
    """Waves of `cycles` cycles of a run from `from_cycle` on, in the file `path` (FST)."""

    path: Path
    from_cycle: int
    cycles: int

    @property
    def names(self) -> Path:
        """The file beside the waves that says which Verilog signal each signal of the design became (JSON)."""
        return self.path.with_name(self.path.name + ".names.json")

    def check(self, executor: str) -> None:
        """Raise BadInput if `executor` has no waves, the window is empty, or the file cannot be written."""
        from host.errors import BadInput

        if executor != "rtl":
            raise BadInput("only the rtl executor has waves", value=executor, expected="rtl", hint="Leave --waves out.")
        if self.from_cycle < 0 or self.cycles < 1:
            raise BadInput(
                f"from-cycle must be >= 0 and cycles >= 1, got {self.from_cycle} and {self.cycles}", value=self.cycles
            )
        for path in (self.path, self.names):
            check_output_file(path, "waves", "run.fst")

    @contextlib.contextmanager
    def recording(self, board: BoardModel) -> Iterator[None]:
        """Record the run that is made inside; the names are written too, also if the run fails."""
        earlier = self._stamp()
        board.trace(self.path, self.from_cycle, self.cycles)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            if self._stamp() != earlier:
                self.names.write_text(board.built.names_json, encoding="utf-8")  # type: ignore[attr-defined]

    def require_inside(self, run_cycles: int) -> None:
        """Raise BadInput if a run of so many cycles ended before the window began, so that no waves were written."""
        from host.errors import BadInput

        if self.from_cycle >= run_cycles:
            raise BadInput(
                f"no waves: the run has {run_cycles} cycles, from-cycle is {self.from_cycle}",
                value=self.from_cycle,
                expected=f"0 to {run_cycles - 1}",
                hint="Give a smaller --from-cycle, or generate more tokens.",
            )

    def _stamp(self) -> tuple[int, int] | None:
        """What tells a file just written from one that was there before."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_size
