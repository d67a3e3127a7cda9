"""An estimate as data: totals, modules, paths with the lines of gateware that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hw.board.export import Export
from hw.board.part import SHELL, SLRS, U280
from sim.synth.estimate import Estimate, UnitEstimate, whole_blocks
from sim.synth.joined import JoinedPath
from sim.synth.levels import Path, whole_register
from sim.synth.limits import CARD_SHARE, fits_card
from sim.synth.unit_synthesis import SYNTHESIS
from sim.synth.units import KERNEL

__all__ = ["module_levels", "report"]

METHOD = (
    "each module out of context, its parts flattened, times its instances; a level is a LUT, a carry chain entered, "
    "8 further CARRY4, or a fifth of a DSP without registers; MUXF7/8 count none; small LUTs are not paired, no "
    "registers are drawn into DSPs, and those that the source marks with SHREG_EXTRACT = NO stay flip-flops"
)


def report(estimate: Estimate, export: Export) -> dict[str, Any]:
    """``totals`` (amounts, percent of the part, ``slr``: percent of each die), ``modules``, ``paths``, ``conditions``.

    A module's ``levels`` is the deepest path between its own registers, ``levels_joined`` the deepest one that comes
    from another module. Amounts of a module are of one instance. Paths are those of each module, then the joined ones.
    """
    totals = estimate.totals()
    places = _Places(export, {name: unit.module for name, unit in estimate.units.items()})
    modules = {name: _module(unit, estimate.joined_levels(name), places) for name, unit in estimate.units.items()}
    return {
        "totals": {
            **{kind: _short(amount) for kind, amount in totals.items()},
            **{f"{kind}_pct": _percent(totals[kind], amount) for kind, amount in U280.amounts().items()},
            "slr": {
                name: {f"{kind}_pct": _percent(totals[kind], amount) for kind, amount in slr.amounts().items()}
                for name, slr in SLRS.items()
            },
            "levels": max(module_levels(estimate).values(), default=0),
        },
        "fits_card": not fits_card(totals),
        "beyond_card_share": {kind: round(share, 3) for kind, share in fits_card(totals).items()},
        "modules": dict(sorted(modules.items())),
        "joined_paths": [_joined(path, places) for path in estimate.joined],
        "area_source": f"estimated by {estimate.tool}",
        "verilog_sha256": estimate.verilog_sha256,
        "conditions": {
            "synthesis": SYNTHESIS,
            "method": METHOD,
            "part": U280.source,
            "shell": SHELL.source,
            "slr": next(iter(SLRS.values())).source,
            "card_share": CARD_SHARE,
        },
    }


def module_levels(estimate: Estimate) -> dict[str, int]:
    """Levels of the deepest path between registers that ends in each module, wherever it comes from."""
    return {name: max(unit.levels, estimate.joined_levels(name)) for name, unit in estimate.units.items()}


def _module(unit: UnitEstimate, joined_levels: int, places: _Places) -> dict[str, Any]:
    return {
        "instances": unit.instances,
        **{kind: _short(amount) for kind, amount in whole_blocks(unit.area).items()},
        "levels": unit.levels,
        "levels_joined": joined_levels,
        "cells": dict(unit.cells),
        "paths": [_path(path, unit.name, places) for path in unit.paths],
    }


def _path(path: Path, unit: str, places: _Places) -> dict[str, Any]:
    return {
        "levels": path.levels,
        "start": path.start,
        "end": path.end,
        "start_source": places.source(unit, path.start),
        "end_source": places.source(unit, path.end),
        "through": list(path.through),
    }


def _joined(path: JoinedPath, places: _Places) -> dict[str, Any]:
    return {
        "levels": path.levels,
        "module": path.unit,
        "start": ".".join(filter(None, path.start)),
        "end": ".".join(filter(None, path.end)),
        "start_source": places.source(path.start_unit, path.start[1]),
        "end_source": places.source(path.unit, path.end[1]),
        "crossings": [f"{instance or KERNEL}: {place}" for instance, place in path.crossings],
    }


class _Places:
    """Which line of the gateware made a register."""

    def __init__(self, export: Export, modules: Mapping[str, str]) -> None:
        names = export.name_map["modules"]
        assert isinstance(names, Mapping)
        self._lines = {entry["verilog"]: entry["source"] for entries in names.values() for entry in entries}
        self._modules = modules

    def source(self, unit: str, register: str) -> str | None:
        """``file:line`` of a register of a unit, or None where the synthesis made or renamed it."""
        return self._lines.get(f"{self._modules[unit]}.{whole_register(register)}")


def _short(amount: float) -> float:
    return int(amount) if amount == int(amount) else amount


def _percent(amount: float, whole: float) -> float:
    return round(100 * amount / whole, 2)
