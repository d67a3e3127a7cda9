"""Fetch and stream reader of a batch together: neither leaves the other behind, however short the steps and however
quick the memory."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.board.core_interface import run_config_layout
from hw.board.gpt2_map import Flags, row_register
from hw.gpt2.access import derive_access
from hw.gpt2.config import core_config
from hw.gpt2.fetch import Fetch
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Path
from hw.gpt2.reader import StreamReader
from sim.rtl.pysim import run_testbench

SEED = 3
PROMPT = 14  # steps of a prompt
STRIPS = 2
CFG = {"context_limit": 60, "embed_strips": STRIPS, "weight_base": 10, "position_base": 100, "token_base": 1000}
DECODED = [
    Instruction(Op.EMB, decode_only=1, strips=STRIPS),
    Instruction(Op.MM, decode_only=1, path=Path.LOGITS, commit=Commit.TOKEN, words=1, tail=16, strips=1, group=1),
    Instruction(Op.NEXT),
]
PROGRAMS = {  # what a prompt step has to do
    "nothing": DECODED,
    "positions": [Instruction(Op.EMB, strips=STRIPS), *DECODED],
    "tokens": [Instruction(Op.EMB, operand=Operand.TOKEN, strips=STRIPS), *DECODED],
    "both": [
        Instruction(Op.EMB, last=0, strips=STRIPS),
        Instruction(Op.EMB, first=0, operand=Operand.TOKEN, strips=STRIPS),
        *DECODED,
    ],
}


class FetchAndReader(wiring.Component):
    """The two as the core connects them; ``fetch`` and ``reader`` are driven by the test."""

    def __init__(self, config, make_fetch):
        self.fetch, self.reader = make_fetch(config, run_config_layout(config)), StreamReader(config)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.fetch, m.submodules.reader = fetch, reader = self.fetch, self.reader
        m.d.comb += [
            reader.step.eq(fetch.step),
            reader.step_rows.eq(fetch.step_rows),
            reader.step_positions.eq(fetch.step_positions),
            fetch.begun.eq(reader.begun),
        ]
        return m


def expected(program, config, at, tokens):
    """Rows of all prompt steps and of the step that decides: each EMB once for each request, in order."""
    rows = []
    for step in range(PROMPT):
        for one in program[:-1]:
            if one.decode_only and step < PROMPT - 1:
                continue
            if one.op == Op.MM:
                rows.append(CFG["weight_base"])
                continue
            for r, first in at.items():
                p = first + step
                table, index = (
                    (CFG["token_base"], tokens[r][p]) if one.operand == Operand.TOKEN else (CFG["position_base"], p)
                )
                rows += [table + index // config.tile * STRIPS + s for s in range(STRIPS)]
    return rows


def play(program, config, mask, latency, make_fetch=Fetch):
    """Rows that were read when the arg-max is waited for. A tile is issued ``latency`` cycles after its row was asked
    for, at the earliest."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    at = {r: rng.randrange(20) for r in range(config.rows) if mask >> r & 1}
    tokens = [[rng.randrange(9000) for _ in range(CFG["context_limit"])] for _ in range(config.rows)]
    run = {**CFG, "flags": Flags.BATCH, "batch_rows": mask}
    for r in range(config.rows):
        run[row_register("position", r)] = at.get(r, 0)
        run[row_register("prompt_end", r)] = at.get(r, 0) + PROMPT
    both = FetchAndReader(config, make_fetch)
    fetch, reader = both.fetch, both.reader
    want = expected(program, config, at, tokens)
    instructions = [one.encode() for one in program] + [0] * config.instructions
    descriptors = [one.encode() for one in derive_access(program, config)] + [0] * config.descriptors
    rows, due = [], []

    async def memories(ctx):
        while True:
            *_, instruction, row, token, descriptor, its_row, its_token = await ctx.tick().sample(
                fetch.instr_addr, fetch.token_row, fetch.token_addr,
                reader.desc_addr, reader.token_row, reader.token_addr,
            )  # fmt: skip
            ctx.set(fetch.instr_data, instructions[instruction])
            ctx.set(fetch.token_data, tokens[row][token] if token < len(tokens[row]) else 0)
            ctx.set(reader.desc_data, descriptors[descriptor])
            ctx.set(reader.token_data, tokens[its_row][its_token] if its_token < len(tokens[its_row]) else 0)

    async def bench(ctx):
        for unit in (fetch, reader):
            for name, _ in unit.cfg.shape():
                ctx.set(unit.cfg[name], run.get(name, 0))
        for signal in (fetch.run, fetch.go, reader.run, reader.batch, reader.read_ready):
            ctx.set(signal, 1)
        cycle, left = 0, 0
        while len(rows) < len(want) or left or not ctx.get(fetch.waiting):
            if ctx.get(reader.read_valid):
                beats = ctx.get(reader.read_beats)
                rows.extend(ctx.get(reader.read_row) + i for i in range(beats))
                due.extend([cycle + latency] * beats)
            issued = left > 0 and bool(due) and due[0] <= cycle
            ctx.set(reader.row_pop, issued)
            if issued:
                due.pop(0)
                left -= 1
            take = left == 0 and ctx.get(fetch.work_valid)
            ctx.set(fetch.work_take, take)
            if take:
                left = STRIPS if ctx.get(fetch.work.code.op) == Op.EMB else 1
            cycle += 1
            await ctx.tick()

    run_testbench(
        both, bench, background=[memories], cycles=6000, progress=lambda: f"stuck: {len(rows)} of {len(want)} rows"
    )
    assert rows == want


@pytest.mark.parametrize("latency", [2, 9, 40])
@pytest.mark.parametrize("mask", [0b1, 0b10, 0b11])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_step_is_read(name, mask, latency):
    play(PROGRAMS[name], core_config("16x4", 2), mask, latency)


def test_every_step_of_four_rows_is_read():
    for name, program in PROGRAMS.items():
        for mask in (0b1000, 0b0101, 0b1111):
            print(name)
            play(program, core_config("16x4", 4), mask, 5)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("with m.If(~self._batch | (self.begun == self.step)):", "with m.If(1):"),
        ("self.step_rows.eq(self._active),", "self.step_rows.eq(-1),"),
        ("self.step.eq(~self.step),", "self.step.eq(1),"),
    ],
)
def test_faulty_steps_are_noticed(mutant, before, after):
    """A reader that is left behind by two steps takes them for none and waits for ever."""
    make = mutant("hw.gpt2.fetch", before, after)["Fetch"]
    with pytest.raises(AssertionError):
        play(PROGRAMS["tokens"], core_config("16x4", 2), 0b10, 2, make)
