"""Strips of logits that wait to be sampled, taken apart into single tokens."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.gpt2.config import CoreConfig
from hw.gpt2.sampler_list import RANK_BITS, rank_of
from hw.numerics.fp32_max import fp32_key_expr
from hw.numerics.pipeline import reduced_pairs

__all__ = ["SamplerQueue"]


class SamplerQueue(wiring.Component):
    """Strips in, ranks (``hw.gpt2.sampler_list``) of their tokens out.

    Parameters
    ----------
    config : CoreConfig
    ways : int
        Tokens a cycle; a power of two up to ``lanes``. Way w has lanes w, w + ways, ...
    depth : int
        Strips that can wait; at least 3.
    margin : int
        Strips for which ``ready_soon`` promises room; at most ``depth``.

    Members
    -------
    ``enable`` : when low, strips are ignored. ``strip_valid``, ``strip`` (N fp32), ``strip_mask`` (columns that take
        part), ``strip_index``, ``strip_commit`` (last strip of the step) : without back-pressure.
    ``ready_soon`` : ``margin`` strips fit from this cycle on. ``overflow`` : a strip did not fit and was lost; stays
        until reset.
    ``clear`` : forgets ``nan``. ``take`` : strips may be taken apart. ``choose`` : only tokens with a rank above
        ``least`` come out, one a cycle, on any way; else all of them.
    ``valid`` (bit per way), ``ranks`` (rank per way). ``end`` : with or behind the last token of the step's last strip.
    ``nan`` : a column that took part was NaN, from the cycle after ``end`` on at the latest.
    ``waiting`` : a strip waits.

    Timing: three cycles from a strip to work on it. Without ``choose`` a strip takes as many cycles as the way with the
    most tokens has; with ``choose`` as many as tokens pass; a strip without tokens takes one.
    """

    def __init__(self, config: CoreConfig, ways: int, depth: int, margin: int):
        lanes = config.lanes
        if not 1 <= ways <= lanes or ways & (ways - 1):
            raise ValueError(f"ways must be a power of two, 1 to lanes ({lanes}), got {ways!r}")
        if not 1 <= margin <= depth or depth < 3:
            raise ValueError(f"depth must be 3 or more and margin 1 to depth, got depth {depth!r}, margin {margin!r}")
        self.config = config
        self.ways = ways
        self.depth = depth
        self.margin = margin
        super().__init__(
            {
                "enable": In(1),
                "strip_valid": In(1),
                "strip": In(32 * lanes),
                "strip_mask": In(lanes),
                "strip_index": In(16),
                "strip_commit": In(1),
                "ready_soon": Out(1, init=1),
                "overflow": Out(1),
                "clear": In(1),
                "take": In(1),
                "choose": In(1),
                "least": In(RANK_BITS),
                "valid": Out(ways),
                "ranks": Out(RANK_BITS * ways),
                "end": Out(1),
                "nan": Out(1),
                "waiting": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes, ways = self.config.lanes, self.ways
        entry = data.StructLayout({"strip": 32 * lanes, "mask": lanes, "index": 16, "commit": 1})
        m.submodules.strips = strips = SyncFIFOBuffered(width=entry.size, depth=self.depth)
        taken = self.strip_valid & self.enable
        level_after = Signal(range(self.depth + 2))
        m.d.comb += [
            strips.w_en.eq(taken),
            strips.w_data.eq(Cat(self.strip, self.strip_mask, self.strip_index, self.strip_commit)),
            level_after.eq(strips.level + (taken & strips.w_rdy) - (strips.r_en & strips.r_rdy)),
            self.waiting.eq(strips.level != 0),
        ]
        # a register, since the issue decision hangs on it
        m.d.sync += self.ready_soon.eq(level_after + self.margin <= self.depth)
        with m.If(taken & ~strips.w_rdy):
            m.d.sync += self.overflow.eq(1)

        # the next strip: which of its tokens shall come out
        oldest = data.View(entry, strips.r_data)
        next_ranks, passes, nans = [], [], []
        for n in range(lanes):
            value = oldest.strip[32 * n : 32 * n + 32]
            rank = rank_of(fp32_key_expr(value), Cat(Const(n, exact_log2(lanes)), oldest.index))
            next_ranks.append(rank)
            passes.append(oldest.mask[n] & (~self.choose | (rank > self.least)))
            nans.append(oldest.mask[n] & value[23:31].all())

        # the strip at work: the lowest lane of each way comes out; one way alone with `choose`
        full, commit = Signal(), Signal()  # without a strip nothing is pending
        ranks = [Signal(RANK_BITS, name=f"rank_{n}", reset_less=True) for n in range(lanes)]
        pending = Signal(lanes)
        left: list[Value] = [Const(0)] * lanes
        before: Value = Const(0)  # a token of a lower way is pending
        for w in range(ways):
            mine = Signal(lanes // ways, name=f"pending_{w}")
            go = Signal(name=f"go_{w}")
            m.d.comb += [mine.eq(Cat(pending[w::ways])), go.eq(mine.any() & ~(self.choose & before))]
            before = before | mine.any()
            chosen = []
            for i, rank in enumerate(ranks[w::ways]):
                first = mine[i] & ~mine[:i].any()  # not mine & -mine, whose carry makes the path longer
                chosen.append(rank & first.replicate(RANK_BITS))
                left[w + i * ways] = mine[i] & (mine[:i].any() | ~go)
            [rank] = reduced_pairs(chosen, lambda a, b: a | b, len(chosen).bit_length())
            m.d.sync += [self.valid[w].eq(go), self.ranks.word_select(w, RANK_BITS).eq(rank)]
        done = Signal()
        m.d.comb += [done.eq(~Cat(left).any()), strips.r_en.eq(self.take & done)]
        m.d.sync += [self.end.eq(full & done & commit), pending.eq(Cat(left))]
        with m.If(self.clear):
            m.d.sync += self.nan.eq(0)
        with m.If(strips.r_en & strips.r_rdy):
            m.d.sync += [full.eq(1), commit.eq(oldest.commit), pending.eq(Cat(passes))]
            m.d.sync += [rank.eq(following) for rank, following in zip(ranks, next_ranks, strict=True)]
            with m.If(Cat(nans).any()):
                m.d.sync += self.nan.eq(1)
        with m.Elif(done):
            m.d.sync += full.eq(0)
        return m
