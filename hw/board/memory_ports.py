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

__all__ = ["MemoryPorts"]


def _tree(join: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
    """Fold as a balanced tree."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return join(_tree(join, values[:half]), _tree(join, values[half:]))


class MemoryPorts(wiring.Component):
    """C channel ports that get the same read commands and together deliver rows.

    Parameters
    ----------
    config : CoreConfig
    addr_width : int
        Byte address bits of a port.

    Members
    -------
    ``ports`` : the C AXI4 masters. ``base`` : byte address of row 0 on each, a multiple of 16 beats.
    ``read_valid``, ``read_ready``, ``read_row``, ``read_beats`` : read command for all channels (see ``ChannelPort``).
    ``row_valid``, ``row_data`` : the oldest row, once every channel has its word: T x N fp16, lane n at bits
        ``n*T*16``, channel c at ``c*port_bits`` (docs/core.md section 1). ``row_pop`` : take it; only with
        ``row_valid``.
    ``write_*`` : write command (``hw.board.write_arbiter``); taken when every addressed channel can take it.
    ``reads_outstanding`` : beats commanded and not received, over all channels.
    ``writes_outstanding`` : writes not yet answered, likewise.
    ``read_error``, ``write_error`` : a response was not OKAY; stay until reset. ``error_channel`` : where the first one
        came (reads first, then the lowest channel).
    ``fifo_min``, ``fifo_max`` : fewest and most words in a read FIFO.

    Timing: commands are taken at one a cycle, rows leave at one a cycle. Outstanding counts are exact: a command counts
    from the cycle after its acceptance. Errors and FIFO levels are one cycle old.
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
            "row_data": Out(config.channels * config.port_bits),
            "row_pop": In(1),
            "reads_outstanding": Out(bits_for(config.channels * config.fifo_words)),
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
            channel = Shared("channel_port", self._channel())
            m.submodules[f"channel_{c}"] = channel
            channels.append(channel)
            wiring.connect(m, channel.axi, wiring.flipped(self.ports[c]))
            byte = slice(c * config.port_bytes, (c + 1) * config.port_bytes)
            m.d.comb += [
                channel.base.eq(self.base[c]),
                channel.read_valid.eq(self.read_valid & self.read_ready),
                channel.read_row.eq(self.read_row),
                channel.read_beats.eq(self.read_beats),
                channel.data_pop.eq(self.row_pop & self.row_valid),
                channel.write_valid.eq(self.write_valid & self.write_ready & self.write_channels[c]),
                channel.write_row.eq(self.write_row),
                channel.write_data.eq(self.write_data[8 * byte.start : 8 * byte.stop]),
                channel.write_strobe.eq(self.write_strobe[byte]),
            ]
        m.d.comb += [
            self.read_ready.eq(Cat(channel.read_ready for channel in channels).all()),
            self.row_valid.eq(Cat(channel.data_valid for channel in channels).all()),
            self.row_data.eq(Cat(channel.data for channel in channels)),
            self.write_ready.eq((~self.write_channels | Cat(channel.write_ready for channel in channels)).all()),
            self.reads_outstanding.eq(_tree(lambda a, b: a + b, [channel.reads_outstanding for channel in channels])),
            self.writes_outstanding.eq(_tree(lambda a, b: a + b, [channel.writes_outstanding for channel in channels])),
        ]
        levels = [channel.level for channel in channels]
        m.d.sync += [
            self.fifo_min.eq(_tree(lambda a, b: Mux(a < b, a, b), levels)),
            self.fifo_max.eq(_tree(lambda a, b: Mux(a < b, b, a), levels)),
        ]
        self._elaborate_errors(m, channels)
        return m

    def _elaborate_errors(self, m: Module, channels: Sequence[Shared]) -> None:
        read_errors = Cat(channel.read_error for channel in channels)
        write_errors = Cat(channel.write_error for channel in channels)
        first = Signal.like(self.error_channel)
        for errors in (write_errors, read_errors):
            for c in reversed(range(len(channels))):
                with m.If(errors[c]):
                    m.d.comb += first.eq(c)
        m.d.sync += [self.read_error.eq(read_errors.any()), self.write_error.eq(write_errors.any())]
        with m.If(~self.read_error & ~self.write_error):
            m.d.sync += self.error_channel.eq(first)
