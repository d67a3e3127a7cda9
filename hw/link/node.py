"""Ring node: routes frames between a board's two ports and its core."""

from __future__ import annotations

from amaranth.hdl import DomainRenamer, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.bus.axi_stream import AxiStreamSignature
from hw.link.frame import BEAT_BYTES, MAX_BEATS, FrameKind, header_layout
from hw.link.port import COUNTERS, LinkPort

__all__ = ["PORTS", "READ_AHEAD", "RingNode", "delivery_layout", "sending_layout"]

PORTS = 2  # 0 left (towards board - 1), 1 right
_LEFT, _RIGHT = 0, 1
READ_AHEAD = 4  # entries between a port's slots and their use: the memory's register and one for each way


def sending_layout(entry_bits: int) -> data.StructLayout:
    """One entry of a frame from the core; what describes the frame is looked at with the last one."""
    return data.StructLayout(
        {
            "data": entry_bits,
            "last": 1,
            "kind": FrameKind,
            "beats": 5,
            "address": 16,
            "strips": 8,
            "port": 1,  # HELLO: the way that it goes
        }
    )


def _ahead_layout(entry_bits: int) -> data.StructLayout:
    """An entry between slot and use, with what is decoded of its header when it comes in."""
    return data.StructLayout(
        {
            "entry": delivery_layout(entry_bits),
            "first": 1,  # of its frame
            "further": 1,  # the frame goes on to other boards
            "ours": 1,  # it is of the run that lasted then
        }
    )


def delivery_layout(entry_bits: int) -> data.StructLayout:
    """One entry of a frame to the core, with the frame's header."""
    return data.StructLayout(
        {
            "data": entry_bits,
            "last": 1,
            "index": range(MAX_BEATS),  # of the entry in its frame
            "port": 1,
            "header": header_layout(),
        }
    )


