"""Scoreboard of strips: which destinations have a result under way."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.gpt2.config import CoreConfig

__all__ = ["Scoreboard"]


class Scoreboard(wiring.Component):
    """Two bits a strip: one toggles at issue, one at the write; a strip is busy while they differ.

    So two small memories replace one flip-flop a strip, and a reset needs no clearing: when the pipelines are empty
    the bits agree.

    Members
    -------
    ``mark``/``mark_strip`` : a result for that strip was issued in this cycle. It must not be busy.
    ``clear``/``clear_strip`` : its result is written at the end of this cycle.
    ``word_a``, ``word_b`` : strip words to look up; ``busy_a`` ... : bit per strip of the word, in the same cycle.
    ``mark_busy`` : ``mark_strip`` is busy.

    Timing: combinational look-up; marks and clears count from the next cycle on.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        self._strips = config.strips_per_word
        self._words = -(-config.strip_addresses // self._strips)
        strip = ceil_log2(config.strip_addresses)
        word = ceil_log2(self._words)
        members = {"mark": In(1), "mark_strip": In(strip), "mark_busy": Out(1)}
        members |= {"clear": In(1), "clear_strip": In(strip)}
        for name in "ab":
            members |= {f"word_{name}": In(word), f"busy_{name}": Out(self._strips)}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        shift = ceil_log2(self._strips)
        m.submodules.issued = issued = Memory(shape=self._strips, depth=self._words, init=[])
        m.submodules.written = written = Memory(shape=self._strips, depth=self._words, init=[])
        for name in "ab":
            ports = [memory.read_port(domain="comb") for memory in (issued, written)]
            for port in ports:
                m.d.comb += port.addr.eq(getattr(self, f"word_{name}"))
            m.d.comb += getattr(self, f"busy_{name}").eq(ports[0].data ^ ports[1].data)
        for memory, enable, strip in ((issued, self.mark, self.mark_strip), (written, self.clear, self.clear_strip)):
            now = memory.read_port(domain="comb")
            write = memory.write_port()
            m.d.comb += [
                now.addr.eq(strip >> shift),
                write.addr.eq(strip >> shift),
                write.data.eq(now.data ^ (1 << (strip & (self._strips - 1)))),
                write.en.eq(enable),
            ]
            if memory is issued:
                other = written.read_port(domain="comb")
                m.d.comb += [
                    other.addr.eq(strip >> shift),
                    self.mark_busy.eq((now.data ^ other.data).bit_select(strip & (self._strips - 1), 1)),
                ]
        return m
