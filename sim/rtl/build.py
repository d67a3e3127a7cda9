"""From a core config to a compiled board: Verilog export, harness, Verilator."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import pathlib
import re
import sys
from collections.abc import Sequence

from hw.board.core_interface import ADDRESS_BITS
from hw.board.export import Export, export_verilog
from hw.board.gpt2_map import STALL_CAUSES
from hw.board.top import U280Top
from hw.gpt2.config import CoreConfig
from hw.gpt2.lane import lane_module
from sim.devices.link_timing import ClockPeriods
from sim.devices.memory_config import device_sources
from sim.rtl.build_cache import BuildError, cached_folder
from sim.rtl.fresh_process import run_fresh
from sim.rtl.hierarchy import joining_header, take_out
from sim.rtl.verilator import COMPILE_FLAGS, VERILATE_FLAGS, build_library, build_objects

__all__ = ["BuiltBoard", "build_board", "compile_board", "export_board"]

_HERE = pathlib.Path(__file__).parent
_ELABORATION_LIMIT_S = 900.0
_HARNESS = (
    "harness.cpp",
    "board.h",
    "channel_memory.h",
    "host_access.h",
    "link_pins.h",
    "memory_model.h",
    "ring.h",
    "shared_work.h",
)
_LINK_PORTS = 2  # of a kernel that can be part of a ring


@dataclasses.dataclass(frozen=True)
class BuiltBoard:
    """A compiled board.

    ``library`` is the shared library, ``config`` the core it was made from, ``verilog_sha256`` the hash of the kernel's
    Verilog, ``trace`` whether it can write waves, ``names_json`` the map from Amaranth signals to Verilog.
    """

    library: pathlib.Path
    config: CoreConfig
    verilog_sha256: str
    trace: bool
    names_json: str


def kernel_name(config: CoreConfig) -> str:
    """Name of the kernel and of its top module."""
    return "ringfly_gpt2_" + re.sub(r"\W", "_", config.name)


def _sources() -> list[str]:
    """Names and texts of all modules of ``hw``."""
    root = _HERE.parents[1]
    paths = sorted((root / "hw").rglob("*.py"))
    return [text for path in paths for text in (path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))]


_SOURCES_AT_IMPORT = _sources()


def gateware_recipe(config: CoreConfig) -> list[str]:
    """Everything that the kernel's Verilog depends on: config, sources of ``hw``, version of Amaranth."""
    return [config.to_json(), importlib.metadata.version("amaranth"), *_sources()]


def elaborate_here(config: CoreConfig) -> Export:
    """The kernel's export as this process has imported the gateware; the order of ports depends on its hash seed."""
    top = U280Top(config)
    return export_verilog(top, top.shared, kernel_name(config))


def _elaborate(config: CoreConfig) -> Export:
    """The export of the sources as they are, the same text whoever asks."""
    print(f"elaborating core {config.name}", file=sys.stderr, flush=True)
    what = f"core {config.name}"
    answer = run_fresh("sim.rtl.kernel_export", {"config": config.to_json()}, what, _ELABORATION_LIMIT_S, BuildError)
    return Export(**json.loads(answer))


def write_kernel(export: Export, folder: pathlib.Path) -> None:
    """Write ``kernel.v`` and ``names.json``."""
    (folder / "kernel.v").write_text(export.text)
    (folder / "names.json").write_text(export.names_json())


def export_board(config: CoreConfig) -> Export:
    """Verilog of the kernel for a core config, from the cache if the gateware's sources have not changed.

    If they changed after this process imported them, what it elaborates is not what they say: then nothing is kept.
    """
    if _sources() != _SOURCES_AT_IMPORT:
        return _elaborate(config)
    folder = cached_folder(
        f"verilog-{config.name}", gateware_recipe(config), lambda folder: write_kernel(_elaborate(config), folder)
    )
    return Export(
        (folder / "kernel.v").read_text(), kernel_name(config), json.loads((folder / "names.json").read_text())
    )


