"""Verilog and a C++ harness to a shared library, through Verilator, kept in the build cache."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from sim.rtl.build_cache import BuildError, cached_folder
from sim.rtl.toolchain import Toolchain, find_toolchain

__all__ = [
    "COMPILE_FLAGS",
    "QUICK_COMPILE_FLAGS",
    "VERILATE_FLAGS",
    "BuildError",
    "build_library",
    "build_objects",
    "native_flags",
]

VERILATE_FLAGS = (
    "-O3",
    "--x-assign", "fast",
    "--x-initial", "fast",
    "--no-assert",
    "--no-timing",
    "-Wno-lint",
    "-Wno-style",
)  # fmt: skip
# Core 16x4, seconds of one processor to compile and cycles simulated in one: -O0 16 and 58,000; -O1 38 and 203,000;
# -O2 52 and 252,000; -O3 60 and 258,000; -O2 without -march=native 46 and 234,000.
COMPILE_FLAGS = ("-std=c++20", "-O2", "-march=native", "-fPIC")
QUICK_COMPILE_FLAGS = ("-std=c++20", "-O0", "-fPIC")  # for models that run less than a million cycles
_DEFINES = ("-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TIMING=0")
_RUNTIME = ("verilated.cpp", "verilated_threads.cpp")
_RUNTIME_TRACE = ("verilated_fst_c.cpp",)
_FIRST_REPORT_S = 2.0
_REPORT_EVERY_S = 10.0
_STEP_LIMIT_S = 1800.0  # verilating, or compiling all files of a model
_QUESTION_LIMIT_S = 60.0  # asking the compiler something
_HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """Tools and flags of one build, and what of them belongs to its cache key."""

    tools: Toolchain
    flags: tuple[str, ...]
    verilate: tuple[str, ...]
    key: tuple[str, ...]

    @classmethod
    def of(cls, verilate_flags: Sequence[str], compile_flags: Sequence[str], trace: bool) -> _Recipe:
        tools = find_toolchain()
        defines = (*_DEFINES, f"-DVM_TRACE={int(trace)}", f"-DVM_TRACE_FST={int(trace)}")
        # the machine matters where -march=native is used
        machine = native_flags(tools) if "-march=native" in compile_flags else ""
        tracing = ("--trace-fst",) if trace else ()
        return cls(
            tools,
            (*compile_flags, *defines, f"-I{tools.root}/include", f"-I{tools.root}/include/vltstd", "-I."),
            (*verilate_flags, *tracing),
            (tools.verilator_version, tools.cxx_version, machine, *compile_flags, *defines),
        )

    def verilate_and_compile(
        self, folder: pathlib.Path, progress: _Progress, verilog: str, top: str, prefix: str, extra: Sequence[str] = ()
    ) -> None:
        """``model.v`` and an object file for every C++ source in the folder, the model's and others."""
        (folder / "model.v").write_text(verilog)
        verilate = [str(self.tools.verilator), "--cc", *self.verilate, "--prefix", prefix, "--top-module", top]
        _run_all([[*verilate, "-Mdir", ".", "model.v"]], folder, self.tools, progress, "verilating")
        compile_one = [str(self.tools.cxx), *self.flags, *extra]
        header = f"{prefix}__pch.h"
        _run_all([[*compile_one, "-x", "c++-header", header]], folder, self.tools, progress, "compiling headers")
        # the long ones first; what runs once at the start needs no optimiser
        files = sorted(folder.glob("*.cpp"), key=lambda path: (-path.stat().st_size, path.name))
        commands = [[*compile_one, *(("-O0",) if "__Slow" in path.name else ()), "-c", path.name] for path in files]
        _run_all(commands, folder, self.tools, progress, "compiling")


def build_objects(
    name: str,
    *,
    verilog: str,
    top: str,
    prefix: str,
    verilate_flags: Sequence[str] = VERILATE_FLAGS,
    compile_flags: Sequence[str] = COMPILE_FLAGS,
) -> pathlib.Path:
    """Compile a model that a harness joins to another one; returns the folder of its headers and object files.

    Parameters and errors as in :func:`build_library`; such a model writes no waves.
    """
    recipe = _Recipe.of(verilate_flags, compile_flags, trace=False)

    def build(folder: pathlib.Path) -> None:
        progress = _Progress(name)
        recipe.verilate_and_compile(folder, progress, verilog, top, prefix)
        for path in folder.iterdir():
            if path.suffix not in (".h", ".o", ".v"):
                path.unlink()
        progress.finish()

    return cached_folder(name, [*recipe.key, *recipe.verilate, prefix, top, verilog], build)


