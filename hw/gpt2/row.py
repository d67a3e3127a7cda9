"""One row: everything that handles the data of one token, a lane each for its N columns."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.bus.shared import Shared
from hw.gpt2.arg_max import ArgMax
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit
from hw.gpt2.lane import lane_module
from hw.gpt2.lane_int8 import make_lane
from hw.gpt2.operands import Operands
from hw.gpt2.result_queue import RESULT_QUEUE
from hw.gpt2.sampler import Sampler
from hw.gpt2.softmax import Softmax
from hw.gpt2.statistics import Statistics
from hw.gpt2.tags import Destination, Operation, Stages, tag_layout
from hw.numerics.fp_format import FP32_ONE

__all__ = ["Row", "logits_strips", "sampling_layout", "tag_stages"]


def logits_strips(config: CoreConfig) -> tuple[int, int]:
    """Strips that a queue of logits holds, and those that can be under way when it says full."""
    margin = Stages(config).report + 8 + (2 * RESULT_QUEUE if config.has_int8 else 0)
    return 1 << ceil_log2(2 * margin), margin


def sampling_layout() -> data.StructLayout:
    """Fields of the register ``sampling``; a mantissa of 0 means arg-max."""
    return data.StructLayout({"inverse_mantissa": 40, "inverse_exponent": signed(6), "unused": 2, "top_k": 7})


def tag_stages(config: CoreConfig) -> dict[str, int]:
    """Cycles after issue at which a row looks at the tag, by the names of its members."""
    stages = Stages(config)
    return {
        "at_patched": stages.patched,
        "at_accumulate": stages.accumulate,
        **({"at_total": stages.total, "at_result": stages.total + 1} if config.has_int8 else {}),
        "at_drain": stages.drain,
        "at_residual": stages.drain + 7,
        "at_addition": stages.drain + 8,
        "at_linear": stages.linear,
        "at_report": stages.report,
        "at_convert": stages.convert,
        "at_write": stages.write,
    }


_OF_OPERANDS = (
    *("source", "elements", "arrive", "arrive_word", "arrive_data", "arrive_ready"),
    *("key_addr", "key_data", "value_addr", "value_data", "key", "values"),
)
_OF_STATISTICS = ("sums", "own_sums", "total", "total_sums", "soon", "soon_set", "done", "width", "eps_term")
_OF_ARG_MAX = ("value", "some")
_OF_BOTH = ("token_valid", "token", "nan")  # of arg-max, or of the sampler where a request samples
_OF_SOFTMAX = ("ready", "ready_head", "row_free", "busy")


class Row(wiring.Component):
    """Operand memories, lanes, softmax, statistics and arg-max of one row (docs/rows.md).

    Parameters
    ----------
    config : CoreConfig
    row : int
        Which one, from 0: it looks at its own bits of a tag.

    Members
    -------
    ``at_*`` : the tag of the tile at each stage (:func:`tag_stages`); what is not marked for this row does nothing.
    ``weights`` : all lanes' weights, at ``Stages.patched``.
    ``source``, ``elements``, ``key``, ``values``, ``key_addr``, ... ``arrive_*`` : of ``hw.gpt2.operands``.
    ``score_scale`` : start register. ``width``, ``eps_term``, ``sums``, ... ``done`` : of ``hw.gpt2.statistics``.
    ``value``, ``some`` : of ``hw.gpt2.arg_max``. ``token_valid``, ``token``, ``nan`` : of the sampler if ``sampling``
        (:func:`sampling_layout`) is not 0, else of the arg-max. ``seed``, ``logits_position`` : what else the sampler
        takes; the position is that of the strips. ``sampler_ready`` : all strips under way fit its queue.
    ``ready``, ``ready_head``, ``row_free``, ``busy`` : of ``hw.gpt2.softmax``.
    ``queue_write_at``, ``queue_read_at``, ``queue_odd`` : of ``hw.gpt2.result_queue``, with int8 weights.
    ``linear`` (N fp32) : results at ``Stages.report``. ``half`` (N fp16) : results at ``Stages.write``.

    Timing: interval 1, no back-pressure; memories keep their contents. Numerics: docs/core.md.
    """

    def __init__(self, config: CoreConfig, row: int):
        self.config = config
        self.row = row
        self._operands, self._statistics = Operands(config), Statistics(config)
        self._arg_max, self._softmax = ArgMax(config), Softmax(config)
        depth, margin = logits_strips(config)
        self._sampler = Sampler(config, ways=config.mm_strips, depth=depth, margin=margin)
        self._parts: tuple[tuple[wiring.Component, tuple[str, ...]], ...] = (
            (self._operands, _OF_OPERANDS),
            (self._statistics, _OF_STATISTICS),
            (self._arg_max, _OF_ARG_MAX),
            (self._softmax, _OF_SOFTMAX),
        )
        members = {
            **{name: In(tag_layout(config)) for name in tag_stages(config)},
            "weights": In(16 * config.tile * config.lanes),
            "score_scale": In(32),
            "seed": In(64),
            "sampling": In(sampling_layout()),
            "logits_position": In(16),
            "sampler_ready": Out(1),
            **{name: self._arg_max.signature.members[name] for name in _OF_BOTH},
            "linear": Out(32 * config.lanes),
            "half": Out(16 * config.lanes),
        }
        if config.has_int8:
            places = {name: In(range(RESULT_QUEUE)) for name in ("queue_write_at", "queue_read_at")}
            members |= {**places, "queue_odd": In(1)}
        for part, names in self._parts:
            members |= {name: part.signature.members[name] for name in names}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.operands = self._operands
        m.submodules.statistics = self._statistics
        m.submodules.arg_max = self._arg_max
        m.submodules.softmax = self._softmax
        m.submodules.sampler = self._sampler
        for part, names in self._parts:
            for name in names:
                ours, theirs = getattr(self, name), getattr(part, name)
                m.d.comb += theirs.eq(ours) if part.signature.members[name].flow == In else ours.eq(theirs)
        self._lanes = []
        for n in range(self.config.lanes):
            lane = Shared(lane_module(self.config), make_lane(self.config))
            m.submodules[f"lane_{n}"] = lane
            self._lanes.append(lane)
        m.d.comb += [
            self.linear.eq(Cat(lane.linear for lane in self._lanes)),
            self.half.eq(Cat(lane.half for lane in self._lanes)),
        ]
        self._control_lanes(m)
        self._feed(m)
        self._choose(m)
        return m

    def _choose(self, m: Module) -> None:
        """The next token: by arg-max, or drawn."""
        arg_max, sampler, report, sampling = self._arg_max, self._sampler, self.at_report, self.sampling
        draws = Signal()  # a register: it selects on the way to the token, and changes only between steps
        m.d.sync += draws.eq(sampling.inverse_mantissa != 0)
        strips = ("strip_valid", "strip", "strip_mask", "strip_index", "strip_commit")
        m.d.comb += [
            arg_max.strip_valid.eq(self._mine(report, Destination.LOGITS)),
            arg_max.strip.eq(self.linear),
            arg_max.strip_mask.eq(report.mask[self.row]),
            arg_max.strip_index.eq(report.index),
            arg_max.strip_commit.eq(report.commit == Commit.TOKEN),
            *(getattr(sampler, name).eq(getattr(arg_max, name)) for name in strips),
            sampler.enable.eq(draws),
            sampler.inverse_mantissa.eq(sampling.inverse_mantissa),
            sampler.inverse_exponent.eq(sampling.inverse_exponent),
            sampler.top_k.eq(sampling.top_k),
            sampler.seed.eq(self.seed),
            sampler.position.eq(self.logits_position + 1),
            self.sampler_ready.eq(~draws | sampler.ready_soon),
            *(getattr(self, name).eq(Mux(draws, getattr(sampler, name), getattr(arg_max, name))) for name in _OF_BOTH),
        ]

    def _mine(self, tag, destination: Destination):
        """Whether the tag is a result for ``destination`` in which this row takes part."""
        return (tag.destination == destination) & tag.rows[self.row]

    def _control_lanes(self, m: Module) -> None:
        row, softmax, statistics = self.row, self._softmax, self._statistics
        scale = Signal(32)
        m.d.comb += [softmax.inverse_head.eq(self.at_drain.head), scale.eq(FP32_ONE)]
        with m.If(self.at_drain.use_norm):
            m.d.comb += scale.eq(Array([statistics.scale_0, statistics.scale_1])[self.at_drain.norm_set])
        with m.Elif(self.at_drain.use_scale):
            m.d.comb += scale.eq(self.score_scale)
        with m.Elif(self.at_drain.use_inverse):
            m.d.comb += scale.eq(softmax.inverse)
        residual_strips = self.config.residual_strips
        for n, lane in enumerate(self._lanes):
            m.d.comb += [
                lane.word.eq(self._operands.word),
                lane.mask.eq(self._operands.mask),
                lane.row.eq(self.weights.word_select(n, self.config.tile * 16)),
                lane.param_take.eq(self.at_patched.operation == Operation.PARAM),
                lane.param_kind.eq(self.at_patched.param_kind),
                lane.param.eq(self.at_patched.param),
                lane.acc_valid.eq((self.at_accumulate.operation == Operation.TILE) & self.at_accumulate.rows[row]),
                lane.acc_first.eq(self.at_accumulate.first),
                lane.acc_bias.eq(self.at_accumulate.bias),
                lane.acc.eq(self.at_accumulate.acc),
                lane.scale.eq(scale),
                lane.norm_mean.eq(Array([statistics.mean_0, statistics.mean_1])[self.at_drain.norm_set]),
                lane.residual_read.eq(self.at_residual.dst),
                lane.add_norm.eq(self.at_addition.use_norm),
                lane.add_residual.eq(self.at_addition.use_residual),
                lane.score_write.eq(self._mine(self.at_linear, Destination.SCORE) & self.at_linear.mask[row][n]),
                lane.score_address.eq(self.at_linear.score_row[row]),
                lane.use_gelu.eq(self.at_convert.use_gelu),
                lane.residual_write.eq(
                    self._mine(self.at_write, Destination.STRIP) & (self.at_write.dst < residual_strips)
                ),
                lane.residual_address.eq(self.at_write.dst),
                lane.score_read.eq(softmax.score_read),
                lane.score_max.eq(softmax.score_max),
            ]
            if self.config.has_int8:
                m.d.comb += [
                    lane.int8.eq(self.at_patched.two),
                    lane.acc_two.eq(self.at_accumulate.two),
                    lane.queue_write.eq(self.at_total.destination != Destination.NONE),
                    lane.queue_two.eq(self.at_total.two),
                    lane.queue_write_at.eq(self.queue_write_at),
                    lane.queue_read_at.eq(self.queue_read_at),
                    lane.queue_odd.eq(self.queue_odd),
                    lane.use_column_scale.eq(self.at_result.two),
                ]

    def _feed(self, m: Module) -> None:
        """Results to the memories and units that take them."""
        row, report, write = self.row, self.at_report, self.at_write
        operands, softmax = self._operands, self._softmax
        statistics = self._statistics
        m.d.comb += [
            operands.store.eq(self._mine(write, Destination.STRIP)),
            operands.store_strip.eq(write.dst),
            operands.store_data.eq(self.half),
            operands.prob_write.eq(softmax.prob_write),
            operands.prob_word.eq(softmax.prob_word),
            operands.prob_strip.eq(softmax.prob_strip),
            operands.prob_data.eq(softmax.prob_data),
            softmax.score_valid.eq(self._mine(report, Destination.SCORE)),
            softmax.scores.eq(self.linear),
            softmax.score_mask.eq(report.mask[row]),
            softmax.score_first.eq(report.strip_first),
            softmax.score_last.eq(report.strip_last),
            softmax.score_tile.eq(report.index),
            softmax.score_row.eq(report.score_row[row]),
            softmax.score_head.eq(report.head),
            softmax.score_position.eq(report.position[row]),
            softmax.score_prob.eq(report.prob),
            softmax.exponentials.eq(Cat(lane.exponential for lane in self._lanes)),
            statistics.valid.eq(self._mine(write, Destination.STRIP) & write.stats),
            statistics.x.eq(self.half),
            statistics.mask.eq(write.mask[row]),
            statistics.first.eq(write.strip_first),
            statistics.last.eq(write.strip_last),
            statistics.set.eq(write.stats_set),
            statistics.share.eq(write.send),
        ]
