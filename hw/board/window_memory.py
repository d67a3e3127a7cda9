"""A memory that the host fills through its window of the register map and the core reads."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["WindowMemory"]


class WindowMemory(wiring.Component):
    """Synchronous memory with one writer of 32-bit parts and several readers of whole words.

    Parameters
    ----------
    depth : int
        Words.
    bits : int
        Bits of a word, a multiple of 32.
    readers : int
        Read ports.

    Members
    -------
    ``write`` : strobe; part ``write_part`` (lowest first) of word ``write_index`` becomes ``write_data``.
    ``read_addr[i]``, ``read_data[i]`` : reader i; the word one cycle after its address. A word that is written in the
        cycle of its address is read as it was before.

    Timing: each port one access a cycle. Contents are not reset; they start as zero.
    """

    def __init__(self, depth: int, bits: int, readers: int):
        if bits % 32:
            raise ValueError(f"bits must be a multiple of 32, got {bits!r}")
        self.depth = depth
        self.bits = bits
        super().__init__(
            {
                "write": In(1),
                "write_index": In(range(depth)),
                "write_part": In(range(bits // 32)),
                "write_data": In(32),
                "read_addr": In(range(depth)).array(readers),
                "read_data": Out(bits).array(readers),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=self.bits, depth=self.depth, init=[])
        port = memory.write_port(granularity=32)
        m.d.comb += [port.addr.eq(self.write_index), port.data.eq(self.write_data.replicate(self.bits // 32))]
        m.d.comb += port.en.eq(self.write << self.write_part)
        for address, word in zip(self.read_addr, self.read_data, strict=True):
            reader = memory.read_port()
            m.d.comb += [reader.en.eq(1), reader.addr.eq(address), word.eq(reader.data)]
        return m
