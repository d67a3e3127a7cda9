# amaranth: UnusedElaboratable=no
"""Verilog export: shared modules once, same text everywhere, names that lead back to the sources."""

import os
import re
import subprocess
import sys

import pytest
from amaranth.back import verilog
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from hw.board.channel_port import ChannelPort
from hw.board.export import export_verilog
from hw.bus.shared import Shared, flat_ports

_CONTROL = """
from hw.board.control import Gpt2Control
from hw.board.export import export_verilog
from hw.gpt2.config import core_config
export = export_verilog(Gpt2Control(core_config("16x4")), {}, "control")
"""


class Step(wiring.Component):
    """y <- x + 1, one cycle."""

    def __init__(self):
        super().__init__({"x": In(8), "y": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.y.eq(self.x + 1)
        return m


class Pair(wiring.Component):
    """Two steps."""

    def __init__(self):
        super().__init__({"x": In(8), "y": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.first = first = Shared("step", Step())
        m.submodules.second = second = Shared("step", Step())
        m.d.comb += [first.x.eq(self.x), second.x.eq(first.y), self.y.eq(second.y)]
        return m


class Chain(wiring.Component):
    """Two pairs and a step."""

    def __init__(self):
        super().__init__({"x": In(8), "y": Out(8)})

    def elaborate(self, platform):
        m = Module()
        stage = self.x
        for name, kind, component in (("one", "pair", Pair()), ("two", "pair", Pair()), ("three", "step", Step())):
            m.submodules[name] = shared = Shared(kind, component)
            total = Signal(8, name=f"to_{name}")
            m.d.comb += [total.eq(stage), shared.x.eq(total)]
            stage = shared.y
        m.d.comb += self.y.eq(stage)
        return m


SHARED = {"step": Step(), "pair": Pair()}


class TwoClocks(wiring.Component):
    """Counts the edges of both of its clocks."""

    def __init__(self):
        super().__init__({"slow": Out(8), "fast": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.slow.eq(self.slow + 1)
        m.d.port += self.fast.eq(self.fast + 1)
        return m


class Clocked(wiring.Component):
    """``TwoClocks`` whose core clock is that of domain ``kernel`` here."""

    def __init__(self):
        super().__init__({"slow": Out(8), "fast": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.clocks = clocks = Shared("two_clocks", TwoClocks(), {"sync": "kernel", "port": "port"})
        m.d.comb += [self.slow.eq(clocks.slow), self.fast.eq(clocks.fast)]
        return m


@pytest.fixture(scope="module")
def export():
    return export_verilog(Chain(), SHARED, "chain")


def test_identical_modules_are_elaborated_once(export):
    assert re.findall(r"^module (\w+)", export.text, re.MULTILINE) == ["pair", "step", "chain"]
    assert len(re.findall(r"^  step \w+ \(", export.text, re.MULTILINE)) == 3
    assert len(re.findall(r"^  pair \w+ \(", export.text, re.MULTILINE)) == 2
    assert export.text.count("always @(posedge clk)") == 1


def test_simulation_takes_the_modules_themselves():
    chain = Chain()
    simulator = Simulator(chain)
    simulator.add_clock(1e-6)

    async def testbench(ctx):
        ctx.set(chain.x, 40)
        await ctx.tick().repeat(5)
        assert ctx.get(chain.y) == 45

    simulator.add_testbench(testbench)
    simulator.run()


def test_domains_of_a_shared_module_are_those_of_its_place():
    """In the Verilog by name, in simulation by renaming."""
    text = export_verilog(Clocked(), {"two_clocks": TwoClocks()}, "clocked").text
    instance = text.split("two_clocks clocks (")[1].split(");")[0]
    found = dict(re.findall(r"\.(\w*(?:clk|rst))\((\w+)\)", instance.replace(" ", "")))
    assert found == {"clk": "kernel_clk", "rst": "kernel_rst", "port_clk": "port_clk", "port_rst": "port_rst"}
    assert "always @(posedge port_clk)" in text.split("module two_clocks(")[1]

    clocked = Clocked()

    async def testbench(ctx):
        for _ in range(10):
            await ctx.tick("kernel")
        assert (ctx.get(clocked.slow), ctx.get(clocked.fast)) == (10, 29)  # first edges at 1.5 and 0.5 us

    simulator = Simulator(clocked)
    simulator.add_clock(3e-6, domain="kernel")
    simulator.add_clock(1e-6, domain="port")
    simulator.add_testbench(testbench)
    simulator.run()


def test_text_is_the_same_in_another_process(tmp_path):
    texts = set()
    for seed in ("0", "1", "77"):
        root = os.getcwd()
        folder = tmp_path / seed
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", _CONTROL + "print(export.text)\nprint(export.names_json())"],
            cwd=folder,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    text = texts.pop()
    namespace: dict = {}
    exec(_CONTROL, namespace)
    assert text == f"{namespace['export'].text}\n{namespace['export'].names_json()}\n"
    assert root not in text and str(tmp_path) not in text
    assert "generated" in text.lower()  # the tool's own line, without a date
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", text)


def test_text_does_not_say_where_a_memory_was_made():
    class Table(wiring.Component):
        def __init__(self):
            super().__init__({"address": In(2), "y": Out(8)})

        def elaborate(self, platform):
            m = Module()
            m.submodules.table = table = Memory(shape=8, depth=4, init=[1, 2, 3, 4])
            read = table.read_port()
            m.d.comb += [read.en.eq(1), read.addr.eq(self.address), self.y.eq(read.data)]
            return m

    assert "src =" in verilog.convert(Table(), name="table"), "what this test is about"
    text = export_verilog(Table(), {}, "table").text
    assert "src =" not in text and ".py" not in text


def test_text_follows_the_design(export):
    """Twin of the above: another design has another text and hash."""

    class Other(Step):
        def elaborate(self, platform):
            m = Module()
            m.d.sync += self.y.eq(self.x + 2)
            return m

    other = export_verilog(Chain(), {"step": Other(), "pair": Pair()}, "chain")
    assert other.text != export.text
    assert other.sha256 != export.sha256


def test_names_lead_to_verilog_and_source(export):
    names = export.name_map
    assert names["instances"] == {"chain.one": "pair", "chain.two": "pair", "chain.three": "step"} == export.instances
    for module, signals in names["modules"].items():
        body = export.text.split(f"module {module}(")[1].split("endmodule")[0]
        for signal in signals:
            assert signal["verilog"].rpartition(".")[2] in body
            assert re.match(r"[\w/]+\.py:\d+$", signal["source"]), signal
    found = {s["path"]: s for s in names["modules"]["chain"]}
    assert found["chain.to_two"]["bits"] == 8
    assert found["chain.to_two"]["source"].startswith("tests/hw/board/test_export.py:")


def test_patterns_must_be_those_in_use():
    with pytest.raises(ValueError, match=r"without a pattern: \['step'\]"):
        export_verilog(Chain(), {"pair": Pair()}, "chain")
    with pytest.raises(ValueError, match=r"nothing uses: \['other'\]"):
        export_verilog(Chain(), SHARED | {"other": Step()}, "chain")


def test_port_names_must_differ():
    class Clash(wiring.Component):
        def __init__(self):
            super().__init__({"a_b": In(1), "a": In(wiring.Signature({"b": In(1)}))})

        def elaborate(self, platform):
            return Module()

    with pytest.raises(ValueError, match="'a_b'"):
        flat_ports(Clash())


def test_text_names_no_file():
    text = export_verilog(ChannelPort(256, 32), {}, "port").text
    assert "src = " not in text and ".py" not in text
