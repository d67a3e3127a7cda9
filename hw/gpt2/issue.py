"""Issue: turns instructions into one tile or parameter row a cycle, and waits where a result is not there yet."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.board.gpt2_map import STALL_CAUSES
from hw.gpt2.config import CoreConfig
from hw.gpt2.fetch import gather_layout, work_layout
from hw.gpt2.isa import Commit
from hw.gpt2.tags import Destination, ParamKind, tag_layout
from hw.gpt2.walk import Walk, source_layout
from hw.gpt2.weight_path import patch_layout

__all__ = ["ACCUMULATOR_LATENCY", "Issue", "hazards_layout"]

ACCUMULATOR_LATENCY = 4  # cycles between two tiles on one accumulator


def hazards_layout(config: CoreConfig) -> data.StructLayout:
    """What the other units say in the issue cycle: the answer to ``look_*`` and the state of long operations."""
    return data.StructLayout(
        {
            "operand": 1,  # a strip of `operand_needed` of the word at look_operand is busy
            "awaited": 1,  # ... other boards have not sent one of them
            "soon": 1,  # ... of which that is not known yet
            "claimed": 1,  # ... or has not come from another board
            "ring": 1,  # there are other boards
            "sums": 1,  # other boards' sums are missing
            "best": 1,  # other boards' arg-max is missing
            "joining": 1,  # the other boards have not begun
            "gather": 1,  # a GATHER is at work
            "room": 1,  # results can be sent
            "new_kv": 1,  # one of `new_needed` at look_new is busy
            "result": 1,  # a strip of `result` or `new_result` is busy
            "keys": 1,  # keys of the layer before are on their way to memory
            "values": 1,
            "statistics": 1,
            "norm": data.ArrayLayout(2, config.rows),  # scalar set is being computed
            "softmax": config.rows,  # probabilities of the tile's head are being computed
            "score_room": 1,  # no score row is free
            "logits": 1,  # logits writer is full
            "queue": 1,  # no more results can wait
            "row": 1,  # the stream has a row
            "waiting": 1,  # fetch is at a token boundary
        }
    )


class Issue(wiring.Component):
    """Sequencer of the matrix unit.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``run`` ; ``work_*`` from :class:`hw.gpt2.fetch.Fetch`.
    ``key_words``, ``value_strips``, ``width``, ``vocab`` : start registers.
    ``look_operand``, ``look_new`` (strip words), ``operand_needed``, ``new_needed`` (strips of them),
    ``look_result`` (strip) : scoreboard questions; ``hazards`` : the answers, in the same cycle.
    ``fire`` : a tile or parameter row is issued in this cycle; ``tag``, ``source``, ``elements`` (of each row's operand
    word, those that take part) and ``patch`` describe it.
    ``result``, ``new_result`` : strips of the word of ``look_result`` that become busy if it is issued, among the
    activations, and among the new keys and values.
    ``gather`` : strobe with ``gathered``, a GATHER stood before the instruction that is taken.
    ``stats_start``, ``head_start``, ``score_start``, ``commit_start`` : strobes at issue that mark long operations of
    the tag's rows as begun (vector sums, a head's softmax, a score row, a commit of keys or values).
    ``stall`` : index into STALL_CAUSES when nothing fired. ``dump_*`` : the instruction at issue, for people.

    Timing: one tile a cycle, no bubble between tiles or instructions as long as fetch keeps up (two cycles each).
    Hazards: docs/core.md section 5 (sequential meaning); priority of causes is the order of STALL_CAUSES.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        strip, word = ceil_log2(config.strip_addresses), ceil_log2(config.strip_addresses // config.strips_per_word)
        super().__init__(
            {
                "run": In(1),
                "work_valid": In(1),
                "work": In(work_layout(config)),
                "work_take": Out(1),
                "key_words": In(8),
                "value_strips": In(8),
                "width": In(16),
                "vocab": In(32),
                "look_operand": Out(word),
                "look_new": Out(word),
                "operand_needed": Out(config.strips_per_word),
                "new_needed": Out(config.strips_per_word),
                "look_result": Out(strip),
                "hazards": In(hazards_layout(config)),
                "fire": Out(1),
                "tag": Out(tag_layout(config)),
                "source": Out(source_layout(config)),
                "elements": Out(data.ArrayLayout(config.tile, config.rows)),
                "patch": Out(patch_layout(config)),
                "result": Out(config.strips_per_word),
                "new_result": Out(config.strips_per_word),
                "gather": Out(1),
                "gathered": Out(gather_layout()),
                "stats_start": Out(1),
                "head_start": Out(1),
                "score_start": Out(1),
                "commit_start": Out(2),
                "stall": Out(range(len(STALL_CAUSES))),
                "dump_index": Out(16),
                "dump_layer": Out(8),
                "dump_position": Out(16),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.walk = walk = Walk(self.config)
        self._cur, self._tile = walk.cur, walk.tile
        # sums of the position before that nobody has used must not meet those of this one
        late, done = Signal(), Signal()
        m.d.comb += [
            walk.work.eq(self.work),
            walk.key_words.eq(self.key_words),
            walk.value_strips.eq(self.value_strips),
            walk.width.eq(self.width),
            walk.vocab.eq(self.vocab),
            walk.take.eq(self.work_take),
            walk.advance.eq(self.fire),
            late.eq(self.work.begins & self.hazards.statistics & self.hazards.ring),
            done.eq(self.fire & walk.tile.end),
            self.work_take.eq(
                self.work_valid & (~walk.valid | done) & self.run & ~(self.work.gathers & self.hazards.gather) & ~late
            ),
            self.gather.eq(self.work_take & self.work.gathers),
            self.gathered.eq(self.work.gather),
            self.tag.eq(walk.tile.tag),
            self.source.eq(walk.tile.source),
            self.elements.eq(walk.tile.elements),
            self.patch.eq(walk.tile.patch),
            self.look_operand.eq(walk.tile.source.word),
            self.look_new.eq(walk.tile.new),
            self.operand_needed.eq(walk.tile.needed),
            self.new_needed.eq(walk.tile.new_needed),
            self.look_result.eq(walk.tile.tag.dst),
            self.result.eq(walk.tile.result),
            self.new_result.eq(walk.tile.new_result),
            self.dump_index.eq(walk.cur.index),
            self.dump_layer.eq(walk.cur.layer),
            self.dump_position.eq(walk.cur.position),
        ]
        self._checks(m, walk.valid)
        self._history(m, walk)
        self._score_rows(m)
        return m

    def _checks(self, m: Module, valid) -> None:
        cfg, code, h, now = self.config, self._cur.code, self.hazards, self._tile
        is_mm, is_sc, is_av = now.is_mm, now.is_sc, now.is_av
        tile = ~now.is_param
        strip_result = tile & (self.tag.destination == Destination.STRIP)
        self._acc_clash = Signal()
        self._param_clash = Signal()
        norm_busy = Cat(h.norm[r].bit_select(code.norm, 1) for r in range(cfg.rows)) & self._cur.rows
        softmax_busy = h.softmax & self._cur.rows
        norm = tile & now.acc_end & self.tag.use_norm & norm_busy.any()
        held = {
            "writer": is_mm & (((code.commit == Commit.KEYS) & h.keys) | ((code.commit == Commit.VALUES) & h.values)),
            "statistics": is_mm & code.stats & h.statistics,
            "params": now.is_param & self._param_clash,
            "accumulator": tile & ~now.acc_start & self._acc_clash,
            "score_room": is_sc & tile & now.acc_end & h.score_room,
            "softmax": (is_av | (is_sc & now.head_start)) & softmax_busy.any(),
            "norm": norm & ~h.sums,
            "operand": h.operand,
            "link": (
                (norm & h.sums)
                | h.awaited
                | (now.needed.any() & h.soon)
                # of a vector that nobody read, strips may still come: they must not meet what is written here
                | (~code.send & h.claimed)
            ),
            "new_kv": h.new_kv,
            "result": h.result | (tile & now.acc_end & ((now.logits & h.logits) | h.queue)),
            "send": strip_result & code.send & ~h.room,
            "stream": ~h.row,
        }
        index = STALL_CAUSES.index
        with m.If(~self.run):
            m.d.comb += self.stall.eq(index("drain"))
        with m.Elif(~valid):
            elsewhere = h.joining | (h.waiting & h.best) | (self.work_valid & self.work.begins & h.statistics & h.ring)
            m.d.comb += self.stall.eq(
                Mux(elsewhere, index("link"), Mux(h.waiting, index("token"), index("instruction")))
            )
        for cause in sorted(held, key=index):
            with m.Elif(held[cause]):
                m.d.comb += self.stall.eq(index(cause))
        fire = Signal()
        m.d.comb += [
            fire.eq(self.run & valid & ~Cat(held.values()).any()),
            self.fire.eq(fire),
            self.stats_start.eq(fire & now.end & is_mm & code.stats),
            self.head_start.eq(fire & is_sc & now.head_start),
            self.score_start.eq(fire & is_sc & now.acc_end),
            self.commit_start.eq(Mux(fire & now.end & is_mm, code.commit, Commit.NONE.value)),
        ]

    def _score_rows(self, m: Module) -> None:
        """Rows of the score memory go round, for each row of the core by itself."""
        for r in range(self.config.rows):
            score_row = Signal(range(self.config.score_rows), name=f"score_row_{r}")
            with m.If(self.score_start & self._cur.rows[r]):
                m.d.sync += score_row.eq(score_row + 1)
            m.d.comb += self.tag.score_row[r].eq(score_row)

    def _history(self, m: Module, walk: Walk) -> None:
        """Accumulators and parameter rows used in the last cycles."""
        now, kind = self._tile, self.tag.param_kind
        used, issued, acc, two = walk.valid & ~now.is_param, self.fire & ~now.is_param, self.tag.acc, now.two
        held, terms = Const(0), []
        for i in range(ACCUMULATOR_LATENCY - 1):
            # The present tile uses the accumulator of the one i + 1 cycles ago; known when it comes, then it shifts.
            clash = Signal(name=f"clash_{i}")
            same = (acc[1:] == walk.next_acc[1:]) & (two | walk.next_two | (acc[0] == walk.next_acc[0]))
            m.d.sync += clash.eq(Mux(self.work_take | self.fire, used & same, held))
            was_used, was_acc = Signal(name=f"used_{i}"), Signal.like(self.tag.acc, name=f"acc_{i}", reset_less=True)
            was_two = Signal(name=f"two_{i}", reset_less=True)
            m.d.sync += [was_used.eq(issued), was_acc.eq(acc), was_two.eq(two)]
            used = issued = was_used
            acc, two, held = was_acc, was_two, clash
            terms.append(clash)
        m.d.comb += self._acc_clash.eq(Cat(*terms).any())
        strips, left = self.config.param_strips // self.config.mm_strips, []
        for each in ParamKind if self.config.has_int8 else (ParamKind.BIAS, ParamKind.COLUMN_SUM):
            counter = Signal(range(strips + 1), name=f"param_left_{each.value}")
            busy = Signal(name=f"param_busy_{each.value}")  # the counter is not 0
            with m.If(self.fire & now.is_param & (kind == each)):
                m.d.sync += [counter.eq(strips - 1), busy.eq(strips > 1)]
            with m.Elif(busy):
                m.d.sync += [counter.eq(counter - 1), busy.eq(counter != 1)]
            left.append((kind == each) & busy)
        m.d.comb += self._param_clash.eq(Cat(left).any())
