"""One component, compiled by Verilator, fed with arrays: the harness of all unit tests of pipelines.

The component is exported to Verilog, a C++ loop over clock cycles is generated from its ports, and both are compiled to
one shared library that ctypes calls. It stays in the build cache, so a second run compiles nothing.
"""

from __future__ import annotations

import ctypes
import pathlib
import re
import subprocess
from collections.abc import Mapping

import numpy as np
from amaranth.back import verilog
from amaranth.hdl import Shape
from amaranth.lib import wiring

from sim.rtl.build_cache import BuildError, cached_folder
from sim.rtl.toolchain import Toolchain, find_toolchain
from sim.rtl.verilator import VERILATE_FLAGS

__all__ = ["VerilatedUnit"]

# units are small and their tests short: most time goes into compiling, not into running
_COMPILE_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TRACE=0")
_COMMAND_LIMIT_S = 1800.0

_HARNESS = """
#include "Vunit.h"
#include <cstring>
#define CLK(level) @CLK@
#define RST(level) @RST@
static inline void put(CData& p, const uint32_t* w) { p = w[0]; }
static inline void put(SData& p, const uint32_t* w) { p = w[0]; }
static inline void put(IData& p, const uint32_t* w) { p = w[0]; }
static inline void put(QData& p, const uint32_t* w) { p = w[0] | (QData)w[1] << 32; }
template <std::size_t N> static inline void put(VlWide<N>& p, const uint32_t* w) { std::memcpy(p.data(), w, 4 * N); }
static inline void get(const CData& p, uint32_t* w) { w[0] = p; }
static inline void get(const SData& p, uint32_t* w) { w[0] = p; }
static inline void get(const IData& p, uint32_t* w) { w[0] = p; }
static inline void get(const QData& p, uint32_t* w) { w[0] = (uint32_t)p; w[1] = p >> 32; }
template <std::size_t N> static inline void get(const VlWide<N>& p, uint32_t* w) { std::memcpy(w, p.data(), 4 * N); }
struct Unit { VerilatedContext context; Vunit top{&context, "unit"}; };
extern "C" Unit* unit_open() {
    Unit* unit = new Unit;
    Vunit& top = unit->top;
    RST(1); CLK(0); top.eval(); CLK(1); top.eval(); RST(0);
    return unit;
}
extern "C" void unit_close(Unit* unit) { unit->top.final(); delete unit; }
extern "C" void unit_run(Unit* unit, uint64_t cycles, const uint32_t* in, uint32_t* out) {
    Vunit& top = unit->top;
    for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
        @PUT@
        CLK(0); top.eval();
        @GET@
        CLK(1); top.eval();
        in += @IN_WORDS@; out += @OUT_WORDS@;
    }
}
"""


