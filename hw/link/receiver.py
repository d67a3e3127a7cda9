"""Receiving half of a link port: which frames are good, which are taken, and where they go."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from hw.bus.axi_stream import AxiStreamSignature
from hw.link.frame import (
    BEAT_BYTES,
    MAX_BEATS,
    SILENCE,
    SLOTS,
    TRAILER_KEEP,
    FrameKind,
    header_layout,
    trailer_layout,
)
from hw.link.frame_crc import FrameCrc

__all__ = ["Receiver"]

_BEAT_BITS = 8 * BEAT_BYTES
_TRAILER_BITS = 128
_CRC_BITS = 32


class Receiver(wiring.Component):
    """Writes payload into the next receive slot as it comes, and takes the frame if its trailer allows it.

    Members (all in domain ``link``)
    -------
    ``rx`` : the words, without back-pressure.
    ``data_write``, ``data_address`` (beat, slot), ``data`` : payload memory. ``take`` : strobe, the frame with
        ``header`` is in slot ``slot``; header memory is written with it.
    ``expected`` : sequence number of the next frame, which is what ``ack`` tells. ``freed`` : frames whose slots the
        core has freed, modulo 256.
    ``heard``, ``heard_ack``, ``heard_freed``, ``heard_nak`` : what a good frame's trailer tells.
    ``nak`` : the far end is to go back; ``told`` : strobe, the trailer with it leaves.
    ``dropped`` : strobe. ``silent`` : no good frame for SILENCE cycles.

    A frame is good if it has as many payload beats as its trailer says, all bytes valid, and the right CRC. It is taken
    if it is good, no ACK, has the expected sequence number, and a slot is free (which credits ensure). The first frame
    that is dropped behind a taken one raises ``nak``, unless it is a good one that was taken before: after a needless
    resend every repeated frame would ask for the next.

    Timing: the verdict falls three cycles after the trailer; payload is written with the same delay, when the verdict
    on the frame before is known. A word a cycle.
    """

    def __init__(self) -> None:
        slot_bits = ceil_log2(SLOTS)
        super().__init__(
            {
                "rx": In(AxiStreamSignature(_BEAT_BITS, ready=False)),
                "data_write": Out(1),
                "data_address": Out(ceil_log2(MAX_BEATS) + slot_bits),
                "data": Out(_BEAT_BITS),
                "take": Out(1),
                "header": Out(header_layout()),
                "slot": Out(slot_bits),
                "expected": Out(8),
                "freed": In(8),
                "heard": Out(1),
                "heard_ack": Out(8),
                "heard_freed": Out(8),
                "heard_nak": Out(1),
                "nak": Out(1),
                "told": In(1),
                "dropped": Out(1),
                "silent": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        word, crc_ok = self._words(m)
        self._verdict(m, word, crc_ok)
        return m

    def _words(self, m: Module):
        """The words with what the CRC says of the frame, three cycles late."""
        rx = self.rx
        layout = data.StructLayout({"valid": 1, "last": 1, "whole": 1, "data": _BEAT_BITS})
        came, summed, judged = (Signal(layout, name=name) for name in ("came", "summed", "judged"))
        came_crc, summed_crc, crc_ok = Signal(_CRC_BITS), Signal(_CRC_BITS), Signal()
        trailer = Cat(rx.tdata[:_CRC_BITS] & 0, rx.tdata[_CRC_BITS:_TRAILER_BITS])
        m.submodules.crc = crc = FrameCrc()
        m.d.comb += [
            crc.enable.eq(1),
            crc.beat.eq(came.data),
            crc.valid.eq(came.valid),
            crc.last.eq(came.last),
        ]
        m.d.link += [
            came.valid.eq(rx.tvalid),
            came.last.eq(rx.tlast),
            came.whole.eq(rx.tkeep == Mux(rx.tlast, TRAILER_KEEP, (1 << BEAT_BYTES) - 1)),
            came.data.eq(Mux(rx.tlast, trailer, rx.tdata)),
            came_crc.eq(rx.tdata[:_CRC_BITS]),
            summed.eq(came),
            summed_crc.eq(came_crc),
            judged.eq(summed),
            crc_ok.eq(crc.crc == summed_crc),
        ]
        return judged, crc_ok

    def _verdict(self, m: Module, word, crc_ok) -> None:
        trailer = data.View(trailer_layout(), word.data[:_TRAILER_BITS])
        beats = Signal(bits_for(MAX_BEATS + 1))  # payload beats of this frame so far; one too many says enough
        broken = Signal()  # a word of this frame was not whole, or had no room
        full = Signal()
        ends, good, sequenced, follows, repeated = Signal(), Signal(), Signal(), Signal(), Signal()
        asked = Signal()  # nothing was taken since the last nak
        m.d.comb += [
            self.data.eq(word.data),
            self.slot.eq(self.expected),
            self.data_address.eq(Cat(beats[: ceil_log2(MAX_BEATS)], self.slot)),
            # without a free slot the next one still holds a frame; only a repeated frame comes then
            self.data_write.eq(word.valid & ~word.last & (beats < MAX_BEATS) & ~full),
            ends.eq(word.valid & word.last),
            good.eq(crc_ok & word.whole & ~broken & (beats == trailer.beats) & (beats <= MAX_BEATS)),
            sequenced.eq(trailer.kind != FrameKind.ACK),
            follows.eq(trailer.seq == self.expected),
            repeated.eq((self.expected - trailer.seq - 1)[:8] < 128),
            self.take.eq(ends & good & sequenced & follows & ~full),
            self.dropped.eq(ends & ~self.take & ~(good & ~sequenced)),
            *(getattr(self.header, name).eq(getattr(trailer, name)) for name, _ in header_layout()),
        ]
        with m.If(ends):
            m.d.link += [beats.eq(0), broken.eq(0)]
        with m.Elif(word.valid):
            m.d.link += [beats.eq(beats + (beats <= MAX_BEATS)), broken.eq(broken | ~word.whole | full)]
        m.d.link += [
            self.expected.eq(self.expected + self.take),
            full.eq((self.expected + self.take - self.freed)[:8] == SLOTS),
            self.heard.eq(ends & good),
            self.heard_ack.eq(trailer.ack),
            self.heard_freed.eq(trailer.freed),
            self.heard_nak.eq(trailer.nak),
        ]
        asks = Signal()
        m.d.comb += asks.eq(self.dropped & ~asked & ~(good & repeated))
        with m.If(self.take):
            m.d.link += asked.eq(0)
        with m.Elif(asks):
            m.d.link += asked.eq(1)
        with m.If(asks):
            m.d.link += self.nak.eq(1)
        with m.Elif(self.told | self.take):
            m.d.link += self.nak.eq(0)

        quiet = Signal(range(SILENCE + 1))
        m.d.comb += self.silent.eq(quiet == SILENCE)
        with m.If(self.heard):
            m.d.link += quiet.eq(0)
        with m.Elif(~self.silent):
            m.d.link += quiet.eq(quiet + 1)
