"""Logits writer: packs fp32 strips into port words and writes them to the logits region."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.board.channel_port import ROW_BITS
from hw.board.write_arbiter import write_members
from hw.gpt2.config import CoreConfig

__all__ = ["LogitsConfigLayout", "LogitsWriter", "port_word_place"]

LogitsConfigLayout = data.StructLayout({"logits_base": ROW_BITS, "logits_rows": 16})
"""Start registers of the writer; names and meaning as in ``hw.board.gpt2_map``."""


def port_word_place(word, config: CoreConfig):
    """Channel and row offset of port word ``word`` of a position."""
    channel_bits = ceil_log2(config.channels)
    return word[:channel_bits], word[channel_bits:]


class LogitsWriter(wiring.Component):
    """Writes the strips of LOGITS products (docs/core.md section 6).

    Strip i is part ``i % P`` of port word ``i / P``, P strips a port word; port word j goes to channel ``j % C``.
    Behind a product's last strip its port word is filled with zeros; bytes in front of its first strip are not
    touched, so products may meet inside a word.

    Parameters
    ----------
    config : CoreConfig
        ``port_bits`` must be a multiple of ``lanes * 32`` and ``channels`` a power of two, else ValueError.
    depth : int
        Port words that can wait for memory.
    margin : int
        Strips for which ``ready_soon`` promises room; at most ``depth``.

    Members
    -------
    ``cfg`` : start registers, constant during a run. ``enable`` : when low, strips are ignored.
    ``position`` : of the strips; stable from two cycles before the first one of a step to the last one.
    ``strip_valid``, ``strip_index``, ``strip_data``, ``strip_last`` : a strip, without back-pressure; N fp32, lane n
        at bits ``32*n``; ``strip_last`` marks the last one of a product.
    ``ready_soon`` : ``margin`` strips fit from this cycle on, whatever memory does.
    ``overflow`` : a strip did not fit and was lost; stays until reset.
    ``busy`` : words wait. ``write_*`` : write command (``hw.board.write_arbiter``).

    Timing: one strip a cycle; two cycles from a word's last strip to ``write_valid``; one write a cycle.
    """

    def __init__(self, config: CoreConfig, depth: int = 8, margin: int = 4):
        strip_bits = config.lanes * 32
        if not 1 <= margin <= depth:
            raise ValueError(f"margin must be 1 to depth ({depth}), got {margin!r}")
        self.config = config
        self.depth = depth
        self.margin = margin
        super().__init__(
            {
                "cfg": In(LogitsConfigLayout),
                "enable": In(1),
                "position": In(16),
                "strip_valid": In(1),
                "strip_index": In(16),
                "strip_data": In(strip_bits),
                "strip_last": In(1),
                "ready_soon": Out(1, init=1),
                "busy": Out(1),
                "overflow": Out(1),
                **write_members(config),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config = self.config
        parts = config.port_bits // len(self.strip_data)
        part_bits = ceil_log2(parts)
        channel_bits = ceil_log2(config.channels)
        entry = data.StructLayout({"row": ROW_BITS, "channel": channel_bits, "data": config.port_bits, "strobe": parts})
        m.submodules.words = words = SyncFIFO(width=entry.size, depth=self.depth)

        # First row of this position.
        product, first_row = Signal(ROW_BITS), Signal(ROW_BITS)
        m.d.sync += [
            product.eq(self.position * self.cfg.logits_rows),
            first_row.eq(self.cfg.logits_base + product),
        ]

        # Gather the parts of a word; `gathered` is complete one cycle after its last strip.
        gathered = Signal(entry)
        complete = Signal()
        part = self.strip_index[:part_bits]
        channel, row = port_word_place(self.strip_index[part_bits:], config)
        taken = self.strip_valid & self.enable
        completes, level_after = Signal(), Signal(range(self.depth + 2))  # at the end of this cycle
        m.d.comb += completes.eq(taken & (self.strip_last | (part == parts - 1)))
        m.d.sync += complete.eq(completes)
        with m.If(complete):
            m.d.sync += [gathered.data.eq(0), gathered.strobe.eq(0)]
        with m.If(taken):
            m.d.sync += [gathered.row.eq(first_row + row), gathered.channel.eq(channel)]
            for i in range(parts):
                with m.If(part == i):
                    m.d.sync += gathered.data.word_select(i, len(self.strip_data)).eq(self.strip_data)
                with m.If((part == i) | (self.strip_last & (part < i))):
                    m.d.sync += gathered.strobe[i].eq(1)
        m.d.comb += [words.w_data.eq(gathered), words.w_en.eq(complete)]
        # a register, since the issue decision hangs on it
        m.d.sync += self.ready_soon.eq(level_after + completes + self.margin <= self.depth)
        with m.If(complete & ~words.w_rdy):
            m.d.sync += self.overflow.eq(1)
        m.d.comb += [
            level_after.eq(words.level + (complete & words.w_rdy) - (words.r_en & words.r_rdy)),
            self.busy.eq(words.r_rdy | complete),
        ]

        oldest = data.View(entry, words.r_data)
        bytes_per_part = config.port_bytes // parts
        m.d.comb += [
            self.write_valid.eq(words.r_rdy),
            words.r_en.eq(self.write_ready),
            self.write_row.eq(oldest.row),
            self.write_channels.eq(1 << oldest.channel),
            self.write_word.eq(oldest.data.replicate(config.channels_per_lane)),
            self.write_strobe.eq(Cat(oldest.strobe[i].replicate(bytes_per_part) for i in range(parts))),
        ]
        return m
