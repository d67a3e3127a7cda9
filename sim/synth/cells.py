"""The cells that yosys maps to for UltraScale+: what each takes of the part, and what a path through it counts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

__all__ = ["CARRY_CELLS_PER_LEVEL", "DSP_LEVELS", "LEVEL", "Arc", "CellError", "arcs", "area", "is_primitive", "kinds"]

LEVEL = 8  # path lengths are counted in eighths of a level
CARRY_CELLS_PER_LEVEL = 8  # CARRY4 cells (32 bits) that a carry passes count as one level
DSP_LEVELS = 5  # a product in a DSP without registers of its own, about 2 ns beside 0.4 ns for a LUT and its wire

_CLOCK_PINS = {"C", "CLK", "WCLK", "CLKARDCLK", "CLKBWRCLK"}
_LUTS = {f"LUT{n}" for n in range(1, 7)} | {"INV"}
_WIDE = {"MUXF7", "MUXF8", "MUXF9"}
_FLIP_FLOPS = {"FDRE", "FDSE", "FDCE", "FDPE"}
_BLOCKS = {"RAMB18E2", "RAMB36E2", "URAM288", "URAM288_BASE"}
_DSP_REGISTERS = ("AREG", "BREG", "CREG", "DREG", "ADREG", "MREG", "PREG")

# LUTs of a shift register or LUT RAM, and for each output pin the address pins that it reads at.
_LUT_MEMORIES: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "SRL16E": (1, {"Q": r"A\d"}),
    "SRLC16E": (1, {"Q": r"A\d", "Q15": ""}),
    "SRLC32E": (1, {"Q": "A", "Q31": ""}),
    "RAM32X1S": (1, {"O": r"A\d"}),
    "RAM64X1S": (1, {"O": r"A\d"}),
    "RAM128X1S": (2, {"O": r"A\d"}),
    "RAM256X1S": (4, {"O": "A"}),
    "RAM512X1S": (8, {"O": "A"}),
    "RAM32X1D": (2, {"SPO": r"A\d", "DPO": r"DPRA\d"}),
    "RAM64X1D": (2, {"SPO": r"A\d", "DPO": r"DPRA\d"}),
    "RAM128X1D": (4, {"SPO": "A", "DPO": "DPRA"}),
    "RAM256X1D": (8, {"SPO": "A", "DPO": "DPRA"}),
    "RAM32M": (4, {f"DO{port}": f"ADDR{port}" for port in "ABCD"}),
    "RAM64M": (4, {f"DO{port}": f"ADDR{port}" for port in "ABCD"}),
    "RAM32M16": (8, {f"DO{port}": f"ADDR{port}" for port in "ABCDEFGH"}),
    "RAM64M8": (8, {f"DO{port}": f"ADDR{port}" for port in "ABCDEFGH"}),
    "RAM32X16DR8": (8, {f"DO{port}": f"ADDR{port}" for port in "ABCDEFGH"}),
    "RAM64X8SW": (8, {"O": "A"}),
}


class CellError(ValueError):
    """The netlist has a cell that this table does not know."""


@dataclasses.dataclass(frozen=True)
class Arc:
    """A way through a cell, or half of one.

    ``source`` and ``sink`` are (pin, index), or None: an arc without source starts at a register, one without sink ends
    there. ``eighths``: levels times :data:`LEVEL`.
    """

    source: tuple[str, int] | None
    sink: tuple[str, int] | None
    eighths: int


def kinds() -> tuple[str, ...]:
    """What is counted: LUTs, flip-flops, DSPs, halves of a 36-kbit block RAM, UltraRAMs."""
    return ("lut", "ff", "dsp", "bram18", "uram")


def is_primitive(cell: str) -> bool:
    """Whether the cell is one of the part's, not an instance of a module."""
    return (
        cell in _LUTS | _WIDE | _FLIP_FLOPS | _BLOCKS
        or cell in _LUT_MEMORIES
        or cell in ("CARRY4", "DSP48E2", "GND", "VCC")
    )


