"""A core's part in the ring: joining a run, strips, sums and arg-max of the other boards, errors of the ring."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.board.gpt2_map import INTERFACE_VERSION, ErrorCode
from hw.gpt2.config import CoreConfig
from hw.gpt2.outbox import entry_strips
from hw.link.frame import BEAT_BYTES, FrameKind
from hw.link.node import PORTS, delivery_layout
from hw.link.payload import best_layout, hello_layout, sums_layout
from hw.numerics.fp32_max import fp32_less_expr

__all__ = ["Ring"]

_BOARDS = 8


class Ring(wiring.Component):
    """What a core knows of the other boards in a run (docs/ring.md sections 1 and 5).

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``run``, ``boards``, ``board``, ``key``, ``limit`` : the run and its registers. ``ring`` : there are other boards.
    ``cleared`` : the scoreboard is ready for strips. ``joined`` : both neighbours take part in the run.
    ``up``, ``dead`` : bit per port. ``hello``, ``hello_data``, ``hello_taken`` : to the outbox.
    ``deliver_*`` : from the ring node.
    ``store`` (mask of strips), ``store_word``, ``store_data`` (one entry), ``store_ready`` : strips of other boards for
        the activation memory; a cycle in which ``store`` is not 0 and ``store_ready`` is 1 stores them.
    ``sums``, ``own_sums`` (strobe, contents) : of this board's slice; ``total``, ``total_sums`` : of all boards,
        strobe.
    ``best``, ``own_best``; ``decided``, ``decision`` : likewise the arg-max.
    ``sums_missing``, ``best_missing`` : levels, this board's are in and others are not.
    ``waits`` : nothing can be issued before another board does something; ``awaited`` : strip waited for.
    ``fail``, ``fail_code``, ``fail_info`` : strobe, until the run ends; registers.
    ``dump`` : for register dump_ring.

    Timing: an entry a cycle; totals and decision two cycles after the last contribution; a failure is told a cycle
    late. Reset with the core.
    Numerics: sums are exact; arg-max as ``hw.gpt2.arg_max``, by token id.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        word = ceil_log2(config.act_words)
        super().__init__(
            {
                "run": In(1),
                "ring": In(1),
                "boards": In(4),
                "board": In(3),
                "key": In(64),
                "limit": In(32),
                "cleared": In(1),
                "joined": Out(1),
                "up": In(PORTS),
                "dead": In(PORTS),
                "hello": Out(PORTS),
                "hello_data": Out(8 * BEAT_BYTES),
                "hello_taken": In(PORTS),
                "deliver_valid": In(1),
                "deliver_ready": Out(1),
                "deliver": In(delivery_layout(config.link_entry_bits)),
                "store": Out(config.strips_per_word),
                "store_word": Out(word),
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
            }
        )

    def elaborate(self, platform):
        m = Module()
        head = self.deliver
        self._kind = {kind: self.deliver_valid & (head.header.kind == kind) for kind in FrameKind}
        self._failures: list[tuple] = []
        stored = self._strips(m)
        summed, sums_seen = self._sums(m)
        compared, best_seen = self._best(m)
        self._joining(m)
        self._limit(m, sums_seen, best_seen)
        self._report(m)
        m.d.comb += self.deliver_ready.eq(
            Mux(
                self._kind[FrameKind.STRIPS],
                stored,
                Mux(self._kind[FrameKind.SUMS], summed, Mux(self._kind[FrameKind.BEST], compared, 1)),
            )
        )
        return m

    def _fails(self, when, code: ErrorCode, info) -> None:
        self._failures.append((when, code, info))

    def _strips(self, m: Module):
        config, head = self.config, self.deliver
        per_entry, per_word = entry_strips(config), config.strips_per_word
        entries_per_word = per_word // per_entry
        first, place = Signal(16), Signal(16)
        valid = Signal(per_entry)
        m.d.comb += [
            first.eq(head.header.address & ~(per_entry - 1)),
            place.eq(first + head.index * per_entry),
        ]
        end = Signal(17)
        m.d.comb += end.eq(head.header.address + head.header.strips)
        for j in range(per_entry):
            m.d.comb += valid[j].eq((place + j >= head.header.address) & (place + j < end))
        m.d.comb += [
            self.store_word.eq(place >> ceil_log2(per_word)),
            self.store_data.eq(head.data),
        ]
        with m.If(self._kind[FrameKind.STRIPS]):
            if entries_per_word > 1:
                part = place[ceil_log2(per_entry) : ceil_log2(per_word)]
                m.d.comb += self.store.eq(valid << (part * per_entry))
            else:
                m.d.comb += self.store.eq(valid)
        return self.store_ready

    def _contributions(self, m: Module, name: str, own: Signal, kind: FrameKind):
        """One board's part after the other, the own one first: (a part comes, it is the first, others may come).

        Also the boards that have contributed, and a strobe when all have.
        """
        head = self.deliver
        arrives = self._kind[kind] & ~own
        seen, count = Signal(_BOARDS, name=f"{name}_seen"), Signal(4, name=f"{name}_count")
        own_in, complete = Signal(name=f"{name}_own_in"), Signal(name=f"{name}_complete")
        comes = Signal(name=f"{name}_comes")
        m.d.comb += [comes.eq(own | arrives), complete.eq((count == self.boards) & (count != 0))]
        with m.If(complete):
            m.d.sync += [count.eq(comes), seen.eq(0), own_in.eq(0)]
        with m.Elif(comes):
            m.d.sync += count.eq(count + 1)
        with m.If(own):
            m.d.sync += [own_in.eq(1), seen.bit_select(self.board, 1).eq(1)]
        with m.Elif(arrives):
            m.d.sync += seen.bit_select(head.header.origin, 1).eq(1)
        first = complete | (count == 0)
        m.d.comb += getattr(self, f"{name}_missing").eq(own_in & ~complete)
        return comes, first, seen, complete, ~own

    def _sums(self, m: Module):
        comes, first, seen, complete, ready = self._contributions(m, "sums", self.sums, FrameKind.SUMS)
        layout = sums_layout()
        part, total = Signal(layout), Signal(layout)
        m.d.comb += part.eq(Mux(self.sums, self.own_sums.as_value(), self.deliver.data[: layout.size]))
        with m.If(comes):
            with m.If(first):
                m.d.sync += total.eq(part)
            with m.Else():
                m.d.sync += [
                    total.sum1.eq(total.sum1 + part.sum1),
                    total.sum2.eq(total.sum2 + part.sum2),
                    total.nan.eq(total.nan | part.nan),
                ]
        m.d.comb += [self.total.eq(complete), self.total_sums.eq(total)]
        return ready, seen

    def _best(self, m: Module):
        comes, first, seen, complete, ready = self._contributions(m, "best", self.best, FrameKind.BEST)
        layout = best_layout()
        part, best = Signal(layout), Signal(layout)
        other = data.View(layout, self.deliver.data[: layout.size])
        m.d.comb += part.eq(Mux(self.best, self.own_best.as_value(), other.as_value()))

        def betters(part):
            less, greater = fp32_less_expr(best.value, part.value), fp32_less_expr(part.value, best.value)
            return ~best.some | less | (~greater & (part.token < best.token))

        better = Mux(self.best, betters(self.own_best), betters(other))  # the strobe comes late and only selects
        with m.If(comes):
            m.d.sync += best.nan.eq((best.nan & ~first) | part.nan)
            with m.If(part.some & (first | better)):
                m.d.sync += [best.value.eq(part.value), best.token.eq(part.token), best.some.eq(1)]
            with m.Elif(first):
                m.d.sync += best.some.eq(0)
        m.d.comb += [self.decided.eq(complete), self.decision.eq(best)]
        return ready, seen

    def _joining(self, m: Module) -> None:
        """HELLO to and from both neighbours."""
        head, config = self.deliver, self.config
        own, theirs = Signal(hello_layout()), data.View(hello_layout(), head.data[: hello_layout().size])
        digest = Const(int(config.digest[:16], 16), 64)
        self._told, self._heard = told, heard = Signal(PORTS), Signal(PORTS)
        last = self.boards - 1
        right = Mux(self.board == last, 0, self.board + 1)
        left = Mux(self.board == 0, last, self.board - 1)
        arrived = self._kind[FrameKind.HELLO]
        wrong_version = theirs.version != INTERFACE_VERSION
        wrong_order = (theirs.boards != self.boards) | (theirs.board != Mux(head.port, right, left))
        wrong_program = (theirs.config_digest != digest) | (theirs.ring_key != self.key)
        m.d.comb += [
            own.version.eq(INTERFACE_VERSION),
            own.boards.eq(self.boards),
            own.board.eq(self.board),
            own.config_digest.eq(digest),
            own.ring_key.eq(self.key),
            self.hello_data.eq(own),
            self.hello.eq(Mux(self.run & self.ring, ~told & self.up, 0)),
        ]
        # a channel that goes down before all have joined loses what was said: say it again
        m.d.sync += told.eq((told | self.hello_taken) & (self.up | self.joined.replicate(PORTS)))
        with m.If(arrived):
            m.d.sync += heard.bit_select(head.port, 1).eq(1)
        m.d.sync += self.joined.eq(self.run & self.ring & told.all() & heard.all() & self.cleared)
        self._fails(arrived & wrong_version, ErrorCode.RING_VERSION, Cat(theirs.version[:31], head.port))
        self._fails(
            arrived & wrong_order,
            ErrorCode.RING_ORDER,
            Cat(theirs.board, theirs.boards, Const(0, 15), head.port),
        )
        self._fails(arrived & wrong_program, ErrorCode.RING_PROGRAM, head.port)
        aborted = self._kind[FrameKind.ABORT]
        self._fails(aborted, ErrorCode.PEER_FAILED, Cat(head.header.address[:8], head.header.origin))

    def _limit(self, m: Module, sums_seen: Signal, best_seen: Signal) -> None:
        """No wait is longer than ``limit``."""
        joining = self.run & self.ring & ~self.joined
        waited, missing = Signal(32), Signal(_BOARDS)
        boards = Array(Const((1 << n) - 1, _BOARDS) for n in range(16))[self.boards]
        m.d.comb += missing.eq(
            Mux(self.sums_missing, boards & ~sums_seen, Mux(self.best_missing, boards & ~best_seen, 0))
        )
        with m.If(joining | (self.run & self.waits)):
            m.d.sync += waited.eq(waited + 1)
        with m.Else():
            m.d.sync += waited.eq(0)
        expired = Signal()
        m.d.comb += expired.eq((waited == self.limit) & (self.limit != 0))
        self._fails(joining & expired, ErrorCode.NO_HELLO, ~self._heard)
        dead = self.run & self.joined & self.dead.any()
        self._fails(dead, ErrorCode.LINK_DOWN, ~self.dead[0])
        strip = Signal(16)
        m.d.comb += strip.eq(Mux(missing.any(), 0, self.awaited + 1))
        self._fails(expired & ~joining, ErrorCode.PEER_SILENT, Cat(missing, strip))
        m.d.comb += self.dump.eq(
            Cat(joining, self.sums_missing, self.best_missing, Const(0, 5), missing, Mux(self.waits, strip, 0))
        )

    def _report(self, m: Module) -> None:
        """The first failure in the list counts."""
        m.d.sync += self.fail.eq(0)
        for index, (when, code, info) in enumerate(self._failures):
            with (m.If if index == 0 else m.Elif)(when & self.run):
                m.d.sync += [self.fail.eq(1), self.fail_code.eq(code), self.fail_info.eq(info)]
