"""From a core's config to its area and depth on a card: unit by unit, from the cache where nothing has changed."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.metadata
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from hw.board.export import Export
from sim.rtl.build_cache import BuildError, cached_folder
from sim.rtl.fresh_process import run_fresh
from sim.synth.cells import kinds
from sim.synth.joined import JoinedPath, Part, joined_paths
from sim.synth.levels import Path, UnitTiming, unit_timing
from sim.synth.netlist import Netlist
from sim.synth.unit_synthesis import PREPARATION, SYNTHESIS, read_netlist
from sim.synth.units import KERNEL, Unit, split

__all__ = ["Estimate", "UnitEstimate", "estimate", "judged", "synthesised", "tool_version", "whole_blocks"]

_LIMIT_S = 3600.0  # of one unit
_JUDGES = ("cells", "netlist", "levels")  # modules that say what a netlist takes and how deep it is


@dataclasses.dataclass(frozen=True)
class UnitEstimate:
    """One unit: its module in the Verilog, how often it stands in the kernel, what one of them takes
    (``sim.synth.cells.kinds``), its primitives by type, its paths.
    """

    name: str
    module: str
    instances: int
    area: Mapping[str, int]
    cells: Mapping[str, int]
    paths: tuple[Path, ...]

    @property
    def levels(self) -> int:
        """Of its deepest path between registers, ports apart."""
        return self.paths[0].levels if self.paths else 0


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A kernel: its units by name, the longest paths into each that cross borders of units, and who says so."""

    units: Mapping[str, UnitEstimate]
    joined: tuple[JoinedPath, ...]
    tool: str
    verilog_sha256: str

    def totals(self) -> dict[str, float]:
        """lut, ff, dsp, bram (36-kbit blocks) and uram of all instances of all units."""
        total = {kind: sum(unit.area[kind] * unit.instances for unit in self.units.values()) for kind in kinds()}
        return whole_blocks(total)

    def joined_levels(self, unit: str) -> int:
        """Of the deepest path that ends in a register of this unit and crosses a border of units; 0 without one."""
        return max((path.levels for path in self.joined if path.unit == unit), default=0)


def whole_blocks(area: Mapping[str, int]) -> dict[str, float]:
    """An area with block RAM in 36-kbit blocks."""
    return {kind.removesuffix("18"): amount / 2 if kind == "bram18" else amount for kind, amount in area.items()}


def tool_version() -> str:
    """Name and version of the synthesis tool."""
    return f"yosys {importlib.metadata.version('pyosys')}"


def estimate(
    export: Export, jobs: int = 1, progress: Callable[[str, int, int], None] = lambda what, done, total: None
) -> Estimate:
    """Synthesise the units of a kernel, ``jobs`` at a time, and put them together.

    ``progress`` is told (what, done, total). Raises BuildError if yosys fails, CellError or LoopError for a netlist
    that cannot be judged.
    """
    units = split(export)
    names = {unit.module: unit.name for unit in units}
    results: dict[str, dict[str, Any]] = {}
    size = sum(len(unit.verilog) for unit in units)
    done = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        largest_first = sorted(units, key=lambda unit: -len(unit.verilog))
        waiting = {pool.submit(judged, unit): unit for unit in largest_first}
        try:
            for finished in concurrent.futures.as_completed(waiting):
                unit = waiting[finished]
                results[unit.name] = finished.result()
                done += len(unit.verilog)
                progress(f"synthesis of {len(units)} units", done, size)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    parts = {
        name: Part(_timing(result["timing"]), {box: names[module] for box, module in result["boxes"].items()})
        for name, result in results.items()
    }
    return Estimate(
        {
            unit.name: UnitEstimate(
                unit.name,
                unit.module,
                unit.instances,
                results[unit.name]["area"],
                results[unit.name]["cells"],
                parts[unit.name].timing.paths,
            )
            for unit in units
        },
        tuple(joined_paths(parts, KERNEL)),
        tool_version(),
        export.sha256,
    )


def synthesised(unit: Unit) -> Netlist:
    """The netlist of a unit, from the cache if it was synthesised before. Raises BuildError if yosys fails."""
    return Netlist(read_netlist(_netlist_folder(unit), unit.module))


def judged(unit: Unit) -> dict[str, Any]:
    """What is looked at in a unit's netlist, from the cache if it was looked at before.

    ``cells`` (type to number), ``area`` (``sim.synth.cells.kinds``), ``boxes`` (instance to the module that was left
    out) and ``timing`` (``sim.synth.levels.UnitTiming``).
    """
    here = pathlib.Path(__file__).parent
    folder = _netlist_folder(unit)

    def build(target: pathlib.Path) -> None:
        netlist = synthesised(unit)
        found = {
            "cells": dict(sorted(netlist.cells.items())),
            "area": netlist.area(),
            "boxes": netlist.boxes,
            "timing": dataclasses.asdict(unit_timing(netlist)),
        }
        (target / "levels.json").write_text(json.dumps(found))

    recipe = [folder.name, *((here / f"{name}.py").read_text() for name in _JUDGES)]
    result: dict[str, Any] = json.loads(
        (cached_folder(f"levels-{unit.name}", recipe, build) / "levels.json").read_text()
    )
    return result


def _netlist_folder(unit: Unit) -> pathlib.Path:
    def build(folder: pathlib.Path) -> None:
        request = {"verilog": unit.verilog, "module": unit.module, "folder": str(folder)}
        run_fresh("sim.synth.unit_synthesis", request, f"netlist of unit {unit.name}", _LIMIT_S, BuildError)

    recipe = [unit.module, unit.verilog, tool_version(), *PREPARATION, SYNTHESIS]
    return cached_folder(f"netlist-{unit.name}", recipe, build)


def _timing(timing: Mapping[str, Any]) -> UnitTiming:
    """A unit's timing out of JSON."""
    return UnitTiming(
        tuple(Path(path["eighths"], path["start"], path["end"], tuple(path["through"])) for path in timing["paths"]),
        {place: (length, register) for place, (length, register) in timing["arrivals"].items()},
        {place: (length, register) for place, (length, register) in timing["required"].items()},
        timing["through"],
    )
