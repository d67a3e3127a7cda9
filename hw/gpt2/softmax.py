"""Softmax path: maximum of a head's scores, exponentials, their exact sum, its reciprocal."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.gpt2.config import CoreConfig
from hw.gpt2.tags import Stages
from hw.numerics.fixed_sum import Fp16FixedSum
from hw.numerics.fp32_max import MaxTree, fp32_less_expr
from hw.numerics.fp_format import FP32_NAN
from hw.numerics.reciprocal import Reciprocal

__all__ = ["Softmax"]

_HEADS = 128
_WAITING_HEADS = 4  # heads come no faster than they go: one exponential strip a cycle, as scores do


class Softmax(wiring.Component):
    """Turns the scores of one head after the other into fp16 probabilities that are not yet divided by their sum.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``score_valid``, ``scores`` (N fp32), ``score_mask``, ``score_first``, ``score_last``, ``score_tile``,
    ``score_row``, ``score_head``, ``score_position``, ``score_prob`` : one strip of scores; the lanes store it
    themselves at the same time.
    ``score_read`` : address for the lanes' score memories; ``score_max`` : one cycle later, the head's maximum.
        ``row_free`` : strobe, that row has been read.
    ``exponentials`` (N fp16) : from the lanes, ``Stages.exponential`` cycles after the address.
    ``prob_write``, ``prob_word``, ``prob_strip``, ``prob_data`` : to the probability memory. Strips behind the last
    position are not written.
    ``ready``, ``ready_head`` : strobe, that head's probabilities are in place and its 1/sum will be at the drain stage
        of a tile that is issued after this cycle.
    ``inverse_head``/``inverse`` : 1/sum of a head, fp32, combinational.

    Timing: N exponentials a cycle; from a head's last score to ``ready`` about 30 cycles plus one a strip; heads
    overlap; sums are inverted one after the other.
    Numerics: exp(0) is exactly 1; the sum is exact; 1/sum is correctly rounded. NaN in any score makes all results of
    the head NaN.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        lanes = config.lanes
        prob = ceil_log2(config.prob_words)
        super().__init__(
            {
                "score_valid": In(1),
                "scores": In(32 * lanes),
                "score_mask": In(lanes),
                "score_first": In(1),
                "score_last": In(1),
                "score_tile": In(16),
                "score_row": In(range(config.score_rows)),
                "score_head": In(7),
                "score_position": In(16),
                "score_prob": In(prob),
                "score_read": Out(range(config.score_rows)),
                "row_free": Out(1),
                "score_max": Out(32),
                "exponentials": In(16 * lanes),
                "prob_write": Out(1),
                "prob_word": Out(prob),
                "prob_strip": Out(max(1, ceil_log2(config.strips_per_word))),
                "prob_data": Out(16 * lanes),
                "ready": Out(1),
                "ready_head": Out(7),
                "inverse_head": In(7),
                "inverse": Out(32),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        self._maximum(m)
        tags = self._exponential(m)
        self._sum(m, tags)
        return m

    def _maximum(self, m: Module) -> None:
        cfg = self.config
        m.submodules.tree = tree = MaxTree(cfg.lanes)
        head = data.StructLayout(
            {
                "tile": 16,
                "start": range(cfg.score_rows),  # row of the first tile
                "head": 7,
                "fill": range(cfg.lanes + 1),  # valid slots of the last tile
                "prob": range(cfg.prob_words),
                "maximum": 32,
            }
        )
        stage = data.StructLayout({"valid": 1, "first": 1, "last": 1, "entry": head})
        now = Signal(stage)
        m.d.comb += [
            tree.x.eq(self.scores),
            tree.mask.eq(self.score_mask),
            now.valid.eq(self.score_valid),
            now.first.eq(self.score_first),
            now.last.eq(self.score_last),
            now.entry.tile.eq(self.score_tile),
            now.entry.start.eq(self.score_row - self.score_tile),
            now.entry.head.eq(self.score_head),
            now.entry.fill.eq((self.score_position & (cfg.lanes - 1)) + 1),
            now.entry.prob.eq(self.score_prob),
        ]
        for i in range(tree.latency + 1):
            later = Signal(stage, name=f"strip_{i}")
            m.d.sync += later.eq(now)
            now = later
        best, strip_value = Signal(32), Signal(32)
        m.d.sync += strip_value.eq(Mux(tree.any_nan, FP32_NAN, tree.value))
        keep = ~now.first & (_is_nan(best) | (~_is_nan(strip_value) & ~fp32_less_expr(best, strip_value)))
        combined = Signal(32)
        m.d.comb += combined.eq(Mux(keep, best, strip_value))
        with m.If(now.valid):
            m.d.sync += best.eq(combined)
        m.submodules.queue = queue = SyncFIFO(width=head.size, depth=_WAITING_HEADS)
        entry = Signal(head)
        m.d.comb += [
            entry.eq(now.entry),
            entry.maximum.eq(combined),
            queue.w_data.eq(entry),
            queue.w_en.eq(now.valid & now.last),
        ]
        self._queue, self._entry_layout = queue, head

    def _exponential(self, m: Module):
        """Read scores at one strip a cycle; returns the tag of the strip at the output of the lanes."""
        cfg, queue = self.config, self._queue
        entry = data.View(self._entry_layout, queue.r_data)
        lane_shift, strip_shift = ceil_log2(cfg.lanes), ceil_log2(cfg.strips_per_word)
        row = Signal(range(cfg.context // cfg.lanes + 1))
        layout = data.StructLayout(
            {"valid": 1, "first": 1, "last": 1, "mask": cfg.lanes, "head": 7, "word": range(cfg.prob_words), "row": 16}
        )
        tag = Signal(layout)
        maximum = Signal(32)
        m.d.comb += [
            self.score_read.eq(entry.start + row),
            tag.valid.eq(queue.r_rdy),
            tag.first.eq(row == 0),
            tag.last.eq(row == entry.tile),
            tag.head.eq(entry.head),
            tag.word.eq(entry.prob + (row >> strip_shift)),
            tag.row.eq(row),
            queue.r_en.eq(tag.last),
            self.row_free.eq(queue.r_rdy),
        ]
        turn = Signal(lane_shift)  # by which the head turns its slots
        m.d.comb += turn.eq(entry.head << ceil_log2(cfg.rows))
        for n in range(cfg.lanes):
            rotated = Signal(lane_shift, name=f"rotated_{n}")
            m.d.comb += [rotated.eq(n - turn), tag.mask[n].eq(~tag.last | (rotated < entry.fill))]
        m.d.sync += maximum.eq(entry.maximum)
        m.d.comb += self.score_max.eq(maximum)
        with m.If(queue.r_rdy):
            m.d.sync += row.eq(Mux(tag.last, 0, row + 1))
        now = tag
        for i in range(Stages(cfg).exponential):
            later = Signal(layout, name=f"exp_{i}")
            m.d.sync += later.eq(now)
            now = later
        m.d.comb += [
            self.prob_write.eq(now.valid),
            self.prob_word.eq(now.word),
            self.prob_strip.eq(now.row[:strip_shift] if strip_shift else 0),
            self.prob_data.eq(self.exponentials),
        ]
        return now

    def _sum(self, m: Module, tag) -> None:
        cfg = self.config
        m.submodules.sum = total = Fp16FixedSum(cfg.lanes, squares=False)
        width = 40
        entry = data.StructLayout({"value": width, "nan": 1, "head": 7})
        m.submodules.waiting = waiting = SyncFIFO(width=entry.size, depth=_HEADS)
        m.submodules.reciprocal = reciprocal = Reciprocal(width)
        if reciprocal.latency > Stages(cfg).drain + 1:
            raise ValueError(
                f"1/sum takes {reciprocal.latency} cycles, too long for ready: {Stages(cfg).drain + 1} at most"
            )
        m.submodules.inverses = inverses = Memory(shape=32, depth=_HEADS, init=[])
        write, read = inverses.write_port(), inverses.read_port(domain="comb")
        m.d.comb += [
            total.x.eq(self.exponentials),
            total.mask.eq(tag.mask),
            total.valid.eq(tag.valid),
            total.first.eq(tag.first),
        ]
        last, head = tag.valid & tag.last, tag.head
        for i in range(total.latency):
            last_later, head_later = Signal(name=f"sum_last_{i}"), Signal(7, name=f"sum_head_{i}")
            m.d.sync += [last_later.eq(last), head_later.eq(head)]
            last, head = last_later, head_later
        pushed = Signal(entry)
        taken = data.View(entry, waiting.r_data)
        working = Signal()
        working_head = Signal(7)
        m.d.comb += [
            pushed.value.eq(total.sum1[:width]),
            pushed.nan.eq(total.nan),
            pushed.head.eq(head),
            waiting.w_data.eq(pushed),
            waiting.w_en.eq(last),
            reciprocal.value.eq(taken.value),
            reciprocal.nan.eq(taken.nan),
            reciprocal.start.eq(waiting.r_rdy & ~working),
            waiting.r_en.eq(reciprocal.start),
            write.en.eq(reciprocal.done & working),
            write.addr.eq(working_head),
            write.data.eq(reciprocal.out),
            read.addr.eq(self.inverse_head),
            self.inverse.eq(read.data),
            self.busy.eq(working | waiting.r_rdy | self._queue.r_rdy),
        ]
        with m.If(reciprocal.start):
            m.d.sync += [working.eq(1), working_head.eq(taken.head)]
        with m.Elif(reciprocal.done):
            m.d.sync += working.eq(0)
        m.d.sync += [self.ready.eq(reciprocal.start), self.ready_head.eq(taken.head)]


def _is_nan(x):
    return Cat(x[23:31]) == Const(255, 8)
