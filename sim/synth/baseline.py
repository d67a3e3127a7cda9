"""The committed figures of a core, and what has grown since."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["TOLERANCE", "BaselineError", "baseline_file", "grown", "read_baseline", "write_baseline"]

FORMAT = "ringfly-area/1"
TOLERANCE = 0.03  # of a module's or the total's amount
_SLACK = {"lut": 64, "ff": 64, "dsp": 0, "bram": 0, "uram": 0}  # growth that counts for nothing in a small module
_KEPT = ("instances", "lut", "ff", "dsp", "bram", "uram", "levels", "levels_joined")
_RESULTS = pathlib.Path(__file__).resolve().parents[2] / "results"


class BaselineError(ValueError):
    """The committed file cannot be read; the message says what to do."""


def baseline_file(core: str, config_name: str, results: pathlib.Path = _RESULTS) -> pathlib.Path:
    """Where the figures of a core are kept, for example ``results/area_gpt2_64x16.json``."""
    return results / f"area_{core}_{re.sub(r'[^0-9A-Za-z]', '_', config_name)}.json"


def write_baseline(path: pathlib.Path, report: Mapping[str, Any], command: str) -> None:
    """Keep a report's totals and modules, with the command and the tool that made them."""
    kept = {
        "format": FORMAT,
        "command": command,
        "area_source": report["area_source"],
        "verilog_sha256": report["verilog_sha256"],
        "conditions": report["conditions"],
        "totals": report["totals"],
        "modules": {name: {key: module[key] for key in _KEPT} for name, module in report["modules"].items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def read_baseline(path: pathlib.Path) -> dict[str, Any] | None:
    """The kept figures, or None if there are none for this core. Raises BaselineError for a damaged file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        kept = json.loads(text)
        if kept["format"] != FORMAT or not all(set(_KEPT) <= set(module) for module in kept["modules"].values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BaselineError(f"{path} is not a baseline of format {FORMAT}; write it again with --update") from None
    return dict(kept)


def grown(report: Mapping[str, Any], kept: Mapping[str, Any], tolerance: float = TOLERANCE) -> list[str]:
    """A line for all that takes more than in the baseline: totals and modules (of all their instances), new modules.

    Growth up to ``tolerance`` of the kept amount, and of 64 LUTs or flip-flops in any case, is not told.
    """
    lines = []
    now = {"total": report["totals"], **report["modules"]}
    then = {"total": kept["totals"], **kept["modules"]}
    for name, figures in now.items():
        if name not in then:
            lines.append(f"{name}: a new module of {figures['lut']:,} LUT, {figures['ff']:,} FF")
            continue
        for kind, slack in _SLACK.items():
            amount, before = (figures[kind] * figures.get("instances", 1) for figures in (figures, then[name]))
            if amount - before > max(slack, tolerance * before):
                share = f", {100 * (amount / before - 1):.1f} % more" if before else ""
                lines.append(f"{name}: {kind} {before:,} -> {amount:,}{share}")
    return lines