class VerilatedUnit:
    """A component in simulation, with its state kept from call to call.

    Parameters
    ----------
    component : wiring.Component
        Its members must be plain ports (no nested interfaces, dimensions 0), its only clock domain `sync`.

    Raises ToolMissingError or BuildError (`sim.rtl`) if a tool is missing or fails.
    """

    def __init__(self, component: wiring.Component):
        self.inputs: dict[str, int] = {}
        self.outputs: dict[str, int] = {}
        for name, member in component.signature.members.items():
            if not member.is_port or member.dimensions:
                raise ValueError(f"member {name!r} of the unit must be a plain port, got {member!r}")
            ports = self.inputs if member.flow == wiring.In else self.outputs
            ports[name] = Shape.cast(member.shape).width
        text = verilog.convert(component, name="unit", emit_src=False, strip_internal_attrs=True)
        library = _library(f"unit-{type(component).__name__}", text, self._harness(text))
        self._library = ctypes.CDLL(str(library))
        self._library.unit_open.restype = ctypes.c_void_p
        self._library.unit_close.argtypes = [ctypes.c_void_p]
        words = np.ctypeslib.ndpointer(np.uint32, flags="C_CONTIGUOUS")
        self._library.unit_run.argtypes = [ctypes.c_void_p, ctypes.c_uint64, words, words]
        self._unit = self._library.unit_open()

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Clock the unit once per row of the inputs and return what the outputs showed before each clock edge.

        Parameters
        ----------
        inputs : mapping from port name to array
            One row per cycle, all of the same number of rows. A port of up to 64 bits takes a vector of integers (or
            booleans); any port takes a two-dimensional array of unsigned integers whose row is the port's bits, lowest
            first: 64 fp16 elements are a uint16 array (cycles, 64). Ports that are not named are 0.

        Returns a dict from port name to uint64 vector (ports of up to 64 bits) or uint32 array (cycles, words).
        """
        unknown = set(inputs) - set(self.inputs)
        if unknown or not inputs:
            raise ValueError(f"inputs must name some of the ports {sorted(self.inputs)}, got {sorted(inputs)}")
        cycles = {len(rows) for rows in inputs.values()}
        if len(cycles) != 1:
            raise ValueError(f"all inputs must have the same number of rows, got {sorted(cycles)}")
        count = cycles.pop()
        columns = []
        for name, width in self.inputs.items():
            if name in inputs:
                columns.append(_words(name, np.asarray(inputs[name]), width))
            else:
                columns.append(np.zeros((count, _word_count(width)), np.uint32))
        block = np.ascontiguousarray(np.concatenate(columns, axis=1))
        result = np.zeros((count, sum(_word_count(width) for width in self.outputs.values())), np.uint32)
        self._library.unit_run(self._unit, count, block, result)
        outputs: dict[str, np.ndarray] = {}
        start = 0
        for name, width in self.outputs.items():
            part = result[:, start : start + _word_count(width)]
            start += part.shape[1]
            if width <= 32:
                outputs[name] = part[:, 0].astype(np.uint64)
            elif width <= 64:
                outputs[name] = part[:, 0].astype(np.uint64) | part[:, 1].astype(np.uint64) << np.uint64(32)
            else:
                outputs[name] = part
        return outputs

    def stream(self, inputs: Mapping[str, np.ndarray], latency: int) -> dict[str, np.ndarray]:
        """Send the rows through a pipeline of `latency` cycles; output row k belongs to input row k."""
        padded = {}
        for name, rows in inputs.items():
            rows = np.asarray(rows)
            padded[name] = np.concatenate([rows, np.zeros((latency, *rows.shape[1:]), rows.dtype)])
        return {name: rows[latency:] for name, rows in self.run(padded).items()}

    def close(self) -> None:
        """Free the model; the unit cannot be run afterwards."""
        if self._unit is not None:
            self._library.unit_close(self._unit)
            self._unit = None

    def _harness(self, text: str) -> str:
        put, in_words = _transfers("put", self.inputs, "in")
        get, out_words = _transfers("get", self.outputs, "out")
        values = {"PUT": put, "IN_WORDS": str(in_words), "GET": get, "OUT_WORDS": str(out_words)}
        for name in ("clk", "rst"):  # a combinational component has neither
            values[name.upper()] = f"top.{name} = level" if f"  input {name};" in text else ""
        return re.sub("@([A-Z_]+)@", lambda match: values[match[1]], _HARNESS)


def _word_count(width: int) -> int:
    return (width + 31) // 32


def _transfers(function: str, ports: Mapping[str, int], pointer: str) -> tuple[str, int]:
    """C++ statements between the ports and consecutive words at `pointer`, and the number of these words."""
    statements, offset = [], 0
    for name, width in ports.items():
        if width:
            statements.append(f"{function}(top.{name}, {pointer} + {offset});")
        offset += _word_count(width)
    return " ".join(statements), offset


def _words(name: str, rows: np.ndarray, width: int) -> np.ndarray:
    """The rows of one port as uint32 words, lowest first."""
    words = _word_count(width)
    if rows.ndim == 1:
        if width > 64:
            raise ValueError(f"port {name!r} of {width} bits takes a two-dimensional array, got shape {rows.shape}")
        rows = rows.astype(np.int64 if rows.dtype.kind == "i" else np.uint64).view(np.uint64).reshape(-1, 1)
        rows = rows & np.uint64((1 << width) - 1)
    elif rows.dtype.kind != "u":
        raise ValueError(f"two-dimensional rows of port {name!r} must be unsigned integers, got {rows.dtype}")
    row_bytes = np.ascontiguousarray(rows).view(np.uint8)
    padded = np.zeros((len(rows), 4 * words), np.uint8)
    used = min(row_bytes.shape[1], 4 * words)
    padded[:, :used] = row_bytes[:, :used]
    return padded.view(np.uint32)


def _library(name: str, text: str, harness: str) -> pathlib.Path:
    """Compile Verilog and harness to a shared library, or find it in the cache."""
    tools = find_toolchain()
    versions = [tools.verilator_version, tools.cxx_version, *_COMPILE_FLAGS]
    include = tools.root / "include"
    compiler = [str(tools.cxx), *_COMPILE_FLAGS, f"-I{include}", f"-I{include}/vltstd", "-I."]

    def build_runtime(folder: pathlib.Path) -> None:
        for source in ("verilated.cpp", "verilated_threads.cpp"):
            _run([*compiler, "-c", str(include / source)], folder, tools)

    def build_unit(folder: pathlib.Path) -> None:
        (folder / "unit.v").write_text(text)
        verilate = [str(tools.verilator), "--cc", *VERILATE_FLAGS, "--prefix", "Vunit", "--top-module", "unit"]
        _run([*verilate, "-Mdir", ".", "unit.v"], folder, tools)
        # one translation unit: reading Verilator's headers takes longer than compiling a unit
        includes = "".join(f'#include "{path.name}"\n' for path in sorted(folder.glob("*.cpp")))
        (folder / "unit.cpp").write_text(includes + harness)
        objects = [str(path) for path in sorted(runtime.glob("*.o"))]
        _run([*compiler, "-shared", "-o", "unit.so", "unit.cpp", *objects, "-pthread"], folder, tools)

    runtime = cached_folder("unit-runtime", versions, build_runtime)
    return cached_folder(name, [*versions, *VERILATE_FLAGS, text, harness], build_unit) / "unit.so"


def _run(command: list[str], folder: pathlib.Path, tools: Toolchain) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, env=tools.environment(), text=True, capture_output=True, timeout=_COMMAND_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{' '.join(command)} has not ended within {_COMMAND_LIMIT_S:.0f} s") from None
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
