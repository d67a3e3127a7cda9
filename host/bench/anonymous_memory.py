"""Anonymous memory of a process while it works: what it allocated, without the files that it maps.

``RssAnon`` of /proc/PID/status (Linux): resident pages that are backed by no file. Copy-on-write pages count once they
are written.
"""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MemoryRun", "anonymous_bytes", "tree_anonymous_bytes", "watched_run"]

PERIOD_S = 0.002


@dataclasses.dataclass(frozen=True)
class MemoryRun:
    """A finished process.

    Members: `peak_bytes` of anonymous memory, its children's included; `samples` taken; `seconds`; `code`; `stdout`;
    `stderr`.
    """

    peak_bytes: int
    samples: int
    seconds: float
    code: int
    stdout: str
    stderr: str


def anonymous_bytes(pid: int | str = "self") -> int | None:
    """Resident anonymous memory of a process; None once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return None  # a process that has ended but was not waited for has no memory


def tree_anonymous_bytes(pid: int) -> int:
    """Resident anonymous memory of a process and of all that it started; 0 once it has ended.

    A child that has exactly its parent's is not counted: it was just forked and still shares all pages. Pages that a
    longer-lived fork shares count for both, so the sum may be too large, never too small.
    """
    own = anonymous_bytes(pid) or 0
    children = 0
    for child in _children(pid):
        total = tree_anonymous_bytes(child)
        children += 0 if total == own else total
    return own + children


def _children(pid: int) -> list[int]:
    """Ids of the processes that any thread of a process started, those it has not waited for included."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, thread.read_text(encoding="ascii").split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def watched_run(command: Sequence[str], folder: Path, timeout_s: float) -> MemoryRun:
    """Run `command` and sample its memory and its children's every 2 ms; its output goes through files in `folder`.

    Raises TimeoutError, after killing it, when it takes longer than `timeout_s`.
    """
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    start = time.monotonic()
    peak = samples = 0
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        try:
            while process.poll() is None:
                peak = max(peak, tree_anonymous_bytes(process.pid))
                samples += 1
                if time.monotonic() - start > timeout_s:
                    raise TimeoutError(f"{' '.join(command)} takes longer than {timeout_s:g} s")
                time.sleep(PERIOD_S)
        finally:
            process.kill()
            process.wait()
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
    return MemoryRun(peak, samples, time.monotonic() - start, process.returncode, *texts)
