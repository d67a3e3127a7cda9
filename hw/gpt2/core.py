"""The GPT-2 core: fetch, issue, operand memories, lanes, softmax, statistics, memory side."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out
from amaranth.utils import ceil_log2

from hw.board.core_interface import ADDRESS_BITS, core_members, link_members, run_config_layout
from hw.board.gpt2_map import LINK_COUNTERS, LINK_PORTS, STALL_CAUSES, ErrorCode
from hw.board.memory_ports import MemoryPorts
from hw.board.write_arbiter import WriteArbiter, connect_write
from hw.bus.axi import Axi4Signature
from hw.bus.shared import Shared
from hw.gpt2.arg_max import ArgMax
from hw.gpt2.config import CoreConfig
from hw.gpt2.fetch import Fetch
from hw.gpt2.isa import Commit
from hw.gpt2.issue import Issue
from hw.gpt2.kv_writer import KvWriter
from hw.gpt2.lane import Lane, lane_module
from hw.gpt2.logits_writer import LogitsWriter
from hw.gpt2.operands import Operands
from hw.gpt2.other_boards import OtherBoards
from hw.gpt2.reader import StreamReader
from hw.gpt2.scoreboard import Scoreboard
from hw.gpt2.softmax import Softmax
from hw.gpt2.statistics import Statistics
from hw.gpt2.tags import Destination, Operation, Stages, tag_layout
from hw.numerics.fp_format import FP32_ONE

__all__ = ["QUIET_CYCLES", "Gpt2Core", "logits_queue"]

QUIET_CYCLES = 127  # from the last tile on: until then every strip, logit and commit is where it is counted

_COMMIT_CYCLES = 8  # from a strip's write to a writer's busy


def logits_queue(config: CoreConfig) -> tuple[int, int]:
    """Port words that wait in the logits writer, and the strips that can be under way when it says full."""
    margin = Stages(config).report + 8
    return 1 << ceil_log2(2 * margin), margin


class Gpt2Core(wiring.Component):
    """One GPT-2 core with its memory ports; ``hw.board.control`` starts and ends its runs.

    Parameters
    ----------
    config : CoreConfig

    Members
    -------
    ``run`` (level), ``cfg`` (start registers), instruction, descriptor and token memories (synchronous read ports),
    ``tokens_valid``, ``token_write*``, ``finish`` and ``fail`` strobes, ``drained``, ``tile``/``stall``, ``dump_*`` :
    as in ``hw.board.core_interface``. ``m_axi`` : one AXI4 master per memory channel. ``link_*`` : the ports
    towards other boards, for cores with a ring.

    Clock domains: ``sync`` (reset between runs), ``kernel`` and ``port`` (see ``hw.board.memory_ports``), ``link_0``
    and ``link_1`` (see ``hw.link.node``).

    Timing: one tile a cycle; a strip can be read by a tile that issues ``Stages.written`` + 1 cycles after its last
    one. Between runs the core is held in reset; memories keep their contents, start values do not depend on them.
    Numerics: docs/core.md. Source: DESIGN section 4, gpt2_core_sketch.
    """

    def __init__(self, config: CoreConfig):
        if Stages(config).write + _COMMIT_CYCLES > QUIET_CYCLES:
            raise ValueError(
                f"a strip of core {config.name!r} is written {Stages(config).write} cycles after its tile; with "
                f"{_COMMIT_CYCLES} more that must be at most {QUIET_CYCLES}"
            )
        self.config = config
        self._lane = Lane(config)
        self._lane_name = lane_module(config)
        self._ports = MemoryPorts(config, ADDRESS_BITS)
        members = core_members(config)
        if config.has_ring:
            members |= link_members()
        members["m_axi"] = Out(Axi4Signature(ADDRESS_BITS, config.port_bits)).array(config.channels)
        super().__init__(members)

    def shared_modules(self) -> Mapping[str, wiring.Component]:
        """Components that are elaborated once and instantiated by name."""
        return {self._lane_name: self._lane, **self._ports.shared_modules()}

    def elaborate(self, platform):
        m = Module()
        m.submodules.fetch = self._fetch = Fetch(self.config, run_config_layout(self.config))
        m.submodules.issue = self._issue = Issue(self.config)
        m.submodules.scoreboard = self._scoreboard = Scoreboard(self.config)
        m.submodules.softmax = self._softmax = Softmax(self.config)
        m.submodules.statistics = self._statistics = Statistics(self.config)
        m.submodules.arg_max = self._arg_max = ArgMax(self.config)
        m.submodules.ports = self._ports
        m.submodules.reader = self._reader = StreamReader(self.config)
        m.submodules.kv_writer = self._kv_writer = KvWriter(self.config)
        depth, margin = logits_queue(self.config)
        m.submodules.logits_writer = self._logits_writer = LogitsWriter(self.config, depth, margin)
        m.submodules.arbiter = self._arbiter = WriteArbiter(self.config)
        m.submodules.operands = self._operands = Operands(self.config)
        self._others = OtherBoards(self.config) if self.config.has_ring else None
        self._lanes = []
        for n in range(self.config.lanes):
            lane = Shared(self._lane_name, Lane(self.config))
            m.submodules[f"lane_{n}"] = lane
            self._lanes.append(lane)

        self._nan = Signal(name="nan")
        tags = self._tags(m)
        self._program(m)
        self._hazards(m, tags)
        self._connect_operands(m, tags)
        self._control_lanes(m, tags)
        self._results(m, tags)
        self._memory(m)
        self._connect_others(m, tags)
        self._status(m, tags)
        return m

    def _tags(self, m: Module):
        """The tag of each stage, index = cycles after issue."""
        issue = self._issue
        now = Signal(tag_layout(self.config), name="tag_0")
        m.d.comb += now.eq(issue.tag)
        with m.If(~issue.fire):
            m.d.comb += [now.operation.eq(Operation.NONE), now.destination.eq(Destination.NONE)]
        tags = [now]
        for i in range(1, Stages(self.config).write + 1):
            later = Signal(tag_layout(self.config), name=f"tag_{i}")
            m.d.sync += later.eq(tags[-1])
            tags.append(later)
        return tags

    def _program(self, m: Module) -> None:
        fetch, issue = self._fetch, self._issue
        m.d.comb += [
            fetch.run.eq(self.run),
            fetch.cfg.eq(self.cfg),
            self.instr_addr.eq(fetch.instr_addr),
            fetch.instr_data.eq(self.instr_data),
            self.token_addr_core.eq(fetch.token_addr),
            fetch.token_data.eq(self.token_data_core),
            self.token_write.eq(fetch.token_write),
            self.token_write_addr.eq(fetch.token_write_addr),
            self.token_write_data.eq(fetch.token_write_data),
            self.finish.eq(fetch.finish),
            issue.run.eq(self.run),
            issue.work_valid.eq(fetch.work_valid),
            issue.work.eq(fetch.work),
            fetch.work_take.eq(issue.work_take),
            issue.key_words.eq(self.cfg.key_words),
            issue.value_strips.eq(self.cfg.value_strips),
            issue.width.eq(self.cfg.width),
            issue.vocab.eq(self.cfg.vocab),
        ]

    def _hazards(self, m: Module, tags) -> None:
        issue, board, h = self._issue, self._scoreboard, self._issue.hazards
        stages = Stages(self.config)
        written, readable = tags[stages.write], tags[stages.written]
        m.d.comb += [
            board.word_a.eq(issue.look_operand),
            board.word_b.eq(issue.look_new),
            board.mark_strip.eq(issue.look_result),
            board.mark.eq(issue.mark),
            board.clear.eq(readable.destination == Destination.STRIP),
            board.clear_strip.eq(readable.dst),
            h.operand.eq(board.busy_a),
            h.new_kv.eq(board.busy_b),
            h.result.eq(board.mark_busy),
            h.waiting.eq(self._fetch.waiting),
            h.row.eq(self._ports.row_valid),
            board.gather.eq(issue.gather),
            board.gathered.eq(issue.gathered),
            h.gather.eq(~board.gather_ready),
            h.awaited.eq(board.awaited_a),
            h.soon.eq(board.soon_a),
            h.claimed.eq(board.mark_awaited),
            h.logits.eq(self.cfg.flags[0] & ~self._logits_writer.ready_soon),
        ]
        committed = Mux(written.destination == Destination.STRIP, written.commit, Commit.NONE.value)
        for name, kind, busy in (
            ("keys", Commit.KEYS, self._kv_writer.busy_keys),
            ("values", Commit.VALUES, self._kv_writer.busy_values),
        ):
            under_way = Signal(name=f"{name}_under_way")
            with m.If(issue.commit_start == kind):
                m.d.sync += under_way.eq(1)
            with m.Elif(committed == kind):
                m.d.sync += under_way.eq(0)
            m.d.comb += h[name].eq(under_way | busy)
        m.d.comb += [
            self._kv_writer.commit_valid.eq((committed == Commit.KEYS) | (committed == Commit.VALUES)),
            self._kv_writer.commit_kind.eq(committed),
            self._kv_writer.commit_layer.eq(written.layer),
            self._kv_writer.commit_position.eq(written.position),
        ]
        vector, norm = Signal(), Signal(2)
        with m.If(self._statistics.soon):
            m.d.sync += norm.bit_select(self._statistics.soon_set, 1).eq(0)
        with m.If(issue.stats_start):
            m.d.sync += [vector.eq(1), norm.bit_select(issue.tag.stats_set, 1).eq(1)]
        with m.Elif(self._statistics.done):
            m.d.sync += vector.eq(0)
        heads = Signal(128)
        score_rows = Signal(range(self.config.score_rows + 1))
        with m.If(self._softmax.ready):
            m.d.sync += heads.bit_select(self._softmax.ready_head, 1).eq(0)
        with m.If(issue.head_start):
            m.d.sync += heads.bit_select(issue.tag.head, 1).eq(1)
        m.d.sync += score_rows.eq(score_rows + issue.score_start - self._softmax.row_free)
        m.d.comb += [
            h.statistics.eq(vector),
            h.norm.eq(norm),
            h.softmax.eq(heads),
            h.score_room.eq(score_rows == self.config.score_rows),
        ]
        self._vector_busy = vector

    def _connect_operands(self, m: Module, tags) -> None:
        written, operands, kv = tags[Stages(self.config).write], self._operands, self._kv_writer
        tile_bits = self.config.tile * 16
        softmax = self._softmax
        m.d.comb += [
            operands.source.eq(self._issue.source),
            operands.row.eq(self._ports.row_data),
            operands.store.eq(written.destination == Destination.STRIP),
            operands.store_strip.eq(written.dst),
            operands.store_data.eq(Cat(lane.half for lane in self._lanes)),
            operands.prob_write.eq(softmax.prob_write),
            operands.prob_word.eq(softmax.prob_word),
            operands.prob_strip.eq(softmax.prob_strip),
            operands.prob_data.eq(softmax.prob_data),
            operands.key_addr.eq(kv.key_addr),
            kv.key_data.eq(operands.key_data),
            operands.value_addr.eq(kv.value_addr),
            kv.value_data.eq(operands.value_data),
        ]
        for n, lane in enumerate(self._lanes):
            m.d.comb += [
                lane.word.eq(operands.word),
                lane.mask.eq(operands.mask),
                lane.key.eq(operands.key),
                lane.patch_key.eq(operands.patch_key[n]),
                lane.value.eq(operands.values.word_select(n, 16)),
                lane.patch_value.eq(operands.patch_value),
                lane.row.eq(operands.lane_row.word_select(n, tile_bits)),
            ]

    def _control_lanes(self, m: Module, tags) -> None:
        stages, statistics = Stages(self.config), self._statistics
        at_lane, at_acc, at_drain = tags[stages.lane], tags[stages.accumulate], tags[stages.drain]
        at_read, at_add = tags[stages.drain + 7], tags[stages.drain + 8]
        at_linear, at_convert, at_write = tags[stages.linear], tags[stages.convert], tags[stages.write]
        scale = Signal(32)
        m.d.comb += [
            self._softmax.inverse_head.eq(at_drain.head),
            scale.eq(FP32_ONE),
        ]
        with m.If(at_drain.use_norm):
            m.d.comb += scale.eq(Array([statistics.scale_0, statistics.scale_1])[at_drain.norm_set])
        with m.Elif(at_drain.use_scale):
            m.d.comb += scale.eq(self.cfg.score_scale)
        with m.Elif(at_drain.use_inverse):
            m.d.comb += scale.eq(self._softmax.inverse)
        for n, lane in enumerate(self._lanes):
            m.d.comb += [
                lane.param_take.eq(at_lane.operation == Operation.PARAM),
                lane.param_column_sum.eq(at_lane.column_sum),
                lane.param.eq(at_lane.param),
                lane.acc_valid.eq(at_acc.operation == Operation.TILE),
                lane.acc_first.eq(at_acc.first),
                lane.acc_bias.eq(at_acc.bias),
                lane.acc.eq(at_acc.acc),
                lane.scale.eq(scale),
                lane.norm_mean.eq(Array([statistics.mean_0, statistics.mean_1])[at_drain.norm_set]),
                lane.residual_read.eq(at_read.dst),
                lane.add_norm.eq(at_add.use_norm),
                lane.add_residual.eq(at_add.use_residual),
                lane.score_write.eq((at_linear.destination == Destination.SCORE) & at_linear.mask[n]),
                lane.score_address.eq(at_linear.score_row),
                lane.use_gelu.eq(at_convert.use_gelu),
                lane.residual_write.eq(
                    (at_write.destination == Destination.STRIP) & (at_write.dst < self.config.residual_strips)
                ),
                lane.residual_address.eq(at_write.dst),
                lane.score_read.eq(self._softmax.score_read),
                lane.score_max.eq(self._softmax.score_max),
            ]

    def _results(self, m: Module, tags) -> None:
        stages = Stages(self.config)
        reported, written = tags[stages.report], tags[stages.write]
        early = tags[stages.report - 3]
        linear = Cat(lane.linear for lane in self._lanes)
        softmax, logits, arg_max, statistics = self._softmax, self._logits_writer, self._arg_max, self._statistics
        is_score, is_logits = Signal(), Signal()
        position = Signal(16)
        with m.If(early.destination == Destination.LOGITS):
            m.d.sync += position.eq(early.position)
        m.d.comb += [
            is_score.eq(reported.destination == Destination.SCORE),
            is_logits.eq(reported.destination == Destination.LOGITS),
            softmax.score_valid.eq(is_score),
            softmax.scores.eq(linear),
            softmax.score_mask.eq(reported.mask),
            softmax.score_first.eq(reported.strip_first),
            softmax.score_last.eq(reported.strip_last),
            softmax.score_tile.eq(reported.index),
            softmax.score_row.eq(reported.score_row),
            softmax.score_head.eq(reported.head),
            softmax.score_position.eq(reported.position),
            softmax.score_prob.eq(reported.prob),
            softmax.exponentials.eq(Cat(lane.exponential for lane in self._lanes)),
            arg_max.strip_valid.eq(is_logits),
            arg_max.strip.eq(linear),
            arg_max.strip_mask.eq(reported.mask),
            arg_max.strip_index.eq(reported.index),
            arg_max.strip_commit.eq(reported.commit == Commit.TOKEN),
            logits.enable.eq(self.cfg.flags[0]),
            logits.position.eq(position),
            logits.strip_valid.eq(is_logits & self.cfg.flags[0]),
            logits.strip_index.eq(reported.index),
            logits.strip_data.eq(linear),
            logits.strip_last.eq(reported.strip_last),
            statistics.valid.eq((written.destination == Destination.STRIP) & written.stats),
            statistics.x.eq(Cat(lane.half for lane in self._lanes)),
            statistics.mask.eq(written.mask),
            statistics.first.eq(written.strip_first),
            statistics.last.eq(written.strip_last),
            statistics.set.eq(written.stats_set),
            statistics.share.eq(written.send),
            statistics.width.eq(self.cfg.width),
            statistics.eps_term.eq(self.cfg.eps_term),
        ]

    def _memory(self, m: Module) -> None:
        ports, reader, arbiter = self._ports, self._reader, self._arbiter
        for c in range(self.config.channels):
            wiring.connect(m, wiring.flipped(self.m_axi[c]), ports.ports[c])
            m.d.comb += ports.base[c].eq(self.cfg[f"hbm{c}"])
        for unit in (reader, self._kv_writer, self._logits_writer):
            for name, _ in unit.cfg.shape():
                m.d.comb += unit.cfg[name].eq(self.cfg[name])
        m.d.comb += [
            reader.run.eq(self.run),
            reader.tokens_valid.eq(self.tokens_valid),
            reader.committed.eq(self._kv_writer.committed),
            self.desc_addr.eq(reader.desc_addr),
            reader.desc_data.eq(self.desc_data),
            self.token_addr_reader.eq(reader.token_addr),
            reader.token_data.eq(self.token_data_reader),
            ports.read_valid.eq(reader.read_valid),
            reader.read_ready.eq(ports.read_ready),
            reader.row_pop.eq(ports.row_popped),
            # a run that ends throws away what was read ahead
            ports.row_take.eq(self._issue.fire | (~self.run & ports.row_valid)),
            ports.read_row.eq(reader.read_row),
            ports.read_beats.eq(reader.read_beats),
            self._kv_writer.writes_outstanding.eq(ports.writes_outstanding),
        ]
        connect_write(m, self._kv_writer, arbiter.kv)
        connect_write(m, self._logits_writer, arbiter.logits)
        connect_write(m, arbiter.memory, ports)

    def _connect_others(self, m: Module, tags) -> None:
        """The ring; without one, or on one board, the arg-max decides by itself and nothing is awaited."""
        fetch, issue, arg_max, statistics = self._fetch, self._issue, self._arg_max, self._statistics
        others, h, cfg = self._others, self._issue.hazards, self.cfg
        if others is None:
            m.d.comb += [fetch.go.eq(1), h.room.eq(1), fetch.token.eq(arg_max.token)]
            m.d.comb += [fetch.token_valid.eq(arg_max.token_valid), self._nan.eq(arg_max.nan)]
            return
        m.submodules.others = others
        written, link = tags[Stages(self.config).write], STALL_CAUSES.index("link")
        m.d.comb += [
            others.run.eq(self.run),
            others.error.eq(self.error),
            others.boards.eq(cfg.ring_boards),
            others.board.eq(cfg.ring_board),
            others.run_number.eq(cfg.ring_run),
            others.key.eq(cfg.ring_key),
            others.limit.eq(cfg.link_limit),
            self._scoreboard.level.eq(others.level),
            others.levelled.eq(self._scoreboard.levelled),
            fetch.go.eq(others.go),
            h.joining.eq(others.joining),
            h.ring.eq(others.ring),
            h.sums.eq(others.sums_missing),
            h.best.eq(others.best_missing),
            h.room.eq(others.room),
            others.strip_valid.eq((written.destination == Destination.STRIP) & written.send),
            others.strip.eq(written.dst),
            others.strip_data.eq(Cat(lane.half for lane in self._lanes)),
            others.strip_flush.eq(written.flush),
            self._operands.arrive.eq(others.store),
            self._operands.arrive_word.eq(others.store_word),
            self._operands.arrive_data.eq(others.store_data),
            others.store_ready.eq(self._operands.arrive_ready),
            self._scoreboard.arrive.eq(Mux(others.store_ready, others.store, 0)),
            self._scoreboard.arrive_word.eq(others.store_word),
            others.sums.eq(statistics.sums),
            others.own_sums.eq(statistics.own_sums),
            statistics.total.eq(others.total),
            statistics.total_sums.eq(others.total_sums),
            others.best.eq(arg_max.token_valid | arg_max.nan),
            others.own_best.value.eq(arg_max.value),
            others.own_best.token.eq(arg_max.token + cfg.token_offset),
            others.own_best.some.eq(arg_max.some),
            others.own_best.nan.eq(arg_max.nan),
            others.waits.eq(~issue.fire & ((issue.stall == link) | (issue.stall == STALL_CAUSES.index("send")))),
            others.awaited.eq(issue.look_operand << ceil_log2(self.config.strips_per_word)),
        ]
        with m.If(others.ring):
            m.d.comb += [
                fetch.token_valid.eq(others.decided & ~others.decision.nan),
                fetch.token.eq(others.decision.token),
                self._nan.eq(others.decided & others.decision.nan),
            ]
        with m.Else():
            m.d.comb += [
                fetch.token_valid.eq(arg_max.token_valid),
                fetch.token.eq(arg_max.token),
                self._nan.eq(arg_max.nan),
            ]
        m.d.comb += [self.link_status.eq(others.status), self.dump_ring.eq(others.dump)]
        for q in range(LINK_PORTS):
            m.d.comb += getattr(others, f"link_{q}_up").eq(getattr(self, f"link_{q}_up"))
            for stream in (f"link_{q}_tx", f"link_{q}_rx"):
                wiring.connect(m, getattr(others, stream), wiring.flipped(getattr(self, stream)))
            for name in LINK_COUNTERS:
                m.d.comb += getattr(self, f"link_{q}_{name}").eq(getattr(others, f"link_{q}_{name}"))

    def _status(self, m: Module, tags) -> None:
        issue, ports, fetch = self._issue, self._ports, self._fetch
        quiet = Signal(range(QUIET_CYCLES + 1))
        with m.If(self.run | issue.fire):
            m.d.sync += quiet.eq(0)
        with m.Elif(quiet != QUIET_CYCLES):
            m.d.sync += quiet.eq(quiet + 1)
        others_fail = Const(0) if self._others is None else self._others.fail
        said = Const(1) if self._others is None else self._others.idle
        writing = self._kv_writer.busy_keys | self._kv_writer.busy_values | self._logits_writer.busy
        last_stall = Signal.like(issue.stall)
        with m.If(~issue.fire):
            m.d.sync += last_stall.eq(issue.stall)
        with m.If(fetch.fail):
            m.d.comb += [self.fail.eq(1), self.fail_code.eq(fetch.fail_code), self.fail_info.eq(fetch.fail_info)]
        with m.Elif(self._nan):
            m.d.comb += [self.fail.eq(1), self.fail_code.eq(ErrorCode.NAN_LOGITS), self.fail_info.eq(fetch.position)]
        with m.Elif(others_fail):
            m.d.comb += [
                self.fail.eq(1),
                self.fail_code.eq(self._others.fail_code),
                self.fail_info.eq(self._others.fail_info),
            ]
        with m.Elif(ports.read_error):
            m.d.comb += [self.fail.eq(1), self.fail_code.eq(ErrorCode.READ), self.fail_info.eq(ports.error_channel)]
        with m.Elif(ports.write_error):
            m.d.comb += [self.fail.eq(1), self.fail_code.eq(ErrorCode.WRITE), self.fail_info.eq(ports.error_channel)]
        m.d.comb += [
            self.drained.eq(
                (quiet == QUIET_CYCLES)
                & said
                & ~writing
                & (ports.rows_outstanding == 0)
                & (ports.writes_outstanding == 0)
            ),
            self.tile.eq(issue.fire),
            self.stall.eq(issue.stall),
            self.dump_instruction.eq(issue.dump_index),
            self.dump_descriptor.eq(self._reader.dump_descriptor),
            self.dump_position.eq(issue.dump_position),
            self.dump_layer.eq(issue.dump_layer),
            self.dump_stall.eq(last_stall),
            self.dump_fifo.eq(Cat(ports.fifo_min, ports.fifo_max)),
            self.dump_reads.eq(ports.rows_outstanding),
            self.dump_writes.eq(ports.writes_outstanding),
            self.dump_committed.eq(self._kv_writer.committed),
            self.dump_units.eq(Cat(writing, self._vector_busy, self._softmax.busy, fetch.waiting)),
        ]
