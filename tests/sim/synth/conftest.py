"""Small designs with known answers, made of LUTs that no synthesis may change, and a way to judge them."""

from __future__ import annotations

import pytest

from hw.board.export import Export
from sim.synth.estimate import judged
from sim.synth.units import Unit


def lut_chain(first: str, last: str, length: int, prefix: str = "c") -> str:
    """Verilog: ``last`` is ``first`` behind ``length`` LUTs of their own."""
    wires = [first, *(f"{prefix}{i}" for i in range(1, length)), last]
    lines = [f"  wire {wire};" for wire in wires[1:-1]]
    lines += [
        f"  LUT2 #(.INIT(4'h6)) {prefix}_lut{i} (.I0({wires[i]}), .I1(clk), .O({wires[i + 1]}));" for i in range(length)
    ]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def judge():
    """``judge(verilog, module="top")``: what is found in the module's netlist."""

    def judge(verilog: str, module: str = "top") -> dict:
        return judged(Unit(f"test-{module}", module, verilog, 1))

    return judge


@pytest.fixture(scope="session")
def chain():
    """``chain(first, last, length)``: Verilog of a chain of LUTs between two wires."""
    return lut_chain


@pytest.fixture
def export_of():
    """``export_of(verilog, instances)``: an export whose top is the module ``k``."""

    def export_of(verilog: str, instances: dict[str, str]) -> Export:
        return Export(verilog, "k", {"format": "ringfly-names/1", "top": "k", "modules": {}, "instances": instances})

    return export_of
