"""The cache of compiled golden models notices edits, also in functions that are only called."""

import os
import subprocess
import sys
from pathlib import Path

from hw.numerics.golden_njit import source_digest

MODULES = {
    "callee.py": "from hw.numerics.golden_njit import cached_njit\nfrom pathlib import Path\n"
    "compiled = cached_njit(Path(__file__).parent)\n@compiled\ndef inner(x):\n    return x + 1\n",
    "caller.py": "from callee import compiled, inner\n@compiled\ndef outer(x):\n    return 10 * inner(x)\n",
}


def outer_of_two(folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "RINGFLY_CACHE": str(folder)}
    command = [sys.executable, "-c", "from caller import outer; print(outer(2))"]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_an_edit_of_a_callee_is_noticed(tmp_path):
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    before = source_digest(tmp_path)
    assert outer_of_two(tmp_path) == "30"
    assert list((tmp_path / "numba" / before[:16]).rglob("*.nbc"))
    (tmp_path / "callee.py").write_text(MODULES["callee.py"].replace("x + 1", "x + 2"))
    assert source_digest(tmp_path) != before
    assert outer_of_two(tmp_path) == "40"
