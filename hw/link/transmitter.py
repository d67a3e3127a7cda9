"""Sending half of a link port: order of frames, credits, go-back-N, and the words on the cable."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from hw.bus.axi_stream import AxiStreamSignature
from hw.link.frame import (
    BEAT_BYTES,
    KEEPALIVE,
    MAX_BEATS,
    RETRY,
    SLOTS,
    TRAILER_KEEP,
    header_layout,
    trailer_layout,
)
from hw.link.frame_crc import FrameCrc

__all__ = ["LOCAL", "TRANSIT", "WORD_AFTER", "Transmitter"]

LOCAL, TRANSIT = 0, 1  # regions of the transmit memory
_BEAT_BITS = 8 * BEAT_BYTES
_SLOT_BITS = ceil_log2(SLOTS)
_NEEDS = {LOCAL: 2, TRANSIT: 1}  # free receive slots at the far end (docs/ring.md, no deadlock)
WORD_AFTER = 24  # cycles from the decision to send an ACK to its word behind a pause of the Aurora core


class Transmitter(wiring.Component):
    """Takes frames out of the transmit memories and sends them until they are acknowledged.

    Parameters
    ----------
    entry_bits : int
        Width of the payload memory, 256 or 512.

    Members (all in domain ``link``)
    -------
    ``pushed`` (per region) : frames that the core has pushed, modulo 2 * SLOTS. ``freed_slot`` (per region) : strobe,
        the oldest slot of the region is free.
    ``header_address``, ``header_read``, ``header`` : header memory, slot and region; data one cycle later.
    ``data_address``, ``data_read``, ``data`` : payload memory, likewise; the address is entry, slot, region.
    ``heard`` : strobe, a good frame came from the far end with ``heard_ack``, ``heard_freed``, ``heard_nak``.
    ``ack``, ``freed``, ``nak`` : what the next trailer tells; ``told`` : strobe, it does.
    ``tx`` : the words. ``sent`` : strobe, a frame is sent for the first time; ``went_back`` : strobe.

    Timing: five cycles from ``data_read`` to ``tx``, all of which stand still while ``tx`` is not taken. Frames with
    payload follow each other without a gap; one cycle is lost behind a frame without payload. A decision uses flags
    that are one cycle old, so none is made in the cycle behind one, nor when a frame is heard.
    """

    def __init__(self, entry_bits: int):
        self.entry_bits = entry_bits
        self.entries = MAX_BEATS * _BEAT_BITS // entry_bits
        super().__init__(
            {
                "pushed": In(_SLOT_BITS + 1).array(2),
                "freed_slot": Out(1).array(2),
                "header_address": Out(_SLOT_BITS + 1),
                "header_read": Out(1),
                "header": In(header_layout()),
                "data_address": Out(ceil_log2(self.entries) + _SLOT_BITS + 1),
                "data_read": Out(1),
                "data": In(entry_bits),
                "heard": In(1),
                "heard_ack": In(8),
                "heard_freed": In(8),
                "heard_nak": In(1),
                "ack": In(8),
                "freed": In(8),
                "nak": In(1),
                "told": Out(1),
                "tx": Out(AxiStreamSignature(_BEAT_BITS, ready=True)),
                "sent": Out(1),
                "went_back": Out(1),
            }
        )
        # The next frame to send: decided, its header in the header memory's register.
        self._next = Signal(data.StructLayout({"valid": 1, "ack": 1, "slot": _SLOT_BITS, "region": 1, "seq": 8}))
        self._load = Signal()  # it becomes the frame that is sent
        self._quiet = Signal()  # no trailer is under way that will tell ack, freed and nak

    def elaborate(self, platform):
        m = Module()
        self._choose(m)
        self._stream(m)
        return m

    def _choose(self, m: Module) -> None:
        """Which frame is next; what is acknowledged, and what has to be sent again."""
        new, again, acked, walked = (Signal(8, name=name) for name in ("new", "again", "acked", "walked"))
        heard_freed = Signal(8)
        sent = [Signal(_SLOT_BITS + 1, name=f"sent_{region}") for region in (LOCAL, TRANSIT)]
        # What each unacknowledged frame was, by sequence number; asynchronous reads, in LUT RAM.
        what = data.StructLayout({"slot": _SLOT_BITS, "region": 1})
        m.submodules.order = order = Memory(shape=what, depth=SLOTS, init=[])
        write, read, walk = (
            order.write_port(domain="link"),
            order.read_port(domain="comb"),
            order.read_port(domain="comb"),
        )
        expired = self._retry(m, new != acked, self.heard & ((self.heard_ack != acked) | self.heard_nak))

        stale = Signal()
        may = Signal()
        can = [Signal(name=f"can_{region}") for region in (LOCAL, TRANSIT)]
        resends = Signal()
        in_use = Signal(8)  # receive slots of the far end that are taken or may be
        m.d.comb += [in_use.eq(new - heard_freed), may.eq(~stale & ~self.heard & ~expired & ~self._next.valid)]
        window = (new - walked)[:8] < SLOTS  # `order` has room
        m.d.link += [
            can[region].eq((self.pushed[region] != sent[region]) & (in_use <= SLOTS - _NEEDS[region]) & window)
            for region in (LOCAL, TRANSIT)
        ]
        tell = self._must_tell(m)
        m.d.link += [resends.eq(again != new), stale.eq(self.heard | expired | (may & (resends | can[0] | can[1])))]

        chosen = Signal(what)
        fresh = Signal()
        region = Mux(can[TRANSIT], TRANSIT, LOCAL)
        m.d.comb += [
            read.addr.eq(again),
            chosen.eq(read.data),
            fresh.eq(may & ~resends & (can[LOCAL] | can[TRANSIT])),
            write.addr.eq(new),
            write.data.eq(chosen),
            write.en.eq(fresh),
            self.sent.eq(fresh),
            self.header_address.eq(chosen),
            self.header_read.eq(may),
        ]
        with m.If(~resends):
            m.d.comb += [chosen.region.eq(region), chosen.slot.eq(Mux(can[TRANSIT], sent[TRANSIT], sent[LOCAL]))]
        with m.If(self._load):
            m.d.link += self._next.valid.eq(0)
        with m.If(may & (resends | can[LOCAL] | can[TRANSIT] | (tell & self._quiet))):
            m.d.link += [
                self._next.valid.eq(1),
                self._next.ack.eq(~(resends | can[LOCAL] | can[TRANSIT])),
                self._next.slot.eq(chosen.slot),
                self._next.region.eq(chosen.region),
                self._next.seq.eq(again),
            ]
        with m.If(fresh):
            m.d.link += new.eq(new + 1)
            with m.If(can[TRANSIT]):
                m.d.link += sent[TRANSIT].eq(sent[TRANSIT] + 1)
            with m.Else():
                m.d.link += sent[LOCAL].eq(sent[LOCAL] + 1)

        overtaken = (again - acked)[:8] < (self.heard_ack - acked)[:8]
        with m.If(self.heard):
            m.d.link += [acked.eq(self.heard_ack), heard_freed.eq(self.heard_freed)]
            with m.If(self.heard_nak | overtaken):
                m.d.link += again.eq(self.heard_ack)
            m.d.comb += self.went_back.eq(self.heard_nak & (self.heard_ack != new))
        with m.Elif(expired):
            m.d.link += again.eq(acked)
            m.d.comb += self.went_back.eq(1)
        with m.Elif(fresh | (may & resends)):
            m.d.link += again.eq(again + 1)

        m.d.comb += walk.addr.eq(walked)
        with m.If(walked != acked):
            m.d.link += walked.eq(walked + 1)
            m.d.comb += self.freed_slot[LOCAL].eq(walk.data.region == LOCAL)
            m.d.comb += self.freed_slot[TRANSIT].eq(walk.data.region == TRANSIT)

    def _retry(self, m: Module, waiting, progress):
        """Nothing has been acknowledged for RETRY cycles."""
        waited = Signal(range(RETRY + 1))
        expired = Signal()
        m.d.comb += expired.eq(waited == RETRY)
        with m.If(~waiting | progress | (expired & ~self.heard)):
            m.d.link += waited.eq(0)
        with m.Elif(~expired):
            m.d.link += waited.eq(waited + 1)
        return expired

    def _must_tell(self, m: Module):
        """An ACK frame is due unless another frame goes out."""
        told_ack, told_freed = Signal(8), Signal(8)
        since = Signal(range(KEEPALIVE + 1))
        tell, just_told = Signal(), Signal()
        due = since == KEEPALIVE - WORD_AFTER
        m.d.link += [
            just_told.eq(self.told),
            tell.eq((told_ack != self.ack) | (told_freed != self.freed) | self.nak | due),
        ]
        with m.If(self.told):
            m.d.link += [told_ack.eq(self.ack), told_freed.eq(self.freed), since.eq(0)]
        with m.Elif(~due):
            m.d.link += since.eq(since + 1)
        return tell & ~just_told

    def _stream(self, m: Module) -> None:
        """Beats of one frame after the other: memory, beat, CRC of the beat, output."""
        tx = self.tx
        entry_beats = self.entry_bits // _BEAT_BITS
        part_bits = ceil_log2(entry_beats)
        go, ends = Signal(), Signal()
        now = Signal(self._next.shape(), name="now")
        header = Signal(header_layout())
        beat = Signal(bits_for(MAX_BEATS))
        m.d.comb += [
            go.eq(~tx.tvalid | tx.tready),
            ends.eq(beat == header.beats),
            self._load.eq(self._next.valid & (~now.valid | (go & ends))),
            self.data_address.eq(Cat(beat[part_bits : bits_for(MAX_BEATS - 1)], now.slot, now.region)),
            self.data_read.eq(go),
        ]
        with m.If(self._load):
            m.d.link += [now.eq(self._next), header.eq(Mux(self._next.ack, 0, self.header.as_value())), beat.eq(0)]
        with m.Elif(go):
            m.d.link += beat.eq(beat + 1)
            with m.If(ends):
                m.d.link += now.valid.eq(0)

        stage = data.StructLayout({"valid": 1, "last": 1})
        read, formed, summed = (Signal(stage, name=name) for name in ("read", "formed", "summed"))
        read_header, read_seq, read_part = Signal(header_layout()), Signal(8), Signal(max(part_bits, 1))
        formed_beat, summed_beat = Signal(_BEAT_BITS), Signal(_BEAT_BITS)
        trailer = Signal(trailer_layout())
        m.submodules.crc = crc = FrameCrc()
        m.d.comb += [
            *(getattr(trailer, name).eq(getattr(read_header, name)) for name, _ in header_layout()),
            trailer.nak.eq(self.nak),
            trailer.seq.eq(read_seq),
            trailer.ack.eq(self.ack),
            trailer.freed.eq(self.freed),
            self.told.eq(go & read.valid & read.last),
            self._quiet.eq(~self._next.valid & ~now.valid & ~(read.valid & read.last)),
            crc.enable.eq(go),
            crc.beat.eq(formed_beat),
            crc.valid.eq(formed.valid),
            crc.last.eq(formed.last),
        ]
        with m.If(go):
            m.d.link += [
                read.valid.eq(now.valid),
                read.last.eq(ends),
                read_header.eq(header),
                read_seq.eq(Mux(now.ack, 0, now.seq)),
                read_part.eq(beat),
                formed.eq(read),
                formed_beat.eq(
                    Mux(
                        read.last,
                        trailer.as_value(),
                        self.data.word_select(read_part, _BEAT_BITS) if part_bits else self.data,
                    )
                ),
                summed.eq(formed),
                summed_beat.eq(formed_beat),
                tx.tvalid.eq(summed.valid),
                tx.tlast.eq(summed.last),
                tx.tkeep.eq(Mux(summed.last, TRAILER_KEEP, (1 << BEAT_BYTES) - 1)),
                tx.tdata.eq(summed_beat | Mux(summed.last, crc.crc, Const(0, 32))),
            ]