def area(cell: str) -> dict[str, int]:
    """What one cell takes; carry chains and wide multiplexers lie beside the LUTs that feed them.

    Two small LUTs that a vendor's tool would put into one LUT6 count as two. Raises CellError for an unknown cell.
    """
    if cell in _LUTS:
        return {"lut": 1}
    if cell in _LUT_MEMORIES:
        return {"lut": _LUT_MEMORIES[cell][0]}
    if cell in _FLIP_FLOPS:
        return {"ff": 1}
    if cell == "DSP48E2":
        return {"dsp": 1}
    if cell == "RAMB18E2":
        return {"bram18": 1}
    if cell == "RAMB36E2":
        return {"bram18": 2}
    if cell in ("URAM288", "URAM288_BASE"):
        return {"uram": 1}
    if is_primitive(cell):
        return {}
    raise _unknown(cell)


def arcs(
    cell: str, parameters: Mapping[str, object], inputs: Mapping[str, int], outputs: Mapping[str, int]
) -> Iterator[Arc]:
    """All arcs of a cell.

    ``inputs`` and ``outputs`` map pins to their widths. A LUT counts one level, so does reading a shift register or LUT
    RAM; a wide multiplexer none; a carry chain one where it is entered and :data:`LEVEL` / CARRY_CELLS_PER_LEVEL
    eighths for each further CARRY4; a DSP without registers DSP_LEVELS. Flip-flops, block RAMs, UltraRAMs and DSPs with
    registers start and end paths. Clock pins do not count. Raises CellError for an unknown cell.
    """
    signals = {pin: width for pin, width in inputs.items() if pin not in _CLOCK_PINS}
    if cell in _LUTS or cell in _WIDE:
        yield from _through(signals, outputs, LEVEL if cell in _LUTS else 0)
    elif cell == "CARRY4":
        yield from _carry(signals, outputs)
    elif cell in _LUT_MEMORIES:
        yield from _ends(signals)
        for pin, width in outputs.items():
            address = re.compile(_LUT_MEMORIES[cell][1][pin])
            read = {name: bits for name, bits in signals.items() if address.fullmatch(name)}
            yield from _through(read, {pin: width}, LEVEL)
            yield from (Arc(None, (pin, i), LEVEL) for i in range(width))
    elif cell == "DSP48E2" and not any(_number(parameters.get(name, 0)) for name in _DSP_REGISTERS):
        yield from _through(signals, outputs, DSP_LEVELS * LEVEL)
    elif cell in _FLIP_FLOPS or cell in _BLOCKS or cell == "DSP48E2":
        yield from _ends(signals)
        yield from (Arc(None, (pin, i), 0) for pin, width in outputs.items() for i in range(width))
    elif cell not in ("GND", "VCC"):
        raise CellError(
            f"yosys made a cell {cell!r}, which sim/synth/cells.py does not know; add its area and its arcs"
        )


def _through(inputs: Mapping[str, int], outputs: Mapping[str, int], eighths: int) -> Iterator[Arc]:
    for source, source_width in inputs.items():
        for sink, sink_width in outputs.items():
            for i in range(source_width):
                yield from (Arc((source, i), (sink, j), eighths) for j in range(sink_width))


def _ends(inputs: Mapping[str, int]) -> Iterator[Arc]:
    return (Arc((pin, i), None, 0) for pin, width in inputs.items() for i in range(width))


def _carry(inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Iterator[Arc]:
    """O[i] and CO[i] see bits 0 to i; O[i] does not see DI[i]."""
    for sink, width in outputs.items():
        for i in range(width):
            yield Arc(("CI", 0), (sink, i), LEVEL // CARRY_CELLS_PER_LEVEL)
            yield Arc(("CYINIT", 0), (sink, i), LEVEL)
            yield from (Arc(("S", j), (sink, i), LEVEL) for j in range(i + 1))
            yield from (Arc(("DI", j), (sink, i), LEVEL) for j in range(i + (sink == "CO")))


def _unknown(cell: str) -> CellError:
    return CellError(f"yosys made a cell {cell!r}, which sim/synth/cells.py does not know; add its area and its arcs")


def _number(value: object) -> int:
    """A parameter of a netlist: a number, or a string of bits."""
    return int(value, 2) if isinstance(value, str) and re.fullmatch("[01]+", value) else int(bool(value))
