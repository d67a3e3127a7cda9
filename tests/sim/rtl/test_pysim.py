"""A simulator run ends with its main testbench, and with an error at its cycle limit."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from sim.rtl.pysim import run_testbench


class Counter(wiring.Component):
    def __init__(self):
        super().__init__({"count": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.count.eq(self.count + 1)
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
