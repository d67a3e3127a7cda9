"""Walk: an instruction's loops, tile by tile; each tile is described in registers before it is due."""

from __future__ import annotations

import types

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.gpt2.config import CoreConfig
from hw.gpt2.fetch import work_layout
from hw.gpt2.isa import Commit, Op, Operand, Params, Path
from hw.gpt2.tags import Destination, Operation, ParamKind, tag_layout
from hw.gpt2.weight_path import patch_layout

__all__ = ["Source", "Walk", "place_layout", "source_layout", "tile_layout"]

_COUNTED = ("middle", "inner", "strip", "dst", "head")

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


def place_layout() -> data.StructLayout:
    """Where an instruction's three loops are, and the sums that go along with them."""
    return data.StructLayout(
        {
            "base": 16,  # outer loop. MM: first strip of the group; SC, AV: head
            "middle": 16,  # MM: k word; SC: position tile; AV: block
            "inner": 16,  # MM: strip in the group; SC: key word; AV: strip
            "rows_taken": 2,  # parameter rows already taken for this strip
            "strip": 16,  # base + inner
            "last": 16,  # MM: strip in the group of its last tile
            "rest": 16,  # ... strips behind the group
            "dst": 16,  # strip address of the result
            "dst_base": 16,  # ... of the group's or head's first one
            "head": 7,
            "head_src": 16,  # SC: first operand word of the head, relative
            "head_prob": 16,  # first probability word of the head
            "head_kv": 16,  # first key word or value strip of the head
        }
    )


