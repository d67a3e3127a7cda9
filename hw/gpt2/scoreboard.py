"""Scoreboard of strips: which destinations have a result under way, on this board or on another one."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Signal
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
    ``mark``/``mark_strip`` : results for strips of its word were issued in this cycle: for ``mark_a`` of a word of the
        activations, for ``mark_b`` of one of the new keys and values. They must not be busy.
    ``clear``/``clear_strip`` : its result is written at the end of this cycle.
    ``gather``, ``gathered`` : announces the strips of a vector that are not this board's own; only if ``gather_ready``.
    ``arrive`` (bit per strip of the word), ``arrive_word`` : strips of other boards are written at the end of this
        cycle.
    ``level`` : make announced equal to arrived everywhere, for what a broken run has left; done when ``levelled``.
        Nothing may arrive meanwhile.
    ``word_a`` : word of the activations, ``word_b`` : of the new keys and values (as a strip address, too) to look up,
        ``needed_a``, ``needed_b`` : strips of it that matter; ``busy_a``, ``busy_b`` : one of them is busy, in the same
        cycle.
    ``awaited_a`` : one of them has not come from other boards; ``soon_a`` : the word may belong to a vector that is
        being announced, so that ``awaited_a`` does not tell yet.
    ``mark_busy`` : one of ``mark_a`` or ``mark_b`` is busy. ``mark_awaited`` : one of ``mark_a`` is awaited from
        another board, or that cannot be told.

    Timing: combinational look-up; marks and clears count from the next cycle on. A GATHER takes a cycle a word, from
    the lowest up; ``level`` a cycle a word of the activation memory.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        self._strips = config.strips_per_word
        self._words = -(-config.strip_addresses // self._strips)
        self._new_words = self._words - config.act_words
        strip = ceil_log2(config.strip_addresses)
        word = ceil_log2(self._words)
        members = {"mark": In(1), "mark_strip": In(strip), "mark_busy": Out(1)}
        members |= {"clear": In(1), "clear_strip": In(strip)}
        members |= {"gather": In(1), "gathered": In(gather_layout()), "gather_ready": Out(1)}
        members |= {"arrive": In(self._strips), "arrive_word": In(ceil_log2(config.act_words))}
        members |= {"level": In(1), "levelled": Out(1), "awaited_a": Out(1), "soon_a": Out(1)}
        members |= {"mark_awaited": Out(1)}
        for name in "ab":
            members |= {f"word_{name}": In(word), f"needed_{name}": In(self._strips), f"busy_{name}": Out(1)}
            members |= {f"mark_{name}": In(self._strips)}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        busy = self._region(m, "a", 0, self.config.act_words) | self._region(
            m, "b", self.config.act_words, self._new_words
        )
        m.d.comb += self.mark_busy.eq(busy.any())
        self._others(m, ceil_log2(self._strips))
        return m

    def _region(self, m: Module, name: str, first: int, words: int):
        """The words from ``first`` on, looked up by ``word_a`` or ``word_b``; a small region is read in less time.

        Returns which of ``mark_a`` or ``mark_b`` are busy.
        """
        shift = ceil_log2(self._strips)
        memories = []
        marked = getattr(self, f"mark_{name}")
        cleared = (Const(1) << (self.clear_strip & (self._strips - 1)))[: self._strips]
        mark_word, clear_word = self.mark_strip >> shift, self.clear_strip >> shift
        clear_here = (clear_word >= first) & (clear_word < first + words)

        def read(memory: Memory, word):
            port = memory.read_port(domain="comb")
            m.d.comb += port.addr.eq(word - first)
            return port.data

        for kind, enable, word, bits in (
            ("issued", self.mark & marked.any(), mark_word, marked),
            ("written", self.clear & clear_here, clear_word, cleared),
        ):
            m.submodules[f"{kind}_{name}"] = memory = Memory(shape=self._strips, depth=words, init=[])
            memories.append(memory)
            write = memory.write_port()
            m.d.comb += [write.addr.eq(word - first), write.data.eq(read(memory, word) ^ bits), write.en.eq(enable)]
        looked, at_mark = (
            read(memories[0], word) ^ read(memories[1], word) for word in (getattr(self, f"word_{name}"), mark_word)
        )
        m.d.comb += getattr(self, f"busy_{name}").eq((looked & getattr(self, f"needed_{name}")).any())
        return at_mark & marked

    def _others(self, m: Module, shift: int) -> None:
        """Strips of other boards."""
        words = self.config.act_words
        m.submodules.announced = announced = Memory(shape=self._strips, depth=words, init=[])
        m.submodules.arrived = arrived = Memory(shape=self._strips, depth=words, init=[])
        looked, at_mark = ([memory.read_port(domain="comb") for memory in (announced, arrived)] for _ in range(2))
        mark_word, mark_awaited = self.mark_strip >> shift, Signal()
        for port in looked:
            m.d.comb += port.addr.eq(self.word_a)
        for port in at_mark:
            m.d.comb += port.addr.eq(mark_word)
        now, write = arrived.read_port(domain="comb"), arrived.write_port()
        m.d.comb += [
            self.awaited_a.eq(((looked[0].data ^ looked[1].data) & self.needed_a).any()),
            mark_awaited.eq(((at_mark[0].data ^ at_mark[1].data) & self.mark_a).any()),
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
        last_word = Signal(range(words))  # of the vector
        m.d.comb += [
            here.addr.eq(word),
            there.addr.eq(word),
            write.addr.eq(word),
            write.data.eq(here.data ^ toggled),
            write.en.eq(walking | levelling),
            self.gather_ready.eq(~walking),
            self.soon_a.eq(walking & (self.word_a >= word) & (self.word_a <= last_word)),
            self.mark_awaited.eq(
                mark_awaited | (walking & self.mark_a.any() & (mark_word >= word) & (mark_word <= last_word))
            ),
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
            m.d.sync += [vector.eq(self.gathered), walking.eq(1)]
            m.d.sync += [word.eq(self.gathered.first >> shift), last_word.eq((self.gathered.end - 1) >> shift)]
