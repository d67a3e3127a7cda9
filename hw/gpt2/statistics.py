"""LayerNorm statistics: exact sums of a vector's results and the two scalars that the drain unit applies."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.gpt2.config import CoreConfig
from hw.gpt2.tags import Stages
from hw.link.payload import sums_layout
from hw.numerics.fixed_sum import Fp16FixedSum
from hw.numerics.norm_scalars import NormScalars

__all__ = ["Statistics"]


class Statistics(wiring.Component):
    """Sums of x and x^2 over the fp16 results of one product, then r = 1/sqrt(var + eps) and r*mean.

    Members
    -------
    ``valid``, ``x`` (N fp16), ``mask``, ``first``, ``last``, ``set``, ``share`` : strips of the vector. One vector at a
        time. ``share`` : they are this board's slice of it.
    ``sums``, ``own_sums`` : strobe, the sums of this board's slice. ``total``, ``total_sums`` : strobe, the answer to
        it: the sums of all slices (docs/ring.md).
    ``width`` (elements), ``eps_term`` : start registers.
    ``soon``, ``soon_set`` : strobe, scalars of the set will be valid at the drain stage of a tile that is issued after
        this cycle. ``done`` : strobe, they are valid. ``scale_0/1``, ``mean_0/1`` : r and r*mean, fp32.

    Timing: a strip a cycle; from the last strip, or ``total``, to ``done`` about 65 cycles, to ``soon``
    ``Stages.drain`` fewer.
    Numerics: ``hw.numerics.norm_scalars``; the sums are exact, so they do not depend on order or on the number of
        boards.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        super().__init__(
            {
                "valid": In(1),
                "x": In(16 * config.lanes),
                "mask": In(config.lanes),
                "first": In(1),
                "last": In(1),
                "set": In(1),
                "share": In(1),
                "sums": Out(1),
                "own_sums": Out(sums_layout()),
                "total": In(1),
                "total_sums": In(sums_layout()),
                "width": In(13),
                "eps_term": In(80),
                "soon": Out(1),
                "soon_set": Out(1),
                "done": Out(1),
                "scale_0": Out(32),
                "scale_1": Out(32),
                "mean_0": Out(32),
                "mean_1": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.sums = sums = Fp16FixedSum(self.config.lanes, squares=True)
        m.submodules.scalars = scalars = NormScalars()
        last, chosen, shared = self.valid & self.last, self.set, self.share
        for i in range(sums.latency):
            last_later, set_later = Signal(name=f"last_{i}"), Signal(name=f"set_{i}")
            share_later = Signal(name=f"share_{i}")
            m.d.sync += [last_later.eq(last), set_later.eq(chosen), share_later.eq(shared)]
            last, chosen, shared = last_later, set_later, share_later
        lead = scalars.latency - Stages(self.config).drain  # the scalars take a fixed time
        if lead < 1:
            raise ValueError(f"LayerNorm scalars take {scalars.latency} cycles, the drain stage must come earlier")
        start, sum1, sum2, nan = Signal(), Signal.like(sums.sum1), Signal.like(sums.sum2), Signal()
        m.d.comb += [
            start.eq((last & ~shared) | self.total),
            sum1.eq(Mux(self.total, self.total_sums.sum1, sums.sum1)),
            sum2.eq(Mux(self.total, self.total_sums.sum2, sums.sum2)),
            nan.eq(Mux(self.total, self.total_sums.nan, sums.nan)),
            self.sums.eq(last & shared),
            self.own_sums.sum1.eq(sums.sum1),
            self.own_sums.sum2.eq(sums.sum2),
            self.own_sums.nan.eq(sums.nan),
        ]
        soon = start
        for i in range(lead):
            soon_later = Signal(name=f"soon_{i}")
            m.d.sync += soon_later.eq(soon)
            soon = soon_later
        held_set = Signal()
        m.d.comb += [
            sums.x.eq(self.x),
            sums.mask.eq(self.mask),
            sums.valid.eq(self.valid),
            sums.first.eq(self.first),
            scalars.start.eq(start),
            scalars.sum1.eq(sum1),
            scalars.sum2.eq(sum2),
            scalars.nan.eq(nan),
            scalars.count.eq(self.width),
            scalars.eps_term.eq(self.eps_term),
        ]
        with m.If(last):
            m.d.sync += held_set.eq(chosen)
        with m.If(scalars.done):
            m.d.sync += [
                Array([self.scale_0, self.scale_1])[held_set].eq(scalars.r),
                Array([self.mean_0, self.mean_1])[held_set].eq(scalars.rm),
            ]
        m.d.sync += self.done.eq(scalars.done)
        m.d.comb += [self.soon.eq(soon), self.soon_set.eq(held_set)]
        return m
