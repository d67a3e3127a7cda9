"""Instruction fetch: loops, positions, token boundaries; hands decoded instructions to the issue unit."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.board.gpt2_map import ErrorCode
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import FIELDS, Op

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
            "position": 16,
            "token": range(config.tile),
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
        address.
    ``work_valid``, ``work``, ``work_take`` : next instruction for the issue unit, ready/valid (rules 1-4 of
        docs/protocol.md).
    ``token_valid``, ``token`` : strobe, the arg-max has decided on the current decode step.
    ``token_write``, ``token_write_addr``, ``token_write_data`` : to the token memory.
    ``finish`` : strobe, the run has ended. ``fail``, ``fail_code``, ``fail_info`` : strobe, unknown operation.
    ``waiting`` : at a token boundary. ``index`` : address of the instruction being fetched. ``position`` : being
        fetched.

    Timing: two cycles an instruction, hidden behind the issue of the one before; a prompt position costs three more,
    a decoded one five after ``token_valid``. Starts by itself when ``run`` and ``go`` rise after a reset. A GATHER is
    handed out with the instruction behind it, so it costs no cycle of the issue unit.
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
                "token_data": In(32),
                "work_valid": Out(1),
                "work": Out(work_layout(config)),
                "work_take": In(1),
                "token_valid": In(1),
                "token": In(32),
                "token_write": Out(1),
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
        cfg = self.cfg
        code = data.View(instruction_layout(), self.instr_data[: instruction_layout().size])
        pc = Signal(range(self.config.instructions + 1))
        position = Signal(16)
        token = Signal(range(self.config.tile))
        layer = Signal(8)
        loop_first, loop_last = Signal.like(pc), Signal.like(pc)
        loop_left = Signal(16)
        generated = Signal(32)
        work = Signal(work_layout(self.config))
        decided = Signal(32)
        begins, gathers, gather = Signal(), Signal(), Signal(gather_layout())
        m.d.comb += [
            self.instr_addr.eq(pc),
            self.token_addr.eq(position),
            self.work.eq(work),
            self.index.eq(pc),
            self.position.eq(position),
        ]
        prompt_step = Signal()
        m.d.comb += prompt_step.eq(position + 1 < cfg.prompt_end)
        with m.If(self.work_take):
            m.d.sync += self.work_valid.eq(0)

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

        with m.FSM():
            with m.State("START"):
                with m.If(self.run & self.go):
                    m.d.sync += [position.eq(cfg.position), generated.eq(0)]
                    m.next = "POSITION"
            with m.State("POSITION"):
                m.d.sync += [pc.eq(0), layer.eq(0), loop_left.eq(0), begins.eq(1)]
                m.next = "TOKEN"
            with m.State("TOKEN"):
                m.d.sync += token.eq(self.token_data)
                m.next = "DECODE"
            with m.State("ADDRESS"):
                m.next = "DECODE"
            with m.State("DECODE"):
                with m.If(~self.run):
                    m.next = "DECODE"
                with m.Elif(code.op == Op.NEXT):
                    with m.If(prompt_step):
                        m.d.sync += position.eq(position + 1)
                        m.next = "POSITION"
                    with m.Else():
                        m.next = "WAIT"
                with m.Elif(code.decode_only & prompt_step):
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
                with m.Elif(~self.work_valid | self.work_take):
                    m.d.sync += [
                        self.work_valid.eq(1),
                        work.code.eq(code),
                        work.index.eq(pc),
                        work.layer.eq(layer),
                        work.position.eq(position),
                        work.token.eq(token),
                        work.begins.eq(begins),
                        begins.eq(0),
                        work.gathers.eq(gathers),
                        work.gather.eq(gather),
                        gathers.eq(0),
                    ]
                    advance()
                    m.next = "ADDRESS"
            with m.State("WAIT"):
                m.d.comb += self.waiting.eq(1)
                with m.If(self.token_valid):
                    m.d.sync += decided.eq(self.token)
                    m.next = "DECIDED"
            with m.State("DECIDED"):
                m.d.comb += [
                    self.waiting.eq(1),
                    self.token_write.eq(self.run),  # a cancelled run appends nothing
                    self.token_write_addr.eq(position + 1),
                    self.token_write_data.eq(decided),
                ]
                m.d.sync += [generated.eq(generated + 1), position.eq(position + 1)]
                m.next = "BOUNDARY"
            with m.State("BOUNDARY"):
                m.d.comb += self.waiting.eq(1)
                stops = [(cfg[f"stop_{i}"] == decided) & (cfg.stop_count > i) for i in range(4)]
                stopped = stops[0] | stops[1] | stops[2] | stops[3]
                with m.If(stopped | (generated == cfg.max_new_tokens) | (position == cfg.context_limit)):
                    m.d.comb += self.finish.eq(self.run)
                    m.next = "END"
                with m.Else():
                    m.next = "POSITION"
            with m.State("END"):
                pass
        return m
