"""Write commands to the memory ports: their signature, and the arbiter between two writers."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.board.channel_port import ROW_BITS
from hw.gpt2.config import CoreConfig

__all__ = ["WriteArbiter", "WriteSignature", "channel_data", "connect_write", "write_members"]

_FORWARD = tuple(f"write_{name}" for name in ("valid", "row", "channels", "word", "spread", "values", "strobe"))


def write_members(config: CoreConfig) -> dict[str, wiring.Member]:
    """Members of a write command, seen from the writer.

    ``write_row`` is written on every channel in ``write_channels``, where ``write_strobe`` (a bit a byte of a channel's
    word, the same for all channels) is set. What a channel takes says :func:`channel_data`: its part of ``write_word``,
    which holds T fp16 for the channels of one lane, or with ``write_spread`` the fp16 that ``write_values`` has for its
    lane, at every place. ``write_ready`` does not depend on the command.
    """
    return {
        "write_valid": Out(1),
        "write_ready": In(1),
        "write_row": Out(ROW_BITS),
        "write_channels": Out(config.channels),
        "write_word": Out(config.tile * 16),
        "write_spread": Out(1),
        "write_values": Out(config.lanes * 16),
        "write_strobe": Out(config.port_bytes),
    }


def channel_data(command, channel: int, config: CoreConfig):
    """What a channel takes of an object that carries the members of a write command, ``port_bits`` wide.

    One multiplexer a bit: writers and arbiters handle a lane's word and a strip, not the words of all channels.
    """
    lane, part = divmod(channel, config.channels_per_lane)
    value = command.write_values.word_select(lane, 16)
    spread = value.replicate(config.port_bits // 16)
    return Mux(command.write_spread, spread, command.write_word.word_select(part, config.port_bits))


class WriteSignature(wiring.Signature):
    """A write command of a core; ``Out`` on the writer, ``In`` on the receiver. See :func:`write_members`."""

    def __init__(self, config: CoreConfig):
        self.config = config
        super().__init__(write_members(config))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WriteSignature) and self.members == other.members

    def __repr__(self) -> str:
        return f"WriteSignature({self.config.name!r})"


def connect_write(m: Module, source, sink) -> None:
    """Connect two objects that carry the members of a write command: components or interface objects."""
    for name in _FORWARD:
        m.d.comb += getattr(sink, name).eq(getattr(source, name))
    m.d.comb += source.write_ready.eq(sink.write_ready)


class WriteArbiter(wiring.Component):
    """Joins two writers, one of which has priority.

    Members
    -------
    ``urgent``, ``patient`` : commands in. ``memory`` : command out.

    Timing: combinational. A patient command that was shown once stays until it is taken, so ``memory`` keeps the
    ready/valid rules; the urgent writer waits at most for that one command.
    """

    def __init__(self, config: CoreConfig):
        signature = WriteSignature(config)
        super().__init__({"urgent": In(signature), "patient": In(signature), "memory": Out(signature)})

    def elaborate(self, platform):
        m = Module()
        shown = Signal()  # a patient command was shown and not taken
        with m.If(self.urgent.write_valid & ~shown):
            connect_write(m, self.urgent, self.memory)
        with m.Else():
            connect_write(m, self.patient, self.memory)
            m.d.sync += shown.eq(self.patient.write_valid & ~self.memory.write_ready)
        return m
