"""AXI4-Lite slave: one register access at a time."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import RESP_OKAY, AxiLiteSignature

__all__ = ["RESP_SLVERR", "AxiLiteSlave"]

RESP_SLVERR = 2


class AxiLiteSlave(wiring.Component):
    """Turns AXI4-Lite transfers into register strobes.

    Parameters
    ----------
    addr_width : int
        Byte address bits.

    Members
    -------
    ``bus`` : the AXI4-Lite slave. Write address and data may come in any order; only whole words can be written
        (``wstrb`` of four ones; anything else is answered SLVERR and does nothing).
    ``write`` : strobe with ``write_addr`` and ``write_data``; ``write_error`` is sampled in that cycle.
    ``read`` : strobe with ``read_addr`` (which stays); ``read_data`` and ``read_error`` are sampled one cycle later.

    Timing: a write takes three cycles from the later of address and data to the response, a read three; reads and
    writes are independent. Valid never waits for ready; ready depends on registers alone. Reset drops transfers under
    way.
    """

    def __init__(self, addr_width: int):
        super().__init__(
            {
                "bus": In(AxiLiteSignature(addr_width)),
                "write": Out(1),
                "write_addr": Out(addr_width),
                "write_data": Out(32),
                "write_error": In(1),
                "read": Out(1),
                "read_addr": Out(addr_width),
                "read_data": In(32),
                "read_error": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        have_address = Signal()
        have_data = Signal()
        strobes = Signal(4)
        m.d.comb += [
            bus.awready.eq(~have_address),
            bus.wready.eq(~have_data),
            self.write.eq(have_address & have_data & ~bus.bvalid & strobes.all()),
        ]
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [have_address.eq(1), self.write_addr.eq(bus.awaddr)]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [have_data.eq(1), self.write_data.eq(bus.wdata), strobes.eq(bus.wstrb)]
        with m.If(have_address & have_data & ~bus.bvalid):
            failed = self.write_error | ~strobes.all()
            m.d.sync += [bus.bvalid.eq(1), bus.bresp.eq(Mux(failed, RESP_SLVERR, RESP_OKAY))]
            m.d.sync += [have_address.eq(0), have_data.eq(0)]
        with m.Elif(bus.bready):
            m.d.sync += bus.bvalid.eq(0)

        reading = Signal()
        fetched = Signal()
        m.d.comb += bus.arready.eq(~(reading | fetched | bus.rvalid))
        m.d.comb += self.read.eq(reading)
        m.d.sync += [reading.eq(bus.arvalid & bus.arready), fetched.eq(reading)]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += self.read_addr.eq(bus.araddr)
        with m.If(fetched):
            m.d.sync += [bus.rvalid.eq(1), bus.rdata.eq(self.read_data)]
            m.d.sync += bus.rresp.eq(Mux(self.read_error, RESP_SLVERR, RESP_OKAY))
        with m.Elif(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        return m