def tile_layout(config: CoreConfig) -> data.StructLayout:
    """A tile or parameter row as the issue unit decides about it and as it goes to the units behind."""
    return data.StructLayout(
        {
            "tag": tag_layout(config),  # without score_row
            "source": source_layout(config),
            "elements": data.ArrayLayout(config.tile, config.rows),
            "patch": patch_layout(config),
            "new": ceil_log2(config.strip_addresses // config.strips_per_word),  # strip word of the new key or value
            "needed": config.strips_per_word,  # strips of the operand word that must be there
            "new_needed": config.strips_per_word,  # ... of the word of the new key or value
            "result": config.strips_per_word,  # strips of the result's word that get one, if they are activations
            "new_result": config.strips_per_word,  # ... if they are new keys or values
            "is_param": 1,
            "is_mm": 1,
            "is_sc": 1,
            "is_av": 1,
            "logits": 1,
            "two": 1,  # it serves two strips
            "newest": 1,  # it holds the newest position
            "head_start": 1,  # first tile of a head
            "acc_start": 1,  # first tile of an accumulation
            "acc_end": 1,
            "inner_end": 1,
            "middle_end": 1,
            "end": 1,  # last tile of the instruction
        }
    )


class Walk(wiring.Component):
    """The loops of docs/core.md section 3.

    The description of the tile after this one is computed beside the decision about this one; the decision
    (``advance``) is only the clock enable of the registers that hold it.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``work`` : the next instruction (:class:`hw.gpt2.fetch.Fetch`).
    ``key_words``, ``value_strips``, ``width``, ``vocab`` : start registers.
    ``take`` : strobe, ``work`` begins behind the present tile, which is the instruction's last one, or there is none.
    ``advance`` : strobe, the present tile is issued.
    ``valid``, ``cur``, ``tile`` : the instruction at work and its present tile; registers.
    ``next_acc``, ``next_two`` : accumulator of the tile that comes with ``take`` or ``advance``, and if it has two.

    Timing: latency one cycle: the first tile is there in the cycle after ``take``, the next one in the cycle after
    ``advance``; interval one cycle. A tile stays until it is issued; there is no other back-pressure.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        super().__init__(
            {
                "work": In(work_layout(config)),
                "key_words": In(8),
                "value_strips": In(8),
                "width": In(16),
                "vocab": In(32),
                "take": In(1),
                "advance": In(1),
                "valid": Out(1),
                "cur": Out(work_layout(config)),
                "tile": Out(tile_layout(config)),
                "next_acc": Out(range(config.acc_depth)),
                "next_two": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        place, following = Signal(place_layout()), Signal(place_layout())
        instruction = Signal(work_layout(self.config))  # of the next tile
        # its fields, each a signal of its own: some follow from others
        tile = types.SimpleNamespace(
            **{name: Signal(field.shape, name=name) for name, field in tile_layout(self.config)}
        )
        # Sums for the step after, made a step ahead.
        self._after = after = {name: Signal(place[name].shape(), name=f"{name}_after") for name in _COUNTED}
        with m.If(~self.valid | self.tile.end):
            self._first(m, following)
            m.d.comb += instruction.eq(self.work)
        with m.Else():
            self._stepped(m, place, following)
            m.d.comb += instruction.eq(self.cur)
        self._kind(m, instruction, tile)
        self._ends(m, instruction, following, tile)
        self._tag(m, instruction, following, tile)
        self._operand(m, instruction, following, tile)
        self._result(m, following, tile)
        m.d.comb += [self.next_acc.eq(tile.tag.acc), self.next_two.eq(tile.two)]
        with m.If(self.take | (self.advance & ~self.tile.end)):
            m.d.sync += [place.eq(following), self.cur.eq(instruction)]
            m.d.sync += [self.tile[name].eq(field) for name, field in vars(tile).items()]
            for name, total in after.items():
                step = 1 if name in ("middle", "head") else self._strips_at_a_time(instruction.code)
                m.d.sync += total.eq(following[name] + step)
        with m.If(self.take):
            m.d.sync += self.valid.eq(1)
        with m.Elif(self.advance & self.tile.end):
            m.d.sync += self.valid.eq(0)
        return m

    def _first(self, m: Module, following) -> None:
        """Place of the first tile of ``work``."""
        code = self.work.code
        self._group(m, code.strips, code, following)
        m.d.comb += [
            following.dst.eq(code.dst),
            following.dst_base.eq(code.dst),
            following.head.eq(code.head0),
            following.head_prob.eq(code.prob),
            following.head_kv.eq(self.work.head_kv),
        ]

    def _stepped(self, m: Module, place, following) -> None:
        """Place of the tile behind the present one of the same instruction."""
        code, tile, after = self.cur.code, self.tile, self._after
        m.d.comb += following.eq(place)
        with m.If(tile.is_param):
            m.d.comb += following.rows_taken.eq(place.rows_taken + 1)
        with m.Else():
            m.d.comb += [
                following.rows_taken.eq(0),
                following.inner.eq(after["inner"]),
                following.strip.eq(after["strip"]),
                following.dst.eq(after["dst"]),
            ]
            with m.If(tile.inner_end):
                m.d.comb += [
                    following.inner.eq(0),
                    following.middle.eq(after["middle"]),
                    following.strip.eq(place.base),
                    following.dst.eq(place.dst_base),
                ]
            with m.If(tile.inner_end & tile.middle_end):
                self._group(m, place.rest, code, following)
                base, dst = Signal(16), Signal(16)
                of_head = Mux(tile.is_sc, self.key_words, self.value_strips)
                m.d.comb += [
                    base.eq(place.base + Mux(tile.is_mm, code.group, 1)),
                    dst.eq(place.dst_base + Mux(tile.is_mm, code.group, self.value_strips)),
                    following.middle.eq(0),
                    following.base.eq(base),
                    following.strip.eq(base),
                    following.dst.eq(dst),
                    following.dst_base.eq(dst),
                    following.head.eq(after["head"]),
                    following.head_src.eq(place.head_src + of_head),
                    following.head_prob.eq(place.head_prob + code.prob_stride),
                    following.head_kv.eq(place.head_kv + of_head),
                ]

    def _group(self, m: Module, strips, code, following) -> None:
        """The first of the strips make a group."""
        more, at_a_time = Signal(), self._strips_at_a_time(code)
        m.d.comb += [
            more.eq(strips > code.group),
            following.last.eq(Mux(more, code.group - at_a_time, strips - at_a_time)),
            following.rest.eq(Mux(more, strips - code.group, 0)),
        ]

    def _strips_at_a_time(self, code):
        """With int8 weights a tile of a product serves two."""
        return Mux(code.op == Op.MM, 2, 1) if self.config.has_int8 else 1

    def _kind(self, m: Module, cur, tile) -> None:
        code = cur.code
        m.d.comb += [
            tile.is_mm.eq((code.op == Op.MM) | (code.op == Op.EMB)),
            tile.is_sc.eq(code.op == Op.SC),
            tile.is_av.eq(code.op == Op.AV),
            tile.two.eq((code.op == Op.MM) & self.config.has_int8),
            tile.logits.eq(tile.is_mm & (code.path == Path.LOGITS)),
        ]

    def _ends(self, m: Module, cur, place, tile) -> None:
        """Ends of the three loops, parameter rows, beginning and end of the accumulation."""
        cfg, code = self.config, cur.code
        words = Signal(10)
        self._newest_tile, self._newest_block = Signal(16), Signal(16)
        m.d.comb += [
            words.eq(Mux(code.op == Op.EMB, 1, code.words)),
            self._newest_tile.eq(cur.position >> ceil_log2(cfg.lanes)),
            self._newest_block.eq(cur.position >> ceil_log2(cfg.tile)),
            tile.newest.eq(place.middle == Mux(tile.is_sc, self._newest_tile, self._newest_block)),
        ]
        outer_end, self._last_key_word = Signal(), Signal()
        m.d.comb += self._last_key_word.eq(place.inner == self.key_words - 1)
        with m.If(tile.is_mm):
            m.d.comb += [
                tile.inner_end.eq(place.inner == place.last),
                tile.middle_end.eq(place.middle == words - 1),
                outer_end.eq(place.rest == 0),
            ]
        with m.Else():
            m.d.comb += [
                tile.inner_end.eq(Mux(tile.is_sc, self._last_key_word, place.inner == self.value_strips - 1)),
                tile.middle_end.eq(tile.newest),
                outer_end.eq(place.base == code.heads - 1),
            ]
        rows, chunk_start = Signal(2), Signal()
        first_word = place.middle == 0
        m.d.comb += [
            rows.eq(Mux(code.params == Params.NORM, 2, code.params == Params.BIAS) + tile.two),
            chunk_start.eq(code.first & first_word & (place.strip[: ceil_log2(cfg.param_strips)] == 0)),
            tile.is_param.eq(tile.is_mm & chunk_start & (place.rows_taken < rows)),
            tile.end.eq(~tile.is_param & tile.inner_end & tile.middle_end & outer_end),
            tile.head_start.eq(first_word & (place.inner == 0)),
            tile.acc_start.eq(
                Mux(tile.is_mm, code.first & first_word, Mux(tile.is_sc, place.inner == 0, first_word)),
            ),
            tile.acc_end.eq(
                Mux(tile.is_mm, code.last & tile.middle_end, Mux(tile.is_sc, tile.inner_end, tile.middle_end))
            ),
        ]

    def _tag(self, m: Module, cur, place, tile) -> None:
        cfg, code, tag = self.config, cur.code, tile.tag
        lane_shift = ceil_log2(cfg.lanes)
        is_mm, is_sc, is_av, two = tile.is_mm, tile.is_sc, tile.is_av, tile.two
        self._turn = turn = Signal(lane_shift)  # by which the head turns its slots
        m.d.comb += turn.eq(place.head << ceil_log2(cfg.rows))
        self._rotated = rotated = [Signal(lane_shift, name=f"rotated_{n}") for n in range(cfg.lanes)]
        for n in range(cfg.lanes):
            m.d.comb += rotated[n].eq(n - turn)
        with m.If(two & (place.rows_taken == 0)):
            m.d.comb += tag.param_kind.eq(ParamKind.SCALE)
        with m.Elif(place.rows_taken > two):
            m.d.comb += tag.param_kind.eq(ParamKind.COLUMN_SUM)
        m.d.comb += [
            tag.operation.eq(Mux(tile.is_param, Operation.PARAM.value, Operation.TILE.value)),
            tag.param.eq(code.acc + place.strip),
            tag.first.eq(tile.acc_start),
            tag.bias.eq(is_mm & (code.params == Params.BIAS)),
            tag.acc.eq(code.acc + Mux(is_sc, 0, Mux(is_mm & ~(code.first & code.last), place.strip, place.inner))),
            tag.use_norm.eq(is_mm & (code.params == Params.NORM)),
            tag.norm_set.eq(code.norm),
            tag.use_residual.eq(is_mm & (code.path == Path.RESIDUAL)),
            tag.use_gelu.eq(is_mm & (code.path == Path.GELU)),
            tag.use_scale.eq(is_sc),
            tag.use_inverse.eq(is_av),
            tag.head.eq(place.head),
            tag.dst.eq(place.dst),
            tag.index.eq(Mux(is_sc, place.middle, Mux(tile.logits, place.dst, place.strip))),
            tag.stats.eq(is_mm & code.stats),
            tag.stats_set.eq(code.stats_set),
            tag.strip_first.eq(Mux(is_sc, place.middle == 0, place.strip == 0)),
            tag.strip_last.eq(Mux(is_sc, tile.middle_end, tile.end)),
            tag.send.eq((is_mm | is_av) & code.send),
            tag.flush.eq(tile.inner_end),
            tag.commit.eq(Mux(is_mm & tile.end, code.commit, Commit.NONE.value)),
            tag.layer.eq(cur.layer),
            tag.rows.eq(cur.rows),
            tag.position.eq(cur.positions),
            tag.prob.eq(place.head_prob),
            tag.score_row.eq(0),  # the issue unit's
        ]
        with m.If(tile.acc_end & ~tile.is_param):
            m.d.comb += tag.destination.eq(
                Mux(is_sc, Destination.SCORE.value, Mux(tile.logits, Destination.LOGITS.value, Destination.STRIP.value))
            )
        columns = self._columns(m, "even", place.strip, place.dst, tile.logits)
        for r in range(cfg.rows):
            older, here = self._filled(m, f"tile_{r}", place.middle, cur.positions[r] >> lane_shift)
            newest_slot = cur.positions[r][:lane_shift]
            for n in range(cfg.lanes):
                filled = older | (here & (rotated[n] <= newest_slot))
                m.d.comb += tag.mask[r][n].eq(Mux(is_sc, filled, columns[n]))
        if cfg.has_int8:
            odd = self._columns(m, "odd", place.strip | 1, place.dst | 1, tile.logits)
            m.d.comb += [tag.two.eq(two), tag.mask_odd.eq(odd)]

    def _result(self, m: Module, place, tile) -> None:
        """Strips that wait for the tile's result."""
        cfg = self.config
        strips, is_result, new = Signal(cfg.strips_per_word), Signal(), Signal()
        m.d.comb += [
            strips.eq(Cat(1, tile.two) << place.dst[: ceil_log2(cfg.strips_per_word)]),
            is_result.eq(tile.acc_end & ~tile.is_param & ~tile.is_sc & ~tile.logits),
            new.eq(place.dst >= cfg.act_words * cfg.strips_per_word),
            tile.result.eq(Mux(is_result & ~new, strips, 0)),
            tile.new_result.eq(Mux(is_result & new, strips, 0)),
        ]

    def _columns(self, m: Module, name: str, strip, logits_strip, logits):
        """Lanes of a strip that are columns of the product: one comparison, not one a lane."""
        within = []
        for which, index, limit in (("of_vector", strip, self.width), ("of_logits", logits_strip, self.vocab)):
            lanes = Signal(self.config.lanes, name=f"{name}_{which}")
            whole, last = limit[ceil_log2(self.config.lanes) :], limit[: ceil_log2(self.config.lanes)]
            for n in range(self.config.lanes):
                m.d.comb += lanes[n].eq((index < whole) | ((index == whole) & (n < last)))
            within.append(lanes)
        return Mux(logits, within[1], within[0])

    def _filled(self, m: Module, name: str, index, newest):
        """Whether all slots of a position tile or block hold a position, or those up to the newest one's do."""
        older, here = Signal(name=f"older_{name}"), Signal(name=f"newest_{name}")
        m.d.comb += [older.eq(index < newest), here.eq(index == newest)]
        return older, here

    def _operand(self, m: Module, cur, place, tile) -> None:
        """Operand, its elements that take part, and the patch."""
        cfg, code, source, elements = self.config, cur.code, tile.source, tile.elements
        tile_shift, lane_shift = ceil_log2(cfg.tile), ceil_log2(cfg.lanes)
        is_sc, is_av, turn, rotated = tile.is_sc, tile.is_av, self._turn, self._rotated
        whole = Signal()  # all elements of the word exist
        m.d.comb += whole.eq(~Mux(is_sc, self._last_key_word, tile.middle_end))
        with m.If(code.op == Op.EMB):
            m.d.comb += source.kind.eq(Source["one_hot"])
            for r in range(cfg.rows):
                index = Mux(code.operand == Operand.TOKEN, cur.token, cur.positions[r][:tile_shift])
                m.d.comb += elements[r].eq(1 << index)
        with m.Elif(is_av):
            m.d.comb += [source.kind.eq(Source["probability"]), source.word.eq(place.head_prob + place.middle)]
            for r in range(cfg.rows):
                older, here = self._filled(m, f"block_{r}", place.middle, cur.positions[r] >> tile_shift)
                newest_slot = cur.positions[r][:tile_shift]
                for e in range(cfg.tile):
                    n, g = e & (cfg.lanes - 1), e >> lane_shift
                    m.d.comb += elements[r][e].eq(older | (here & (rotated[n] + g * cfg.lanes <= newest_slot)))
        with m.Else():
            m.d.comb += source.word.eq(
                Mux(is_sc, code.src + place.head_src + place.inner, code.src + place.middle),
            )
            for r in range(cfg.rows):
                for e in range(cfg.tile):
                    m.d.comb += elements[r][e].eq(whole | (code.tail > e))
        lanes_patched, elements_patched = Const(0, cfg.lanes), Const(0, cfg.tile)
        for r in range(cfg.rows):
            slot = Signal(tile_shift, name=f"slot_{r}")
            here = Signal(name=f"newest_{r}")
            position = cur.positions[r]
            m.d.comb += [
                slot.eq(Cat((position + turn)[:lane_shift], position[lane_shift:tile_shift])),
                here.eq(tile.newest & cur.rows[r]),
            ]
            lanes_patched = lanes_patched | Mux(is_sc & here, 1 << slot[:lane_shift], 0)
            elements_patched = elements_patched | Mux(is_av & here, 1 << slot, 0)
        strip_shift = ceil_log2(cfg.strips_per_word)
        kv, new_needed = Signal(16), Signal(cfg.strips_per_word)
        reads = is_sc | ((code.op == Op.MM) & ~tile.is_param)
        m.d.comb += [
            kv.eq(place.head_kv + place.inner),
            source.key_word.eq(kv),
            source.value_strip.eq(kv),
            tile.patch.key.eq(lanes_patched),
            tile.patch.value.eq(elements_patched),
            tile.patch.single.eq(cur.single),
            tile.patch.row.eq(cur.row),
            tile.new.eq(
                Mux(
                    is_sc,
                    (cfg.new_key_base >> strip_shift) + kv,
                    (cfg.new_value_base + kv) >> strip_shift,
                )
            ),
            new_needed.eq(Mux(is_sc, (1 << cfg.strips_per_word) - 1, 1 << kv[:strip_shift]) if strip_shift else 1),
            tile.new_needed.eq(Mux((is_sc | is_av) & tile.newest, new_needed, 0)),
        ]
        for j in range(cfg.strips_per_word):
            m.d.comb += tile.needed[j].eq(reads & (whole | (code.tail > j * cfg.lanes)))
