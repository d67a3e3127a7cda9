"""Scoreboard of strips: which destinations have a result under way, on this board or on another one."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.gpt2.config import CoreConfig
from hw.gpt2.fetch import gather_layout

__all__ = ["Scoreboard"]


class Scoreboard(wiring.Component):
    """Two bits a strip: one toggles at issue, one at the write; a strip is busy while they differ.

    So two small memories replace one flip-flop a strip, and a reset needs no clearing: when the pipelines are empty
    the bits agree. Two more bits a strip say the same of strips that other boards compute: one toggles when a GATHER
    announces them, one when they arrive; the order of the two does not matter.

    Members
    -------
    ``mark``/``mark_strip`` : a result for that strip was issued in this cycle. It must not be busy. With ``mark_two``
        for the strip behind it too; ``mark_strip`` is even then.
    ``clear``/``clear_strip`` : its result is written at the end of this cycle.
    ``gather``, ``gathered`` : announces the strips of a vector that are not this board's own; only if ``gather_ready``.
    ``arrive`` (bit per strip of the word), ``arrive_word`` : strips of other boards are written at the end of this
        cycle.
    ``level`` : make announced equal to arrived everywhere, for what a broken run has left; done when ``levelled``.
        Nothing may arrive meanwhile.
    ``word_a``, ``word_b`` : strip words to look up; ``busy_a`` ... : bit per strip of the word, in the same cycle.
    ``awaited_a`` : strips of ``word_a`` that have not come from other boards; ``soon_a`` : the word may belong to a
        vector that is being announced, so that ``awaited_a`` does not tell yet.
    ``mark_busy`` : ``mark_strip``, or one of the two, is busy. ``mark_awaited`` : it is awaited from another board, or
        that cannot be told.

    Timing: combinational look-up; marks and clears count from the next cycle on. A GATHER takes a cycle a word, from
    the lowest up; ``level`` a cycle a word of the activation memory.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        self._strips = config.strips_per_word
        self._words = -(-config.strip_addresses // self._strips)
        strip = ceil_log2(config.strip_addresses)
        word = ceil_log2(self._words)
        members = {"mark": In(1), "mark_strip": In(strip), "mark_two": In(1), "mark_busy": Out(1)}
        members |= {"clear": In(1), "clear_strip": In(strip)}
        members |= {"gather": In(1), "gathered": In(gather_layout()), "gather_ready": Out(1)}
        members |= {"arrive": In(self._strips), "arrive_word": In(ceil_log2(config.act_words))}
        members |= {"level": In(1), "levelled": Out(1), "awaited_a": Out(self._strips), "soon_a": Out(1)}
        members |= {"mark_awaited": Out(1)}
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
        pair = Cat(1, self.mark_two & self.config.has_int8)
        for memory, enable, strip, which in (
            (issued, self.mark, self.mark_strip, pair),
            (written, self.clear, self.clear_strip, Const(1, 1)),
        ):
            now = memory.read_port(domain="comb")
            write = memory.write_port()
            bits = Signal(self._strips, name=f"{'issued' if memory is issued else 'written'}_bits")
            m.d.comb += [
                bits.eq(which << (strip & (self._strips - 1))),
                now.addr.eq(strip >> shift),
                write.addr.eq(strip >> shift),
                write.data.eq(now.data ^ bits),
                write.en.eq(enable),
            ]
            if memory is issued:
                other = written.read_port(domain="comb")
                m.d.comb += [
                    other.addr.eq(strip >> shift),
                    self.mark_busy.eq(((now.data ^ other.data) & bits).any()),
                ]
        self._others(m, shift, pair)
        return m

    def _others(self, m: Module, shift: int, pair) -> None:
        """Strips of other boards."""
        words = self.config.act_words
        m.submodules.announced = announced = Memory(shape=self._strips, depth=words, init=[])
        m.submodules.arrived = arrived = Memory(shape=self._strips, depth=words, init=[])
        looked, marked = ([memory.read_port(domain="comb") for memory in (announced, arrived)] for _ in range(2))
        mark_word, mark_awaited = self.mark_strip >> shift, Signal()
        for port in looked:
            m.d.comb += port.addr.eq(self.word_a)
        for port in marked:
            m.d.comb += port.addr.eq(mark_word)
        now, write = arrived.read_port(domain="comb"), arrived.write_port()
        m.d.comb += [
            self.awaited_a.eq((looked[0].data ^ looked[1].data) & (self.word_a < words).replicate(self._strips)),
            mark_awaited.eq(
                ((marked[0].data ^ marked[1].data) & (pair << (self.mark_strip & (self._strips - 1)))).any()
                & (mark_word < words)
            ),
            now.addr.eq(self.arrive_word),
            write.addr.eq(self.arrive_word),
            write.data.eq(now.data ^ self.arrive),
            write.en.eq(self.arrive.any()),
        ]
        vector, walking = Signal(gather_layout()), Signal()
        word, levelling = Signal(range(words + 1)), Signal()
        here, there, write = (
            announced.read_port(domain="comb"),
            arrived.read_port(domain="comb"),
            announced.write_port(),
        )
        toggled = Signal(self._strips)
        for j in range(self._strips):
            strip = Signal(16, name=f"strip_{j}")
            m.d.comb += [
                strip.eq((word << shift) + j),
                toggled[j].eq(
                    (strip >= vector.first)
                    & (strip < vector.end)
                    & ~((strip >= vector.own_first) & (strip < vector.own_end))
                ),
            ]
        last_word = (vector.end - 1)[shift:]
        m.d.comb += [
            here.addr.eq(word),
            there.addr.eq(word),
            write.addr.eq(word),
            write.data.eq(here.data ^ toggled),
            write.en.eq(walking | levelling),
            self.gather_ready.eq(~walking),
            self.soon_a.eq(walking & (self.word_a >= word) & (self.word_a <= last_word)),
            self.mark_awaited.eq(mark_awaited | (walking & (mark_word >= word) & (mark_word <= last_word))),
        ]
        with m.If(levelling):
            m.d.comb += write.data.eq(there.data)
            m.d.sync += word.eq(word + 1)
            with m.If(word == words - 1):
                m.d.sync += [levelling.eq(0), self.levelled.eq(1)]
        with m.Elif(walking):
            m.d.sync += [word.eq(word + 1), walking.eq(word != last_word)]
        with m.Elif(self.level & ~self.levelled):
            m.d.sync += [levelling.eq(1), word.eq(0)]
        with m.Elif(self.gather):
            m.d.sync += [vector.eq(self.gathered), word.eq(self.gathered.first >> shift), walking.eq(1)]
