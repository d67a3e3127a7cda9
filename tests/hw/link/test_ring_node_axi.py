"""A ring node on Verilator between neighbours that speak golden frames over cocotbext-axi's streams."""

from sim.rtl.node_ring import TOP, node_verilog


def test_golden_neighbours_agree(cocotb_results):
    assert cocotb_results(TOP, node_verilog(256), "ring_node_traffic") == (12, 0)
