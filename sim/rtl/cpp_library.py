"""A few C++ sources to a shared library, kept in the build cache: models without gateware."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Mapping, Sequence

from sim.rtl.build_cache import BuildError, cached_folder
from sim.rtl.toolchain import find_toolchain
from sim.rtl.verilator import native_flags

__all__ = ["build_cpp_library"]

_FLAGS = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-march=native", "-fPIC", "-shared")
_LIMIT_S = 300.0


def build_cpp_library(name: str, sources: Mapping[str, str], main: str, flags: Sequence[str] = ()) -> pathlib.Path:
    """Compile ``main`` of ``sources`` (texts by file name) and return the path of the shared library.

    ``flags`` come on top of the usual ones. Built once for equal sources, flags, compiler and processor. Raises
    ToolMissingError, or BuildError with the compiler's output or if it has not ended within five minutes.
    """
    tools = find_toolchain()
    command = [str(tools.cxx), *_FLAGS, *flags, "-I.", "-o", f"{name}.so", main]

    def build(folder: pathlib.Path) -> None:
        for file, text in sources.items():
            (folder / file).write_text(text, encoding="utf-8")
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise BuildError(f"{' '.join(command)} has not ended within {_LIMIT_S:.0f} s") from None
        if done.returncode:
            raise BuildError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-4000:]}")

    texts = [text for item in sorted(sources.items()) for text in item]
    return cached_folder(name, [tools.cxx_version, native_flags(tools), *command, *texts], build) / f"{name}.so"
