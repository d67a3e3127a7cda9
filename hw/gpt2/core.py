"""The GPT-2 core: fetch, issue, scoreboard, weights, rows, memory side."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out
from amaranth.utils import ceil_log2

from hw.board.core_interface import ADDRESS_BITS, core_members, link_members, run_config_layout
from hw.board.gpt2_map import LINK_COUNTERS, LINK_PORTS, STALL_CAUSES, ErrorCode, row_register
from hw.board.memory_ports import MemoryPorts
from hw.board.write_arbiter import WriteArbiter, connect_write
from hw.bus.axi import Axi4Signature
from hw.gpt2.config import CoreConfig
from hw.gpt2.fetch import Fetch
from hw.gpt2.isa import Commit
from hw.gpt2.issue import Issue
from hw.gpt2.kv_writer import KvWriter
from hw.gpt2.lane import lane_module
from hw.gpt2.lane_int8 import make_lane
from hw.gpt2.logits_writer import LogitsWriter
from hw.gpt2.other_boards import OtherBoards
from hw.gpt2.reader import StreamReader
from hw.gpt2.result_queue import RESULT_QUEUE, ResultQueue
from hw.gpt2.row import Row, logits_strips, tag_stages
from hw.gpt2.scoreboard import Scoreboard
from hw.gpt2.tags import Destination, Operation, Stages, tag_layout
from hw.gpt2.weight_path import WeightPath

__all__ = ["QUIET_CYCLES", "Gpt2Core"]

QUIET_CYCLES = 127  # from the last tile on: until then every strip, logit and commit is where it is counted

_COMMIT_CYCLES = 8  # from a strip's write to a writer's busy


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
        self._lane = make_lane(config)
        self._ports = MemoryPorts(config, ADDRESS_BITS)
        members = core_members(config)
        if config.has_ring:
            members |= link_members()
        members["m_axi"] = Out(Axi4Signature(ADDRESS_BITS, config.port_bits)).array(config.channels)
        super().__init__(members)

    def shared_modules(self) -> Mapping[str, wiring.Component]:
        """Components that are elaborated once and instantiated by name."""
        return {lane_module(self.config): self._lane, **self._ports.shared_modules()}

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.fetch = self._fetch = Fetch(config, run_config_layout(config))
        m.submodules.issue = self._issue = Issue(config)
        m.submodules.scoreboard = self._scoreboard = Scoreboard(config)
        m.submodules.ports = self._ports
        m.submodules.reader = self._reader = StreamReader(config)
        m.submodules.weights = self._weights = WeightPath(config)
        m.submodules.kv_writer = self._kv_writer = KvWriter(config)
        m.submodules.arbiter = self._arbiter = WriteArbiter(config)
        depth, margin = logits_strips(config)
        self._rows, self._logits = [], []
        for r in range(config.rows):
            row, logits = Row(config, r), LogitsWriter(config, depth, margin)
            m.submodules[f"row_{r}"], m.submodules[f"logits_{r}"] = row, logits
            self._rows.append(row)
            self._logits.append(logits)
        self._others = OtherBoards(config) if config.has_ring else None
        self._nan, self._own_nan, self._own_decided = Signal(name="nan"), Signal(), Signal()
        self._owed = Signal(range(RESULT_QUEUE), name="owed")  # entries of the result queue that are taken or issued
        self._nan_rows = Signal(config.rows, name="nan_rows")  # rows whose logits were NaN, when all have answered
        self._alone = Signal(name="alone")  # no other boards
        m.d.comb += self._alone.eq(self.cfg.ring_boards <= 1)
        self._batch = Signal(name="batch")
        m.d.comb += self._batch.eq(self.cfg.flags[1] if config.rows > 1 else 0)
        tags = self._tags(m)
        self._program(m)
        self._hazards(m, tags)
        self._connect_rows(m, tags)
        self._connect_logits(m, tags)
        self._memory(m)
        self._decision(m)
        self._connect_others(m, tags)
        self._status(m)
        return m

    def _tags(self, m: Module):
        """The tag of each stage, index = cycles after issue."""
        issue = self._issue
        now = Signal(tag_layout(self.config), name="tag_0")
        m.d.comb += now.eq(issue.tag)
        with m.If(~issue.fire):
            m.d.comb += [now.operation.eq(Operation.NONE), now.destination.eq(Destination.NONE)]
        tags = [now]
        total = Stages(self.config).total
        for i in range(1, Stages(self.config).write + 1):
            later = Signal(tag_layout(self.config), name=f"tag_{i}")
            if self.config.has_int8 and i == total + 1:
                self._wait_for_drain(m, tags[total], later)
            else:
                m.d.sync += later.eq(tags[-1])
            tags.append(later)
        return tags

    def _wait_for_drain(self, m: Module, at_total, at_result) -> None:
        """With int8 weights results wait for the drain unit; behind the queue a stage is the earliest cycle."""
        m.submodules.queue = queue = ResultQueue(self.config)
        m.d.comb += [queue.tag.eq(at_total), at_result.eq(queue.out)]
        for row in self._rows:
            m.d.comb += [
                row.queue_write_at.eq(queue.write_at),
                row.queue_read_at.eq(queue.read_at),
                row.queue_odd.eq(queue.odd),
            ]
        issued = self._issue.fire & (self._issue.tag.destination != Destination.NONE)
        m.d.sync += self._owed.eq(self._owed + issued - queue.freed)

    def _program(self, m: Module) -> None:
        fetch, issue = self._fetch, self._issue
        m.d.comb += [
            fetch.run.eq(self.run),
            fetch.cfg.eq(self.cfg),
            self.instr_addr.eq(fetch.instr_addr),
            fetch.instr_data.eq(self.instr_data),
            self.token_addr_core.eq(fetch.token_addr),
            self.token_row_core.eq(fetch.token_row),
            fetch.token_data.eq(self.token_data_core),
            self.token_write.eq(fetch.token_write),
            self.token_write_row.eq(fetch.token_write_row),
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
            board.needed_a.eq(issue.operand_needed),
            board.needed_b.eq(issue.new_needed),
            board.word_b.eq(issue.look_new),
            board.mark_strip.eq(issue.look_result),
            board.mark.eq(issue.fire),
            board.mark_a.eq(issue.result),
            board.mark_b.eq(issue.new_result),
            board.clear.eq(readable.destination == Destination.STRIP),
            board.clear_strip.eq(readable.dst),
            h.operand.eq(board.busy_a),
            h.new_kv.eq(board.busy_b),
            h.result.eq(board.mark_busy),
            h.waiting.eq(self._fetch.waiting),
            h.row.eq(self._ports.row_valid),
            h.queue.eq(self._owed == RESULT_QUEUE - 1),
            board.gather.eq(issue.gather),
            board.gathered.eq(issue.gathered),
            h.gather.eq(~board.gather_ready),
            h.awaited.eq(board.awaited_a),
            h.soon.eq(board.soon_a),
            h.claimed.eq(board.mark_awaited),
            h.logits.eq(
                (self.cfg.flags[0] & ~Cat(logits.ready_soon for logits in self._logits).all())
                | ~Cat(row.sampler_ready for row in self._rows).all()
            ),
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
            self._kv_writer.commit_rows.eq(written.rows),
            self._kv_writer.commit_positions.eq(written.position),
        ]
        self._busy_rows(m)

    def _busy_rows(self, m: Module) -> None:
        """Which rows have vector sums, scalars, softmax and score rows under way."""
        issue, h, cfg = self._issue, self._issue.hazards, self.config
        vectors, full = Signal(cfg.rows), Signal(cfg.rows)
        for r, row in enumerate(self._rows):
            mine = issue.tag.rows[r]
            vector, norm = Signal(name=f"vector_{r}"), Signal(2, name=f"norm_{r}")
            with m.If(row.soon):
                m.d.sync += norm.bit_select(row.soon_set, 1).eq(0)
            with m.If(issue.stats_start & mine):
                m.d.sync += [vector.eq(1), norm.bit_select(issue.tag.stats_set, 1).eq(1)]
            with m.Elif(row.done):
                m.d.sync += vector.eq(0)
            heads = Signal(128, name=f"heads_{r}")
            score_rows = Signal(range(cfg.score_rows + 1), name=f"score_rows_{r}")
            with m.If(row.ready):
                m.d.sync += heads.bit_select(row.ready_head, 1).eq(0)
            with m.If(issue.head_start & mine):
                m.d.sync += heads.bit_select(issue.tag.head, 1).eq(1)
            left = score_rows - row.row_free  # the issue decision comes last and only selects
            m.d.sync += score_rows.eq(Mux(issue.score_start & mine, left + 1, left))
            m.d.comb += [
                vectors[r].eq(vector),
                h.norm[r].eq(norm),
                h.softmax[r].eq(heads.bit_select(issue.tag.head, 1)),
                full[r].eq(score_rows == cfg.score_rows),
            ]
        if cfg.rows == 1:
            m.d.comb += [h.statistics.eq(vectors), h.score_room.eq(full)]
        else:
            rows = issue.tag.rows
            m.d.comb += [h.statistics.eq((vectors & rows).any()), h.score_room.eq((full & rows).any())]
        self._vectors_busy = vectors.any()

    def _connect_rows(self, m: Module, tags) -> None:
        weights, issue, kv = self._weights, self._issue, self._kv_writer
        m.d.comb += [weights.row.eq(self._ports.row_data), weights.patch.eq(issue.patch)]
        for r, row in enumerate(self._rows):
            m.d.comb += [getattr(row, name).eq(tags[stage]) for name, stage in tag_stages(self.config).items()]
            m.d.comb += [
                row.weights.eq(weights.patched),
                row.source.eq(issue.source),
                row.elements.eq(issue.elements[r]),
                weights.keys[r].eq(row.key),
                weights.values[r].eq(row.values),
                row.key_addr.eq(kv.key_addr),
                kv.key_data[r].eq(row.key_data),
                row.value_addr.eq(kv.value_addr),
                kv.value_data[r].eq(row.value_data),
                row.score_scale.eq(self.cfg.score_scale),
                row.width.eq(self.cfg.width),
                row.eps_term.eq(self.cfg.eps_term),
            ]

    def _connect_logits(self, m: Module, tags) -> None:
        stages = Stages(self.config)
        reported, early = tags[stages.report], tags[stages.report - 3]
        for r, (row, logits) in enumerate(zip(self._rows, self._logits, strict=True)):
            position = Signal(16, name=f"logits_position_{r}")
            with m.If(early.destination == Destination.LOGITS):
                m.d.sync += position.eq(early.position[r])
            wanted = self.cfg.flags[0] & self._fetch.decides[r]
            m.d.comb += [
                logits.cfg.logits_base.eq(self._of_row("logits_base", r)),
                logits.cfg.logits_rows.eq(self.cfg.logits_rows),
                logits.enable.eq(wanted),
                logits.position.eq(position),
                row.logits_position.eq(position),
                row.seed.eq(self._of_row("seed", r)),
                row.sampling.eq(Mux(self._alone & self._fetch.decides[r], self._of_row("sampling", r), 0)),
                logits.strip_valid.eq((reported.destination == Destination.LOGITS) & wanted),
                logits.strip_index.eq(reported.index),
                logits.strip_data.eq(row.linear),
                logits.strip_last.eq(reported.strip_last),
            ]

    def _memory(self, m: Module) -> None:
        ports, reader, arbiter = self._ports, self._reader, self._arbiter
        for c in range(self.config.channels):
            wiring.connect(m, wiring.flipped(self.m_axi[c]), ports.ports[c])
            m.d.comb += ports.base[c].eq(self.cfg[f"hbm{c}"])
        for unit in (reader, self._kv_writer):
            m.d.comb += unit.batch.eq(self._batch)
            for name, _ in unit.cfg.shape():
                m.d.comb += unit.cfg[name].eq(self.cfg[name])
        m.d.comb += [
            reader.run.eq(self.run),
            reader.tokens_valid.eq(self.tokens_valid),
            reader.committed.eq(self._kv_writer.committed),
            self.desc_addr.eq(reader.desc_addr),
            reader.desc_data.eq(self.desc_data),
            self.token_addr_reader.eq(reader.token_addr),
            self.token_row_reader.eq(reader.token_row),
            reader.token_data.eq(self.token_data_reader),
            reader.step.eq(self._fetch.step),
            reader.step_rows.eq(self._fetch.step_rows),
            reader.step_positions.eq(self._fetch.step_positions),
            self._fetch.begun.eq(reader.begun),
            ports.read_valid.eq(reader.read_valid),
            reader.read_ready.eq(ports.read_ready),
            reader.row_pop.eq(ports.row_popped),
            # a run that ends throws away what was read ahead
            ports.row_take.eq(self._issue.fire | (~self.run & ports.row_valid)),
            ports.read_row.eq(reader.read_row),
            ports.read_beats.eq(reader.read_beats),
            self._kv_writer.writes_unanswered.eq(ports.writes_unanswered),
        ]
        connect_write(m, self._kv_writer, arbiter.urgent)
        connect_write(m, self._join_logits(m), arbiter.patient)
        connect_write(m, arbiter.memory, ports)

    def _of_row(self, name: str, row: int):
        """A register that each request of a batch has; a sequence has row 0's, whichever row is at work."""
        return Mux(self._batch, self.cfg[row_register(name, row)], self.cfg[name]) if row else self.cfg[name]

    def _join_logits(self, m: Module):
        """The write command of all rows' logits writers."""
        joined = self._logits[0]
        for r, logits in enumerate(self._logits[1:], 1):
            m.submodules[f"logits_arbiter_{r}"] = arbiter = WriteArbiter(self.config)
            connect_write(m, joined, arbiter.urgent)
            connect_write(m, logits, arbiter.patient)
            joined = arbiter.memory
        return joined

    def _decision(self, m: Module) -> None:
        """What the rows that decide have decided: when the last of them has answered."""
        answered, failed = Signal(self.config.rows), Signal(self.config.rows)  # before this cycle
        answers = answered | (Cat(row.token_valid | row.nan for row in self._rows) & self._fetch.decides)
        done = Signal()
        m.d.comb += [
            self._nan_rows.eq(failed | (Cat(row.nan for row in self._rows) & self._fetch.decides)),
            done.eq((answers != answered) & (answers == self._fetch.decides)),
            self._own_nan.eq(done & (self._nan_rows != 0)),
            self._own_decided.eq(done & (self._nan_rows == 0)),
        ]
        m.d.sync += [answered.eq(Mux(done, 0, answers)), failed.eq(Mux(done, 0, self._nan_rows))]
        for r, row in enumerate(self._rows):
            if self.config.rows == 1:
                m.d.comb += self._fetch.tokens[r].eq(row.token)
                continue
            kept = Signal(32, name=f"kept_token_{r}")  # a row that draws may answer before the others
            with m.If(row.token_valid):
                m.d.sync += kept.eq(row.token)
            m.d.comb += self._fetch.tokens[r].eq(Mux(row.token_valid, row.token, kept))

    def _connect_others(self, m: Module, tags) -> None:
        """The ring; without one, or on one board, the arg-max decides by itself and nothing is awaited."""
        fetch, issue, row = self._fetch, self._issue, self._rows[0]
        others, h, cfg = self._others, self._issue.hazards, self.cfg
        if others is None:
            m.d.comb += [fetch.go.eq(1), h.room.eq(1)]
            m.d.comb += [fetch.token_valid.eq(self._own_decided), self._nan.eq(self._own_nan)]
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
            others.strip_data.eq(row.half),
            others.strip_flush.eq(written.flush),
            row.arrive.eq(others.store),
            row.arrive_word.eq(others.store_word),
            row.arrive_data.eq(others.store_data),
            others.store_ready.eq(row.arrive_ready),
            self._scoreboard.arrive.eq(Mux(others.store_ready, others.store, 0)),
            self._scoreboard.arrive_word.eq(others.store_word),
            others.sums.eq(row.sums),
            others.own_sums.eq(row.own_sums),
            row.total.eq(others.total),
            row.total_sums.eq(others.total_sums),
            others.best.eq(row.token_valid | row.nan),
            others.own_best.value.eq(row.value),
            others.own_best.token.eq(row.token + cfg.token_offset),
            others.own_best.some.eq(row.some),
            others.own_best.nan.eq(row.nan),
        ]
        # only for the limit of waiting and for people: a cycle late
        m.d.sync += [
            others.waits.eq(~issue.fire & ((issue.stall == link) | (issue.stall == STALL_CAUSES.index("send")))),
            others.awaited.eq(issue.look_operand << ceil_log2(self.config.strips_per_word)),
        ]
        with m.If(others.ring):
            m.d.comb += [
                fetch.token_valid.eq(others.decided & ~others.decision.nan),
                fetch.tokens[0].eq(others.decision.token),
                self._nan.eq(others.decided & others.decision.nan),
            ]
        with m.Else():
            m.d.comb += [
                fetch.token_valid.eq(self._own_decided),
                self._nan.eq(self._own_nan),
            ]
        m.d.comb += [self.link_status.eq(others.status), self.dump_ring.eq(others.dump)]
        for q in range(LINK_PORTS):
            m.d.comb += getattr(others, f"link_{q}_up").eq(getattr(self, f"link_{q}_up"))
            for stream in (f"link_{q}_tx", f"link_{q}_rx"):
                wiring.connect(m, getattr(others, stream), wiring.flipped(getattr(self, stream)))
            for name in LINK_COUNTERS:
                m.d.comb += getattr(self, f"link_{q}_{name}").eq(getattr(others, f"link_{q}_{name}"))

    def _nan_info(self):
        """Position, in a batch with the row's number, of the lowest row with NaN logits."""
        info = self._fetch.position
        for r in reversed(range(self.config.rows if self.config.rows > 1 else 0)):
            info = Mux(self._batch & self._nan_rows[r], self._fetch.step_positions[r] | r << 24, info)
        return info

    def _status(self, m: Module) -> None:
        issue, ports, fetch = self._issue, self._ports, self._fetch
        quiet = Signal(range(QUIET_CYCLES + 1))
        with m.If(self.run | issue.fire | (self._owed != 0)):
            m.d.sync += quiet.eq(0)
        with m.Elif(quiet != QUIET_CYCLES):
            m.d.sync += quiet.eq(quiet + 1)
        said = Const(1) if self._others is None else self._others.idle
        logits_busy = Cat(logits.busy for logits in self._logits).any()
        writing = self._kv_writer.busy_keys | self._kv_writer.busy_values | logits_busy
        last_stall = Signal.like(issue.stall)
        with m.If(~issue.fire):
            m.d.sync += last_stall.eq(issue.stall)
        with m.If(fetch.fail):
            m.d.comb += [self.fail.eq(1), self.fail_code.eq(fetch.fail_code), self.fail_info.eq(fetch.fail_info)]
        with m.Elif(self._nan):
            m.d.comb += [self.fail.eq(1), self.fail_code.eq(ErrorCode.NAN_LOGITS), self.fail_info.eq(self._nan_info())]
        if self._others is not None:
            with m.Elif(self._others.fail):
                m.d.comb += [
                    self.fail.eq(1),
                    self.fail_code.eq(self._others.fail_code),
                    self.fail_info.eq(self._others.fail_info),
                ]
        with m.Elif(ports.read_error):
            m.d.comb += [self.fail.eq(1), self.fail_code.eq(ErrorCode.READ), self.fail_info.eq(ports.error_channel)]
        with m.Elif(ports.write_error):
            m.d.comb += [self.fail.eq(1), self.fail_code.eq(ErrorCode.WRITE), self.fail_info.eq(ports.error_channel)]
        # in a register, as errors of the memory come two cycles after their word and so never behind it
        m.d.sync += self.drained.eq(
            (quiet == QUIET_CYCLES) & said & ~writing & (ports.rows_outstanding == 0) & ~ports.writes_unanswered
        )
        m.d.comb += [
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
            self.dump_units.eq(
                Cat(writing, self._vectors_busy, Cat(row.busy for row in self._rows).any(), fetch.waiting)
            ),
        ]
