"""One port of the ring node: frames from and to a neighbour over a cable that may lose words."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.bus.axi_stream import AxiStreamSignature
from hw.link.channel_reset import ChannelReset
from hw.link.crossing_count import CrossingCount
from hw.link.frame import BEAT_BYTES, MAX_BEATS, SLOTS, header_layout
from hw.link.receiver import Receiver
from hw.link.transmitter import LOCAL, TRANSIT, Transmitter

__all__ = ["COUNTERS", "RECEIVE_KERNEL_EDGES", "RECEIVE_LINK_EDGES", "SEND_LINK_EDGES", "LinkPort"]

COUNTERS = ("frames_sent", "frames_received", "frames_dropped", "resends")
SEND_LINK_EDGES = 9  # from the edge of ``kernel`` that takes a push to ``tx_tvalid`` of an idle port
RECEIVE_LINK_EDGES = 4  # of ``link``, the one that takes the trailer counts; and then,
RECEIVE_KERNEL_EDGES = 3  # of ``kernel``, to ``frame_valid``
_BEAT_BITS = 8 * BEAT_BYTES
_SLOT_BITS = ceil_log2(SLOTS)


class LinkPort(wiring.Component):
    """Sends frames in order and without loss to the port at the other end of a cable (docs/ring.md section 4).

    Two clock domains: ``kernel``, the core's, and ``link``, the user clock of the Aurora core (64/25.78125 ns, a beat a
    cycle). The parent resets both together, and with them the Aurora core: only a channel that goes down resets the far
    end. Frames wait in memories with a side in each domain, and only counts cross: frames pushed, acknowledged,
    received and freed.

    Parameters
    ----------
    entry_bits : int
        Width of the core's side, 256 or 512: one or two beats an entry.

    Members of domain ``kernel``
    -------
    ``up`` : the channel is up and the port out of reset. ``dead`` : level, the channel is down, or no good frame has
        come for SILENCE link cycles.
    ``room_local``, ``room_transit`` : a slot of that region is free, registers; nothing is written or pushed without.
        A slot that becomes free is seen a cycle later than by ``empty``.
    ``empty`` : the far end has taken every frame that was pushed.
    ``write``, ``write_transit``, ``write_entry``, ``write_data`` : an entry of the region's next frame. Entries may
        come in any order and over each other; the two regions' frames may be written in turns.
    ``push``, ``push_transit``, ``push_header`` : the region's next frame is complete, with this write if there is one.
        A frame that is not pushed is overwritten by the next.
    ``frame_valid``, ``header`` : of the oldest received frame. ``pop`` : strobe, its slot is free.
    ``read_entry``, ``read_data`` : an entry of the oldest frame, in the cycle of ``pop`` too; data one cycle later. In
        the cycle behind ``pop`` the next frame is the oldest. With an odd number of beats the upper half of the last
        entry of 512 bits is undefined.
    ``frames_sent`` (first sends), ``frames_received`` (taken), ``frames_dropped`` (bad CRC, length or sequence),
        ``resends`` (times that it went back) : 16 bits, modulo; no ACK counts. They survive a channel that goes down.

    Members of domain ``link``
    -------
    ``channel_up`` : from the Aurora core. ``tx``, ``rx`` : its streams.

    Timing. From the edge of ``kernel`` that takes ``push`` to ``tx_tvalid`` of an idle port: SEND_LINK_EDGES. From the
    trailer on ``rx`` to ``frame_valid``: RECEIVE_LINK_EDGES of ``link``, then RECEIVE_KERNEL_EDGES of ``kernel``. An
    entry a cycle each way; on the cable a beat a cycle and one for the trailer, without a gap while frames with payload
    are there, credits last and ``tx`` is taken. When ``channel_up`` falls all frames on both sides are lost, ``up``
    falls and ``dead`` rises within 4 edges of ``kernel``; nothing is accepted (no room, no frame) before both halves
    have been in reset (ChannelReset).
    """

    def __init__(self, entry_bits: int):
        if entry_bits not in (_BEAT_BITS, 2 * _BEAT_BITS):
            raise ValueError(f"entry_bits must be {_BEAT_BITS} or {2 * _BEAT_BITS}, got {entry_bits!r}")
        self.entry_bits = entry_bits
        self.entries = MAX_BEATS * _BEAT_BITS // entry_bits
        entry = range(self.entries)
        super().__init__(
            {
                "up": Out(1),
                "dead": Out(1, init=1),
                "room_local": Out(1),
                "room_transit": Out(1),
                "empty": Out(1),
                "write": In(1),
                "write_transit": In(1),
                "write_entry": In(entry),
                "write_data": In(entry_bits),
                "push": In(1),
                "push_transit": In(1),
                "push_header": In(header_layout()),
                "frame_valid": Out(1),
                "header": Out(header_layout()),
                "read_entry": In(entry),
                "read_data": Out(entry_bits),
                "pop": In(1),
                **{name: Out(16) for name in COUNTERS},
                "channel_up": In(1),
                "tx": Out(AxiStreamSignature(_BEAT_BITS, ready=True)),
                "rx": In(AxiStreamSignature(_BEAT_BITS, ready=False)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.reset = reset = ChannelReset()
        either = ResetInserter({"kernel": reset.kernel, "link": reset.link})
        transmitter, receiver = Transmitter(self.entry_bits), Receiver()
        m.submodules.transmitter = either(transmitter)
        m.submodules.receiver = either(receiver)
        m.submodules.send = either(self._send(transmitter, ~reset.kernel))
        m.submodules.receive = either(self._receive(transmitter, receiver, ~reset.kernel))
        wiring.connect(m, transmitter.tx, wiring.flipped(self.tx))
        wiring.connect(m, receiver.rx, wiring.flipped(self.rx))
        dead = Signal(init=1)
        m.d.link += dead.eq(receiver.silent | reset.link)
        m.submodules.dead = FFSynchronizer(dead, self.dead, o_domain="kernel", init=1)
        m.d.comb += [
            reset.channel_up.eq(self.channel_up),
            self.up.eq(~reset.kernel),
            transmitter.heard.eq(receiver.heard),
            transmitter.heard_ack.eq(receiver.heard_ack),
            transmitter.heard_freed.eq(receiver.heard_freed),
            transmitter.heard_nak.eq(receiver.heard_nak),
            transmitter.ack.eq(receiver.expected),
            transmitter.freed.eq(receiver.freed),
            transmitter.nak.eq(receiver.nak),
            receiver.told.eq(transmitter.told),
        ]
        events = (transmitter.sent, receiver.take, receiver.dropped, transmitter.went_back)
        for name, event in zip(COUNTERS, events, strict=True):
            m.submodules[name] = count = CrossingCount(16, counts="link", shows="kernel")
            m.d.comb += [count.increment.eq(event & ~reset.link), getattr(self, name).eq(count.seen)]
        return m

    def _send(self, transmitter: Transmitter, out_of_reset) -> Module:
        """Memories of the frames to send, written by the core and read by the transmitter."""
        m = Module()
        m.submodules.payload = payload = Memory(shape=self.entry_bits, depth=2 * SLOTS * self.entries, init=[])
        m.submodules.headers = headers = Memory(shape=header_layout(), depth=2 * SLOTS, init=[])
        write, read = payload.write_port(domain="kernel"), payload.read_port(domain="link")
        write_header, read_header = headers.write_port(domain="kernel"), headers.read_port(domain="link")
        rooms = (self.room_local, self.room_transit)
        slots, taken = [], []
        for region, name in ((LOCAL, "local"), (TRANSIT, "transit")):
            m.submodules[f"pushed_{name}"] = pushed = CrossingCount(_SLOT_BITS + 1, counts="kernel", shows="link")
            m.submodules[f"freed_{name}"] = freed = CrossingCount(_SLOT_BITS + 1, counts="link", shows="kernel")
            used, room = Signal(_SLOT_BITS + 1, name=f"used_{name}"), Signal(name=f"has_room_{name}")
            m.d.kernel += room.eq(Mux(pushed.increment, used != SLOTS - 1, used != SLOTS))
            m.d.comb += [
                used.eq(pushed.count - freed.seen),
                rooms[region].eq(out_of_reset & room),
                pushed.increment.eq(self.push & (self.push_transit == region) & rooms[region]),
                transmitter.pushed[region].eq(pushed.seen),
                freed.increment.eq(transmitter.freed_slot[region]),
            ]
            slots.append(pushed.count[:_SLOT_BITS])
            taken.append(pushed.count == freed.seen)
        local, transit = slots
        m.d.comb += [
            self.empty.eq(Cat(taken).all()),
            write.addr.eq(Cat(self.write_entry, Mux(self.write_transit, transit, local), self.write_transit)),
            write.data.eq(self.write_data),
            write.en.eq(self.write & Mux(self.write_transit, self.room_transit, self.room_local)),
            write_header.addr.eq(Cat(Mux(self.push_transit, transit, local), self.push_transit)),
            write_header.data.eq(self.push_header),
            write_header.en.eq(self.push & Mux(self.push_transit, self.room_transit, self.room_local)),
            read.addr.eq(transmitter.data_address),
            read.en.eq(transmitter.data_read),
            transmitter.data.eq(read.data),
            read_header.addr.eq(transmitter.header_address),
            read_header.en.eq(transmitter.header_read),
            transmitter.header.eq(read_header.data),
        ]
        return m

    def _receive(self, transmitter: Transmitter, receiver: Receiver, out_of_reset) -> Module:
        """Memories of the received frames, written by the receiver and read by the core."""
        m = Module()
        m.submodules.payload = payload = Memory(shape=self.entry_bits, depth=SLOTS * self.entries, init=[])
        m.submodules.headers = headers = Memory(shape=header_layout(), depth=SLOTS, init=[])
        write = payload.write_port(domain="link", granularity=_BEAT_BITS)
        read = payload.read_port(domain="kernel")
        write_header, read_header = headers.write_port(domain="link"), headers.read_port(domain="kernel")
        m.submodules.arrived = arrived = CrossingCount(8, counts="link", shows="kernel")
        m.submodules.popped = popped = CrossingCount(8, counts="kernel", shows="link")
        entry_beats = self.entry_bits // _BEAT_BITS
        part_bits = ceil_log2(entry_beats)
        oldest, following, valid = Signal(8), Signal(8), Signal()
        m.d.comb += [
            write.addr.eq(receiver.data_address >> part_bits),
            write.data.eq(receiver.data.replicate(entry_beats)),
            write.en.eq(receiver.data_write << (receiver.data_address & (entry_beats - 1))),
            write_header.addr.eq(receiver.slot),
            write_header.data.eq(receiver.header),
            write_header.en.eq(receiver.take),
            arrived.increment.eq(receiver.take),
            receiver.freed.eq(popped.seen),
            popped.increment.eq(self.pop & self.frame_valid),
            following.eq(popped.count + 1),
            oldest.eq(Mux(popped.increment, following, popped.count)),
            read_header.addr.eq(oldest),
            read.addr.eq(Cat(self.read_entry, popped.count[:_SLOT_BITS])),
            self.frame_valid.eq(valid & out_of_reset),
            self.header.eq(read_header.data),
            self.read_data.eq(read.data),
        ]
        m.d.kernel += valid.eq(Mux(popped.increment, arrived.seen != following, arrived.seen != popped.count))
        return m
