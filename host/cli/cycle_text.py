"""Tables of cycles for people: what was useful, every bucket of lost cycles, layers, instructions and units."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["board_text", "bucket_lines", "exposed_lines", "gateware_lines", "profile_lines", "step_text"]

Facts = Mapping[str, Any]


def board_text(facts: Facts) -> str:
    """What a title says of several boards, nothing of one."""
    if facts["boards"] == 1:
        return ""
    return f", {facts['boards']} boards, {facts['hop_ns']:g} ns a hop"


def step_text(facts: Facts) -> str:
    """Which step it is: of one request or of a batch, and how many positions it attends to."""
    if facts["requests"] == 1:
        return f"step, positions attended {facts['kv']:,}"
    return f"step of {facts['requests']} requests, positions attended by each {facts['kv']:,}"


def exposed_lines(exposed: Sequence[Facts]) -> list[str]:
    """What the length of the cables costs, a line for each that was timed."""
    return [
        f"exposed synchronisation at {one['hop_ns']:>5,.0f} ns a hop: {100 * one['exposed_sync_fraction']:7.3f} %, "
        f"{one['exposed_cycles']:,} of {one['cycles']:,} cycles"
        for one in exposed
    ]


def bucket_lines(part: Facts) -> list[str]:
    """A line for useful cycles and for each bucket that has any, with its share and, for buckets, its meaning.

    Cycles are those of all boards together.
    """
    from sim.timing.attribution import LOST_MEANINGS

    def line(name: str, value: int | float, meaning: str = "") -> str:
        share = _percent(value, part["cycles"] * part["boards"])
        return f"  {name:<16}{_number(value):>16}{share:>12}  {meaning}".rstrip()

    lost = part["lost_cycles"]
    lines = [line("useful", part["useful_cycles"], "products of the model")]
    lines += [line(name, value, LOST_MEANINGS[name]) for name, value in lost.items() if value]
    of_boards = "" if part["boards"] == 1 else f"of {part['boards']} boards"
    return [*lines, line("sum", part["useful_cycles"] + sum(lost.values()), of_boards)]


def profile_lines(facts: Facts) -> list[str]:
    """The report of a run on the timing model."""
    step, run, conditions = facts["step"], facts["run"], facts["conditions"]
    lines = [
        _title(facts),
        f"{step_text(facts)}: {step['cycles']:,} cycles, {step['ms_at_200mhz']:.4f} ms at an "
        f"assumed {conditions['assumed_clock_mhz']} MHz",
        *bucket_lines(step),
        *exposed_lines(facts["exposed_sync"]),
        *([] if facts["boards"] == 1 else [f"what follows is board {facts['board']}"]),
        f"its run of {facts['tokens']} tokens: {run['cycles']:,} cycles, {100 * run['useful_fraction']:.3f} % useful, "
        f"lost: {_lost(run)}",
        "by layer, with the share of useful products:",
        *_layers(facts["layers"]),
        "by instruction, all layers together:",
    ]
    lines += [_part(f"{part['index']:>3} {part['name']}", part) for part in facts["instructions"]]
    lines.append("units, cycles of the step in which each worked, and cycles that the matrix unit lost by it:")
    lines += [_unit(unit) for unit in facts["units"]]
    return [*lines, *(f"written: {facts[name]}" for name in ("trace", "png") if facts[name]), _source(facts)]


def gateware_lines(facts: Facts) -> list[str]:
    """The counters of the gateware beside those of the timing model."""
    gateware, timing = facts["run"], facts["timing_run"]
    lines = [
        _title(facts),
        f"run of {facts['tokens']} tokens from position {facts['first_position']}, {facts['kv']} positions attended at "
        "its end; by counters, so the first tile's wait and a token's row are in their causes",
        f"  {'':<16}{'gateware':>16}{'timing':>16}{'difference':>12}",
    ]
    rows = [("cycles", gateware["cycles"], timing["cycles"])]
    rows.append(("useful", gateware["useful_cycles"], timing["useful_cycles"]))
    rows += [(name, value, timing["lost_cycles"][name]) for name, value in gateware["lost_cycles"].items()]
    for name, first, second in rows:
        if first or second:
            lines.append(f"  {name:<16}{_number(first):>16}{_number(second):>16}{_number(second - first):>12}")
    return [*lines, _source(facts)]


def _title(facts: Facts) -> str:
    where = f"core {facts['core']}, memory {facts['memory']}{board_text(facts)}"
    return f"{facts['model']}, {where}; clocks {facts['conditions']['clocks']}"


def _source(facts: Facts) -> str:
    return f"Verilog {facts['verilog_sha256'][:16]}, cycles by {facts['cycles_source']}"


def _layers(layers: Sequence[Facts]) -> Iterator[str]:
    """A line for each run of equal layers."""
    for _, group in itertools.groupby(layers, lambda layer: (layer["cycles"], layer["lost_cycles"])):
        alike = list(group)
        first, last = alike[0]["name"], alike[-1]["name"]
        yield _part(first if len(alike) == 1 else f"{first} to {last.removeprefix('layer ')}, each", alike[0])


def _part(name: str, part: Facts) -> str:
    share = 100 * part["useful_fraction"]
    return f"  {name:<48}{part['cycles']:>12,}{share:>9.3f} %  {_lost(part)}".rstrip()


def _unit(unit: Facts) -> str:
    worked, share = unit["worked_cycles"], unit["share"]
    work = f"{'-':>12}{'-':>9}  " if worked is None else f"{worked:>12,}{100 * share:>9.2f} %"
    return f"  {unit['unit']:<20}{work}  {_number(sum(unit['lost_cycles'].values())):>12}  {_lost(unit)}".rstrip()


def _lost(part: Facts) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in part["lost_cycles"].items() if value)


def _percent(value: int | float, cycles: int) -> str:
    return f"{100 * value / cycles if cycles else 0.0:.3f} %"


def _number(cycles: int | float) -> str:
    """Cycles with separators; a fraction, which padding may have, with two digits."""
    return f"{cycles:,.0f}" if cycles == int(cycles) else f"{cycles:,.2f}"
