"""Progress on standard error: a line that is rewritten on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

__all__ = ["Progress"]

PATIENCE_S = 2.0  # work that is done sooner is not announced
TERMINAL_PERIOD_S = 0.1
LINE_PERIOD_S = 5.0


class Progress:
    """Callable that takes (what, done, total); shows nothing during the first two seconds.

    Parameters: `stream`: standard error if None.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._start = time.monotonic()
        self._last = 0.0
        self._width = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        period = TERMINAL_PERIOD_S if self._terminal else LINE_PERIOD_S
        if now - self._start < PATIENCE_S or now - self._last < period:
            return
        self._last = now
        text = f"{what}: {100 * done // total if total else 100} %"
        if self._terminal:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the line from the terminal before something else is written."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0
