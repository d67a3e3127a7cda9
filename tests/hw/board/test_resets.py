"""Either reset of the kernel resets both clocks' domains, and both come out of it."""

import pytest
from amaranth.hdl import ClockDomain, Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from hw.board import resets
from hw.board.resets import CrossedResets


def seen(core_ns, port_ns, which):
    """(kernel, port) resets before, during and behind a reset of ``which``."""
    dut, m = CrossedResets(), Module()
    for domain in ("kernel", "port"):
        m.domains += ClockDomain(domain, reset_less=True)
    m.submodules.dut = dut
    sim = Simulator(m)
    sim.add_clock(core_ns * 1e-9, domain="kernel")
    sim.add_clock(port_ns * 1e-9, domain="port", phase=1e-9)
    found = []

    async def bench(ctx):
        for level in (1, 0, 1):
            ctx.set(dut.ap_rst_n, level if which == "ap_rst_n" else 1)
            ctx.set(dut.ap_rst_n_2, level if which == "ap_rst_n_2" else 1)
            await ctx.delay(4 * max(core_ns, port_ns) * 1e-9)
            found.append((ctx.get(dut.kernel), ctx.get(dut.port)))

    sim.add_testbench(bench)
    sim.run()
    return found


@pytest.mark.parametrize("clocks", [(5, 4.4), (5, 5), (3, 20), (20, 3)])
@pytest.mark.parametrize("which", ["ap_rst_n", "ap_rst_n_2"])
def test_one_reset_is_both(clocks, which):
    assert seen(*clocks, which) == [(0, 0), (1, 1), (0, 0)]


def test_a_reset_that_does_not_cross_is_noticed(monkeypatch):
    """Twin: without the synchronizers each reset stays on its side."""

    class Cut(wiring.Component):
        def __init__(self, i, o, o_domain):
            super().__init__({})

        def elaborate(self, platform):
            return Module()

    monkeypatch.setattr(resets, "FFSynchronizer", Cut)
    assert seen(5, 4.4, "ap_rst_n")[1] == (1, 0) and seen(5, 4.4, "ap_rst_n_2")[1] == (0, 1)