def build_board(
    config: CoreConfig,
    *,
    trace: bool = False,
    flat: bool = False,
    verilate_flags: Sequence[str] = VERILATE_FLAGS,
    compile_flags: Sequence[str] = COMPILE_FLAGS,
) -> BuiltBoard:
    """Export and compile the kernel of ``config``; a second call with the same gateware finds it in the cache.

    ``trace`` builds the slower model that can write FST waves. ``flat`` compiles the kernel as one piece; otherwise the
    lane is compiled once and joined (``sim.rtl.hierarchy``), but for waves, which are always written by a flat model.
    Raises ToolMissingError or BuildError.
    """
    return compile_board(
        config,
        export_board(config),
        trace=trace,
        flat=flat,
        verilate_flags=verilate_flags,
        compile_flags=compile_flags,
    )


def compile_board(
    config: CoreConfig,
    export: Export,
    *,
    trace: bool = False,
    flat: bool = False,
    verilate_flags: Sequence[str] = VERILATE_FLAGS,
    compile_flags: Sequence[str] = COMPILE_FLAGS,
) -> BuiltBoard:
    """Compile an exported kernel, for example one with a fault in it."""
    verilog, block, joined = export.text, None, None
    if not flat and not trace and lane_module(config) in export.instances.values():
        verilog, block = take_out(export, lane_module(config))
        joined = build_objects(
            f"lane-{config.name}",
            verilog=block.verilog,
            top=block.module,
            prefix="Vblock",
            verilate_flags=verilate_flags,
            compile_flags=compile_flags,
        )
    sources = {name: (_HERE / name).read_text() for name in _HARNESS}
    sources |= device_sources()
    sources["board_ports.h"] = _ports_header(config, _link_ports(export))
    sources["blocks.h"] = joining_header(block)
    library = build_library(
        f"board-{config.name}" + ("-trace" if trace else "" if block else "-flat"),
        verilog=verilog,
        top=export.top,
        sources=sources,
        prefix="Vboard",
        verilate_flags=verilate_flags,
        compile_flags=compile_flags,
        trace=trace,
        joined=joined,
    )
    return BuiltBoard(library, config, export.sha256, trace, export.names_json())


def _link_ports(export: Export) -> int:
    """How many Aurora cores the kernel has pins for: 2, or 0 where it has none."""
    ports = len(set(re.findall(r"\blink_(\d)_tx_tready\b", export.text)))
    if ports not in (0, _LINK_PORTS):
        raise ValueError(f"kernel {export.top} has {ports} link ports; it must have {_LINK_PORTS} or none")
    return ports


def _ports_header(config: CoreConfig, links: int) -> str:
    channels = " ".join(f"X({channel})" for channel in range(config.channels))
    link_list = " ".join(f"X({link})" for link in range(links))
    periods = ClockPeriods.of(config.core_clock_mhz, config.port_clock_mhz)
    return (
        "#pragma once\n"
        "#include <cstdint>\n"
        f"constexpr unsigned CHANNELS = {config.channels};\n"
        f"constexpr unsigned PORT_BYTES = {config.port_bytes};\n"
        f"constexpr unsigned LINKS = {links};\n"
        f"constexpr uint64_t CORE_PERIOD = {periods.core}, PORT_PERIOD = {periods.port};\n"
        f"constexpr uint64_t LINK_PERIOD = {periods.link};\n"
        f"constexpr unsigned STALL_STREAM = {STALL_CAUSES.index('stream')};\n"
        f"using AddressWord = {_word(ADDRESS_BITS)};\n"
        f"using StrobeWord = {_word(config.port_bytes)};\n"
        f"#define FOR_EACH_CHANNEL(X) {channels}\n"
        f"#define FOR_EACH_LINK(X) {link_list}\n"
    )


def _word(bits: int) -> str:
    """Type in which Verilator keeps a port of so many bits."""
    return next(f"uint{size}_t" for size in (8, 16, 32, 64) if bits <= size)
