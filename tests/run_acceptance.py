"""Run the commands of docs/acceptance/NN.md and print held or missed with the figure of each line.

The page holds one table: ``| line | command | seconds | measured |``. A command's figure is its last line that starts
    with
``figure:``, else its last line of output. A line is held when its command ends with 0 within three times the stated
    seconds.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROW = re.compile(
    r"^\|\s*(?P<line>[^|]+?)\s*\|\s*`(?P<command>.+?)`\s*\|\s*(?P<seconds>\d+)\s*\|\s*(?P<measured>.*?)\s*\|$"
)


def rows(page: pathlib.Path) -> list[dict[str, str]]:
    """Rows of the page's table. Raises ValueError for a row that has no command, no seconds or no figure yet."""
    found = []
    for line in page.read_text().splitlines():
        if line.startswith("|") and not line.startswith(("| line |", "|---")):
            row = ROW.match(line)
            if row is None:
                raise ValueError(f"{page.name}: this row is not `| line | command | seconds | measured |`: {line}")
            found.append(row.groupdict())
    return found


def figure(output: str) -> str:
    """What a command's output says about its line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line.removeprefix("figure:").strip() for line in lines if line.startswith("figure:")]
    return (marked or lines or ["no output"])[-1][:160]


def run(command: str, limit_s: int) -> tuple[bool, str]:
    """(ended with 0 in time, output); at the limit the command and all that it started are ended."""
    process = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode == 0, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False, f"no end within {limit_s} s"


def main() -> int:
    """Run every row; the exit code is the number of missed lines."""
    number = sys.argv[1].zfill(2) if len(sys.argv) > 1 else "01"
    page = ROOT / "docs" / "acceptance" / f"{number}.md"
    if not page.is_file():
        known = ", ".join(p.stem for p in sorted(page.parent.glob("*.md")))
        print(f"{page} does not exist; pages: {known}")
        return 2
    missed = 0
    for row in rows(page):
        command = row["command"].replace("\\|", "|")
        started = time.monotonic()
        held, output = run(command, max(60, 3 * int(row["seconds"])))
        missed += not held
        seconds = time.monotonic() - started
        word = "held  " if held else "missed"
        print(f"{word} {seconds:6.0f} s  {row['line']}\n         {figure(output)}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
