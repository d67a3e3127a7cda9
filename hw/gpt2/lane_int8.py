"""One lane of a row of a core with int8 weights: two sums a tile, a queue for them, a scale for each column."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In
from amaranth.utils import ceil_log2

from hw.gpt2.config import CoreConfig
from hw.gpt2.lane import Lane, delay
from hw.gpt2.result_queue import RESULT_QUEUE
from hw.gpt2.tags import ParamKind, Stages
from hw.numerics.dot_dual import DualDotTile
from hw.numerics.fp32_add import Fp32Add
from hw.numerics.fp32_mul import Fp32Mul
from hw.numerics.fp_format import FP32_ONE

__all__ = ["Int8Lane", "make_lane"]

_BANKS = 2  # of accumulators and parameters: even strips and odd ones
_ENTRY = data.StructLayout({"total": 32, "bias": 32, "column_sum": 32, "scale": 32})


def make_lane(config: CoreConfig) -> Lane:
    """The lane of a core."""
    return Int8Lane(config) if config.has_int8 else Lane(config)


class Int8Lane(Lane):
    """A :class:`Lane` whose tiles of int8 weights have two sums (docs/int8.md).

    Members
    -------
    Beside those of ``Lane``:

    * patched: ``int8`` (the weights' format).
    * accumulate: ``acc_two`` (both sums count; ``acc`` is even then).
    * total: ``queue_write`` (keep the tile's results at ``queue_write_at``), ``queue_two`` (there are two).
    * total + 1, at the earliest: ``queue_read_at``, ``queue_odd`` (the result that goes to the drain unit),
      ``use_column_scale``.

    Timing, numerics: as ``Lane``; behind the queue a multiplication by the column's scale, or by 1.
    """

    def _members(self) -> dict[str, wiring.Member]:
        return {
            **super()._members(),
            "int8": In(1),
            "acc_two": In(1),
            "queue_write": In(1),
            "queue_two": In(1),
            "queue_write_at": In(range(RESULT_QUEUE)),
            "queue_read_at": In(range(RESULT_QUEUE)),
            "queue_odd": In(1),
            "use_column_scale": In(1),
        }

    def _sums(self, m: Module):
        stages = Stages(self.config)
        parameters = {
            "bias": self._parameter(m, ParamKind.BIAS, "bias", _BANKS),
            "column_sum": self._parameter(m, ParamKind.COLUMN_SUM, "column_sum", _BANKS),
            "scale": self._parameter(m, ParamKind.SCALE, "scale", _BANKS),
        }
        to_acc, to_total = stages.accumulate - stages.patched, stages.total - stages.patched
        biases = [delay(m, bias, to_acc, f"bias_{b}") for b, bias in enumerate(parameters["bias"])]
        totals = self._accumulate_two(m, biases, delay(m, self.param[0], to_acc, "param_odd"))
        acc_odd = delay(m, self.acc[0], stages.total - stages.accumulate, "acc_odd")
        param_odd = delay(m, self.param[0], to_total, "param_odd_t")

        def of_tile(values, odd):
            """What the entry's first and second result take: a single one comes from the bank of its strip."""
            return Mux(self.queue_two | ~odd, values[0], values[1]), values[1]

        first, second = Signal(_ENTRY), Signal(_ENTRY)
        m.d.comb += Cat(first.total, second.total).eq(Cat(of_tile(totals, acc_odd)))
        for name, held in parameters.items():
            values = [delay(m, value, to_total, f"{name}_t{b}") for b, value in enumerate(held)]
            m.d.comb += Cat(first[name], second[name]).eq(Cat(of_tile(values, param_odd)))
        m.submodules.queue = queue = Memory(shape=_BANKS * _ENTRY.size, depth=RESULT_QUEUE, init=[])
        write, read = queue.write_port(), queue.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(self.queue_write),
            write.addr.eq(self.queue_write_at),
            write.data.eq(Cat(first, second)),
            read.addr.eq(self.queue_read_at),
        ]
        result = Signal(_ENTRY)
        m.d.comb += result.eq(read.data.word_select(self.queue_odd, _ENTRY.size))
        m.submodules.column_mul = column_mul = Fp32Mul()
        scaled = Signal(32, reset_less=True)
        m.d.comb += [column_mul.a.eq(result.total), column_mul.b.eq(Mux(self.use_column_scale, result.scale, FP32_ONE))]
        m.d.sync += scaled.eq(column_mul.out)
        behind = stages.drain - stages.total - 1
        return scaled, delay(m, result.bias, behind, "bias_q"), delay(m, result.column_sum, behind, "colsum_q")

    def _accumulate_two(self, m: Module, biases, param_odd):
        """Multiply, sum, add; an accumulator and an adder for even strips and one for odd ones. Returns both totals."""
        config = self.config
        m.submodules.dot = dot = DualDotTile(config.tile, config.guard_bits)
        word = Signal(config.tile * 16, reset_less=True)
        mask = Signal(config.tile, reset_less=True)
        sums = [Signal(32, name=f"tile_sum_{b}", reset_less=True) for b in range(_BANKS)]
        m.d.sync += [word.eq(self.word), mask.eq(self.mask), sums[0].eq(dot.sum), sums[1].eq(dot.odd)]
        m.d.comb += [dot.a.eq(word), dot.mask.eq(mask), dot.b.eq(self.row), dot.int8.eq(self.int8)]
        totals = []
        for b in range(_BANKS):
            memory = Memory(shape=32, depth=config.acc_depth // _BANKS, init=[])
            m.submodules[f"accumulators_{b}"] = memory
            m.submodules[f"adder_{b}"] = adder = Fp32Add()
            read, write = memory.read_port(domain="comb"), memory.write_port()
            single_bias = Mux(param_odd, biases[1], biases[0])
            start = Mux(self.acc_bias, Mux(self.acc_two, biases[b], single_bias), 0)
            used = self.acc_valid & (self.acc_two | (self.acc[0] == b))
            m.d.comb += [
                read.addr.eq(self.acc >> ceil_log2(_BANKS)),
                adder.a.eq(Mux(self.acc_first, start, read.data)),
                adder.b.eq(Mux(self.acc_two, sums[b], sums[0])),
                write.addr.eq(delay(m, self.acc >> ceil_log2(_BANKS), 3, f"acc_w{b}")),
                write.en.eq(delay(m, used, 3, f"acc_we{b}")),
                write.data.eq(adder.out),
            ]
            total = Signal(32, name=f"total_{b}", reset_less=True)
            m.d.sync += total.eq(adder.out)
            totals.append(total)
        return totals
