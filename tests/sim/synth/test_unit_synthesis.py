"""Area and depth of designs whose answers are known."""

from __future__ import annotations

import pytest

REGISTERED_ADDER = """
module top (clk, a, b, sum);
  input clk; input [15:0] a; input [15:0] b; output [16:0] sum;
  reg [15:0] left = 0, right = 0; reg [16:0] sum = 0;
  always @(posedge clk) begin left <= a; right <= b; sum <= left + right; end
endmodule
"""

MEMORY = """
module top (clk, we, wa, ra, d, q);
  input clk, we; input [9:0] wa, ra; input [35:0] d; output [35:0] q;
  reg [35:0] words [1023:0]; reg [35:0] q;
  always @(posedge clk) begin if (we) words[wa] <= d; q <= words[ra]; end
endmodule
"""

FIVE_STAGES = """
module top (clk, a, q);
  input clk; input [3:0] a; output [3:0] q;
  MARK reg [3:0] s0 = 0, s1 = 0; reg [3:0] s2 = 0, s3 = 0, q = 0;
  always @(posedge clk) begin s0 <= a; s1 <= s0; s2 <= s1; s3 <= s2; q <= s3; end
endmodule
"""

SMALL_MEMORY = (
    MEMORY.replace("[9:0]", "[4:0]")
    .replace("1023", "31")
    .replace("q <= words[ra];", "")
    .replace("reg [35:0] q;", "assign q = words[ra];")
)

PRODUCT = """
module top (clk, a, b, q);
  input clk; input [10:0] a, b; output [21:0] q;
  reg [10:0] left = 0, right = 0; reg [21:0] q = 0;
  always @(posedge clk) begin left <= a; right <= b; q <= left * right; end
endmodule
"""


def chained(chain, length: int) -> str:
    body = chain("start", "end_", length)
    return f"""
module top (clk, a, q);
  input clk, a; output q;
  reg start = 0, q = 0; wire end_;
{body}
  always @(posedge clk) begin start <= a; q <= end_; end
endmodule
"""


def test_a_registered_adder(judge):
    found = judge(REGISTERED_ADDER)
    assert found["area"] == {"lut": 16, "ff": 49, "dsp": 0, "bram18": 0, "uram": 0}
    assert found["cells"]["CARRY4"] == 5  # 17 bits
    worst = found["timing"]["paths"][0]
    assert worst["eighths"] == 8 + 8 + 4  # a LUT, a carry chain, four more cells of it
    assert worst["start"].split("[")[0] in ("left", "right") and worst["end"] == "sum[16]"


@pytest.mark.parametrize("length", [1, 5, 13])
def test_a_chain_of_luts_is_as_deep_as_it_is_long(judge, chain, length):
    [worst] = [path for path in judge(chained(chain, length))["timing"]["paths"] if path["end"] == "q"]
    assert (worst["eighths"], worst["start"]) == (8 * length, "start")


def test_a_deeper_chain_is_seen(judge, chain):
    """The twin that must fail."""
    depth = {n: judge(chained(chain, n))["timing"]["paths"][0]["eighths"] for n in (5, 13)}
    assert depth[13] - depth[5] == 8 * 8


def test_a_large_memory_becomes_block_ram(judge):
    found = judge(MEMORY)
    assert found["area"]["bram18"] == 2 and found["area"]["ff"] == 0 and found["area"]["lut"] < 10


def test_marked_registers_stay_flip_flops(judge):
    """The last three of five stages are not marked: as many as make a shift register."""
    assert judge(FIVE_STAGES.replace("MARK", '(* SHREG_EXTRACT = "NO" *)'))["cells"] == {"FDRE": 8, "SRL16E": 4}


def test_other_registers_become_shift_registers(judge):
    """The twin: without the mark, and with another one."""
    for mark in ("", '(* SHREG_EXTRACT = "YES" *)'):
        assert judge(FIVE_STAGES.replace("MARK", mark))["cells"] == {"SRL16E": 4}


def test_a_small_memory_read_at_once_becomes_lut_ram(judge):
    """The twin: nothing of the block RAM's kind is left, and reading is a level from port to port."""
    found = judge(SMALL_MEMORY)
    assert found["area"]["bram18"] == 0 and found["area"]["ff"] == 0 and 24 <= found["area"]["lut"] <= 40
    assert max(found["timing"]["through"]["q[0]"].values()) == 8


def test_a_product_takes_a_dsp(judge):
    found = judge(PRODUCT)
    assert found["area"]["dsp"] == 1 and found["area"]["lut"] == 0
    assert found["timing"]["paths"][0]["eighths"] == 5 * 8


def test_ports_are_told_apart_from_registers(judge, chain):
    """From a register to a port, from a port to a register, and from port to port."""
    body = chain("kept", "out", 3, "o") + chain("in_", "next", 2, "i") + chain("in_", "both", 4, "b")
    found = judge(
        f"""
module top (clk, in_, out, both);
  input clk, in_; output out, both; wire next; reg kept = 0;
{body}
  always @(posedge clk) kept <= next;
endmodule
"""
    )["timing"]
    assert found["arrivals"]["out[0]"] == [24, "kept"]
    assert found["required"]["in_[0]"] == [16, "kept"]
    assert found["through"]["both[0]"]["in_[0]"] == 32
    assert not found["paths"]


def test_a_loop_is_an_error(judge):
    from sim.synth.levels import LoopError

    with pytest.raises(LoopError, match="without a register"):
        judge(
            """
module top (clk, a, q);
  input clk, a; output q; wire x;
  LUT2 #(.INIT(4'h8)) one (.I0(a), .I1(x), .O(q));
  LUT2 #(.INIT(4'h6)) two (.I0(q), .I1(a), .O(x));
endmodule
"""
        )
