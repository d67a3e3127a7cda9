"""All memory channels of a core in lock step: rows in, rows out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from hw.board.channel_port import BURST_BEATS, ROW_BITS, ChannelPort
from hw.board.write_arbiter import channel_data, write_members
from hw.bus.axi import Axi4Signature
from hw.bus.shared import Shared
from hw.gpt2.config import CoreConfig
from hw.numerics.pipeline import reduced_pairs

__all__ = ["JOIN_CHANNELS", "MemoryPorts", "pop_stages"]

JOIN_CHANNELS = 4  # channels whose words are joined, and whose writes are counted, in the first stage


def pop_stages(config: CoreConfig) -> int:
    """Registers between the issue point and the pop of the read FIFOs: one, and the crossings to their SLR."""
    return 1 + config.slr_stages


def _extreme(m: Module, name: str, pick: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
    """Fold a power of two of values as a tree with a register behind every second level, and behind the last."""
    level = 0
    while len(values) > 1:
        values = reduced_pairs(values, pick, 1)
        level += 1
        if level % 2 == 0 or len(values) == 1:
            kept = [Signal.like(value, name=f"{name}_{level}_{i}") for i, value in enumerate(values)]
            m.d.sync += [later.eq(value) for later, value in zip(kept, values, strict=True)]
            values = kept
    return values[0]


def _lowest(bits: Sequence[Value]) -> tuple[Value, Value]:
    """Whether any of a power of two of bits is set, and the index of the lowest one, as a balanced tree."""
    if len(bits) == 1:
        return bits[0], Cat()
    half = len(bits) // 2
    (below, low), (above, high) = _lowest(bits[:half]), _lowest(bits[half:])
    return below | above, Cat(Mux(below, low, high), ~below)


class MemoryPorts(wiring.Component):
    """C channel ports that get the same read commands and together deliver rows.

    Clock domains: ``sync``, reset between runs; ``kernel``, the same clock without that reset; ``port``, the clock of
    the memory ports.

    Parameters
    ----------
    config : CoreConfig
    addr_width : int
        Byte address bits of a port.

    Members
    -------
    ``ports`` : the C AXI4 masters. ``base`` : byte address of row 0 on each, a multiple of 16 beats.
    ``read_valid``, ``read_ready``, ``read_row``, ``read_beats`` : read command for all channels (see ``ChannelPort``).
    ``row_valid`` : at least one row is there that every channel has its word of. ``row_take`` : take the oldest one;
        only with ``row_valid``.
    ``row_popped`` : strobe, a taken row is leaving the FIFOs in this cycle, ``pop_stages`` after it was taken; its
        ``row_data`` : T x N fp16, lane n at bits ``n*T*16``, channel c at ``c*port_bits`` (docs/core.md section 1).
    ``write_*`` : write command (``hw.board.write_arbiter``); taken when every channel has room for two, addressed or
        not.
    ``rows_outstanding`` : rows commanded and not popped.
    ``writes_outstanding`` : writes not yet answered, over all channels, as they were a cycle ago.
    ``writes_unanswered`` : there are some; from the cycle after a write was taken.
    ``read_error``, ``write_error`` : a response was not OKAY (of a read: when its word is popped); stay until reset.
        ``error_channel`` : where the first one came (reads first, then the lowest channel).
    ``fifo_min``, ``fifo_max`` : fewest and most words in a read FIFO.

    Timing: commands are taken at one a cycle, rows leave at one a cycle. The join of the channels is two registered
    stages of counters: groups of JOIN_CHANNELS, then the groups. So nothing but a counter stands between the stages,
    and every row that is in all FIFOs is counted, the last one too. From a word's appearance in its FIFO's level to
    ``row_valid`` two cycles. ``read_ready`` is one AND of all channels' readies. ``write_ready`` comes from a register:
    it knows the room of the cycle before, so it asks for that of two writes.
    ``rows_outstanding`` is exact: a command counts from the cycle after its acceptance. ``writes_unanswered`` falls two
    cycles after the last answer has crossed, never before an error of it shows.
    Errors are two cycles old, FIFO levels one for every two levels of a binary tree of the channels.
    """

    def __init__(self, config: CoreConfig, addr_width: int = 34):
        self.config = config
        self.addr_width = addr_width
        members = {
            "ports": Out(Axi4Signature(addr_width, config.port_bits, 1)).array(config.channels),
            "base": In(addr_width).array(config.channels),
            "read_valid": In(1),
            "read_ready": Out(1),
            "read_row": In(ROW_BITS),
            "read_beats": In(bits_for(BURST_BEATS)),
            "row_valid": Out(1),
            "row_take": In(1),
            "row_popped": Out(1),
            "row_data": Out(config.channels * config.port_bits),
            "rows_outstanding": Out(bits_for(config.fifo_words)),
            "writes_outstanding": Out(16),
            "writes_unanswered": Out(1),
            "read_error": Out(1),
            "write_error": Out(1),
            "error_channel": Out(max(1, ceil_log2(config.channels))),
            "fifo_min": Out(16),
            "fifo_max": Out(16),
        }
        for name, member in write_members(config).items():
            members[name] = member.flip()
        super().__init__(members)

    def shared_modules(self) -> dict[str, ChannelPort]:
        """Pattern of the module that all channels are, for ``hw.board.export``."""
        return {"channel_port": self._channel()}

    def _channel(self) -> ChannelPort:
        return ChannelPort(self.config.port_bits, self.config.fifo_words, self.addr_width)

    def elaborate(self, platform):
        m = Module()
        config = self.config
        channels = []
        write = Signal()  # a write is taken
        m.d.comb += write.eq(self.write_valid & self.write_ready)
        for c in range(config.channels):
            channel = Shared("channel_port", self._channel(), {"sync": "kernel", "port": "port"})
            m.submodules[f"channel_{c}"] = channel
            channels.append(channel)
            wiring.connect(m, channel.axi, wiring.flipped(self.ports[c]))
            m.d.comb += [
                channel.base.eq(self.base[c]),
                channel.read_valid.eq(self.read_valid & self.read_ready),
                channel.read_row.eq(self.read_row),
                channel.read_beats.eq(self.read_beats),
                channel.pop.eq(self.row_popped),
                channel.write_valid.eq(write & self.write_channels[c]),
                channel.write_row.eq(self.write_row),
                channel.write_data.eq(channel_data(self, c, config)),
                channel.write_strobe.eq(self.write_strobe),
            ]
        m.d.comb += [
            self.read_ready.eq(Cat(channel.read_ready for channel in channels).all()),
            self.row_data.eq(Cat(channel.data for channel in channels)),
        ]
        accepted = self.read_valid & self.read_ready
        m.d.sync += self.rows_outstanding.eq(
            self.rows_outstanding + Mux(accepted, self.read_beats, 0) - self.row_popped
        )
        self._elaborate_join(m, [channel.level for channel in channels])
        self._elaborate_writes(m, channels, write)
        self._elaborate_errors(m, channels)
        return m

    def _elaborate_join(self, m: Module, levels: Sequence[Value]) -> None:
        """Count the rows that all channels have; pop them where they are."""
        rows = range(self.config.fifo_words + 1)
        take = self.row_take
        for i in range(pop_stages(self.config)):
            later = Signal(name=f"take_{i}")
            m.d.sync += later.eq(take)
            take = later
        shown = Signal()  # the pop that the levels show in this cycle
        m.d.comb += self.row_popped.eq(take)
        m.d.sync += shown.eq(self.row_popped)
        counts = []
        join = Signal()
        for start in range(0, len(levels), JOIN_CHANNELS):
            counted = Signal(rows, name=f"counted_{start}")  # rows of the levels that this group has counted
            count = Signal(rows, name=f"count_{start}")  # ... and that no join has taken yet
            have = Signal(name=f"have_{start}")
            m.d.comb += have.eq(Cat(level > counted for level in levels[start : start + JOIN_CHANNELS]).all())
            m.d.sync += [counted.eq(counted + have - shown), count.eq(count + have - join)]
            counts.append(count)
        ready = Signal(rows)
        m.d.comb += [join.eq(Cat(count != 0 for count in counts).all()), self.row_valid.eq(ready != 0)]
        coming = ready + join  # row_take comes late in its cycle and only selects
        m.d.sync += ready.eq(Mux(self.row_take, coming - 1, coming))
        m.d.comb += [
            self.fifo_min.eq(_extreme(m, "fewest", lambda a, b: Mux(a < b, a, b), levels)),
            self.fifo_max.eq(_extreme(m, "most", lambda a, b: Mux(a < b, b, a), levels)),
        ]

    def _elaborate_writes(self, m: Module, channels: Sequence[Shared], write: Value) -> None:
        """Whether all channels have room, and how many writes are not answered."""
        changes = []
        for start in range(0, len(channels), JOIN_CHANNELS):
            group = range(start, min(start + JOIN_CHANNELS, len(channels)))
            change = Signal(signed(bits_for(JOIN_CHANNELS) + 1), name=f"change_{start}")
            more = sum(write & self.write_channels[c] for c in group)
            m.d.sync += change.eq(more - sum(channels[c].write_answered for c in group))
            changes.append(change)
        written = Signal()  # in the cycle before, so that it does not count yet
        m.d.sync += [
            self.write_ready.eq(Cat(channel.write_room for channel in channels).all()),
            written.eq(write),
            self.writes_outstanding.eq(self.writes_outstanding + sum(changes)),
        ]
        m.d.comb += self.writes_unanswered.eq(written | (self.writes_outstanding != 0))

    def _elaborate_errors(self, m: Module, channels: Sequence[Shared]) -> None:
        read_errors, write_errors = Signal(len(channels)), Signal(len(channels))
        m.d.sync += [
            read_errors.eq(Cat(channel.data_error & self.row_popped for channel in channels)),
            write_errors.eq(Cat(channel.write_error for channel in channels)),
        ]
        read, first_read = _lowest(read_errors)
        written, first_written = _lowest(write_errors)
        with m.If(read):
            m.d.sync += self.read_error.eq(1)
        with m.If(written):
            m.d.sync += self.write_error.eq(1)
        with m.If(~self.read_error & ~self.write_error):
            m.d.sync += self.error_channel.eq(Mux(read, first_read, first_written))
