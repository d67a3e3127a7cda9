"""A synthesised module as yosys writes it to JSON: its cells, and the graph of what lies between its registers."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from sim.synth.cells import arcs, area, is_primitive, kinds

__all__ = ["REGISTER", "Graph", "Netlist"]

REGISTER = "ringfly_register"  # attribute of a net that the source declares with an initial value, as all registers are


@dataclasses.dataclass
class Graph:
    """Bits of a module as a graph of weighted edges; a bit is yosys's number of a net, a length is in eighths.

    ``fan_in[b]`` are the (bit, length) that bit b comes from. ``starts[b]`` : b comes out of a register, so long
    behind it. ``ends`` : (bit, name of the register) that bits go into. ``sources[b]`` : b comes from outside.
    ``sinks`` : (bit, place) that bits go to. A place outside is ``port[i]`` of the module itself or ``cell/port[i]`` of
    a module inside that was left out.
    """

    fan_in: dict[int, list[tuple[int, int]]]
    starts: dict[int, int]
    ends: list[tuple[int, str]]
    sources: dict[int, str]
    sinks: list[tuple[int, str]]


class Netlist:
    """One module of a netlist.

    Parameters
    ----------
    module : mapping
        The module's entry in the JSON that ``write_json`` makes.

    Attributes
    ----------
    cells : mapping from cell type to number, primitives only. ``boxes`` : cell name to the module that was left out.
    """

    def __init__(self, module: Mapping[str, Any]):
        self._module = module
        cells = module["cells"]
        types = {name: cell["type"] for name, cell in cells.items()}
        self.cells = collections.Counter(kind for kind in types.values() if is_primitive(kind))
        self.boxes = {name: kind for name, kind in types.items() if not is_primitive(kind)}
        self._names = _names(module["netnames"])
        self._drivers = {
            bit: name
            for name, cell in cells.items()
            for pin, bits in cell["connections"].items()
            if cell["port_directions"][pin] == "output"
            for bit in bits
            if isinstance(bit, int)
        }

    def area(self) -> dict[str, int]:
        """What the primitives take, by ``sim.synth.cells.kinds``."""
        total = dict.fromkeys(kinds(), 0)
        for cell, number in self.cells.items():
            for kind, amount in area(cell).items():
                total[kind] += amount * number
        return total

    def name(self, bit: int) -> str | None:
        """The bit's name in the source, with those of the instances that it lies in; that of a register if it is one.

        None for a bit between that only the synthesis has named.
        """
        known = self._names.get(bit)
        return known[1] if known else None

    def register(self, bit: int) -> str:
        """How to call a bit that comes out of a register: by its name, else by that of the cell."""
        return self.name(bit) or self._drivers[bit]

    def graph(self) -> Graph:
        """What lies between registers. Raises CellError for a cell that is not known."""
        graph = Graph({}, {}, [], {}, [])
        for name, port in self._module["ports"].items():
            self._outside(graph, name, port["bits"], port["direction"] == "input")
        for name, cell in self._module["cells"].items():
            pins, directions = cell["connections"], cell["port_directions"]
            if name in self.boxes:
                for pin, bits in pins.items():
                    self._outside(graph, f"{name}/{pin}", bits, directions[pin] == "output")
                continue
            inputs = {pin: len(bits) for pin, bits in pins.items() if directions[pin] == "input"}
            outputs = {pin: len(bits) for pin, bits in pins.items() if directions[pin] == "output"}
            register = self._register(name, [bit for pin in outputs for bit in pins[pin]])
            for arc in arcs(cell["type"], cell["parameters"], inputs, outputs):
                source = pins[arc.source[0]][arc.source[1]] if arc.source else None
                sink = pins[arc.sink[0]][arc.sink[1]] if arc.sink else None
                if isinstance(source, str) or isinstance(sink, str):
                    continue  # a constant
                if source is None:
                    assert sink is not None
                    graph.starts[sink] = max(arc.eighths, graph.starts.get(sink, 0))
                elif sink is None:
                    graph.ends.append((source, register))
                else:
                    graph.fan_in.setdefault(sink, []).append((source, arc.eighths))
        return graph

    @staticmethod
    def _outside(graph: Graph, port: str, bits: list[int | str], is_source: bool) -> None:
        for index, bit in enumerate(bits):
            if isinstance(bit, str):
                continue
            place = f"{port}[{index}]"
            if is_source:
                graph.sources[bit] = place
            else:
                graph.sinks.append((bit, place))

    def _register(self, cell: str, outputs: list[int | str]) -> str:
        """How a register is called in the source: by what comes out of it."""
        known = [self._names[bit] for bit in outputs if isinstance(bit, int) and bit in self._names]
        return min(known)[1] if known else cell


_Name = tuple[tuple[bool, bool, int, int], str]  # how clear it is (low is clear), the name


def _names(netnames: Mapping[str, Any]) -> dict[int, _Name]:
    names: dict[int, _Name] = {}
    for raw, net in netnames.items():
        if net["hide_name"]:
            continue
        base, bits = raw.replace("\\", ""), net["bits"]
        for index, bit in enumerate(bits):
            if isinstance(bit, str):
                continue
            name = f"{base}[{index}]" if len(bits) > 1 else base
            # registers come first, then names that a person gave, then the fewest instances in front, then short ones
            made = "$" in base or base.rpartition(".")[2].startswith("_")
            clear = (REGISTER not in net["attributes"], made, name.count("."), len(name))
            names[bit] = min((clear, name), names.get(bit, (clear, name)))
    return names
