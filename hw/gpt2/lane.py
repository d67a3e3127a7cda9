"""One lane of a row: dot tile, accumulators, its slice of the drain unit and of the softmax path."""

from __future__ import annotations

import re

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.bus.slr_crossing import slr_crossing
from hw.gpt2.config import CoreConfig
from hw.gpt2.tags import ParamKind, Stages
from hw.numerics.convert import Fp32ToFp16, fp16_to_fp32_expr
from hw.numerics.dot import DotTile
from hw.numerics.exponential import ExpNegative
from hw.numerics.fp32_add import Fp32Add
from hw.numerics.fp32_mul import Fp32Mul
from hw.numerics.gelu import Gelu

__all__ = ["Lane", "delay", "lane_module"]


def lane_module(config: CoreConfig) -> str:
    """Name of the Verilog module that all lanes of a core are. Its outputs come from registers."""
    return "ringfly_lane_" + re.sub(r"\W", "_", config.name)


class Lane(wiring.Component):
    """Datapath of one output column per strip; all control is aligned by the core (see ``hw.gpt2.tags.Stages``).

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    In groups by stage; each is sampled in the cycle of its stage.

    * lane: ``word`` and ``mask`` (activation word, elements that take part).
    * patched: ``row`` (the lane's weights), ``param_take``/``param_kind`` (the row is a parameter row for strips
      ``param`` and on), ``param`` (of a tile: its strip).
    * accumulate: ``acc_valid``, ``acc_first``, ``acc_bias``, ``acc``.
    * drain: ``scale`` (fp32 factor), ``norm_mean`` (fp32 r*mean).
    * drain + 7: ``residual_read``; drain + 8, the addition: ``add_norm``, ``add_residual``.
    * linear: ``score_write`` at ``score_address``; at report the output ``linear`` is the fp32 result.
    * convert: ``use_gelu``.
    * write: ``residual_write`` at ``residual_address``; the output ``half`` is the fp16 result.
    * apart from these, the softmax: ``score_read`` (address), one cycle later ``score_max`` (the head's maximum),
      ``Stages.exponential`` cycles after the address the output ``exponential`` (fp16).

    Timing: interval 1, no back-pressure; memories are not reset.
    Numerics: docs/core.md section 3; order of operations and rounding of DESIGN section 5.
    Source: gpt2_core_sketch sections 2, 5.
    """

    def __init__(self, config: CoreConfig):
        self.config = config
        super().__init__(self._members())

    def _members(self) -> dict[str, wiring.Member]:
        config = self.config
        t16 = config.tile * 16
        return {
            "word": In(t16),
            "mask": In(config.tile),
            "row": In(t16),
            "param_take": In(1),
            "param_kind": In(ParamKind),
            "param": In(ceil_log2(config.param_depth)),
            "acc_valid": In(1),
            "acc_first": In(1),
            "acc_bias": In(1),
            "acc": In(ceil_log2(config.acc_depth)),
            "scale": In(32),
            "norm_mean": In(32),
            "residual_read": In(ceil_log2(config.residual_strips)),
            "add_norm": In(1),
            "add_residual": In(1),
            "linear": Out(32),
            "score_write": In(1),
            "score_address": In(range(config.score_rows)),
            "use_gelu": In(1),
            "half": Out(16),
            "residual_write": In(1),
            "residual_address": In(ceil_log2(config.residual_strips)),
            "score_read": In(range(config.score_rows)),
            "score_max": In(32),
            "exponential": Out(16),
        }

    def elaborate(self, platform):
        m = Module()
        self._softmax(m, self._drain(m, *self._sums(m)))
        return m

    def _sums(self, m: Module):
        """Total, bias and column sum of a strip at the drain stage."""
        stages = Stages(self.config)
        (bias,) = self._parameter(m, ParamKind.BIAS, "bias", 1)
        (column_sum,) = self._parameter(m, ParamKind.COLUMN_SUM, "column_sum", 1)
        total = self._accumulate(m, delay(m, bias, stages.accumulate - stages.patched, "bias"))
        to_drain = stages.drain - stages.patched
        return total, delay(m, bias, to_drain, "bias_d"), delay(m, column_sum, to_drain, "colsum_d")

    def _parameter(self, m: Module, kind: ParamKind, name: str, banks: int):
        """Take parameter rows of a kind apart, ``banks`` strips a cycle, and keep strip s in bank s % ``banks``.

        Returns what each bank holds for the tile's strips.
        """
        depth, shift, width = self.config.param_depth, ceil_log2(banks), 32 * banks
        cycles = self.config.param_strips // banks
        hold = Signal(self.config.tile * 16 - width, name=f"{name}_hold", reset_less=True)
        left = Signal(range(cycles), name=f"{name}_left")
        following = Signal(range(depth), name=f"{name}_next", reset_less=True)
        enable, strip, value = Signal(name=f"{name}_write"), Signal.like(following), Signal(width, name=f"{name}_in")
        with m.If(self.param_take & (self.param_kind == kind)):
            m.d.comb += [enable.eq(1), strip.eq(self.param), value.eq(self.row[:width])]
            m.d.sync += [hold.eq(self.row[width:]), left.eq(cycles - 1), following.eq(self.param + banks)]
        with m.Elif(left != 0):
            m.d.comb += [enable.eq(1), strip.eq(following), value.eq(hold[:width])]
            m.d.sync += [hold.eq(hold[width:]), left.eq(left - 1), following.eq(following + banks)]
        held = []
        for bank in range(banks):
            memory = Memory(shape=32, depth=depth // banks, init=[])
            m.submodules[f"{name}_memory_{bank}" if banks > 1 else f"{name}_memory"] = memory
            write, read = memory.write_port(), memory.read_port(domain="comb")
            m.d.comb += [
                write.en.eq(enable & (strip[:shift] == 0)),  # as all rows begin at bank 0
                write.addr.eq(strip >> shift),
                write.data.eq(value[32 * bank : 32 * bank + 32]),
                read.addr.eq(self.param >> shift),
            ]
            held.append(read.data)
        return held

    def _accumulate(self, m: Module, bias):
        """Multiply, sum, add. Returns the registered total."""
        tile = self.config.tile
        m.submodules.dot = dot = DotTile(tile, self.config.guard_bits)
        word = Signal(tile * 16, reset_less=True)
        mask = Signal(tile, reset_less=True)
        m.d.sync += [word.eq(self.word), mask.eq(self.mask)]
        m.d.comb += [dot.a.eq(word), dot.mask.eq(mask), dot.b.eq(self.row)]
        tile_sum = Signal(32, reset_less=True)
        m.d.sync += tile_sum.eq(dot.sum)

        m.submodules.accumulators = accumulators = Memory(shape=32, depth=self.config.acc_depth, init=[])
        read, write = accumulators.read_port(domain="comb"), accumulators.write_port()
        m.submodules.adder = adder = Fp32Add()
        m.d.comb += [
            read.addr.eq(self.acc),
            adder.a.eq(Mux(self.acc_first, Mux(self.acc_bias, bias, 0), read.data)),
            adder.b.eq(tile_sum),
            write.addr.eq(delay(m, self.acc, 3, "acc_w")),
            write.en.eq(delay(m, self.acc_valid, 3, "acc_we")),
            write.data.eq(adder.out),
        ]
        total = Signal(32, reset_less=True)
        m.d.sync += total.eq(adder.out)
        return total

    def _drain(self, m: Module, total, bias, column_sum):
        m.submodules.scale_mul = scale_mul = Fp32Mul()
        m.submodules.mean_mul = mean_mul = Fp32Mul()
        m.submodules.offset_add = offset_add = Fp32Add()
        m.submodules.result_add = result_add = Fp32Add()
        m.submodules.gelu = gelu = Gelu()
        m.submodules.to_half = to_half = Fp32ToFp16()
        m.submodules.residual = residual = Memory(shape=16, depth=self.config.residual_strips, init=[])
        residual_read, residual_write = residual.read_port(), residual.write_port()

        scaled, shift = Signal(32, reset_less=True), Signal(32, reset_less=True)
        offset = Signal(32, reset_less=True)
        linear = Signal(32, reset_less=True)
        m.d.comb += [
            scale_mul.a.eq(total),
            scale_mul.b.eq(self.scale),
            mean_mul.a.eq(self.norm_mean),
            mean_mul.b.eq(column_sum),
            offset_add.a.eq(delay(m, bias, 4, "bias_c")),
            offset_add.b.eq(Cat(shift[:31], ~shift[31])),
            residual_read.en.eq(1),
            residual_read.addr.eq(self.residual_read),
            result_add.a.eq(delay(m, scaled, 4, "scaled_d")),
            result_add.b.eq(
                Mux(self.add_norm, offset, Mux(self.add_residual, fp16_to_fp32_expr(residual_read.data), Const(0, 32)))
            ),
            self.linear.eq(slr_crossing(m, linear, self.config.slr_stages, "linear_back")),
        ]
        m.d.sync += [
            scaled.eq(scale_mul.out),
            shift.eq(mean_mul.out),
            offset.eq(offset_add.out),
            linear.eq(result_add.out),
        ]

        curved, rounded_in = Signal(32, reset_less=True), Signal(32)
        half = Signal(16, reset_less=True)
        m.d.comb += gelu.x.eq(linear)
        m.d.sync += curved.eq(gelu.out)
        m.d.comb += [
            rounded_in.eq(Mux(self.use_gelu, curved, delay(m, linear, 9, "linear_d"))),
            to_half.x.eq(rounded_in),
        ]
        m.d.sync += half.eq(to_half.out)
        back = slr_crossing(m, half, self.config.slr_stages, "half_d")
        m.d.comb += [
            self.half.eq(back),
            residual_write.en.eq(self.residual_write),
            residual_write.addr.eq(self.residual_address),
            residual_write.data.eq(back),
        ]
        return linear

    def _softmax(self, m: Module, linear):
        m.submodules.scores = scores = Memory(shape=32, depth=self.config.score_rows, init=[])
        read, write = scores.read_port(), scores.write_port()
        m.submodules.difference = difference = Fp32Add()
        m.submodules.exp = exp = ExpNegative()
        below = Signal(32, reset_less=True)
        m.d.comb += [
            write.en.eq(self.score_write),
            write.addr.eq(self.score_address),
            write.data.eq(linear),
            read.en.eq(1),
            read.addr.eq(self.score_read),
            difference.a.eq(read.data),
            difference.b.eq(Cat(self.score_max[:31], ~self.score_max[31])),
            exp.x.eq(below),
        ]
        result = Signal(16, reset_less=True)
        m.d.sync += [below.eq(difference.out), result.eq(exp.out)]
        m.d.comb += self.exponential.eq(slr_crossing(m, result, self.config.slr_stages, "exponential_back"))


def delay(m: Module, value, cycles: int, name: str):
    """A shift register of ``cycles`` stages."""
    for i in range(cycles):
        stage = Signal(value.shape(), name=f"{name}_{i}", reset_less=True)
        m.d.sync += stage.eq(value)
        value = stage
    return value
