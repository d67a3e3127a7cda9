"""Clock crossings carry their mark into the Verilog, and only in exports."""

import re

from amaranth.back import verilog
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import AsyncFFSynchronizer, FFSynchronizer
from amaranth.lib.wiring import In, Out

from hw.board.channel_port import ChannelPort
from hw.board.export import export_verilog


class Crossing(wiring.Component):
    """One bit and one reset from outside."""

    def __init__(self):
        super().__init__({"bit": In(3), "reset": In(1), "seen": Out(3), "held": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.bit = FFSynchronizer(self.bit, self.seen)
        m.submodules.reset = AsyncFFSynchronizer(self.reset, self.held)
        together = Signal()
        m.d.sync += together.eq(self.held)
        return m


def marked(text):
    """Stages of synchronizers that carry the mark; the last one is an output of its module."""
    return len(re.findall(r'ASYNC_REG = "TRUE" \*\)\n  (?:reg|output) (?:\[\d+:0\] )?stage\d', text))


def test_every_stage_is_marked_in_an_export():
    assert marked(export_verilog(Crossing(), {}, "crossing").text) == 4
    assert marked(verilog.convert(Crossing())) == 0  # twin: elsewhere they are Amaranth's own


def test_both_directions_of_every_fifo_of_a_port_are_marked():
    # four FIFOs: two pointers of two stages, and a reset of two stages
    assert marked(export_verilog(ChannelPort(256, 32), {}, "port").text) == 4 * (2 * 2 + 2)
