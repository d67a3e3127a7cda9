"""Issue: turns instructions into one tile or parameter row a cycle, and waits where a result is not there yet."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.board.gpt2_map import STALL_CAUSES
from hw.gpt2.config import CoreConfig
from hw.gpt2.fetch import gather_layout, work_layout
from hw.gpt2.isa import Commit, Op, Operand, Params, Path
from hw.gpt2.tags import Destination, Operation, ParamKind, tag_layout
from hw.gpt2.weight_path import patch_layout

__all__ = ["ACCUMULATOR_LATENCY", "Issue", "Source", "hazards_layout", "source_layout"]

ACCUMULATOR_LATENCY = 4  # cycles between two tiles on one accumulator

Source = {"activation": 0, "probability": 1, "one_hot": 2}


def source_layout(config: CoreConfig) -> data.StructLayout:
    """What the operand memories of every row are asked for in the issue cycle."""
    return data.StructLayout(
        {
            "kind": 2,  # Source
            "word": max(ceil_log2(config.act_words), ceil_log2(config.prob_words)),
            "key_word": range(config.new_key_words),
            "value_strip": range(config.new_value_strips),
        }
    )


def hazards_layout(config: CoreConfig) -> data.StructLayout:
    """What the other units say in the issue cycle: the answer to ``look_*`` and the state of long operations."""
    return data.StructLayout(
        {
            "operand": config.strips_per_word,  # busy strips of the word at look_operand
            "awaited": config.strips_per_word,  # ... that other boards have not sent
            "soon": 1,  # ... of which that is not known yet
            "claimed": 1,  # another board's strip for look_result has not come
            "ring": 1,  # there are other boards
            "sums": 1,  # other boards' sums are missing
            "best": 1,  # other boards' arg-max is missing
            "joining": 1,  # the other boards have not begun
            "gather": 1,  # a GATHER is at work
            "room": 1,  # results can be sent
            "new_kv": config.strips_per_word,  # ... at look_new
            "result": 1,  # strip at look_result is busy
            "keys": 1,  # keys of the layer before are on their way to memory
            "values": 1,
            "statistics": 1,
            "norm": data.ArrayLayout(2, config.rows),  # scalar set is being computed
            "softmax": data.ArrayLayout(128, config.rows),  # head's probabilities are being computed
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
    ``look_operand``, ``look_new`` (strip words), ``look_result`` (strip) : scoreboard questions; ``hazards`` : the
    answers, in the same cycle.
    ``fire`` : a tile or parameter row is issued in this cycle; ``tag``, ``source``, ``elements`` (of each row's operand
    word, those that take part) and ``patch`` describe it.
    ``mark`` : its result strip becomes busy, with ``mark_two`` the one behind it too.
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
                "look_result": Out(strip),
                "hazards": In(hazards_layout(config)),
                "fire": Out(1),
                "tag": Out(tag_layout(config)),
                "source": Out(source_layout(config)),
                "elements": Out(data.ArrayLayout(config.tile, config.rows)),
                "patch": Out(patch_layout(config)),
                "mark": Out(1),
                "mark_two": Out(1),
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
        cur = Signal(work_layout(self.config))
        valid = Signal()
        self._cur, self._code = cur, cur.code
        done = Signal()  # the current instruction issues its last tile in this cycle
        # sums of the position before that nobody has used must not meet those of this one
        late = Signal()
        m.d.comb += late.eq(self.work.begins & self.hazards.statistics & self.hazards.ring)
        m.d.comb += [
            self.work_take.eq(
                self.work_valid & (~valid | done) & self.run & ~(self.work.gathers & self.hazards.gather) & ~late
            ),
            self.gather.eq(self.work_take & self.work.gathers),
            self.gathered.eq(self.work.gather),
            self.dump_index.eq(cur.index),
            self.dump_layer.eq(cur.layer),
            self.dump_position.eq(cur.position),
        ]
        with m.If(self.work_take):
            m.d.sync += [cur.eq(self.work), valid.eq(1)]
        with m.Elif(done):
            m.d.sync += valid.eq(0)
        self._wanted(m)
        self._checks(m, valid)
        m.d.comb += done.eq(self.fire & self._is_end)
        self._history(m)
        self._step(m)
        return m

    # Registers of the loops: outer (group base, head), middle (k word, position tile, block), inner (strip, key word).
    def _wanted(self, m: Module) -> None:
        cfg, code, cur = self.config, self._code, self._cur
        self._base = base = Signal(16)  # MM: first strip of the group; SC, AV: head
        self._middle = middle = Signal(16)  # MM: k word; SC: position tile; AV: block
        self._inner = inner = Signal(16)  # MM: strip in the group; SC: key word; AV: strip
        self._rows_taken = Signal(2)  # parameter rows already taken for this strip
        self._two = two = Signal()  # the row serves two strips
        m.d.comb += two.eq((code.op == Op.MM) & cfg.has_int8)
        self._head_src = Signal(16)  # SC: q word; AV: dst strip, both relative
        self._head_prob = Signal(16)
        self._head_kv = Signal(16)  # key word or value strip of the head
        self._is_mm = is_mm = Signal()
        self._is_sc, self._is_av = is_sc, is_av = Signal(), Signal()
        m.d.comb += [
            is_mm.eq((code.op == Op.MM) | (code.op == Op.EMB)),
            is_sc.eq(code.op == Op.SC),
            is_av.eq(code.op == Op.AV),
        ]
        tile_shift, lane_shift = ceil_log2(cfg.tile), ceil_log2(cfg.lanes)
        lanes_mask = cfg.lanes - 1
        head = Signal(7)
        turn = Signal(lane_shift)  # by which the head turns its slots
        strip = Signal(16)
        newest_tile, newest_block = Signal(16), Signal(16)
        words = Signal(10)
        group_left = Signal(16)
        m.d.comb += [
            head.eq(code.head0 + base),
            turn.eq(head << ceil_log2(cfg.rows)),
            strip.eq(base + inner),
            newest_tile.eq(cur.position >> lane_shift),
            newest_block.eq(cur.position >> tile_shift),
            words.eq(Mux(code.op == Op.EMB, 1, code.words)),
            group_left.eq(code.strips - base),
        ]
        group = Signal(16)
        m.d.comb += group.eq(Mux(group_left < code.group, group_left, code.group))

        # Ends of the three loops.
        self._inner_end, self._middle_end, self._outer_end = Signal(), Signal(), Signal()
        with m.If(is_mm):
            m.d.comb += [
                self._inner_end.eq(inner + 1 + two == group),
                self._middle_end.eq(middle + 1 == words),
                self._outer_end.eq(group_left <= code.group),
            ]
        with m.Else():
            m.d.comb += [
                self._inner_end.eq(inner + 1 == Mux(is_sc, self.key_words, self.value_strips)),
                self._middle_end.eq(middle == Mux(is_sc, newest_tile, newest_block)),
                self._outer_end.eq(base + 1 == code.heads),
            ]
        self._is_param = is_param = Signal()
        self._param_kind = Signal(ParamKind)
        with m.If(two & (self._rows_taken == 0)):
            m.d.comb += self._param_kind.eq(ParamKind.SCALE)
        with m.Elif(self._rows_taken > two):
            m.d.comb += self._param_kind.eq(ParamKind.COLUMN_SUM)
        rows, chunk_start = Signal(2), Signal()
        m.d.comb += [
            rows.eq(Mux(code.params == Params.NORM, 2, code.params == Params.BIAS) + two),
            chunk_start.eq(code.first & (middle == 0) & (strip[: ceil_log2(cfg.param_strips)] == 0)),
            is_param.eq(is_mm & chunk_start & (self._rows_taken < rows)),
        ]
        self._is_end = Signal()
        m.d.comb += self._is_end.eq(~is_param & self._inner_end & self._middle_end & self._outer_end)

        # Which tile starts and ends its accumulation.
        acc_start, acc_end = Signal(), Signal()
        m.d.comb += [
            acc_start.eq(Mux(is_mm, code.first & (middle == 0), Mux(is_sc, inner == 0, middle == 0))),
            acc_end.eq(Mux(is_mm, code.last & self._middle_end, Mux(is_sc, self._inner_end, self._middle_end))),
        ]
        tag, source = self.tag, self.source
        filled = [Signal(16, name=f"filled_{r}") for r in range(cfg.rows)]  # positions of the tile or block that exist
        newest = Signal()
        m.d.comb += newest.eq(middle == Mux(is_sc, newest_tile, newest_block))
        for r in range(cfg.rows):
            before = Mux(is_sc, middle << lane_shift, middle << tile_shift)
            m.d.comb += filled[r].eq(cur.positions[r] + 1 - before)
        rotated = [Signal(lane_shift, name=f"rotated_{n}") for n in range(cfg.lanes)]
        for n in range(cfg.lanes):
            m.d.comb += rotated[n].eq(n - turn)

        column = Signal(16)
        m.d.comb += column.eq(strip << lane_shift)
        dst = Signal(16)
        m.d.comb += dst.eq(Mux(is_av, code.dst + self._head_src + inner, code.dst + strip))
        logits_column = Signal(20)
        m.d.comb += logits_column.eq((code.dst + strip) << lane_shift)
        logits = is_mm & (code.path == Path.LOGITS)
        limit = Mux(logits, self.vocab, self.width)
        columns = Mux(logits, logits_column, column)
        m.d.comb += [
            tag.operation.eq(Mux(is_param, Operation.PARAM.value, Operation.TILE.value)),
            tag.param_kind.eq(self._param_kind),
            tag.param.eq(code.acc + strip),
            tag.first.eq(acc_start),
            tag.bias.eq(is_mm & (code.params == Params.BIAS)),
            tag.acc.eq(code.acc + Mux(is_sc, 0, Mux(is_mm & ~(code.first & code.last), strip, inner))),
            tag.use_norm.eq(is_mm & (code.params == Params.NORM)),
            tag.norm_set.eq(code.norm),
            tag.use_residual.eq(is_mm & (code.path == Path.RESIDUAL)),
            tag.use_gelu.eq(is_mm & (code.path == Path.GELU)),
            tag.use_scale.eq(is_sc),
            tag.use_inverse.eq(is_av),
            tag.head.eq(head),
            tag.dst.eq(dst),
            tag.index.eq(Mux(is_sc, middle, Mux(logits, code.dst + strip, strip))),
            tag.stats.eq(is_mm & code.stats),
            tag.stats_set.eq(code.stats_set),
            tag.strip_first.eq(Mux(is_sc, middle == 0, strip == 0)),
            tag.strip_last.eq(Mux(is_sc, self._middle_end, self._is_end)),
            tag.send.eq((is_mm | is_av) & code.send),
            tag.flush.eq(self._inner_end),
            tag.commit.eq(Mux(is_mm & self._is_end, code.commit, Commit.NONE.value)),
            tag.layer.eq(cur.layer),
            tag.rows.eq(cur.rows),
            tag.position.eq(cur.positions),
            tag.prob.eq(self._head_prob),
        ]
        with m.If(acc_end & ~is_param):
            m.d.comb += tag.destination.eq(
                Mux(is_sc, Destination.SCORE.value, Mux(logits, Destination.LOGITS.value, Destination.STRIP.value))
            )
        for r in range(cfg.rows):
            for n in range(cfg.lanes):
                m.d.comb += tag.mask[r][n].eq(Mux(is_sc, filled[r] > rotated[n], columns + n < limit))

        if cfg.has_int8:
            m.d.comb += tag.two.eq(two)
            for n in range(cfg.lanes):
                m.d.comb += tag.mask_odd[n].eq(columns + cfg.lanes + n < limit)

        # Operand, mask and patch.
        tail = Signal(range(cfg.tile + 1))
        m.d.comb += tail.eq(Mux(Mux(is_sc, self._inner_end, self._middle_end), code.tail, cfg.tile))
        with m.If(code.op == Op.EMB):
            m.d.comb += source.kind.eq(Source["one_hot"])
            for r in range(cfg.rows):
                index = Mux(code.operand == Operand.TOKEN, cur.token, cur.positions[r][:tile_shift])
                m.d.comb += self.elements[r].eq(1 << index)
        with m.Elif(is_av):
            m.d.comb += [source.kind.eq(Source["probability"]), source.word.eq(self._head_prob + middle)]
            for r in range(cfg.rows):
                for e in range(cfg.tile):
                    n, g = e & lanes_mask, e >> lane_shift
                    m.d.comb += self.elements[r][e].eq(filled[r] > (rotated[n] + g * cfg.lanes))
        with m.Else():
            m.d.comb += source.word.eq(Mux(is_sc, code.src + self._head_src + inner, code.src + middle))
            for r in range(cfg.rows):
                for e in range(cfg.tile):
                    m.d.comb += self.elements[r][e].eq(tail > e)
        kv = Signal(16)
        lanes_patched, elements_patched = Const(0, cfg.lanes), Const(0, cfg.tile)
        for r in range(cfg.rows):
            slot = Signal(tile_shift, name=f"slot_{r}")
            here = Signal(name=f"newest_{r}")
            position = cur.positions[r]
            m.d.comb += [
                slot.eq(Cat((position + turn)[:lane_shift], position[lane_shift:tile_shift])),
                here.eq(newest & cur.rows[r]),
            ]
            lanes_patched = lanes_patched | Mux(is_sc & here, 1 << slot[:lane_shift], 0)
            elements_patched = elements_patched | Mux(is_av & here, 1 << slot, 0)
        m.d.comb += [
            kv.eq(self._head_kv + inner),
            source.key_word.eq(kv),
            source.value_strip.eq(kv),
            self.patch.key.eq(lanes_patched),
            self.patch.value.eq(elements_patched),
            self.patch.single.eq(cur.single),
            self.patch.row.eq(cur.row),
        ]

        # Questions to the scoreboard.
        strip_shift = ceil_log2(cfg.strips_per_word)
        m.d.comb += [
            self.look_operand.eq(source.word),
            self.look_new.eq(
                Mux(
                    is_sc,
                    (cfg.new_key_base >> strip_shift) + kv,
                    (cfg.new_value_base + kv) >> strip_shift,
                )
            ),
            self.look_result.eq(dst),
        ]
        self._needed = Signal(cfg.strips_per_word)
        for j in range(cfg.strips_per_word):
            m.d.comb += self._needed[j].eq(tail > j * cfg.lanes)
        self._new_needed = Signal(cfg.strips_per_word)
        m.d.comb += self._new_needed.eq(
            Mux(is_sc, (1 << cfg.strips_per_word) - 1, 1 << kv[:strip_shift]) if strip_shift else 1
        )
        self._newest, self._acc_start, self._acc_end, self._logits = newest, acc_start, acc_end, logits

    def _checks(self, m: Module, valid) -> None:
        cfg, code, h = self.config, self._code, self.hazards
        is_mm, is_sc, is_av = self._is_mm, self._is_sc, self._is_av
        tile = ~self._is_param
        strip_result = tile & (self.tag.destination == Destination.STRIP)
        self._acc_clash = Signal()
        self._param_clash = Signal()
        at_head_start = (self._middle == 0) & (self._inner == 0)
        norm_busy = Cat(h.norm[r].bit_select(code.norm, 1) for r in range(cfg.rows)) & self._cur.rows
        softmax_busy = Cat(h.softmax[r].bit_select(self.tag.head, 1) for r in range(cfg.rows)) & self._cur.rows
        norm = tile & self._acc_end & self.tag.use_norm & norm_busy.any()
        reads = tile & (is_sc | (code.op == Op.MM))
        held = {
            "writer": is_mm & (((code.commit == Commit.KEYS) & h.keys) | ((code.commit == Commit.VALUES) & h.values)),
            "statistics": is_mm & code.stats & h.statistics,
            "params": self._is_param & self._param_clash,
            "accumulator": tile & ~self._acc_start & self._acc_clash,
            "score_room": is_sc & tile & self._acc_end & h.score_room,
            "softmax": (is_av | (is_sc & at_head_start)) & softmax_busy.any(),
            "norm": norm & ~h.sums,
            "operand": reads & (h.operand & self._needed).any(),
            "link": (
                (norm & h.sums)
                | (reads & (h.soon | (h.awaited & self._needed).any()))
                # of a vector that nobody read, strips may still come: they must not meet what is written here
                | (strip_result & ~code.send & h.claimed)
            ),
            "new_kv": (is_sc | is_av) & self._newest & (h.new_kv & self._new_needed).any(),
            "result": (strip_result & h.result) | (tile & self._acc_end & ((self._logits & h.logits) | h.queue)),
            "send": strip_result & code.send & ~h.room,
            "stream": ~h.row,
        }
        clear = Signal()
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
        with m.Else():
            m.d.comb += clear.eq(1)
        m.d.comb += [
            self.fire.eq(clear),
            self.mark.eq(clear & strip_result),
            self.mark_two.eq(self._two),
            self.stats_start.eq(clear & self._is_end & is_mm & code.stats),
            self.head_start.eq(clear & is_sc & at_head_start),
            self.commit_start.eq(Mux(clear & self._is_end & is_mm, code.commit, Commit.NONE.value)),
        ]
        m.d.comb += self.score_start.eq(clear & is_sc & self._acc_end)
        for r in range(cfg.rows):
            score_row = Signal(range(cfg.score_rows), name=f"score_row_{r}")
            with m.If(self.score_start & self._cur.rows[r]):
                m.d.sync += score_row.eq(score_row + 1)
            m.d.comb += self.tag.score_row[r].eq(score_row)

    def _history(self, m: Module) -> None:
        """Accumulators and parameter rows used in the last cycles."""
        clash = self._acc_clash
        used, acc, two = self.fire & ~self._is_param, self.tag.acc, self._two
        terms = []
        for i in range(ACCUMULATOR_LATENCY - 1):
            was_used, was_acc = Signal(name=f"used_{i}"), Signal.like(self.tag.acc, name=f"acc_{i}", reset_less=True)
            was_two = Signal(name=f"two_{i}", reset_less=True)
            m.d.sync += [was_used.eq(used), was_acc.eq(acc), was_two.eq(two)]
            used, acc, two = was_used, was_acc, was_two
            same = (was_acc[1:] == self.tag.acc[1:]) & (two | self._two | (was_acc[0] == self.tag.acc[0]))
            terms.append(was_used & same)
        m.d.comb += clash.eq(Cat(*terms).any())
        left = []
        for kind in ParamKind if self.config.has_int8 else (ParamKind.BIAS, ParamKind.COLUMN_SUM):
            counter = Signal(range(self.config.param_strips + 1), name=f"param_left_{kind.value}")
            with m.If(self.fire & self._is_param & (self._param_kind == kind)):
                m.d.sync += counter.eq(self.config.param_strips // self.config.mm_strips - 1)
            with m.Elif(counter != 0):
                m.d.sync += counter.eq(counter - 1)
            left.append((self._param_kind == kind) & (counter != 0))
        m.d.comb += self._param_clash.eq(Cat(left).any())

    def _step(self, m: Module) -> None:
        code = self._code
        with m.If(self.work_take):
            m.d.sync += [
                self._base.eq(0),
                self._middle.eq(0),
                self._inner.eq(0),
                self._rows_taken.eq(0),
                self._head_src.eq(0),
                self._head_prob.eq(self.work.code.prob),
                self._head_kv.eq(_head_offset(self, self.work)),
            ]
        with m.Elif(self.fire & self._is_param):
            m.d.sync += self._rows_taken.eq(self._rows_taken + 1)
        with m.Elif(self.fire):
            m.d.sync += [self._rows_taken.eq(0), self._inner.eq(self._inner + 1 + self._two)]
            with m.If(self._inner_end):
                m.d.sync += [self._inner.eq(0), self._middle.eq(self._middle + 1)]
                with m.If(self._middle_end):
                    m.d.sync += self._middle.eq(0)
                    with m.If(self._is_mm):
                        m.d.sync += self._base.eq(self._base + code.group)
                    with m.Else():
                        step = Mux(self._is_sc, self.key_words, self.value_strips)
                        m.d.sync += [
                            self._base.eq(self._base + 1),
                            self._head_src.eq(self._head_src + step),
                            self._head_prob.eq(self._head_prob + code.prob_stride),
                            self._head_kv.eq(self._head_kv + step),
                        ]


def _head_offset(issue: Issue, work):
    """First key word or value strip of head ``head0``."""
    return work.code.head0 * Mux(work.code.op == Op.SC, issue.key_words, issue.value_strips)
