"""Write commands to the memory ports: their signature, and the arbiter between two writers."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.board.channel_port import ROW_BITS
from hw.gpt2.config import CoreConfig

__all__ = ["WriteArbiter", "WriteSignature", "connect_write", "write_members"]

_FORWARD = ("write_valid", "write_row", "write_channels", "write_data", "write_strobe")


def write_members(config: CoreConfig) -> dict[str, wiring.Member]:
    """Members of a write command, seen from the writer.

    ``write_row`` is written on every channel in ``write_channels``: channel c takes its slice of ``write_data``
    (``port_bits``) where its slice of ``write_strobe`` (a bit a byte) is set. ``write_ready`` may depend on
    ``write_channels``, never on ``write_valid``.
    """
    return {
        "write_valid": Out(1),
        "write_ready": In(1),
        "write_row": Out(ROW_BITS),
        "write_channels": Out(config.channels),
        "write_data": Out(config.channels * config.port_bits),
        "write_strobe": Out(config.channels * config.port_bytes),
    }


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
