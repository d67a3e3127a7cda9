"""Memory ports on Verilator against an AXI memory that others wrote (cocotbext-axi)."""

from amaranth.hdl import DomainRenamer

from hw.board.export import export_verilog
from hw.board.memory_ports import MemoryPorts
from hw.gpt2.config import core_config


class OneReset(MemoryPorts):
    """Without runs there is one reset: a simulator that drives two equal clocks may let them race."""

    def elaborate(self, platform):
        return DomainRenamer({"kernel": "sync"})(super().elaborate(platform))


def test_axi_ram_agrees(cocotb_results):
    ports = OneReset(core_config("16x4"))
    verilog = export_verilog(ports, ports.shared_modules(), "memory_ports").text
    assert cocotb_results("memory_ports", verilog, "axi_ram_traffic") == (13, 0)
