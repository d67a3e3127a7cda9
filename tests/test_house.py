"""The rules of the house that a program can check: wings, foreign libraries, file lengths, leftovers."""

from __future__ import annotations

import ast
import gc
import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
_SPEC = importlib.util.spec_from_file_location("run_acceptance", ROOT / "tests" / "run_acceptance.py")
assert _SPEC is not None and _SPEC.loader is not None
acceptance = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(acceptance)
WINGS = ("hw", "sw", "sim", "host")
ABOVE = {"hw": {"sw", "sim", "host"}, "sw": {"hw", "sim", "host"}, "sim": {"host"}, "host": set()}
FOREIGN = {
    "hw": {"torch", "transformers", "pynq"},
    "sw": {"amaranth", "cocotb", "pynq", "transformers"},
    "sim": {"transformers", "pynq"},
    "host": {"transformers"},
}


@pytest.fixture(autouse=True)
def no_collection_while_parsing():
    """Python 3.11's ast.parse fails ("recursion depth mismatch") if a finalizer raises while it works, and simulator
    runs that other tests abandoned have such finalizers: let them run before."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sources(*tops: str) -> list[pathlib.Path]:
    return sorted(path for top in tops for path in (ROOT / top).rglob("*.py"))


def imported(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def violations(wing: str, text: str) -> set[str]:
    return imported(text) & (ABOVE[wing] | FOREIGN[wing])


@pytest.mark.parametrize("wing", WINGS)
def test_arrows_point_down(wing):
    wrong = {str(p.relative_to(ROOT)): violations(wing, p.read_text()) for p in sources(wing)}
    assert not {path: names for path, names in wrong.items() if names}


def test_the_wing_rule_can_fail():
    assert violations("hw", "def f():\n    import torch\n") == {"torch"}
    assert violations("sim", "from host.cli import main\n") == {"host"}


def test_no_file_is_too_long():
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources(*WINGS, "tests", "examples")}
    assert not {path: lines for path, lines in lengths.items() if lines > 500}


def test_no_leftovers():
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources(*WINGS)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_public_definitions_have_docstrings():
    bare = []
    for path in sources(*WINGS):
        for node in ast.parse(path.read_text()).body:
            kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
            if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node):
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not bare


def test_test_files_have_unique_names_and_no_packages():
    files = [p for p in (ROOT / "tests").rglob("*.py") if p.name != "conftest.py"]
    names = [p.name for p in files]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    assert not [p for p in files if p.name == "__init__.py"]


def test_pages_hold_no_placeholders():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert not [path.name for path in pages if re.search(r"@\w+@", path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "acceptance").glob("*.md")), ids=lambda page: page.stem)
def test_every_line_of_an_acceptance_page_has_a_command(page):
    table = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    rows = acceptance.rows(page)
    assert len(rows) == len(table) - 2 and all(row["measured"] for row in rows)
