"""pynq is slow and noisy to import: one module does it, quietly, and the command line's start-up does not."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
LIGHT = ("host.errors", "host.driver", "host.driver.xclbin", "host.driver.xclbin_info", "host.driver.run_request")


def _imports_pynq(text: str) -> bool:
    for node in ast.walk(ast.parse(text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        if any(name.split(".")[0] == "pynq" for name in names):
            return True
    return False


def test_only_one_module_imports_pynq():
    files = [path for wing in ("host", "sim", "hw", "sw") for path in (ROOT / wing).rglob("*.py")]
    found = [path.relative_to(ROOT).as_posix() for path in files if _imports_pynq(path.read_text(encoding="utf-8"))]
    assert found == ["host/driver/pynq_import.py"]


@pytest.mark.parametrize("text", ["import pynq", "from pynq.overlay import DefaultIP", "def f():\n    import pynq.lib"])
def test_the_search_finds_imports(text):
    assert _imports_pynq(text)


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_leave_pynq_alone(module):
    code = f"import sys, {module}; sys.exit('pynq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_pynq_comes_in_silence():
    code = "import sys, host.driver.session; sys.exit('pynq' not in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "pynq" not in done.stderr.lower() and "pkg_resources" not in done.stderr
