"""A link port on Verilator against frames that the golden model makes and reads, over cocotbext-axi's streams."""

from sim.rtl.link_pair import TOP, port_verilog


def test_golden_frames_agree(cocotb_results):
    assert cocotb_results(TOP, port_verilog(256), "link_port_traffic") == (11, 0)
