"""The longest paths of one module: between its registers, and from and to its ports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from sim.synth.cells import LEVEL
from sim.synth.netlist import Graph, Netlist

__all__ = ["PATHS", "LoopError", "Path", "UnitTiming", "unit_timing", "whole_register"]

PATHS = 12  # of a module that are kept, one for each register that a path ends in


class LoopError(ValueError):
    """Logic feeds itself without a register between."""


@dataclasses.dataclass(frozen=True)
class Path:
    """A path between two registers, ``eighths`` of a level long, through the named signals ``through``."""

    eighths: int
    start: str
    end: str
    through: tuple[str, ...]

    @property
    def levels(self) -> int:
        """Whole levels."""
        return self.eighths // LEVEL


@dataclasses.dataclass(frozen=True)
class UnitTiming:
    """What a module's paths are, also as others see them from outside. Lengths are in eighths of a level.

    ``paths`` : the longest ones between registers, longest first. ``arrivals`` : for a place that signals leave to, the
    longest way from a register, and that register. ``required`` : for a place that signals come from, the longest way
    to a register, and that register. ``through`` : for a place that signals leave to, the longest way from each place
    that they come from. Places are those of ``sim.synth.netlist.Graph``.
    """

    paths: tuple[Path, ...]
    arrivals: dict[str, tuple[int, str]]
    required: dict[str, tuple[int, str]]
    through: dict[str, dict[str, int]]


def unit_timing(netlist: Netlist) -> UnitTiming:
    """The longest paths of a module. Raises LoopError or CellError."""
    graph = netlist.graph()
    order = _order(graph, netlist)
    length, before = _forward(graph, order)
    required = _backward(graph, order)
    return UnitTiming(
        _worst(graph, netlist, length, before),
        {place: (length[bit], _start(netlist, before, bit)) for bit, place in graph.sinks if bit in length},
        {place: required[bit] for bit, place in graph.sources.items() if bit in required},
        _through(graph, order),
    )


def _order(graph: Graph, netlist: Netlist) -> list[int]:
    """Bits that cells drive, each behind all that it comes from."""
    order: list[int] = []
    state: dict[int, int] = {}  # 1 while its fan-in is visited, 2 behind
    for root in graph.fan_in:
        stack = [root]
        while stack:
            bit = stack[-1]
            if state.get(bit) == 2 or bit not in graph.fan_in:
                stack.pop()
                continue
            if state.get(bit) == 1:
                state[bit] = 2
                order.append(bit)
                stack.pop()
                continue
            state[bit] = 1
            for source, _ in graph.fan_in[bit]:
                if state.get(source) == 1:
                    raise LoopError(f"logic feeds itself without a register at {netlist.name(source) or source}")
                if source not in state:
                    stack.append(source)
    return order


def _forward(graph: Graph, order: Iterable[int]) -> tuple[dict[int, int], dict[int, int]]:
    """For each bit the longest way from a register, and the bit before it on that way."""
    length = dict(graph.starts)
    before: dict[int, int] = {}
    for bit in order:
        for source, weight in graph.fan_in[bit]:
            if source in length and length[source] + weight > length.get(bit, -1):
                length[bit] = length[source] + weight
                before[bit] = source
    return length, before


def _backward(graph: Graph, order: list[int]) -> dict[int, tuple[int, str]]:
    """For each bit the longest way to a register, and that register."""
    required: dict[int, tuple[int, str]] = {}
    for bit, name in graph.ends:
        if bit not in required:
            required[bit] = (0, name)
    for bit in reversed(order):
        if bit not in required:
            continue
        behind, name = required[bit]
        for source, weight in graph.fan_in[bit]:
            if behind + weight > required.get(source, (-1, ""))[0]:
                required[source] = (behind + weight, name)
    return required


def _through(graph: Graph, order: list[int]) -> dict[str, dict[str, int]]:
    """Ways from outside to outside: followed only through bits from which there is one."""
    leads_out = {bit for bit, _ in graph.sinks}
    for bit in reversed(order):
        if bit in leads_out:
            leads_out.update(source for source, _ in graph.fan_in[bit])
    ways: dict[int, dict[str, int]] = {bit: {place: 0} for bit, place in graph.sources.items() if bit in leads_out}
    for bit in order:
        if bit not in leads_out:
            continue
        joined: dict[str, int] = {}
        for source, weight in graph.fan_in[bit]:
            for place, way in ways.get(source, {}).items():
                if way + weight > joined.get(place, -1):
                    joined[place] = way + weight
        if joined:
            ways[bit] = joined
    return {place: ways[bit] for bit, place in graph.sinks if bit in ways}


def _worst(graph: Graph, netlist: Netlist, length: dict[int, int], before: dict[int, int]) -> tuple[Path, ...]:
    longest: dict[str, tuple[int, int, str]] = {}
    for bit, name in graph.ends:
        register = whole_register(name)
        if bit in length and length[bit] > longest.get(register, (-1,))[0]:
            longest[register] = (length[bit], bit, name)
    found = sorted(longest.values(), key=lambda entry: (-entry[0], entry[2]))[:PATHS]
    return tuple(
        Path(eighths, _start(netlist, before, bit), name, _named(netlist, before, bit)) for eighths, bit, name in found
    )


def _start(netlist: Netlist, before: dict[int, int], bit: int) -> str:
    while bit in before:
        bit = before[bit]
    return netlist.register(bit)


def _named(netlist: Netlist, before: dict[int, int], bit: int) -> tuple[str, ...]:
    """Named signals between the two ends of a path, first to last."""
    names: list[str] = []
    while bit in before:
        name = netlist.name(bit)
        if name is not None and name not in names:
            names.append(name)
        bit = before[bit]
    return tuple(reversed(names))


def whole_register(name: str) -> str:
    """A register's name without the index of its bit."""
    return name[: name.rindex("[")] if name.endswith("]") else name