class RingNode(wiring.Component):
    """Two link ports and the ways between them and the core (docs/ring.md sections 4 and 5).

    Parameters
    ----------
    entry_bits : int
        256 or 512: bits that core and ports exchange in a cycle.

    Members
    -------
    ``boards``, ``board``, ``run`` : registers of the run. ``active`` : the core takes part in run ``run``; when low,
        arriving frames wait. ``joined`` : both neighbours are known to take part.
    ``send_valid``, ``send_ready``, ``send`` : entries of the core's frames, one frame after the other, ready/valid. A
        frame goes both ways as docs/ring.md says. Frames towards a dead port are dropped, but for HELLO, which waits.
        An ABORT may come in the middle of a frame, which then ends there and goes nowhere.
    ``deliver_valid``, ``deliver_ready``, ``deliver`` : entries of frames of this run from the other boards,
        ready/valid; entries of frames from both ports alternate. Entries on their way to further boards are copied to
        the other port as they go into the delivery buffer (two entries). A frame that is broken off (its channel goes
        down) has no last entry.
    ``up``, ``dead`` (bit per port), ``counters`` : of the ports.
    ``link_0_*``, ``link_1_*`` : clock domains are the parent's; ``up``, ``tx``, ``rx`` of each port.

    Clock domains: ``kernel``; ``link_0``, ``link_1`` (user clocks of the two Aurora cores).
    Timing: an entry a cycle in from the core, one a cycle out to it, one a cycle through each way. ``deliver`` is a
    register, and ``deliver_ready`` goes to registers alone; ``boards`` counts a cycle late. A frame that arrives while
    no run is active stays in its slot. It is never reset between runs.
    """

    def __init__(self, entry_bits: int):
        if entry_bits not in (256, 512):
            raise ValueError(f"entry_bits must be 256 or 512, got {entry_bits!r}")
        self.entry_bits = entry_bits
        self.ports = [LinkPort(entry_bits) for _ in range(PORTS)]
        members = {
            "boards": In(4),
            "board": In(3),
            "run": In(8),
            "active": In(1),
            "joined": In(1),
            "send_valid": In(1),
            "send_ready": Out(1),
            "send": In(sending_layout(entry_bits)),
            "deliver_valid": Out(1),
            "deliver_ready": In(1),
            "deliver": Out(delivery_layout(entry_bits)),
            "up": Out(PORTS),
            "dead": Out(PORTS),
        }
        for p in range(PORTS):
            members |= {
                f"link_{p}_up": In(1),
                f"link_{p}_tx": Out(AxiStreamSignature(8 * BEAT_BYTES, ready=True)),
                f"link_{p}_rx": In(AxiStreamSignature(8 * BEAT_BYTES, ready=False)),
            }
        super().__init__(members)

    @property
    def counters(self) -> list[dict[str, Signal]]:
        """Counters of each port by name."""
        return [{name: getattr(port, name) for name in COUNTERS} for port in self.ports]

    def elaborate(self, platform):
        m = Module()
        for p, port in enumerate(self.ports):
            m.submodules[f"port_{p}"] = DomainRenamer({"link": f"link_{p}"})(port)
            m.d.comb += [
                port.channel_up.eq(getattr(self, f"link_{p}_up")),
                self.up[p].eq(port.up),
                self.dead[p].eq(port.dead),
            ]
            wiring.connect(m, port.tx, wiring.flipped(getattr(self, f"link_{p}_tx")))
            wiring.connect(m, port.rx, wiring.flipped(getattr(self, f"link_{p}_rx")))
        # Left-overs of a broken run in the slots hold up HELLO, and new frames in transit would overtake it: so nothing
        # else goes out in a run before the port was empty once, be it before HELLO or behind it.
        self._settled = settled = Signal(PORTS)
        for p, port in enumerate(self.ports):
            with m.If(~self.active):
                m.d.kernel += settled[p].eq(0)
            with m.Elif(port.empty):
                m.d.kernel += settled[p].eq(1)
        heads = [self._arrivals(m, p) for p in range(PORTS)]
        chosen, passing = self._choose(m, heads)
        self._send(m, chosen, passing)
        return m

    def _arrivals(self, m: Module, p: int):
        """Frames that arrive at port p, entry by entry: (valid, entry, taken), where ``taken`` removes it."""
        port = self.ports[p]
        entry_beats = self.entry_bits // (8 * BEAT_BYTES)
        layout = _ahead_layout(self.entry_bits)
        ahead = SyncFIFO(width=layout.size, depth=READ_AHEAD)
        m.submodules[f"ahead_{p}"] = DomainRenamer("kernel")(ahead)
        header = port.header
        index, entries = Signal(range(MAX_BEATS), name=f"index_{p}"), Signal(5, name=f"entries_{p}")
        ours, hello = Signal(name=f"ours_{p}"), Signal(name=f"hello_{p}")
        greeted = Signal(name=f"greeted_{p}")  # this run's HELLO has come through this port
        take, drop, last = Signal(name=f"take_{p}"), Signal(name=f"drop_{p}"), Signal(name=f"last_{p}")
        reading, read = Signal(name=f"reading_{p}"), Signal(delivery_layout(self.entry_bits), name=f"read_{p}")
        coming = Signal(layout, name=f"coming_{p}")
        m.d.comb += [
            entries.eq((header.beats + entry_beats - 1) >> (entry_beats - 1)),
            last.eq(index + 1 >= entries),
            ours.eq(header.run == self.run),
            hello.eq(header.kind == FrameKind.HELLO),
        ]
        room = ahead.level + reading < READ_AHEAD
        with m.If(port.frame_valid & (index != 0)):
            m.d.comb += take.eq(room)  # what is begun is read to its end, whatever becomes of the run
        with m.Elif(port.frame_valid & self.active):
            with m.If(
                (self.joined & self._settled.all())
                | (ours & (header.kind == FrameKind.ABORT))
                | (ours & hello & ~greeted)
            ):
                m.d.comb += take.eq(ours & room)
            with m.Elif(~greeted):
                m.d.comb += drop.eq(1)  # left over from a run that was broken off
        with m.If(~self.active):
            m.d.kernel += greeted.eq(0)
        with m.Elif(take & hello):
            m.d.kernel += greeted.eq(1)
        with m.If(~port.up):
            m.d.kernel += index.eq(0)  # the rest of the frame is lost
        with m.Elif(take):
            m.d.kernel += index.eq(Mux(last, 0, index + 1))
        m.d.comb += [
            port.read_entry.eq(index),
            port.pop.eq(drop | (take & last)),
            coming.entry.eq(read),
            coming.entry.data.eq(port.read_data),
            coming.first.eq(read.index == 0),
            coming.further.eq(read.header.hops != 0),
            coming.ours.eq(read.header.run == self.run),
            ahead.w_data.eq(coming),
            ahead.w_en.eq(reading),
        ]
        m.d.kernel += [
            reading.eq(take),
            read.last.eq(last),
            read.index.eq(index),
            read.port.eq(p),
            read.header.eq(header),
        ]
        taken = Signal(name=f"taken_{p}")
        m.d.comb += ahead.r_en.eq(taken)
        return ahead.r_rdy, data.View(layout, ahead.r_data), taken

    def _choose(self, m: Module, heads):
        """One head after the other to the core, and on to the other port: (its entry, whether a port's bus is taken).

        When ``active`` falls, all entries are taken and go nowhere, one a cycle: none is left when the next run begins.
        """
        passing = [Signal(name=f"passing_{q}") for q in range(PORTS)]
        skip = [Signal(name=f"skip_transit_{q}") for q in range(PORTS)]
        able = [Signal(name=f"able_{p}") for p in range(PORTS)]
        chosen, before = Signal(), Signal()
        entry = Signal(delivery_layout(self.entry_bits), name="chosen_entry")
        comes = Signal(name="comes")
        room = self._deliver(m, comes, entry)
        # A cycle late, which nothing notices: when a run begins no entry has come, when it ends none is wanted.
        was_active = Signal()
        m.d.kernel += was_active.eq(self.active)
        ours = [was_active & head.ours for _, head, _ in heads]
        for p, (valid, head, _) in enumerate(heads):
            out = self.ports[1 - p]
            m.d.comb += able[p].eq(valid & (~head.further | out.room_transit | skip[1 - p]))
        m.d.comb += chosen.eq(Mux(able[0] & able[1], ~before, able[1]))
        for p, (_, head, taken) in enumerate(heads):
            here = ours[p] & able[p]
            out = self.ports[1 - p]
            with m.If(chosen == p):
                m.d.comb += [
                    entry.eq(head.entry),
                    comes.eq(here),
                    taken.eq(able[p] & (~here | room)),
                    passing[1 - p].eq(taken & head.further & ~skip[1 - p]),
                ]
                with m.If(taken):
                    m.d.kernel += before.eq(p)
            self._skip(m, skip[1 - p], out.dead, head.first, taken, stale=~ours[p])
        return entry, passing

    def _deliver(self, m: Module, comes: Signal, entry: Signal) -> Signal:
        """The delivery buffer: ``entry`` goes in when it ``comes`` and there is room, which is returned.

        The core's answer goes no further than to these registers: what it takes this cycle makes room in the next.
        """
        spare, spare_valid = Signal.like(entry, name="spare"), Signal(name="spare_valid")
        valid, deliver = Signal(name="delivers"), Signal.like(entry, name="delivered")
        m.d.comb += [self.deliver_valid.eq(valid & self.active), self.deliver.eq(deliver)]
        with m.If(~self.active):
            m.d.kernel += [valid.eq(0), spare_valid.eq(0)]
        with m.Elif(self.deliver_ready | ~valid):
            m.d.kernel += [valid.eq(comes | spare_valid), spare_valid.eq(0)]
        with m.Else():
            m.d.kernel += spare_valid.eq(comes | spare_valid)
        with m.If(self.deliver_ready | ~valid):
            m.d.kernel += deliver.eq(Mux(spare_valid, spare, entry))
        with m.If(~spare_valid):
            m.d.kernel += spare.eq(entry)
        return ~spare_valid

    def _skip(self, m: Module, skip: Signal, dead, first, taken, stale=0) -> None:
        """``skip``: the frame goes nowhere, since the port is dead or was so in the course of the frame.

        Whoever waits for the frame learns of the cut cable by itself. ``stale`` : its run has broken; behind HELLO of
        the next run nobody would take it. (A run that ends well has no frame left.) A frame need not end before the
        next begins, since a channel that goes down breaks it off; what is written and not pushed leaves nothing.
        """
        broken = Signal(name=f"{skip.name}_broken")
        m.d.comb += skip.eq(dead | stale | (broken & ~first))
        with m.If(taken):
            m.d.kernel += broken.eq(skip)
        with m.Elif(dead):
            m.d.kernel += broken.eq(1)

    def _send(self, m: Module, head, passing: list[Signal]) -> None:
        """The core's frames into the local slots; passing frames into the transit slots go first."""
        send = self.send
        half, even = Signal(3), Signal()
        m.d.kernel += [half.eq((self.boards - 1) >> 1), even.eq(~self.boards[0])]
        turn = Signal()  # which way the farthest board of an even ring is reached
        numbered, index = Signal(), Signal(range(MAX_BEATS))
        reach = [Signal(4, name=f"reach_{p}") for p in range(PORTS)]
        m.d.comb += numbered.eq(
            (send.kind == FrameKind.STRIPS) | (send.kind == FrameKind.SUMS) | (send.kind == FrameKind.BEST)
        )
        with m.If(send.kind == FrameKind.HELLO):
            m.d.comb += [reach[p].eq(send.port == p) for p in range(PORTS)]
        with m.Elif(send.kind == FrameKind.ABORT):
            m.d.comb += [reach[p].eq(self.boards >> 1) for p in range(PORTS)]
        with m.Else():
            m.d.comb += [reach[_RIGHT].eq(half + (even & ~turn)), reach[_LEFT].eq(half + (even & turn))]
        first = (index == 0) | (send.kind == FrameKind.ABORT)
        ready = []
        accepted = self.send_valid & self.send_ready
        for q, port in enumerate(self.ports):
            needed, skip = Signal(name=f"needed_{q}"), Signal(name=f"skip_local_{q}")
            self._skip(m, skip, port.dead, first, accepted)
            m.d.comb += needed.eq((reach[q] != 0) & ((send.kind == FrameKind.HELLO) | ~skip))
            ready.append(~needed | (port.room_local & ~passing[q] & (self._settled[q] | ~numbered)))
            with m.If(passing[q]):
                m.d.comb += [
                    port.write.eq(head.header.beats != 0),
                    port.write_transit.eq(1),
                    port.write_entry.eq(head.index),
                    port.write_data.eq(head.data),
                    port.push.eq(head.last),
                    port.push_transit.eq(1),
                    port.push_header.eq(head.header),
                    port.push_header.hops.eq(head.header.hops - 1),
                ]
            with m.Else():
                m.d.comb += [
                    port.write.eq(accepted & needed & (send.kind != FrameKind.ABORT)),
                    port.write_entry.eq(index),
                    port.write_data.eq(send.data),
                    port.push.eq(accepted & needed & send.last),
                    port.push_header.kind.eq(send.kind),
                    port.push_header.beats.eq(send.beats),
                    port.push_header.hops.eq(reach[q] - 1),
                    port.push_header.origin.eq(self.board),
                    port.push_header.run.eq(self.run),
                    port.push_header.address.eq(send.address),
                    port.push_header.strips.eq(send.strips),
                ]
        m.d.comb += self.send_ready.eq(ready[0] & ready[1])
        with m.If(~self.active | (send.kind == FrameKind.ABORT)):
            m.d.kernel += index.eq(0)
        with m.Elif(accepted):
            m.d.kernel += index.eq(Mux(send.last, 0, index + 1))
        with m.If(~self.active):
            m.d.kernel += turn.eq(0)
        with m.Elif(accepted & send.last & numbered):
            m.d.kernel += turn.eq(~turn)
