"""Yardsticks of area: the core's committed estimate (`ringfly synth`) against the design's bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from host.bench.published import Quantity
from host.bench.published_figures import best_published
from host.bench.yardsticks import BARS_SOURCE, verilog_of
from host.compiler import chosen_core
from host.errors import BadInput
from sim.synth.baseline import BaselineError, baseline_file, read_baseline
from sim.synth.limits import GPT2_64X16

__all__ = ["area_rows"]

_NAMES = {"lut": "LUTs", "dsp": "DSPs", "bram": "block RAMs"}
_PUBLISHED = {"lut": Quantity.LUT_FRACTION, "dsp": Quantity.DSP_FRACTION, "bram": Quantity.BRAM_FRACTION}
_DIES = "none for the whole part; clocks fall beyond 60 to 70 % of the LUTs of a die"


def area_rows(core: str = "64x16", path: Path | None = None) -> list[dict[str, Any]]:
    """A row for each resource that has a bar, in percent of the part, as `path` (the core's baseline) holds them.

    Nothing is synthesised here. Without that file `value` is None and `conditions.command` says what makes it.
    `conditions.of_this_gateware` says whether it is of the Verilog of today. Raises BadInput for a damaged file.
    """
    file = baseline_file("gpt2", core) if path is None else path
    try:
        kept = read_baseline(file)
    except BaselineError as error:
        raise BadInput(str(error), value=str(file), hint="Give --update to `ringfly synth`.") from error
    command = f"ringfly synth gpt2 --core {core} --update"
    facts: dict[str, Any] = {"file": f"results/{file.name}", "command": command, "bar_source": BARS_SOURCE}
    facts |= {"core": core, "limit_meaning": _DIES, "of_this_gateware": None}
    if kept is None:
        facts["missing"] = f"{facts['file']} does not exist: `{command}` makes it"
    else:
        facts |= kept["conditions"]
        facts["of_this_gateware"] = kept["verilog_sha256"] == verilog_of(chosen_core(core))
    return [_row(kind, core, bar, kept, facts) for kind, bar in GPT2_64X16.percent.items()]


def _row(kind: str, core: str, bar: float, kept: dict[str, Any] | None, facts: dict[str, Any]) -> dict[str, Any]:
    value = None if kept is None else kept["totals"][f"{kind}_pct"]
    best = best_published(quantity=_PUBLISHED[kind])
    return {
        "work": f"area of the {core} core with ring node, {_NAMES[kind]}",
        "value": value,
        "unit": "%",
        "ms": None,
        "cycles": None,
        "bar": bar,
        "limit": None,
        "limit_even_split": None,
        "met": None if value is None else value <= bar,
        "cycles_source": None,
        "area_source": None if kept is None else kept["area_source"],
        "best_published": None if best is None else best.facts(),
        "verilog_sha256": None if kept is None else kept["verilog_sha256"],
        "seconds": None,
        "conditions": facts,
    }
