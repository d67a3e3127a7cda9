"""A kernel taken apart into units, and paths put together again over their borders."""

from __future__ import annotations

import dataclasses

import pytest

from hw.gpt2.config import core_config
from sim.rtl.build import export_board
from sim.synth.estimate import estimate
from sim.synth.joined import Part, joined_paths
from sim.synth.levels import LoopError, UnitTiming
from sim.synth.units import split


def kernel(chain, first: int, between: int, last: int) -> str:
    """A register, ``first`` LUTs, another unit with ``between`` LUTs, and back through ``last`` LUTs to a register."""
    return f"""
module \\k.core.far (clk, x, y);
  input clk;
  input x;
  output y;
{chain("x", "y", between, "f")}
endmodule

module \\k.core (clk, a, q);
  input clk;
  input a;
  output q;
  reg start = 1'h0, q = 1'h0;
  wire go, come, end_;
{chain("start", "go", first, "g")}
{chain("come", "end_", last, "e")}
  always @(posedge clk) begin start <= a; q <= end_; end
  \\k.core.far  far (
    .clk(clk), .x(go), .y(come)
  );
endmodule

module k (clk, a, q);
  input clk;
  input a;
  output q;
  \\k.core  core (
    .clk(clk), .a(a), .q(q)
  );
endmodule
"""


@pytest.mark.parametrize("first, between, last", [(3, 2, 4), (1, 5, 1)])
def test_a_path_over_borders_is_as_long_as_in_one_piece(judge, chain, export_of, first, between, last):
    text = kernel(chain, first, between, last)
    apart = estimate(export_of(text, {}))
    assert set(apart.units) == {"kernel", "core", "core.far"}
    [path, *_] = apart.joined
    assert (path.levels, path.start, path.end) == (first + between + last, ("core", "start"), ("core", "q"))
    assert path.crossings == (("core", "far/x[0]"), ("core.far", "y[0]"))
    whole = judge(text, "k")["timing"]["paths"]
    assert whole[0]["eighths"] == path.eighths
    assert apart.joined_levels("core") == path.levels and apart.units["core"].levels < path.levels


def timing(**members) -> UnitTiming:
    return UnitTiming(**({"paths": (), "arrivals": {}, "required": {}, "through": {}} | members))


def two_units(source: UnitTiming, sink: UnitTiming) -> dict[str, Part]:
    wires = timing(through={"b/i[0]": {"a/o[0]": 0}, "a/i[0]": {"b/o[0]": 0}})
    return {"kernel": Part(wires, {"a": "a", "b": "b"}), "a": Part(source, {}), "b": Part(sink, {})}


def test_the_longest_way_wins():
    a = timing(arrivals={"o[0]": (24, "from")}, through={"o[0]": {"i[0]": 8}})
    b = timing(arrivals={"o[0]": (40, "other")}, required={"i[0]": (16, "to[3]")})
    [path] = joined_paths(two_units(a, b), "kernel")
    assert (path.eighths, path.start, path.end) == (40 + 8 + 16, ("b", "other"), ("b", "to[3]"))
    b = dataclasses.replace(b, arrivals={"o[0]": (8, "other")})  # the twin: now the other way is longer
    [path] = joined_paths(two_units(a, b), "kernel")
    assert (path.eighths, path.start) == (24 + 16, ("a", "from"))


def test_a_loop_over_borders_is_an_error():
    through = timing(through={"o[0]": {"i[0]": 8}}, required={"i[0]": (8, "to")})
    with pytest.raises(LoopError, match="several units"):
        joined_paths(two_units(through, through), "kernel")


def test_the_kernel_is_split_without_loss():
    config = core_config("16x4")
    export = export_board(config)
    units = {unit.name: unit for unit in split(export)}
    assert {"kernel", "control", "core", "core.issue", "core.row_0.softmax", "channel_port"} <= set(units)
    assert units["channel_port"].instances == config.channels
    [lane] = [unit for unit in units.values() if unit.name.startswith("ringfly_lane")]
    assert lane.instances == config.lanes
    bodies = [body for unit in units.values() for body in modules("\n" + unit.verilog.split("(* blackbox *)")[0])]
    assert sorted(bodies) == sorted(modules(export.text))  # all of it, nothing twice


def modules(text: str) -> list[str]:
    """The modules of a Verilog text, each to its end."""
    return [part[: part.index("endmodule")] for part in text.split("\nmodule ")[1:]]


def test_two_units_of_one_name_are_an_error(export_of):
    text = "module \\k.x$1 (a);\n  input a;\nendmodule\n\nmodule \\k.x$2 (a);\n  input a;\nendmodule\n\n"
    text += (
        "module k (a);\n  input a;\n  \\k.x$1  one (\n    .a(a)\n  );\n  \\k.x$2  two (\n    .a(a)\n  );\nendmodule\n"
    )
    with pytest.raises(ValueError, match="same name"):
        split(export_of(text, {}))
