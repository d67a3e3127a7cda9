"""Frames that a core sends: strips of results, packed into entries, between them sums, the arg-max, HELLO and ABORT."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.gpt2.config import CoreConfig
from hw.gpt2.result_queue import RESULT_QUEUE
from hw.gpt2.tags import Stages
from hw.link.frame import BEAT_BYTES, MAX_BEATS, FrameKind
from hw.link.node import PORTS, sending_layout

__all__ = ["Outbox", "entry_strips", "strip_queue"]

_AT_ISSUE = 8  # cycles from the queue's level to the issue that it lets through


def entry_strips(config: CoreConfig) -> int:
    """Strips of an entry."""
    return config.link_entry_bits // (16 * config.lanes)


def strip_queue(config: CoreConfig) -> tuple[int, int]:
    """Strips that wait to be packed, and those that can be under way when the queue says full."""
    waiting = 2 * RESULT_QUEUE if config.has_int8 else 0
    margin = Stages(config).write + _AT_ISSUE + waiting
    return 1 << ceil_log2(2 * margin), margin


class Outbox(wiring.Component):
    """Everything that a core says to the other boards, one frame after the other.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``strip_valid``, ``strip``, ``strip_data``, ``strip_flush`` : results with ``send``, at the write stage, without
        back-pressure; ``strip_flush`` ends the frame. Strips up to a flush follow each other.
    ``room`` : strips that are issued from now on will find room in the queue.
    ``hello`` (bit per port, level), ``hello_data``, ``hello_taken`` (bit per port, strobe).
    ``sums``/``sums_data``, ``best``/``best_data`` : strobe, a frame of that kind is to go out; not again before
        ``idle``.
    ``aborts`` (level), ``abort_code``, ``abort_taken`` : instead of everything else, also of the rest of a frame.
    ``idle`` : nothing waits.
    ``send_*`` : to the ring node.

    Timing: a strip a cycle; from a strip to its entry two cycles, three if the queue was empty. HELLO and ABORT are
    offered from the cycle after ``hello`` and ``aborts`` on, sums and the arg-max from the one after their strobe.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        strip = range(config.strip_addresses)
        super().__init__(
            {
                "strip_valid": In(1),
                "strip": In(strip),
                "strip_data": In(16 * config.lanes),
                "strip_flush": In(1),
                "room": Out(1),
                "hello": In(PORTS),
                "hello_data": In(8 * BEAT_BYTES),
                "hello_taken": Out(PORTS),
                "sums": In(1),
                "sums_data": In(8 * BEAT_BYTES),
                "best": In(1),
                "best_data": In(8 * BEAT_BYTES),
                "aborts": In(1),
                "abort_code": In(8),
                "abort_taken": Out(1),
                "idle": Out(1),
                "send_valid": Out(1),
                "send_ready": In(1),
                "send": Out(sending_layout(config.link_entry_bits)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        packed, busy, next_entry = self._pack(m)
        waiting = {name: Signal(name=f"{name}_waiting") for name in ("sums", "best")}
        held = {name: Signal(8 * BEAT_BYTES, name=f"{name}_held") for name in waiting}
        kind, port = Signal(FrameKind, init=FrameKind.STRIPS), Signal()  # of the frame that is offered
        send, accepted = self.send, self.send_valid & self.send_ready
        m.d.comb += [send.kind.eq(kind), send.port.eq(port), send.last.eq(1), send.beats.eq(1)]
        with m.Switch(kind):
            with m.Case(FrameKind.ABORT):
                m.d.comb += [self.send_valid.eq(self.aborts), send.beats.eq(0), send.address.eq(self.abort_code)]
                m.d.comb += self.abort_taken.eq(accepted)
            with m.Case(FrameKind.HELLO):
                m.d.comb += [self.send_valid.eq(self.hello.bit_select(port, 1)), send.data.eq(self.hello_data)]
                m.d.comb += self.hello_taken.eq(accepted << port)
            with m.Case(FrameKind.SUMS):
                m.d.comb += [self.send_valid.eq(1), send.data.eq(held["sums"])]
            with m.Case(FrameKind.BEST):
                m.d.comb += [self.send_valid.eq(1), send.data.eq(held["best"])]
            with m.Default():
                m.d.comb += [
                    self.send_valid.eq(packed.valid),
                    send.data.eq(packed.data),
                    send.last.eq(packed.last),
                    send.beats.eq(packed.beats),
                    send.address.eq(packed.address),
                    send.strips.eq(packed.strips),
                    next_entry.eq(self.send_ready),
                ]
        # The next cycle's kind, from what will be true then: so the node sees a register.
        inside, inside_next = Signal(), Signal()  # a frame of strips is in progress
        waiting_next = {name: Signal(name=f"{name}_waits_on") for name in waiting}
        for name in waiting:
            with m.If(getattr(self, name)):
                m.d.sync += held[name].eq(getattr(self, f"{name}_data"))
            taken = accepted & (kind == FrameKind[name.upper()])
            m.d.comb += waiting_next[name].eq(getattr(self, name) | (waiting[name] & ~taken))
            m.d.sync += waiting[name].eq(waiting_next[name])
        hello = self.hello & ~self.hello_taken
        m.d.comb += inside_next.eq(Mux(accepted & (kind == FrameKind.STRIPS), ~send.last, inside))
        m.d.sync += [inside.eq(inside_next), port.eq(~hello[0]), kind.eq(FrameKind.STRIPS)]
        with m.If(self.aborts & ~self.abort_taken):
            m.d.sync += kind.eq(FrameKind.ABORT)
        with m.Elif(inside_next):
            m.d.sync += kind.eq(FrameKind.STRIPS)
        with m.Elif(hello.any()):
            m.d.sync += kind.eq(FrameKind.HELLO)
        for name in waiting:
            with m.Elif(waiting_next[name]):
                m.d.sync += kind.eq(FrameKind[name.upper()])
        m.d.comb += self.idle.eq(~busy & ~waiting["sums"] & ~waiting["best"] & ~self.hello.any())
        return m

    def _pack(self, m: Module):
        """Strips to entries; returns (the complete entry, whether anything waits, strobe that takes the entry)."""
        config = self.config
        strip_bits, per_entry = 16 * config.lanes, entry_strips(config)
        frame_strips = MAX_BEATS * BEAT_BYTES * 8 // strip_bits
        depth, margin = strip_queue(config)
        item = data.StructLayout({"strip": range(config.strip_addresses), "flush": 1, "data": strip_bits})
        m.submodules.queue = queue = SyncFIFOBuffered(width=item.size, depth=depth)
        pushed, strip = Signal(item), data.View(item, queue.r_data)
        entry = Signal(
            data.StructLayout(
                {
                    "valid": 1,
                    "last": 1,
                    "beats": 5,
                    "address": 16,
                    "strips": 8,
                    "data": config.link_entry_bits,
                }
            ),
            name="entry",
        )
        take, next_entry = Signal(), Signal()
        open_frame, first, count = Signal(), Signal(16), Signal(8)
        begin = Mux(open_frame, first, strip.strip)
        place = Signal(range(frame_strips))  # of the strip in its frame, whose first entry is whole
        ends, full = Signal(), Signal()
        m.d.comb += [
            pushed.strip.eq(self.strip),
            pushed.flush.eq(self.strip_flush),
            pushed.data.eq(self.strip_data),
            queue.w_data.eq(pushed),
            queue.w_en.eq(self.strip_valid),
            self.room.eq(queue.level + margin <= depth),
            take.eq(queue.r_rdy & (~entry.valid | next_entry)),
            queue.r_en.eq(take),
            place.eq(strip.strip - (begin & ~(per_entry - 1))),
            full.eq(place == frame_strips - 1),
            ends.eq(strip.flush | full),
        ]
        with m.If(take):
            m.d.sync += [
                open_frame.eq(~ends),
                first.eq(begin),
                count.eq(Mux(ends, 0, count + 1)),
                entry.last.eq(ends),
                entry.address.eq(begin),
                entry.strips.eq(count + 1),
                entry.beats.eq((place >> ceil_log2(8 * BEAT_BYTES // strip_bits)) + 1),
                entry.data.word_select(place[: ceil_log2(per_entry)] if per_entry > 1 else Const(0, 1), strip_bits).eq(
                    strip.data
                ),
            ]
        complete = ends | ((place + 1) & (per_entry - 1) == 0)
        with m.If(take):
            m.d.sync += entry.valid.eq(complete)
        with m.Elif(next_entry):
            m.d.sync += entry.valid.eq(0)
        return entry, Cat(queue.level != 0, entry.valid, open_frame).any(), next_entry
