"""Fetch unit against a plain walk of the program: loops, prompt steps, token boundaries, back-pressure, ends."""

import random

import pytest
from amaranth.sim import Simulator

from hw.board.core_interface import run_config_layout
from hw.board.gpt2_map import ErrorCode
from hw.gpt2.config import core_config
from hw.gpt2.fetch import Fetch
from hw.gpt2.isa import Instruction, Op

CONFIG = core_config("16x4")
PROGRAM = [
    Instruction(Op.EMB, strips=1),
    Instruction(Op.LOOP, strips=3, words=2),
    Instruction(Op.MM, strips=2),
    Instruction(Op.SC, heads=3),
    Instruction(Op.MM, strips=4, decode_only=1),
    Instruction(Op.LOOP, strips=1, words=1),
    Instruction(Op.AV, heads=5),
    Instruction(Op.MM, strips=6, decode_only=1),
    Instruction(Op.NEXT),
]
RUN = {"position": 2, "prompt_end": 5, "max_new_tokens": 3, "context_limit": 100, "stop_count": 1, "stop_0": 999}
TIMEOUT = 5_000


def walk(program, prompt_step):
    """(index, layer) of the instructions that a step hands out."""
    found, index = [], 0
    while program[index].op != Op.NEXT:
        one = program[index]
        if one.op == Op.LOOP:
            body = range(index + 1, index + 1 + one.words)
            found += [(i, layer) for layer in range(one.strips) for i in body]
            index += one.words
        elif not (one.decode_only and prompt_step):
            found.append((index, 0))
        index += 1
    return found


def play(program, run, tokens, pause, cancel_at=None, gathers=None, go_at=0):
    """Run the unit; returns (work handed out, tokens written, events). ``gathers`` takes what came with each work."""
    rng = random.Random(4)
    unit = Fetch(CONFIG, run_config_layout(CONFIG))
    memory = [*(i.encode() for i in program), *([0] * CONFIG.instructions)]
    ring = dict(enumerate([7, 100, 33, 21, 18]))
    taken, written, events = [], [], []

    async def bench(ctx):
        for name, value in run.items():
            ctx.set(unit.cfg[name], value)
        ctx.set(unit.run, 1)
        new, wait = iter(tokens), 0
        for cycle in range(TIMEOUT):
            ctx.set(unit.go, cycle >= go_at)
            instr_addr, token_addr = ctx.get(unit.instr_addr), ctx.get(unit.token_addr)
            if cancel_at is not None and cycle == cancel_at:
                ctx.set(unit.run, 0)
            ctx.set(unit.token_valid, 0)
            if ctx.get(unit.waiting) and not ctx.get(unit.token_write) and not ctx.get(unit.finish):
                wait += 1
                if wait == 5:
                    ctx.set(unit.token_valid, 1)
                    ctx.set(unit.token, next(new, 0))
            else:
                wait = 0
            take = bool(ctx.get(unit.work_valid)) and rng.random() >= pause
            ctx.set(unit.work_take, take)
            if take:
                work = unit.work
                taken.append(tuple(ctx.get(x) for x in (work.position, work.index, work.layer, work.token)))
                if gathers is not None:
                    bounds = tuple(ctx.get(work.gather[name]) for name in ("first", "end", "own_first", "own_end"))
                    gathers.append((ctx.get(work.begins), bounds if ctx.get(work.gathers) else None))
            if ctx.get(unit.token_write):
                written.append((ctx.get(unit.token_write_addr), ctx.get(unit.token_write_data)))
                ring[written[-1][0]] = written[-1][1]
            if ctx.get(unit.finish):
                events.append("finish")
            if ctx.get(unit.fail):
                events.append((ctx.get(unit.fail_code), ctx.get(unit.fail_info)))
            if events:
                return
            await ctx.tick()
            ctx.set(unit.instr_data, memory[instr_addr])
            ctx.set(unit.token_data, ring.get(token_addr, 0))

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return taken, written, events


def expected(program, run, positions, tokens):
    return [
        (p, index, layer, tokens[p] % CONFIG.tile)
        for p in positions
        for index, layer in walk(program, p + 1 < run["prompt_end"])
    ]


@pytest.mark.parametrize("pause", [0.0, 0.6])
def test_steps_loops_and_count(pause):
    taken, written, events = play(PROGRAM, RUN, [50, 51, 52], pause)
    ring = [7, 100, 33, 21, 18, 50, 51]
    assert taken == expected(PROGRAM, RUN, range(2, 7), ring)
    assert written == [(5, 50), (6, 51), (7, 52)]
    assert events == ["finish"]
    assert taken != expected(PROGRAM, RUN | {"prompt_end": 4}, range(2, 7), ring)


@pytest.mark.parametrize(
    ("change", "tokens", "last"),
    [
        ({"stop_0": 51}, [50, 51, 52], (6, 51)),
        ({"stop_count": 4, "stop_3": 50}, [50, 51, 52], (5, 50)),
        ({"stop_count": 0, "stop_0": 50}, [50, 51, 52], (7, 52)),
        ({"max_new_tokens": 1}, [50], (5, 50)),
        ({"max_new_tokens": 70_000, "context_limit": 6}, [50, 51, 52], (6, 51)),
    ],
)
def test_ends(change, tokens, last):
    _, written, events = play(PROGRAM, RUN | change, tokens, 0.3)
    assert written[-1] == last and events == ["finish"]


def test_a_gather_goes_with_the_instruction_behind_it():
    gather = Instruction(Op.GATHER, dst=40, strips=12, src=3, words=5)
    program = [*PROGRAM[:3], gather, *PROGRAM[3:]]
    program[1] = Instruction(Op.LOOP, strips=3, words=3)
    gathers = []
    taken, _, events = play(program, RUN, [50, 51, 52], 0.4, gathers=gathers, go_at=20)
    assert events == ["finish"]
    plain = expected(PROGRAM, RUN, range(2, 7), [7, 100, 33, 21, 18, 50, 51])
    assert [(p, layer, token) for p, _, layer, token in taken] == [(p, layer, token) for p, _, layer, token in plain]
    assert all(
        (bounds == (40, 52, 43, 48)) == (index == 4)
        for (_, index, _, _), (_, bounds) in zip(taken, gathers, strict=True)
    )
    firsts = [index for (_, index, _, _), (begins, _) in zip(taken, gathers, strict=True) if begins]
    assert firsts == [0] * 5, "the first instruction of each of the five positions"


def test_nothing_begins_before_the_other_boards_do():
    taken, written, events = play(PROGRAM, RUN, [50, 51, 52], 0.0, go_at=TIMEOUT)
    assert not (taken or written or events)


def test_unknown_operation_fails_with_its_index():
    program = [PROGRAM[0], Instruction(Op.MM), Instruction(Op.NEXT)]
    memory = [i.encode() for i in program]
    memory[1] = memory[1] & ~0xF | 9

    class Raw:
        def __init__(self, word):
            self.word = word

        def encode(self):
            return self.word

    taken, _, events = play([Raw(word) for word in memory], RUN, [], 0.0)
    assert events == [(ErrorCode.ILLEGAL, 1)]
    assert [work[1] for work in taken] == [0]


def test_a_cancelled_run_appends_no_token():
    for cycle in range(60, 130, 4):
        _, written, events = play(PROGRAM, RUN | {"prompt_end": 3}, [50, 51, 52], 0.0, cancel_at=cycle)
        assert "finish" not in events or len(written) == 3
    early, _, _ = play(PROGRAM, RUN, [50], 0.0, cancel_at=0)
    assert early == []
