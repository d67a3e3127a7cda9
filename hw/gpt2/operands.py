"""Operand memories of a row: activations, probabilities, new keys and values; word and mask up to the lanes."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.bus.slr_crossing import slr_crossing
from hw.gpt2.config import CoreConfig
from hw.gpt2.tags import Stages
from hw.gpt2.walk import Source, source_layout
from hw.numerics.fp_format import FP16_ONE

__all__ = ["Operands"]


class Operands(wiring.Component):
    """Reads what a tile needs of one row's memories and brings it to the lanes.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``source``, ``elements`` : what the tile of this cycle needs, and which elements take part (of ``hw.gpt2.walk``).
    ``store``, ``store_strip``, ``store_data`` : an fp16 strip for the address space of strips (docs/core.md section 3).
    ``arrive`` (bit per strip of the word), ``arrive_word``, ``arrive_data`` (one entry) : strips of other boards; only
        in a cycle with ``arrive_ready``, in which no own strip goes to the activation memory.
    ``prob_write``, ``prob_word``, ``prob_strip``, ``prob_data`` : a strip of probabilities.
    ``key_addr``/``key_data``, ``value_addr``/``value_data`` : second ports of the new-key and new-value buffers.
    ``word``, ``mask`` : to the lanes; ``key``, ``values`` (fp16 per lane) : the head's new key and a strip of its new
        value, to the patch; all ``Stages.lane`` cycles after issue.

    Timing: memories are read ``Stages.operand`` cycles after issue and see strips that were stored before that cycle.
    Then two registers and the crossings. Interval 1, no back-pressure, memories are not reset.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        tile_bits, strip_bits = config.tile * 16, config.lanes * 16
        prob = ceil_log2(config.prob_words)
        super().__init__(
            {
                "source": In(source_layout(config)),
                "elements": In(config.tile),
                "store": In(1),
                "store_strip": In(range(config.strip_addresses)),
                "store_data": In(strip_bits),
                "arrive": In(config.strips_per_word),
                "arrive_word": In(ceil_log2(config.act_words)),
                "arrive_data": In(config.link_entry_bits),
                "arrive_ready": Out(1),
                "prob_write": In(1),
                "prob_word": In(prob),
                "prob_strip": In(max(1, ceil_log2(config.strips_per_word))),
                "prob_data": In(strip_bits),
                "key_addr": In(range(config.new_key_words)),
                "key_data": Out(tile_bits),
                "value_addr": In(range(config.new_value_strips)),
                "value_data": Out(strip_bits),
                "word": Out(tile_bits),
                "mask": Out(config.tile),
                "key": Out(tile_bits),
                "values": Out(strip_bits),
            }
        )

    def elaborate(self, platform):
        m = Module()
        cfg = self.config
        activations, new_keys, new_values = self._strip_memories(m)
        probabilities = self._words(
            m,
            "probabilities",
            cfg.prob_words,
            self.prob_write,
            self.prob_word,
            self.prob_strip,
            self.prob_data.replicate(cfg.strips_per_word),
        )

        def read(memory, address):
            port = memory.read_port()
            m.d.comb += [port.en.eq(1), port.addr.eq(address)]
            return port.data

        source, elements = self.source, self.elements
        for i in range(Stages(cfg).operand):
            later = Signal(source_layout(cfg), name=f"source_{i}", reset_less=True)
            elements_later = Signal(cfg.tile, name=f"elements_{i}", reset_less=True)
            m.d.sync += [later.eq(source), elements_later.eq(elements)]
            source, elements = later, elements_later
        asked, mask = Signal(source_layout(cfg), reset_less=True), Signal(cfg.tile, reset_less=True)
        m.d.sync += [asked.eq(source), mask.eq(elements)]
        word = Signal(cfg.tile * 16, reset_less=True)
        activation, probability = read(activations, source.word), read(probabilities, source.word)
        with m.Switch(asked.kind):
            with m.Case(Source["activation"]):
                m.d.sync += word.eq(activation)
            with m.Case(Source["probability"]):
                m.d.sync += word.eq(probability)
            with m.Default():
                m.d.sync += word.eq(Const(FP16_ONE, 16).replicate(cfg.tile))
        m.d.comb += [
            self.key_data.eq(read(new_keys, self.key_addr)),
            self.value_data.eq(read(new_values, self.value_addr)),
        ]
        m.d.comb += self.word.eq(slr_crossing(m, word, cfg.slr_stages, "word_slr"))
        for name, early, output in (
            ("mask", mask, self.mask),
            ("key", read(new_keys, source.key_word), self.key),
            ("values", read(new_values, source.value_strip), self.values),
        ):
            late = Signal.like(output, name=f"{name}_late", reset_less=True)
            m.d.sync += late.eq(early)
            m.d.comb += output.eq(slr_crossing(m, late, cfg.slr_stages, f"{name}_slr"))
        return m

    def _words(self, m: Module, name: str, depth: int, enable, word, strip, word_data) -> Memory:
        """A memory of words that is written by strips: ``enable``, a bit per strip, from ``strip`` on."""
        cfg = self.config
        m.submodules[name] = memory = Memory(shape=cfg.tile * 16, depth=depth, init=[])
        write = memory.write_port(granularity=cfg.lanes * 16)
        m.d.comb += [
            write.addr.eq(word),
            write.data.eq(word_data),
            write.en.eq(enable << strip),
        ]
        return memory

    def _strip_memories(self, m: Module) -> tuple[Memory, Memory, Memory]:
        """Activations, new keys, new values: one address space of strips."""
        cfg, address = self.config, self.store_strip
        shift = ceil_log2(cfg.strips_per_word)
        strip = address[:shift] if shift else Const(0, 1)
        in_values, in_keys = Signal(), Signal()
        m.d.comb += [
            in_values.eq(address >= cfg.new_value_base),
            in_keys.eq((address >= cfg.new_key_base) & ~in_values),
        ]
        in_activations = self.store & ~in_keys & ~in_values
        data = self.store_data
        whole = data.replicate(cfg.strips_per_word)
        m.d.comb += self.arrive_ready.eq(~in_activations)
        activations = self._words(
            m,
            "activations",
            cfg.act_words,
            Mux(in_activations, 1, self.arrive),
            Mux(in_activations, address >> shift, self.arrive_word),
            Mux(in_activations, strip, 0),
            Mux(
                in_activations,
                whole,
                self.arrive_data.replicate(cfg.tile * 16 // cfg.link_entry_bits),
            ),
        )
        key_word = (address - cfg.new_key_base) >> shift
        new_keys = self._words(m, "new_keys", cfg.new_key_words, self.store & in_keys, key_word, strip, whole)
        m.submodules.new_values = new_values = Memory(shape=cfg.lanes * 16, depth=cfg.new_value_strips, init=[])
        write = new_values.write_port()
        m.d.comb += [
            write.addr.eq(address - cfg.new_value_base),
            write.data.eq(data),
            write.en.eq(self.store & in_values),
        ]
        return activations, new_keys, new_values
