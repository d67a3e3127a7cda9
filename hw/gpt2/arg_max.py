"""Arg-max over the logits of one step."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.gpt2.config import CoreConfig
from hw.numerics.fp32_max import MaxTree, fp32_less_expr

__all__ = ["ArgMax"]


class ArgMax(wiring.Component):
    """Running (value, column) pair over strips of N fp32 logits.

    Members
    -------
    ``strip_valid``, ``strip`` (N fp32), ``strip_mask`` (columns that take part), ``strip_index``, ``strip_commit``
        (last strip of the step).
    ``token_valid`` strobe with ``token`` : the largest value's column, lowest column on ties, -0 counts as +0.
    ``value`` (fp32), ``some`` (any column took part) : with either strobe.
    ``nan`` strobe instead of ``token_valid`` if any value that took part was NaN. Both come four cycles after the
        strip.

    Timing: a strip a cycle; strips may come in any order of index.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        super().__init__(
            {
                "strip_valid": In(1),
                "strip": In(32 * config.lanes),
                "strip_mask": In(config.lanes),
                "strip_index": In(16),
                "strip_commit": In(1),
                "token_valid": Out(1),
                "token": Out(32),
                "value": Out(32),
                "some": Out(1),
                "nan": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes = self.config.lanes
        m.submodules.tree = tree = MaxTree(lanes)
        layout = data.StructLayout({"valid": 1, "commit": 1, "index": 16})
        now = Signal(layout)
        m.d.comb += [
            tree.x.eq(self.strip),
            tree.mask.eq(self.strip_mask),
            now.valid.eq(self.strip_valid),
            now.commit.eq(self.strip_commit),
            now.index.eq(self.strip_index),
        ]
        for i in range(tree.latency + 1):
            later = Signal(layout, name=f"strip_{i}")
            m.d.sync += later.eq(now)
            now = later
        value, lane, some, nan = Signal(32), Signal(max(1, ceil_log2(lanes))), Signal(), Signal()
        m.d.sync += [value.eq(tree.value), lane.eq(tree.index), some.eq(tree.any_valid), nan.eq(tree.any_nan)]
        best, best_column, best_some, best_nan = Signal(32), Signal(20), Signal(), Signal()
        column = Signal(20)
        m.d.comb += column.eq(now.index * lanes + lane)
        less, greater = fp32_less_expr(best, value), fp32_less_expr(value, best)
        restart, nan_so_far = Signal(init=1), Signal()  # restart: the next strip is the first of its step
        decides = now.valid & now.commit
        m.d.comb += nan_so_far.eq((best_nan & ~restart) | nan)
        m.d.sync += [self.token_valid.eq(decides & ~nan_so_far), self.nan.eq(decides & nan_so_far)]
        empty = restart | ~best_some
        with m.If(now.valid):
            m.d.sync += [restart.eq(now.commit), best_nan.eq(nan_so_far)]
            with m.If(some & (empty | less | (~greater & (column < best_column)))):
                m.d.sync += [best.eq(value), best_column.eq(column), best_some.eq(1)]
            with m.Elif(restart):
                m.d.sync += best_some.eq(0)
        m.d.comb += [
            self.token.eq(best_column),
            self.value.eq(best),
            self.some.eq(best_some),
        ]
        return m
