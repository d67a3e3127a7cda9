"""Everything of a core that has to do with other boards: ring node, outbox, what is known of them."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.board.core_interface import link_members
from hw.board.gpt2_map import LINK_COUNTERS, LINK_PORTS, ErrorCode
from hw.gpt2.config import CoreConfig
from hw.gpt2.outbox import Outbox
from hw.gpt2.ring import Ring
from hw.link.node import RingNode
from hw.link.payload import best_layout, sums_layout

__all__ = ["OtherBoards"]

_ABORT_CYCLES = 4096  # that a failed run waits to tell the others


class OtherBoards(wiring.Component):
    """The core's side of the ring (docs/ring.md).

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``run``, ``boards``, ``board``, ``run_number``, ``key``, ``limit`` : the run and its registers. ``error`` : why it
        ended, 0 while it has not failed.
    ``ring`` : the model is on several boards. ``go`` : the run may begin. ``idle`` : nothing is left to be said.
    ``level``, ``levelled`` : to the scoreboard.
    ``strip_*``, ``room`` : as in ``Outbox``. ``store*`` : as in ``Ring``. ``sums``/``own_sums``, ``total``/
        ``total_sums``, ``best``/``own_best``, ``decided``/``decision``, ``sums_missing``, ``best_missing``, ``waits``,
        ``awaited``, ``fail*``, ``dump`` : likewise.
    ``joining`` : the others have not begun. ``status``, ``link_0_frames_sent`` ... : registers.

    Clock domains: ``sync`` (reset between runs), ``kernel``, ``link_0``, ``link_1``. When a run has failed the others
    are told (ABORT) before ``idle``, unless that is not possible within 4,096 cycles.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        self._ring, self._outbox = Ring(config), Outbox(config)
        self._node = RingNode(config.link_entry_bits)
        members = {
            "run": In(1),
            "error": In(8),
            "boards": In(4),
            "board": In(3),
            "run_number": In(8),
            "key": In(64),
            "limit": In(32),
            "ring": Out(1),
            "go": Out(1),
            "joining": Out(1),
            "idle": Out(1),
            "level": Out(1),
            "levelled": In(1),
            "strip_valid": In(1),
            "strip": In(range(config.strip_addresses)),
            "strip_data": In(16 * config.lanes),
            "strip_flush": In(1),
            "room": Out(1),
            "store": Out(config.strips_per_word),
            "store_word": Out(ceil_log2(config.act_words)),
            "store_data": Out(config.link_entry_bits),
            "store_ready": In(1),
            "sums": In(1),
            "own_sums": In(sums_layout()),
            "total": Out(1),
            "total_sums": Out(sums_layout()),
            "sums_missing": Out(1),
            "best": In(1),
            "own_best": In(best_layout()),
            "decided": Out(1),
            "decision": Out(best_layout()),
            "best_missing": Out(1),
            "waits": In(1),
            "awaited": In(16),
            "fail": Out(1),
            "fail_code": Out(8),
            "fail_info": Out(32),
            "dump": Out(32),
            "status": Out(32),
            **link_members(),
        }
        members |= {f"link_{q}_{name}": Out(16) for q in range(LINK_PORTS) for name in LINK_COUNTERS}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.ring = ring = self._ring
        m.submodules.outbox = outbox = self._outbox
        m.submodules.node = node = self._node
        m.d.comb += [
            self.ring.eq(self.boards > 1),
            self.go.eq(~self.ring | ring.joined),
            self.joining.eq(self.run & ~self.go),
            self.level.eq(self.run & self.ring),
            ring.cleared.eq(self.levelled),
            self.status.eq(Cat(node.up, node.dead, ring.joined)),
        ]
        for name in ("run", "ring", "boards", "board", "key", "limit", "sums", "own_sums", "own_best"):
            m.d.comb += getattr(ring, name).eq(getattr(self, name))
        for name in ("waits", "awaited", "store_ready"):
            m.d.comb += getattr(ring, name).eq(getattr(self, name))
        for name in ("store", "store_word", "store_data", "total", "total_sums", "sums_missing", "decided", "decision"):
            m.d.comb += getattr(self, name).eq(getattr(ring, name))
        for name in ("best_missing", "fail", "fail_code", "fail_info", "dump"):
            m.d.comb += getattr(self, name).eq(getattr(ring, name))
        m.d.comb += [
            ring.up.eq(node.up),
            ring.dead.eq(node.dead),
            outbox.hello.eq(ring.hello),
            outbox.hello_data.eq(ring.hello_data),
            ring.hello_taken.eq(outbox.hello_taken),
            outbox.strip_valid.eq(self.strip_valid & self.ring),
            outbox.strip.eq(self.strip),
            outbox.strip_data.eq(self.strip_data),
            outbox.strip_flush.eq(self.strip_flush),
            outbox.sums.eq(self.sums),
            outbox.sums_data.eq(self.own_sums),
            outbox.best.eq(self.best & self.ring),
            ring.best.eq(self.best & self.ring),
            outbox.best_data.eq(self.own_best),
            self.room.eq(outbox.room),
            node.boards.eq(self.boards),
            node.board.eq(self.board),
            node.run.eq(self.run_number),
            node.active.eq(self.run & self.ring),
            node.joined.eq(ring.joined),
            node.send_valid.eq(outbox.send_valid),
            outbox.send_ready.eq(node.send_ready),
            node.send.eq(outbox.send),
            ring.deliver_valid.eq(node.deliver_valid),
            node.deliver_ready.eq(ring.deliver_ready),
            ring.deliver.eq(node.deliver),
        ]
        self._abort(m, outbox)
        self._links(m, node)
        return m

    def _abort(self, m: Module, outbox: Outbox) -> None:
        """Tell the others that this board's run has failed, but for a failure that another board has told."""
        began, told = Signal(), Signal()
        left = Signal(range(_ABORT_CYCLES + 1), init=_ABORT_CYCLES)
        tells = ~self.run & began & (self.error != 0) & (self.error != ErrorCode.PEER_FAILED) & ~told & (left != 0)
        with m.If(self.run & self.ring):
            m.d.sync += began.eq(1)
        m.d.comb += [
            outbox.aborts.eq(tells),
            outbox.abort_code.eq(self.error),
            self.idle.eq(Mux(self.error != 0, ~tells, outbox.idle | (left == 0)) | ~self.ring),
        ]
        with m.If(outbox.abort_taken):
            m.d.sync += told.eq(1)
        with m.If(~self.run & began & (left != 0)):
            m.d.sync += left.eq(left - 1)

    def _links(self, m: Module, node: RingNode) -> None:
        for q in range(LINK_PORTS):
            m.d.comb += getattr(node, f"link_{q}_up").eq(getattr(self, f"link_{q}_up"))
            for stream in (f"link_{q}_tx", f"link_{q}_rx"):
                wiring.connect(m, getattr(node, stream), wiring.flipped(getattr(self, stream)))
            for name, value in node.counters[q].items():
                m.d.comb += getattr(self, f"link_{q}_{name}").eq(value)
