"""What crosses between the two clocks of a port: counts and resets; what ports and streams refuse."""

import gc
import random

import pytest
from amaranth.hdl import ClockDomain, Module, Signal
from amaranth.sim import Simulator

from hw.bus.axi_stream import AxiStreamSignature
from hw.link import channel_reset
from hw.link.channel_reset import ChannelReset
from hw.link.crossing_count import CrossingCount
from hw.link.port import LinkPort

KERNEL, LINK = (5000, 0), (2482, 700)  # period and phase, ps


def simulate(dut, *testbenches):
    m = Module()
    for domain in ("kernel", "link"):
        m.domains += ClockDomain(domain)
    m.submodules.dut = dut
    sim = Simulator(m)
    for domain, (period, phase) in (("kernel", KERNEL), ("link", LINK)):
        sim.add_clock(period * 1e-12, phase=phase * 1e-12, domain=domain)
    sim.add_testbench(testbenches[0])
    for testbench in testbenches[1:]:
        sim.add_testbench(testbench, background=True)
    sim.run()


@pytest.mark.parametrize("counts, shows", [("link", "kernel"), ("kernel", "link")])
def test_a_count_is_seen_as_it_was_a_moment_ago(counts, shows):
    """Never more than the count, never less than it was two edges of the other clock ago; over the wrap, too."""
    dut, rng = CrossingCount(4, counts=counts, shows=shows), random.Random(1)
    total = [0]  # strobes so far

    async def count(ctx):
        for _ in range(500):
            increment = rng.randrange(2)
            ctx.set(dut.increment, increment)
            await ctx.tick(counts)
            total[0] += increment
        ctx.set(dut.increment, 0)
        await ctx.tick(shows).repeat(3)
        assert ctx.get(dut.seen) == total[0] % 16 and total[0] > 200

    async def watch(ctx):
        before = [0, 0, 0]
        while True:
            await ctx.tick(shows)
            seen = ctx.get(dut.seen)
            oldest = before.pop(0)
            assert (seen - oldest) % 16 <= total[0] - oldest, (seen, oldest, total)
            before.append(total[0])

    simulate(dut, count, watch)


def glitches(seed, lengths):
    """Let the channel fall many times, for so many cycles; each time both halves must be in reset together."""
    dut, rng = ChannelReset(), random.Random(seed)
    overlap = [False]  # at an edge of the kernel's clock since the channel fell

    async def channel(ctx):
        for _ in range(100):
            ctx.set(dut.channel_up, 1)
            await ctx.tick("link").repeat(60 if rng.randrange(2) else rng.randint(1, 30))
            ctx.set(dut.channel_up, 0)
            overlap[0] = False
            await ctx.tick("link").repeat(rng.choice(lengths))
            assert ctx.get(dut.link)
            ctx.set(dut.channel_up, 1)
            for _ in range(60):
                await ctx.tick("link")
                if not ctx.get(dut.link):
                    break
            else:
                raise AssertionError("no end of the reset")
            assert overlap[0], "the link's half left its reset before the kernel's half was in it"

    async def watch(ctx):
        while True:
            *_, kernel, link = await ctx.tick("kernel").sample(dut.kernel, dut.link)
            overlap[0] |= bool(kernel and link)

    simulate(dut, channel, watch)


@pytest.mark.parametrize("lengths", [[1], [1, 2, 3, 5, 8], [40]])
def test_no_fall_of_the_channel_is_too_short(lengths):
    glitches(1, lengths)


def test_twin_without_an_answer_from_the_kernel_fails(monkeypatch):
    requests = []

    class Echo(channel_reset.FFSynchronizer):
        """The request is its own answer."""

        def __init__(self, i, o, *, o_domain, **options):
            super().__init__(i, o, o_domain=o_domain, **options)
            requests.append(i)

        def elaborate(self, platform):
            if self._o_domain == "kernel":
                return super().elaborate(platform)
            m = Module()
            m.d.comb += self.o.eq(requests[0])
            return m

    monkeypatch.setattr(channel_reset, "FFSynchronizer", Echo)
    with pytest.raises(AssertionError, match="before the kernel's half"):
        glitches(1, [1, 2, 3, 5, 8])


@pytest.mark.parametrize(
    "component, arguments, message",
    [
        (LinkPort, {"entry_bits": 128}, "entry_bits must be 256 or 512, got 128"),
        (CrossingCount, {"bits": 1, "counts": "link", "shows": "kernel"}, "bits must be at least 2, got 1"),
    ],
)
def test_what_components_refuse(monkeypatch, component, arguments, message):
    monkeypatch.setattr(component, "_MustUse__silence", True)  # Amaranth warns of components that are never used
    with pytest.raises(ValueError, match=message):
        component(**arguments)
    gc.collect()


def test_what_streams_refuse():
    with pytest.raises(ValueError, match="power of two, 8 to 1024, got 48"):
        AxiStreamSignature(48, ready=True)
    with pytest.raises(TypeError, match="got 32 and 1"):
        AxiStreamSignature(32, ready=1)


def test_stream_signatures():
    held, free = AxiStreamSignature(256, ready=True), AxiStreamSignature(256, ready=False)
    assert held == AxiStreamSignature(256, ready=True) != free
    assert set(held.members) - set(free.members) == {"tready"}
    assert len(held.create().tkeep) == 32 and isinstance(held.create().tvalid, Signal)
    assert repr(free) == "AxiStreamSignature(256, ready=False)"
