"""Instruction fetch: loops, positions, token boundaries; hands decoded instructions to the issue unit."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.board.gpt2_map import ErrorCode, row_register
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import FIELDS, Op, Operand
from hw.gpt2.row_steps import last_position, sequence_rows

__all__ = ["Fetch", "gather_layout", "instruction_layout", "work_layout"]


def instruction_layout() -> data.StructLayout:
    """Bit fields of an instruction word, as in ``hw.gpt2.isa``."""
    return data.StructLayout(dict(FIELDS))


def work_layout(config: CoreConfig) -> data.StructLayout:
    """An instruction with what the fetch unit knows about it."""
    return data.StructLayout(
        {
            "code": instruction_layout(),
            "index": 16,
            "layer": 8,
            "position": 16,  # to which attention loops: the last one of the step, or that of the one row at work
            "rows": config.rows,  # that take part
            "single": 1,  # one row of a batch attends by itself
            "row": range(config.rows),  # ... this one
            "positions": data.ArrayLayout(16, config.rows),
            "token": range(config.tile),
            "head_kv": 16,  # SC, AV: first key word or value strip of head ``head0``
            "begins": 1,  # first instruction of a position
            "gathers": 1,  # a GATHER stands before the instruction
            "gather": gather_layout(),
        }
    )


def gather_layout() -> data.StructLayout:
    """Strips of a vector, and those of them that this board computes: first and end (docs/ring.md)."""
    return data.StructLayout({"first": 16, "end": 16, "own_first": 16, "own_end": 16})


class Fetch(wiring.Component):
    """Walks the program position by position.

    Parameters
    ----------
    config : CoreConfig
    cfg_layout : StructLayout
        Start registers (``hw.board.control.run_config_layout``).

    Members
    -------
    ``run`` : level; when low nothing new is handed out. ``go`` : level, the first position may begin.
    ``instr_addr``/``instr_data``, ``token_addr``/``token_data`` : synchronous memories, data one cycle after the
        address; ``token_row`` : whose tokens.
    ``work_valid``, ``work``, ``work_take`` : next instruction for the issue unit, ready/valid (rules 1-4 of
        docs/protocol.md).
    ``decides`` : bit per row whose logits count in this step. ``token_valid``, ``tokens`` : strobe, the arg-max has
        decided for all of them.
    ``token_write``, ``token_write_row``, ``token_write_addr``, ``token_write_data`` : to the token memory.
    ``step`` : changes when a step begins; ``step_rows``, ``step_positions`` : the rows at work in it and their
        positions, stable until the next one begins. ``begun`` : ``step`` of the step that the reader is at, which a
        batch must not leave behind by more than one.
    ``finish`` : strobe, the run has ended. ``fail``, ``fail_code``, ``fail_info`` : strobe, unknown operation.
    ``waiting`` : at a token boundary. ``index`` : address of the instruction being fetched. ``position`` : of a
        sequence, the step's last one.

    An instruction that each row executes by itself (docs/rows.md section 3) is handed out once for each active row.

    Timing: two cycles an instruction, hidden behind the issue of the one before; a prompt step costs 2 + R more,
    a decode step 4 + R after ``token_valid``, in a batch 2 + 3 R. Starts by itself when ``run`` and ``go`` rise
    after a reset. A GATHER is handed out with the instruction behind it, so it costs no cycle of the issue unit.
    """

    def __init__(self, config: CoreConfig, cfg_layout: data.StructLayout):
        self.config = config
        super().__init__(
            {
                "run": In(1),
                "go": In(1),
                "cfg": In(cfg_layout),
                "instr_addr": Out(ceil_log2(config.instructions)),
                "instr_data": In(128),
                "token_addr": Out(16),
                "token_row": Out(range(config.rows)),
                "token_data": In(32),
                "work_valid": Out(1),
                "work": Out(work_layout(config)),
                "work_take": In(1),
                "decides": Out(config.rows),
                "token_valid": In(1),
                "tokens": In(data.ArrayLayout(32, config.rows)),
                "step": Out(1),
                "step_rows": Out(config.rows),
                "step_positions": Out(data.ArrayLayout(16, config.rows)),
                "begun": In(1),
                "token_write": Out(1),
                "token_write_row": Out(range(config.rows)),
                "token_write_addr": Out(16),
                "token_write_data": Out(32),
                "finish": Out(1),
                "fail": Out(1),
                "fail_code": Out(8),
                "fail_info": Out(32),
                "waiting": Out(1),
                "index": Out(32),
                "position": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        rows = self.config.rows
        code = data.View(instruction_layout(), self.instr_data[: instruction_layout().size])
        pc = Signal(range(self.config.instructions + 1))
        layer = Signal(8)
        loop_first, loop_last = Signal.like(pc), Signal.like(pc)
        loop_left = Signal(16)
        work = Signal(work_layout(self.config))
        begins, gathers, gather = Signal(), Signal(), Signal(gather_layout())
        self._step(m)
        m.d.comb += [
            self.instr_addr.eq(pc),
            self.work.eq(work),
            self.index.eq(pc),
        ]
        with m.If(self.work_take):
            m.d.sync += self.work_valid.eq(0)

        # Rows that still have to execute the instruction at pc by themselves.
        done_rows = Signal(rows)
        todo = self._active & ~done_rows
        one = Signal(range(rows))
        for r in reversed(range(rows)):
            with m.If(todo[r]):
                m.d.comb += one.eq(r)
        by_row = Signal()
        if rows > 1:
            embeds, attends = code.op == Op.EMB, (code.op == Op.SC) | (code.op == Op.AV)
            of_token = code.operand == Operand.TOKEN
            m.d.comb += by_row.eq((embeds & (of_token | self._batch)) | (attends & self._batch))
        more = by_row & ((todo & (todo - 1)[:rows]) != 0)
        lowest = (todo & ~(todo - 1)[:rows])[:rows]

        def advance():
            """Step behind the instruction at pc, around the loop if it is the body's last."""
            with m.If((loop_left != 0) & (pc == loop_last)):
                m.d.sync += [
                    loop_left.eq(loop_left - 1),
                    pc.eq(Mux(loop_left == 1, pc + 1, loop_first)),
                    layer.eq(Mux(loop_left == 1, 0, layer + 1)),
                ]
            with m.Else():
                m.d.sync += pc.eq(pc + 1)

        reading = Signal(range(rows + 1))  # row whose token is addressed
        tokens = Signal(data.ArrayLayout(range(self.config.tile), rows))
        m.d.comb += [
            self.token_row.eq(Mux(self._batch, reading, 0)),
            self.token_addr.eq(self._positions[reading] if rows > 1 else self._positions[0]),
        ]
        with m.FSM():
            with m.State("START"):
                with m.If(self.run & self.go):
                    self._begin(m)
                    m.next = "POSITION"
            with m.State("POSITION"):
                with m.If(~self._batch | (self.begun == self.step)):
                    m.d.sync += [pc.eq(0), layer.eq(0), loop_left.eq(0), begins.eq(1), reading.eq(reading + 1)]
                    self._begin_step(m)
                    m.next = "TOKEN"
            with m.State("TOKEN"):
                for r in range(rows):
                    with m.If(reading == r + 1):
                        m.d.sync += tokens[r].eq(self.token_data)
                m.d.sync += reading.eq(reading + 1)
                with m.If(reading == rows):
                    m.d.sync += reading.eq(0)
                    m.next = "DECODE"
            with m.State("ADDRESS"):
                m.next = "DECODE"
            with m.State("DECODE"):
                with m.If(~self.run):
                    m.next = "DECODE"
                with m.Elif(code.op == Op.NEXT):
                    with m.If(self._prompt_step):
                        self._next_positions(m)
                        m.next = "POSITION"
                    with m.Else():
                        m.next = "WAIT"
                with m.Elif(code.decode_only & self._prompt_step):
                    advance()
                    m.next = "ADDRESS"
                with m.Elif(code.op == Op.LOOP):
                    m.d.sync += [
                        pc.eq(pc + 1),
                        loop_first.eq(pc + 1),
                        loop_last.eq(pc + code.words),
                        loop_left.eq(code.strips),
                        layer.eq(0),
                    ]
                    m.next = "ADDRESS"
                with m.Elif(code.op == Op.GATHER):
                    m.d.sync += [
                        gathers.eq(1),
                        gather.first.eq(code.dst),
                        gather.end.eq(code.dst + code.strips),
                        gather.own_first.eq(code.dst + code.src),
                        gather.own_end.eq(code.dst + code.src + code.words),
                    ]
                    advance()
                    m.next = "ADDRESS"
                with m.Elif((code.op < Op.MM) | (code.op > Op.AV)):
                    m.d.comb += [self.fail.eq(1), self.fail_code.eq(ErrorCode.ILLEGAL), self.fail_info.eq(pc)]
                    m.next = "END"
                with m.Elif(~self.work_valid):  # not in the cycle of work_take, which comes late
                    m.d.sync += [
                        self.work_valid.eq(1),
                        work.code.eq(code),
                        work.index.eq(pc),
                        work.layer.eq(layer),
                        work.begins.eq(begins),
                        begins.eq(0),
                        work.gathers.eq(gathers),
                        work.gather.eq(gather),
                        gathers.eq(0),
                        work.rows.eq(Mux(by_row, lowest, self._active)),
                        work.single.eq(by_row & self._batch),
                        work.row.eq(one),
                        work.token.eq(tokens[one] if rows > 1 else tokens[0]),
                        work.head_kv.eq(code.head0 * Mux(code.op == Op.SC, self.cfg.key_words, self.cfg.value_strips)),
                        work.position.eq(self._last),
                        work.positions.eq(self._positions),
                    ]
                    if rows > 1:
                        alone = self._positions[one]
                        with m.If(self._batch):
                            m.d.sync += work.position.eq(alone)
                            with m.If(by_row):
                                m.d.sync += work.positions.eq(alone.replicate(rows))
                    with m.If(more):
                        m.d.sync += done_rows.eq(done_rows | lowest)
                    with m.Else():
                        m.d.sync += done_rows.eq(0)
                        advance()
                        m.next = "ADDRESS"
            self._decide(m)
            with m.State("END"):
                pass
        return m

    def _step(self, m: Module) -> None:
        """Positions and rows of the step at hand."""
        cfg, rows = self.cfg, self.config.rows
        self._batch = Signal()
        self._at = [Signal(16, name=f"position_{r}") for r in range(rows)]  # row 0's is the sequence's
        self._alive = Signal(rows)  # of a batch: requests that have not ended
        self._made = [Signal(32, name=f"made_{r}") for r in range(rows)]
        self._last, self._active = Signal(16), Signal(rows)
        self._positions = Signal(data.ArrayLayout(16, rows))
        self._prompt_step = Signal()
        at = self._at
        m.d.comb += [
            self._last.eq(last_position(at[0], cfg.prompt_end, rows)),
            self._active.eq(sequence_rows(at[0], self._last, rows)),
            self.decides.eq(1 if rows == 1 else 1 << self._last[: ceil_log2(rows)]),
            self._prompt_step.eq(self._last + 1 < cfg.prompt_end),
            self.position.eq(self._last),
        ]
        for r in range(rows):
            m.d.comb += self._positions[r].eq((at[0] & ~(rows - 1)) + r if rows > 1 else at[0])
        if rows == 1:
            return
        m.d.comb += self._batch.eq(cfg.flags[1])
        given = [cfg[row_register("prompt_end", r)] for r in range(rows)]
        with m.If(self._batch):
            deciding = Cat((at[r] + 1 >= given[r]) & self._alive[r] for r in range(rows))
            m.d.comb += [
                self._active.eq(self._alive),
                self.decides.eq(deciding),
                self._prompt_step.eq(~deciding.any()),
            ]
            for r in range(rows):
                m.d.comb += self._positions[r].eq(at[r])

    def _begin(self, m: Module) -> None:
        m.d.sync += [self._at[0].eq(self.cfg.position), self._made[0].eq(0)]
        for r in range(1, self.config.rows):
            m.d.sync += [self._at[r].eq(self.cfg[row_register("position", r)]), self._made[r].eq(0)]
        if self.config.rows > 1:
            m.d.sync += self._alive.eq(self.cfg.batch_rows)

    def _begin_step(self, m: Module) -> None:
        m.d.sync += [
            self.step.eq(~self.step),
            self.step_rows.eq(self._active),
            self.step_positions.eq(self._positions),
        ]

    def _next_positions(self, m: Module) -> None:
        """Behind a prompt step."""
        m.d.sync += self._at[0].eq(self._last + 1)
        if self.config.rows > 1:
            with m.If(self._batch):
                m.d.sync += [at.eq(at + alive) for at, alive in zip(self._at, self._alive, strict=True)]

    def _decide(self, m: Module) -> None:
        """Token boundary: the tokens of the rows that decide, in a batch one row after the other."""
        cfg, rows = self.cfg, self.config.rows
        decided, deciding = Signal(data.ArrayLayout(32, rows)), Signal(rows)
        row, chosen = Signal(range(rows)), Signal(range(rows))  # of a batch; whose result it is
        token = Signal(32)
        at, made = Array(self._at), Array(self._made)

        def of_row(name: str):
            return Array([cfg[row_register(name, r)] for r in range(rows)])[row]

        decides, ended, next_position = Signal(), Signal(), Signal(16)
        stops = [(of_row(f"stop_{i}") == token) & (of_row("stop_count") > i) for i in range(4)]
        full = (made[row] == of_row("max_new_tokens")) | (at[row] == cfg.context_limit)
        m.d.comb += [
            decides.eq(deciding.bit_select(chosen, 1)),
            ended.eq(stops[0] | stops[1] | stops[2] | stops[3] | full),
            next_position.eq(Mux(self._batch, at[row], self._last) + 1),
        ]
        with m.State("WAIT"):
            m.d.comb += self.waiting.eq(1)
            with m.If(self.token_valid):
                m.d.sync += [decided.eq(self.tokens), deciding.eq(self.decides), row.eq(0)]
                m.d.sync += chosen.eq(Mux(self._batch, 0, self._last[: ceil_log2(rows)]))
                m.next = "DECIDED"
        with m.State("DECIDED"):
            m.d.comb += [
                self.waiting.eq(1),
                self.token_write.eq(self.run & decides),  # a cancelled run appends nothing
                self.token_write_row.eq(row),
                self.token_write_addr.eq(next_position),
                self.token_write_data.eq(decided[chosen]),
            ]
            m.d.sync += [token.eq(decided[chosen]), made[row].eq(made[row] + decides)]
            with m.If(~self._batch | self._alive.bit_select(row, 1)):
                m.d.sync += at[row].eq(next_position)
            m.next = "BOUNDARY"
        with m.State("BOUNDARY"):
            m.d.comb += self.waiting.eq(1)
            alive = Signal(rows)
            m.d.comb += alive.eq(self._alive & ~Mux(decides & ended, 1 << row, 0))
            m.d.sync += [self._alive.eq(alive), row.eq(row + 1), chosen.eq(chosen + 1)]
            with m.If(self._batch & (row != rows - 1)):
                m.next = "DECIDED"
            with m.Elif(Mux(self._batch, ~alive.any(), ended)):
                m.d.comb += self.finish.eq(self.run)
                m.next = "END"
            with m.Else():
                m.next = "POSITION"
