"""The example in plain PYNQ runs and prints what the model says."""

from __future__ import annotations

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "plain_pynq.py"


def test_plain_pynq_example(tiny, rtl_build):
    code = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT), str(tiny.folder), "3", "1", "4"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    expected = tiny.generate([3, 1, 4], 8)
    first, second = done.stdout.splitlines()
    assert first.startswith("new tokens: " + " ".join(map(str, expected)) + " in ")
    assert second.endswith(f"arg-max {expected[0]}")


def test_the_example_stays_short():
    text = SCRIPT.read_text().split('"""')[2]
    lines = [line for line in text.splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(lines) <= 20
