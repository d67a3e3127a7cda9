"""A kernel whose lane is compiled once and joined computes what the flat kernel does, cycle for cycle."""

import re

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.board.export import export_verilog
from hw.bus.shared import Shared
from hw.gpt2.config import core_config
from sim.devices.memory_timing import MemoryTiming
from sim.programs import COMMITTED_SEEDS, random_case
from sim.programs.random_case import run_case
from sim.rtl import build
from sim.rtl.board import RtlBoard
from sim.rtl.hierarchy import joining_header, take_out
from sim.rtl.verilator import QUICK_COMPILE_FLAGS

CORE = core_config("16x4")
SEEDS = COMMITTED_SEEDS[:4]


class Inner(wiring.Component):
    """y <- x + 1."""

    def __init__(self):
        super().__init__({"x": In(40), "y": Out(40)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.y.eq(self.x + 1)
        return m


class Step(wiring.Component):
    """``Inner`` and a flag."""

    def __init__(self):
        super().__init__({"x": In(40), "go": In(1), "y": Out(40), "went": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = inner = Inner()
        m.d.comb += [inner.x.eq(self.x), self.y.eq(inner.y)]
        m.d.sync += self.went.eq(self.go)
        return m


class Kernel(wiring.Component):
    """Two steps, one of them a level deeper."""

    def __init__(self):
        super().__init__({"x": In(40), "y": Out(40)})

    def elaborate(self, platform):
        m = Module()
        deeper = Module()
        deeper.submodules.last = last = Shared("step", Step())
        m.submodules.first = first = Shared("step", Step())
        m.submodules.deeper = deeper
        m.d.comb += [first.x.eq(self.x), first.go.eq(1), last.x.eq(first.y), last.go.eq(first.went), self.y.eq(last.y)]
        return m


@pytest.fixture(scope="module")
def export():
    return export_verilog(Kernel(), {"step": Step()}, "kernel")


def modules(text):
    return re.findall(r"(?m)^module \\?([\w.]+) ?\(", text)


def test_a_module_is_taken_out_with_all_below_it(export):
    rest, block = take_out(export, "step")
    assert set(modules(export.text)) == {"kernel", "kernel.deeper", "step", "step.inner"}
    assert set(modules(block.verilog)) == {"step", "step.inner"}
    assert set(modules(rest)) == {"kernel", "kernel.deeper", "step"}
    assert (block.module, set(block.inputs), set(block.outputs)) == ("step", {"x", "go", "rst"}, {"y", "went"})
    assert set(block.instances) == {"kernel__DOT__first", "kernel__DOT__deeper__DOT__last"}
    stub = rest.split("module step(")[1]
    assert "assign" not in stub and "always" not in stub
    assert "input [39:0] x /*verilator public_flat_rd*/;" in stub
    assert "output reg [39:0] y /*verilator public_flat_rw*/;" in stub
    assert "output reg went /*verilator public_flat_rw*/;" in stub
    assert "  input clk;" in stub


def test_the_header_joins_every_port_of_every_instance(export):
    _, block = take_out(export, "step")
    text = joining_header(block)
    assert "constexpr unsigned BLOCKS = 2;" in text
    to, back = text.split("void from_blocks")
    for path in block.instances:
        for port in block.inputs:
            assert f"block.{port} = top.rootp->{path}__DOT__{port};" in to
        for port in block.outputs:
            assert f"top.rootp->{path}__DOT__{port} = block.{port};" in back
    assert text.count(" = top.rootp->") == 6 and back.count(" = block.") == 4


def test_without_a_block_nothing_is_joined():
    assert "constexpr unsigned BLOCKS = 0;" in joining_header(None)


def test_a_module_that_is_not_there_is_an_error(export):
    with pytest.raises(ValueError, match="the Verilog of kernel has no module 'lane'"):
        take_out(export, "lane")


def results(built, folder):
    """Results and counters of some random programs."""
    found = []
    for seed in SEEDS:
        print(f"seed {seed}")
        with RtlBoard(built, timing=MemoryTiming.random(seed)) as board:
            found.append((run_case(random_case(seed, CORE), board, folder, 1_000_000), board.counters()))
    return found


@pytest.fixture(scope="module")
def flat_results(tmp_path_factory):
    built = build.build_board(CORE, flat=True, compile_flags=QUICK_COMPILE_FLAGS)
    return results(built, tmp_path_factory.mktemp("flat"))


def test_joined_and_flat_kernels_are_equal(flat_results, tmp_path):
    joined = build.build_board(CORE)
    assert joined.library != build.build_board(CORE, flat=True, compile_flags=QUICK_COMPILE_FLAGS).library
    assert results(joined, tmp_path) == flat_results


@pytest.mark.parametrize("direction, port", [("to", "acc_first"), ("from", "half")])
def test_twin_without_one_port_of_one_lane_differs(flat_results, tmp_path, monkeypatch, direction, port):
    real = build.joining_header

    def header(block):
        path = block.instances[2]
        left, right = f"block.{port}", f"top.rootp->{path}__DOT__{port}"
        statement = f"{left} = {right};" if direction == "to" else f"{right} = {left};"
        text = real(block)
        assert text.count(statement) == 1
        return text.replace(statement, "")

    monkeypatch.setattr(build, "joining_header", header)
    built = build.build_board(CORE, compile_flags=QUICK_COMPILE_FLAGS)
    assert all(got != want for got, want in zip(results(built, tmp_path), flat_results, strict=True))
