"""Resets of a kernel with two clocks: either one resets both sides."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

__all__ = ["CrossedResets"]


class CrossedResets(wiring.Component):
    """Brings the reset of each clock to the other one.

    A FIFO between two clocks that is reset on one side alone would go on with pointers that no longer belong together.

    Members
    -------
    ``ap_rst_n``, ``ap_rst_n_2`` : resets of the clocks of domains ``kernel`` and ``port``, active low, each synchronous
        to its own; a reset must last some cycles of both clocks.
    ``kernel``, ``port`` : resets of the domains, active high.

    Timing: the own reset at once, the other one two edges of the own clock later, likewise when it ends.
    """

    def __init__(self) -> None:
        super().__init__({"ap_rst_n": In(1), "ap_rst_n_2": In(1), "kernel": Out(1), "port": Out(1)})

    def elaborate(self, platform):
        m = Module()
        crossings = (("kernel", self.ap_rst_n, self.ap_rst_n_2), ("port", self.ap_rst_n_2, self.ap_rst_n))
        for domain, own, other in crossings:
            late = Signal(name=f"late_{domain}")
            m.submodules[domain] = FFSynchronizer(~other, late, o_domain=domain)
            m.d.comb += getattr(self, domain).eq(~own | late)
        return m
