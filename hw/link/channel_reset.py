"""Reset of both halves of a link port while its channel is down."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

__all__ = ["ChannelReset"]


class ChannelReset(wiring.Component):
    """Takes both domains of a port into reset together, and out of it.

    Members
    -------
    ``channel_up`` (domain ``link``). ``link``, ``kernel`` : resets of the halves, active high, each in its own domain.

    Timing: ``link`` rises in the cycle behind the fall of ``channel_up``. It falls when the channel is up and the
    kernel's half is known to be in reset: a request goes there and comes back, each through two flip-flops, and the
    next request waits until the answer to the last one is gone, so that no fall of the channel is too short to be
    seen. ``kernel`` falls two of its edges later; until then counts that cross to it stand at 0 there or grow as if it
    were slow. Both are in reset at first.
    """

    def __init__(self) -> None:
        super().__init__({"channel_up": In(1), "link": Out(1, init=1), "kernel": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        request, answer = Signal(init=1), Signal()
        reached, answered = Signal(init=1), Signal()
        m.submodules.reach = FFSynchronizer(request, reached, o_domain="kernel", init=1)
        m.submodules.come_back = FFSynchronizer(answer, answered, o_domain="link")
        m.d.kernel += [self.kernel.eq(reached), answer.eq(self.kernel)]
        with m.If(~self.channel_up):
            m.d.link += self.link.eq(1)
        with m.If(self.link):
            with m.If(~request):
                m.d.link += request.eq(~answered)
            with m.Elif(answered & self.channel_up):
                m.d.link += [request.eq(0), self.link.eq(0)]
        return m