def build_library(
    name: str,
    *,
    verilog: str,
    top: str,
    sources: Mapping[str, str],
    prefix: str = "Vmodel",
    verilate_flags: Sequence[str] = VERILATE_FLAGS,
    compile_flags: Sequence[str] = COMPILE_FLAGS,
    trace: bool = False,
    joined: pathlib.Path | None = None,
) -> pathlib.Path:
    """Compile a model with its harness and return the path of the shared library.

    Parameters
    ----------
    name : str
        What is built, for progress lines and the folder's name.
    verilog, top : str
        Verilog text and the name of its top module.
    sources : mapping from file name to text
        C++ sources and headers of the harness; they find the model in ``<prefix>.h``.
    verilate_flags, compile_flags : sequence of str
        Flags of Verilator and of the compiler, part of the cache key.
    trace : bool
        Include FST tracing (a slower model); the harness sees ``VM_TRACE`` as 1.
    joined : path, optional
        Folder of another model (:func:`build_objects`) that the harness uses too.

    The library lies in the build cache (see :func:`sim.rtl.build_cache.cached_folder`) beside ``model.v``. Raises
    ToolMissingError or BuildError. Where the headers of LZ4 or zlib, which the FST writer includes, are missing, waves
    are written uncompressed.
    """
    recipe = _Recipe.of(verilate_flags, compile_flags, trace)
    tools = recipe.tools
    shims = ["lz4.h"] if trace else []
    libraries = []
    if trace and _has_zlib(tools):
        libraries.append("-lz")
    elif trace:
        shims.append("zlib.h")
    shim_texts = [(_HERE / shim).read_text() for shim in shims]

    def build_runtime(folder: pathlib.Path) -> None:
        for shim, text in zip(shims, shim_texts, strict=True):
            (folder / shim).write_text(text)
        names = _RUNTIME + (_RUNTIME_TRACE if trace else ())
        progress = _Progress("Verilator's run-time library (once)")
        commands = [[str(tools.cxx), *recipe.flags, "-c", str(tools.root / "include" / source)] for source in names]
        _run_all(commands, folder, tools, progress, "compiling")

    def build_model(folder: pathlib.Path) -> None:
        progress = _Progress(name)
        for file, text in sources.items():
            (folder / file).write_text(text)
        extra = [] if joined is None else [f"-I{joined}"]
        recipe.verilate_and_compile(folder, progress, verilog, top, prefix, extra)
        objects = sorted(path.name for path in folder.glob("*.o")) + sorted(map(str, runtime.glob("*.o")))
        if joined is not None:
            objects += sorted(map(str, joined.glob("*.o")))
        link = [str(tools.cxx), *recipe.flags, "-shared", "-o", "model.so", *objects, "-pthread", *libraries]
        _run_all([link], folder, tools, progress, "linking")
        for path in folder.iterdir():
            if path.name not in ("model.so", "model.v"):
                path.unlink()
        progress.finish()

    tracing = recipe.verilate[len(verilate_flags) :]
    runtime = cached_folder("runtime", [*recipe.key, *tracing, *libraries, *shim_texts], build_runtime)
    texts = [text for item in sorted(sources.items()) for text in item]
    key = [*recipe.key, *libraries, *recipe.verilate, prefix, top, verilog, *texts]
    return cached_folder(name, [*key, joined.name] if joined else key, build_model) / "model.so"


def native_flags(tools: Toolchain) -> str:
    """What ``-march=native`` means to the compiler on this machine: part of the cache key where it is used."""
    return _asked(tools, "-march=native", "-Q", "--help=target").stdout


def _has_zlib(tools: Toolchain) -> bool:
    return _asked(tools, "-E", "-include", "zlib.h", "-x", "c++", os.devnull).returncode == 0


def _asked(tools: Toolchain, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the compiler for what it prints. Raises BuildError if it does not come back."""
    command = [str(tools.cxx), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_QUESTION_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{' '.join(command)} has not answered within {_QUESTION_LIMIT_S:.0f} s") from None


class _Progress:
    """Lines on standard error for builds that take longer than two seconds."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.start = time.monotonic()
        self.next = self.start + _FIRST_REPORT_S
        self.reported = False

    def report(self, step: str) -> None:
        now = time.monotonic()
        if now >= self.next:
            print(f"building {self.what}: {step}, {now - self.start:.0f} s", file=sys.stderr, flush=True)
            self.next = now + _REPORT_EVERY_S
            self.reported = True

    def finish(self) -> None:
        if self.reported:
            seconds = time.monotonic() - self.start
            print(f"building {self.what}: done, {seconds:.0f} s", file=sys.stderr, flush=True)


def _run_all(
    commands: Sequence[Sequence[str]], folder: pathlib.Path, tools: Toolchain, progress: _Progress, step: str
) -> None:
    """Run commands, as many at a time as there are processors; if one fails or we are interrupted, stop them all.

    Raises BuildError if one fails, or if not all have ended within :data:`_STEP_LIMIT_S`.
    """
    deadline = time.monotonic() + _STEP_LIMIT_S
    jobs = len(os.sched_getaffinity(0))
    waiting = list(enumerate(commands))
    running: list[tuple[subprocess.Popen, pathlib.Path, Sequence[str]]] = []
    done = 0
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                index, command = waiting.pop(0)
                log = folder / f"{step.replace(' ', '-')}-{index}.log"
                with log.open("w") as output:
                    process = subprocess.Popen(
                        command,
                        cwd=folder,
                        env=tools.environment(),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                running.append((process, log, command))
            time.sleep(0.02)
            if time.monotonic() > deadline:
                commands_left = "; ".join(" ".join(command) for _, _, command in running)
                raise BuildError(
                    f"building {progress.what}: {step} has not ended within {_STEP_LIMIT_S:.0f} s, stopped: "
                    f"{commands_left}"
                )
            for entry in [entry for entry in running if entry[0].poll() is not None]:
                running.remove(entry)
                process, log, command = entry
                if process.returncode:
                    raise BuildError(
                        f"building {progress.what}: {' '.join(command)} failed with {process.returncode}:\n"
                        + log.read_text(errors="replace")[-4000:]
                    )
                done += 1
            progress.report(f"{step} {done} of {len(commands)}" if len(commands) > 1 else step)
    finally:
        for process, _, _ in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
