"""Everything of a core that has to do with other boards: ring node, outbox, what is known of them."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.board.core_interface import link_members
from hw.board.gpt2_map import LINK_COUNTERS, LINK_PORTS, ErrorCode
from hw.gpt2.config import CoreConfig
from hw.gpt2.outbox import Outbox
from hw.gpt2.ring import Ring
from hw.link.node import RingNode

__all__ = ["OtherBoards"]

_OF_THE_RING = (
    *("board", "key", "limit", "waits", "awaited", "fail", "fail_code", "fail_info", "dump"),
    *("store", "store_word", "store_data", "store_ready"),
    *("sums", "own_sums", "total", "total_sums", "sums_missing"),
    *("own_best", "decided", "decision", "best_missing"),
)
_OF_THE_OUTBOX = ("strip", "strip_data", "strip_flush", "room")
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
    ``ring`` : the model is on several boards (register). ``go`` : the run may begin. ``idle`` : nothing is left to be
        said.
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
            "run_number": In(8),
            "ring": Out(1),
            "go": Out(1),
            "joining": Out(1),
            "idle": Out(1),
            "level": Out(1),
            "levelled": In(1),
            "best": In(1),
            "strip_valid": In(1),
            "status": Out(32),
            **{name: self._ring.signature.members[name] for name in _OF_THE_RING},
            **{name: self._outbox.signature.members[name] for name in _OF_THE_OUTBOX},
            **link_members(),
        }
        members |= {f"link_{q}_{name}": Out(16) for q in range(LINK_PORTS) for name in LINK_COUNTERS}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.ring = ring = self._ring
        m.submodules.outbox = outbox = self._outbox
        m.submodules.node = node = self._node
        for part, names in ((ring, _OF_THE_RING), (outbox, _OF_THE_OUTBOX)):
            for name in names:
                ours, theirs = getattr(self, name), getattr(part, name)
                m.d.comb += theirs.eq(ours) if part.signature.members[name].flow == In else ours.eq(theirs)
        m.d.sync += self.ring.eq(self.boards > 1)
        m.d.comb += [
            self.go.eq(~self.ring | ring.joined),
            self.joining.eq(self.run & ~self.go),
            self.level.eq(self.run & self.ring),
            self.status.eq(Cat(node.up, node.dead, ring.joined)),
            ring.run.eq(self.run),
            ring.ring.eq(self.ring),
            ring.boards.eq(self.boards),
            ring.cleared.eq(self.levelled),
            ring.best.eq(self.best & self.ring),
            ring.up.eq(node.up),
            ring.dead.eq(node.dead),
            outbox.hello.eq(ring.hello),
            outbox.hello_data.eq(ring.hello_data),
            ring.hello_taken.eq(outbox.hello_taken),
            outbox.strip_valid.eq(self.strip_valid & self.ring),
            outbox.sums.eq(self.sums),
            outbox.sums_data.eq(self.own_sums),
            outbox.best.eq(self.best & self.ring),
            outbox.best_data.eq(self.own_best),
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
