"""One memory channel: read bursts into a FIFO, single-beat writes out of a queue."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from hw.bus.axi import BURST_INCR, RESP_OKAY, Axi4Signature

__all__ = ["BURST_BEATS", "ROW_BITS", "ChannelPort"]

ROW_BITS = 28  # row numbers: 2^28 rows of 32 bytes are the card's whole memory
BURST_BEATS = 16  # longest burst of an HBM port (AXI3); no burst crosses a multiple of it
_COMMANDS = 4  # read commands that wait for their address cycle


class ChannelPort(wiring.Component):
    """Master of one AXI4 memory port.

    Parameters
    ----------
    port_bits : int
        Data width, 256 or 512.
    fifo_words : int
        Words of the read FIFO, >= 32.
    addr_width : int
        Byte address bits of the port.
    bursts : int
        Read bursts that may be unanswered, 1 to 64.
    writes : int
        Writes that may be queued or unanswered together, 1 to 64.

    Members
    -------
    ``axi`` : the port. One ID, INCR, full beats.
    ``base`` : byte address of row 0, a multiple of 16 beats; constant while commands are under way.
    ``read_valid``, ``read_ready``, ``read_row``, ``read_beats`` : read command, 1 to 16 beats, not across a multiple
        of 16 rows. The issuer only sends what the FIFO has room for (rule 12 of docs/protocol.md), so read data are
        always taken.
    ``data_valid``, ``data``, ``data_pop`` : oldest word of the FIFO; pop only a valid word. ``level`` : words in it.
    ``write_valid``, ``write_ready``, ``write_row``, ``write_data``, ``write_strobe`` : one beat to write.
    ``reads_outstanding`` : beats commanded and not yet received.
    ``writes_outstanding`` : writes accepted and not yet answered.
    ``read_error``, ``write_error`` : a response was not OKAY; stays until reset.

    Timing: command to ``arvalid`` two cycles, R beat to ``data_valid`` two, write to ``awvalid`` and ``wvalid`` two;
    each path takes one item a cycle. ``read_ready`` and ``write_ready`` come from registers alone. Counters change in
    the cycle after acceptance. Address and data of a write appear in the same cycle (a switch path is never held by
    late data).
    """

    def __init__(self, port_bits: int, fifo_words: int, addr_width: int = 34, bursts: int = 32, writes: int = 32):
        if port_bits not in (256, 512):
            raise ValueError(f"port_bits must be 256 or 512, got {port_bits!r}")
        if fifo_words < 2 * BURST_BEATS:
            raise ValueError(f"fifo_words must be at least {2 * BURST_BEATS} (two bursts), got {fifo_words!r}")
        if not 1 <= bursts <= 64:
            raise ValueError(f"bursts must be 1 to 64, got {bursts!r}")
        if not 1 <= writes <= 64:
            raise ValueError(f"writes must be 1 to 64, got {writes!r}")
        self.port_bytes = port_bits // 8
        self.fifo_words = fifo_words
        self.bursts = bursts
        self.writes = writes
        super().__init__(
            {
                "axi": Out(Axi4Signature(addr_width, port_bits, 1)),
                "base": In(addr_width),
                "read_valid": In(1),
                "read_ready": Out(1),
                "read_row": In(ROW_BITS),
                "read_beats": In(bits_for(BURST_BEATS)),
                "data_valid": Out(1),
                "data": Out(port_bits),
                "data_pop": In(1),
                "level": Out(bits_for(fifo_words)),
                "write_valid": In(1),
                "write_ready": Out(1),
                "write_row": In(ROW_BITS),
                "write_data": In(port_bits),
                "write_strobe": In(self.port_bytes),
                "reads_outstanding": Out(bits_for(fifo_words)),
                "writes_outstanding": Out(bits_for(writes)),
                "read_error": Out(1),
                "write_error": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        self._elaborate_read(m)
        self._elaborate_write(m)
        return m

    def _address(self, row):
        return self.base + (row << ceil_log2(self.port_bytes))

    def _elaborate_read(self, m: Module) -> None:
        axi = self.axi
        m.submodules.commands = commands = SyncFIFO(width=ROW_BITS + bits_for(BURST_BEATS), depth=_COMMANDS)
        m.submodules.words = words = SyncFIFOBuffered(width=len(self.data), depth=self.fifo_words)
        row, beats = commands.r_data[:ROW_BITS], commands.r_data[ROW_BITS:]
        take = Signal()  # the oldest command becomes an address cycle
        accepted = Signal()
        unanswered = Signal(range(self.bursts + 1))
        last = axi.rvalid & axi.rlast
        m.d.comb += [
            commands.w_data.eq(Cat(self.read_row, self.read_beats)),
            commands.w_en.eq(self.read_valid),
            self.read_ready.eq(commands.w_rdy),
            accepted.eq(self.read_valid & self.read_ready),
            take.eq(commands.r_rdy & (~axi.arvalid | axi.arready) & (unanswered != self.bursts)),
            commands.r_en.eq(take),
            axi.arsize.eq(ceil_log2(self.port_bytes)),
            axi.arburst.eq(BURST_INCR),
            axi.rready.eq(1),
            words.w_data.eq(axi.rdata),
            words.w_en.eq(axi.rvalid),
            self.data.eq(words.r_data),
            self.data_valid.eq(words.r_rdy),
            words.r_en.eq(self.data_pop),
            self.level.eq(words.level),
        ]
        with m.If(take):
            m.d.sync += [axi.araddr.eq(self._address(row)), axi.arlen.eq(beats - 1), axi.arvalid.eq(1)]
        with m.Elif(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        m.d.sync += [
            unanswered.eq(unanswered + take - last),
            self.reads_outstanding.eq(self.reads_outstanding + Mux(accepted, self.read_beats, 0) - axi.rvalid),
        ]
        with m.If(axi.rvalid & (axi.rresp != RESP_OKAY)):
            m.d.sync += self.read_error.eq(1)

    def _elaborate_write(self, m: Module) -> None:
        axi = self.axi
        width = ROW_BITS + len(self.write_data) + len(self.write_strobe)
        m.submodules.queue = queue = SyncFIFO(width=width, depth=self.writes)
        row, rest = queue.r_data[:ROW_BITS], queue.r_data[ROW_BITS:]
        take = Signal()
        accepted = Signal()
        m.d.comb += [
            queue.w_data.eq(Cat(self.write_row, self.write_data, self.write_strobe)),
            queue.w_en.eq(accepted),
            self.write_ready.eq(self.writes_outstanding != self.writes),
            accepted.eq(self.write_valid & self.write_ready),
            take.eq(queue.r_rdy & (~axi.awvalid | axi.awready) & (~axi.wvalid | axi.wready)),
            queue.r_en.eq(take),
            axi.awlen.eq(0),
            axi.awsize.eq(ceil_log2(self.port_bytes)),
            axi.awburst.eq(BURST_INCR),
            axi.wlast.eq(1),
            axi.bready.eq(1),
        ]
        with m.If(take):
            m.d.sync += [
                axi.awaddr.eq(self._address(row)),
                axi.wdata.eq(rest[: len(self.write_data)]),
                axi.wstrb.eq(rest[len(self.write_data) :]),
                axi.awvalid.eq(1),
                axi.wvalid.eq(1),
            ]
        with m.Else():
            with m.If(axi.awready):
                m.d.sync += axi.awvalid.eq(0)
            with m.If(axi.wready):
                m.d.sync += axi.wvalid.eq(0)
        m.d.sync += self.writes_outstanding.eq(self.writes_outstanding + accepted - axi.bvalid)
        with m.If(axi.bvalid & (axi.bresp != RESP_OKAY)):
            m.d.sync += self.write_error.eq(1)
