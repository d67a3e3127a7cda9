"""A simulator run ends with its main testbench, and with an error at its cycle limit."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from sim.rtl.pysim import run_testbench


class Counter(wiring.Component):
    def __init__(self, domain="sync"):
        self.domain = domain
        super().__init__({"count": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.d[self.domain] += self.count.eq(self.count + 1)
        return m


class TwoCounters(wiring.Component):
    def __init__(self):
        self.ours, self.theirs = Counter(), Counter("port")
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules += [self.ours, self.theirs]
        return m


def run(goal, cycles):
    """Wait for the counter to reach ``goal``; returns what a background testbench saw."""
    dut, seen = Counter(), []

    async def main(ctx):
        while ctx.get(dut.count) != goal:
            await ctx.tick()

    async def watch(ctx):
        while True:
            await ctx.tick()
            seen.append(ctx.get(dut.count))

    run_testbench(dut, main, background=[watch], cycles=cycles, progress=lambda: f"{len(seen)} ticks seen")
    return seen


def test_ends_with_the_main_testbench():
    assert run(goal=20, cycles=100)[:20] == list(range(1, 21))


def test_the_limit_is_an_error_that_says_how_far_it_got():
    with pytest.raises(AssertionError, match=r"(49|50|51) ticks seen within 50 cycles"):
        run(goal=200, cycles=50)


@pytest.mark.parametrize("period, phase, seen", [(8, 4, 39), (16, 9, 20), (16, 10, 19), (40, 39, 7)])
def test_every_domain_has_its_clock(period, phase, seen):
    """Both counters when the first one has seen 20 edges: in the 313th unit of time."""
    dut, found = TwoCounters(), []

    async def main(ctx):
        for _ in range(20):
            await ctx.tick()
        found.append((ctx.get(dut.ours.count), ctx.get(dut.theirs.count)))

    run_testbench(dut, main, cycles=100, clocks={"sync": (16, 9), "port": (period, phase)})
    assert found == [(20, seen)]
