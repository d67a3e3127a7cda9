"""All memory channels of a core in lock step: rows in, rows out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from hw.board.channel_port import BURST_BEATS, ROW_BITS, ChannelPort
from hw.board.write_arbiter import write_members
from hw.bus.axi import Axi4Signature
from hw.bus.shared import Shared
from hw.gpt2.config import CoreConfig

__all__ = ["JOIN_CHANNELS", "MemoryPorts", "pop_stages"]

JOIN_CHANNELS = 4  # channels whose words are joined in the first stage


def pop_stages(config: CoreConfig) -> int:
    """Registers between the issue point and the pop of the read FIFOs: one, and the crossings to their SLR."""
    return 1 + config.slr_stages


def _tree(join: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
    """Fold as a balanced tree."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return join(_tree(join, values[:half]), _tree(join, values[half:]))


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
    ``write_*`` : write command (``hw.board.write_arbiter``); taken when every addressed channel can take it.
    ``rows_outstanding`` : rows commanded and not popped.
    ``writes_outstanding`` : writes not yet answered, over all channels.
    ``read_error``, ``write_error`` : a response was not OKAY (of a read: when its word is popped); stay until reset.
        ``error_channel`` : where the first one came (reads first, then the lowest channel).
    ``fifo_min``, ``fifo_max`` : fewest and most words in a read FIFO.

    Timing: commands are taken at one a cycle, rows leave at one a cycle. The join of the channels is two registered
    stages of counters: groups of JOIN_CHANNELS, then the groups. So nothing but a counter stands between the stages,
    and every row that is in all FIFOs is counted, the last one too. From a word's appearance in its FIFO's level to
    ``row_valid`` two cycles. Commands and writes go to all channels by one AND of their readies, and outstanding
    counts and levels are trees of one cycle: paths that a placed design may have to cut. Outstanding counts are exact:
    a command counts from the cycle after its acceptance.
    Errors and FIFO levels are one cycle old.
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
        for c in range(config.channels):
            channel = Shared("channel_port", self._channel(), {"sync": "kernel", "port": "port"})
            m.submodules[f"channel_{c}"] = channel
            channels.append(channel)
            wiring.connect(m, channel.axi, wiring.flipped(self.ports[c]))
            byte = slice(c * config.port_bytes, (c + 1) * config.port_bytes)
            m.d.comb += [
                channel.base.eq(self.base[c]),
                channel.read_valid.eq(self.read_valid & self.read_ready),
                channel.read_row.eq(self.read_row),
                channel.read_beats.eq(self.read_beats),
                channel.pop.eq(self.row_popped),
                channel.write_valid.eq(self.write_valid & self.write_ready & self.write_channels[c]),
                channel.write_row.eq(self.write_row),
                channel.write_data.eq(self.write_data[8 * byte.start : 8 * byte.stop]),
                channel.write_strobe.eq(self.write_strobe[byte]),
            ]
        outstanding = [channel.writes_outstanding for channel in channels]
        m.d.comb += [
            self.read_ready.eq(Cat(channel.read_ready for channel in channels).all()),
            self.row_data.eq(Cat(channel.data for channel in channels)),
            self.write_ready.eq((~self.write_channels | Cat(channel.write_ready for channel in channels)).all()),
            self.writes_outstanding.eq(_tree(lambda a, b: a + b, outstanding)),
        ]
        accepted = self.read_valid & self.read_ready
        m.d.sync += self.rows_outstanding.eq(
            self.rows_outstanding + Mux(accepted, self.read_beats, 0) - self.row_popped
        )
        self._elaborate_join(m, [channel.level for channel in channels])
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
        m.d.sync += [
            ready.eq(ready + join - self.row_take),
            self.fifo_min.eq(_tree(lambda a, b: Mux(a < b, a, b), levels)),
            self.fifo_max.eq(_tree(lambda a, b: Mux(a < b, b, a), levels)),
        ]

    def _elaborate_errors(self, m: Module, channels: Sequence[Shared]) -> None:
        read_errors = Cat(channel.data_error & self.row_popped for channel in channels)
        write_errors = Cat(channel.write_error for channel in channels)
        first = Signal.like(self.error_channel)
        for errors in (write_errors, read_errors):
            for c in reversed(range(len(channels))):
                with m.If(errors[c]):
                    m.d.comb += first.eq(c)
        with m.If(read_errors.any()):
            m.d.sync += self.read_error.eq(1)
        with m.If(write_errors.any()):
            m.d.sync += self.write_error.eq(1)
        with m.If(~self.read_error & ~self.write_error):
            m.d.sync += self.error_channel.eq(first)
