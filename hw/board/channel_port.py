"""One memory channel: read bursts into a FIFO, single-beat writes out of a queue, across two clocks."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import AsyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from hw.bus.axi import BURST_INCR, RESP_OKAY, Axi4Signature

__all__ = ["BURST_BEATS", "COMMANDS", "ROW_BITS", "ChannelPort"]

ROW_BITS = 28  # row numbers: 2^28 rows of 32 bytes are the card's whole memory
BURST_BEATS = 16  # longest burst of an HBM port (AXI3); no burst crosses a multiple of it
COMMANDS = 8  # read commands that wait for their address cycle


class ChannelPort(wiring.Component):
    """Master of one AXI4 memory port.

    Two clock domains: ``sync``, the core's clock, with the reset of the kernel (not that of a run), and ``port``, the
    clock of ``axi``. Gray-coded FIFOs stand between them, so the clocks may have any ratio and phase.

    Parameters
    ----------
    port_bits : int
        Data width, 256 or 512.
    fifo_words : int
        Words of the read FIFO, a power of two >= 32.
    addr_width : int
        Byte address bits of the port.
    bursts : int
        Read bursts that may be unanswered, 1 to 64.
    writes : int
        Writes that may be queued or unanswered together; a power of two, 2 to 64.

    Members
    -------
    ``axi`` : the port (domain ``port``). One ID, INCR, full beats. All others are of domain ``sync``:
    ``base`` : byte address of row 0, a multiple of 16 beats; constant while commands are under way.
    ``read_valid``, ``read_ready``, ``read_row``, ``read_beats`` : read command, 1 to 16 beats, not across a multiple
        of 16 rows. The issuer only sends what the FIFO has room for (rule 12 of docs/protocol.md), so read data are
        always taken.
    ``data``, ``data_error``, ``pop`` : oldest word of the FIFO, and whether its response was not OKAY; pop only what
        ``level`` has shown. ``level`` : words in the FIFO, as they were one cycle ago.
    ``write_valid``, ``write_ready``, ``write_row``, ``write_data``, ``write_strobe`` : one beat to write.
    ``write_room`` : two writes more fit. ``writes_outstanding`` : writes accepted and not yet answered.
    ``write_answered`` : strobe, the answer of a write has come. ``write_error`` : strobe, and it was not OKAY.

    Timing: a FIFO shows a word behind the second edge of the reading clock that follows the edge which wrote it;
    ``level`` is one cycle later. Command to ``arvalid`` and write to ``awvalid`` and ``wvalid``: the FIFO and one port
    cycle. With equal clocks all of these are four cycles. Each path takes one item a cycle.
    ``read_ready``, ``write_ready`` and ``write_room`` come from registers alone. Counters change in the cycle after
    acceptance. Address and data of a write appear in the same cycle (a switch path is never held by late data).
    """

    def __init__(self, port_bits: int, fifo_words: int, addr_width: int = 34, bursts: int = 32, writes: int = 32):
        if port_bits not in (256, 512):
            raise ValueError(f"port_bits must be 256 or 512, got {port_bits!r}")
        if fifo_words < 2 * BURST_BEATS or fifo_words & (fifo_words - 1):
            raise ValueError(
                f"fifo_words must be a power of two and at least {2 * BURST_BEATS} (two bursts), got {fifo_words!r}"
            )
        if not 1 <= bursts <= 64:
            raise ValueError(f"bursts must be 1 to 64, got {bursts!r}")
        if not 2 <= writes <= 64 or writes & (writes - 1):
            raise ValueError(f"writes must be a power of two, 2 to 64, got {writes!r}")
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
                "data": Out(port_bits),
                "data_error": Out(1),
                "pop": In(1),
                "level": Out(bits_for(fifo_words)),
                "write_valid": In(1),
                "write_ready": Out(1),
                "write_row": In(ROW_BITS),
                "write_data": In(port_bits),
                "write_strobe": In(self.port_bytes),
                "write_room": Out(1),
                "writes_outstanding": Out(bits_for(writes)),
                "write_answered": Out(1),
                "write_error": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        self._elaborate_read(m)
        self._elaborate_write(m)
        return m

    def _address(self, row):
        return (self.base + (row << ceil_log2(self.port_bytes)))[: len(self.base)]

    def _elaborate_read(self, m: Module) -> None:
        axi = self.axi
        m.submodules.commands = commands = AsyncFIFO(
            width=len(self.base) + len(axi.arlen), depth=COMMANDS, w_domain="sync", r_domain="port"
        )
        m.submodules.words = words = AsyncFIFO(
            width=len(self.data) + 1, depth=self.fifo_words, w_domain="port", r_domain="sync"
        )
        take = Signal()  # the oldest command becomes an address cycle
        unanswered = Signal(range(self.bursts + 1))
        length = Signal(len(axi.arlen))
        m.d.comb += [
            length.eq(self.read_beats - 1),
            commands.w_data.eq(Cat(self._address(self.read_row), length)),
            commands.w_en.eq(self.read_valid),
            self.read_ready.eq(commands.w_rdy),
            take.eq(commands.r_rdy & (~axi.arvalid | axi.arready) & (unanswered != self.bursts)),
            commands.r_en.eq(take),
            axi.arsize.eq(ceil_log2(self.port_bytes)),
            axi.arburst.eq(BURST_INCR),
            axi.rready.eq(1),
            words.w_data.eq(Cat(axi.rdata, axi.rresp != RESP_OKAY)),
            words.w_en.eq(axi.rvalid),
            Cat(self.data, self.data_error).eq(words.r_data),
            words.r_en.eq(self.pop),
        ]
        with m.If(take):
            m.d.port += [Cat(axi.araddr, axi.arlen).eq(commands.r_data), axi.arvalid.eq(1)]
        with m.Elif(axi.arready):
            m.d.port += axi.arvalid.eq(0)
        m.d.port += unanswered.eq(unanswered + take - (axi.rvalid & axi.rlast))
        m.d.sync += self.level.eq(words.r_level)

    def _elaborate_write(self, m: Module) -> None:
        axi = self.axi
        width = len(self.base) + len(self.write_data) + len(self.write_strobe)
        m.submodules.queue = queue = AsyncFIFO(width=width, depth=self.writes, w_domain="sync", r_domain="port")
        m.submodules.answers = answers = AsyncFIFO(width=1, depth=self.writes, w_domain="port", r_domain="sync")
        take = Signal()
        accepted = Signal()
        m.d.comb += [
            queue.w_data.eq(Cat(self._address(self.write_row), self.write_data, self.write_strobe)),
            queue.w_en.eq(accepted),
            self.write_ready.eq(self.writes_outstanding != self.writes),
            self.write_room.eq(self.writes_outstanding <= self.writes - 2),
            accepted.eq(self.write_valid & self.write_ready),
            take.eq(queue.r_rdy & (~axi.awvalid | axi.awready) & (~axi.wvalid | axi.wready)),
            queue.r_en.eq(take),
            axi.awlen.eq(0),
            axi.awsize.eq(ceil_log2(self.port_bytes)),
            axi.awburst.eq(BURST_INCR),
            axi.wlast.eq(1),
            axi.bready.eq(1),
            answers.w_data.eq(axi.bresp != RESP_OKAY),
            answers.w_en.eq(axi.bvalid),
            answers.r_en.eq(1),
            self.write_answered.eq(answers.r_rdy),
            self.write_error.eq(answers.r_rdy & answers.r_data),
        ]
        with m.If(take):
            m.d.port += [
                Cat(axi.awaddr, axi.wdata, axi.wstrb).eq(queue.r_data),
                axi.awvalid.eq(1),
                axi.wvalid.eq(1),
            ]
        with m.Else():
            with m.If(axi.awready):
                m.d.port += axi.awvalid.eq(0)
            with m.If(axi.wready):
                m.d.port += axi.wvalid.eq(0)
        m.d.sync += self.writes_outstanding.eq(self.writes_outstanding + accepted - answers.r_rdy)
