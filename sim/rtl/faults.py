"""Seeded faults of the gateware: small patches of source text, applied while a design is elaborated for one export.

The shipped sources and the shipped Verilog know nothing of them. A faulty design is exported by a process of its own,
in which the patched module is compiled from changed text (``sim.rtl.fault_export``).
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from collections.abc import Sequence
from typing import Any

from hw.board.export import Export
from hw.gpt2.config import CoreConfig
from sim.rtl.build import gateware_recipe, kernel_name
from sim.rtl.build_cache import cached_folder
from sim.rtl.fault_list import FAULTS
from sim.rtl.fault_patch import Fault, FaultError, module_path, patched_text
from sim.rtl.fresh_process import run_fresh

__all__ = ["check_faults", "core_of", "draw_faults", "export_with_fault", "find_fault", "list_faults"]

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_EXPORT_LIMIT_S = 1800.0


def list_faults() -> tuple[Fault, ...]:
    """All faults, the equivalent changes (controls) at the end."""
    return tuple(sorted(FAULTS, key=lambda fault: fault.equivalent))


def find_fault(name: str) -> Fault:
    """The fault of that name. Raises FaultError that lists the names."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise FaultError(f"unknown fault {name!r}; known faults: {', '.join(fault.name for fault in list_faults())}")


def draw_faults(count: int, seed: int) -> list[Fault]:
    """``count`` different faults drawn by ``seed``, no controls. Raises FaultError if there are not so many."""
    real = [fault for fault in list_faults() if not fault.equivalent]
    if not 1 <= count <= len(real):
        raise FaultError(f"1 to {len(real)} faults can be drawn, got {count!r}")
    return random.Random(seed).sample(real, count)


def core_of(fault: Fault, config: CoreConfig) -> CoreConfig:
    """The core on which the fault shows, made of ``config``. Raises ConfigError if there is no such core."""
    changes: dict[str, Any] = dict(fault.core_changes)
    return dataclasses.replace(config, **changes)


def check_faults(faults: Sequence[Fault] | None = None) -> list[str]:
    """What is wrong with the list itself: text not in its module exactly once, no change, bad syntax, names twice."""
    problems = []
    names: set[str] = set()
    for fault in list_faults() if faults is None else faults:
        if fault.name in names:
            problems.append(f"{fault.name}: the name occurs twice")
        names.add(fault.name)
        try:
            path = module_path(fault.module, _ROOT)
            compile(patched_text(fault, path.read_text(encoding="utf-8")), str(path), "exec", dont_inherit=True)
        except (FaultError, SyntaxError) as error:
            problems.append(str(error))
    return problems


def export_with_fault(name: str | Fault, config: CoreConfig) -> Export:
    """Verilog of the kernel with one fault in it, for ``sim.rtl.build.compile_board``; kept in the build cache.

    Raises FaultError if the fault is unknown, its text is not found exactly once, or the faulty design cannot be
    elaborated (within half an hour).
    """
    fault = find_fault(name) if isinstance(name, str) else name

    def build(folder: pathlib.Path) -> None:
        request = {"fault": dataclasses.asdict(fault), "config": config.to_json(), "folder": str(folder)}
        what = f"fault {fault.name}: the faulty design"
        run_fresh("sim.rtl.fault_export", request, what, _EXPORT_LIMIT_S, FaultError)

    recipe = [*gateware_recipe(config), json.dumps(dataclasses.asdict(fault))]
    folder = cached_folder(f"fault-{fault.name}-{config.name}", recipe, build)
    return Export(
        (folder / "kernel.v").read_text(), kernel_name(config), json.loads((folder / "names.json").read_text())
    )
