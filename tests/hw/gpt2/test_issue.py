"""Issue unit against the loops of docs/core.md: tiles and parameter rows, accumulators, operands, masks, patches.

The other units are played by constants (nothing is busy) or by random busy answers; the order may not depend on them.
"""

import dataclasses
import itertools
import random

import pytest
from amaranth.sim import Simulator

from hw.board.gpt2_map import STALL_CAUSES
from hw.gpt2.config import core_config
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path
from hw.gpt2.issue import ACCUMULATOR_LATENCY, Issue
from hw.gpt2.tags import Destination, Operation
from sim.rtl.pysim import run_testbench

CONFIG = dataclasses.replace(core_config("16x4"), context=64, score_rows=16)  # three heads wrap the score rows
T, N, S = CONFIG.tile, CONFIG.lanes, CONFIG.strips_per_word
KEY_WORDS, VALUE_STRIPS, WIDTH, VOCAB = 2, 5, 27, 50
TIMEOUT = 20_000
BUSY = ("operand", "new_kv", "result", "keys", "values", "statistics", "norm", "softmax", "score_room", "logits")


def play(program, position=37, token=9, busy=0.0, rows=1.0, seed=1):
    """Feed instructions; returns of every issue (cycle, tag, source, whether marked); scores check their room."""
    rng = random.Random(seed)
    unit = Issue(CONFIG)
    issued = []

    async def bench(ctx):
        for name, value in zip(
            ("key_words", "value_strips", "width", "vocab"), (KEY_WORDS, VALUE_STRIPS, WIDTH, VOCAB), strict=True
        ):
            ctx.set(getattr(unit, name), value)
        ctx.set(unit.run, 1)
        waiting = list(enumerate(program))
        for cycle in range(TIMEOUT):
            ctx.set(unit.work_valid, bool(waiting))
            if waiting:
                index, one = waiting[0]
                work = {"code": one.encode(), "index": index, "layer": 3, "position": position, "token": token}
                for name, value in work.items():
                    field = getattr(unit.work, name)
                    ctx.set(field.as_value() if name == "code" else field, value)
            hazards = unit.hazards
            for name in BUSY:
                ctx.set(getattr(hazards, name), -1 if rng.random() < busy else 0)
            ctx.set(hazards.row, rng.random() < rows)
            if ctx.get(unit.fire):
                tag = {name: ctx.get(getattr(unit.tag, name)) for name, _ in unit.tag.shape()}
                source = {name: ctx.get(getattr(unit.source, name)) for name, _ in unit.source.shape()}
                issued.append((cycle, tag, source, ctx.get(unit.mark)))
                is_score = tag["destination"] == Destination.SCORE
                assert not is_score or ctx.get(hazards.score_room) == 0, "a score without room"
                assert ctx.get(unit.score_start) == is_score
            elif not waiting and ctx.get(unit.stall) == STALL_CAUSES.index("instruction"):
                return
            if ctx.get(unit.work_take):
                waiting.pop(0)
            await ctx.tick()
        raise AssertionError(f"not finished after {TIMEOUT} cycles, {len(issued)} issued")

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return issued


def products(mm, position, token):
    """What docs/core.md section 3 says of an MM or EMB."""
    rows = {Params.NONE: 0, Params.BIAS: 1, Params.NORM: 2}[mm.params]
    for g0 in range(0, mm.strips, mm.group):
        for i in range(mm.words if mm.op == Op.MM else 1):
            for s in range(g0, min(g0 + mm.group, mm.strips)):
                if mm.first and i == 0 and s % (T // 2) == 0:
                    for which in range(rows):
                        yield {"operation": Operation.PARAM, "param": (mm.acc + s) % CONFIG.param_depth, "which": which}
                last_word = i == (mm.words if mm.op == Op.MM else 1) - 1
                tile = {
                    "operation": Operation.TILE,
                    "acc": mm.acc + s - g0,
                    "first": mm.first and i == 0,
                    "param": (mm.acc + s) % CONFIG.param_depth,
                    "destination": Destination.NONE,
                }
                if mm.last and last_word:
                    logits = mm.path == Path.LOGITS
                    tile["destination"] = Destination.LOGITS if logits else Destination.STRIP
                    limit, base = (VOCAB, (mm.dst + s) * N) if logits else (WIDTH, s * N)
                    tile["columns"] = sum(1 << n for n in range(N) if base + n < limit)
                    tile["index"] = mm.dst + s if logits else s
                    if not logits:
                        tile["dst"] = mm.dst + s
                if mm.op == Op.MM:
                    tile["word"] = mm.src + i
                    tile["elements"] = (1 << (mm.tail if last_word else T)) - 1
                else:
                    tile["elements"] = 1 << (token if mm.operand == Operand.TOKEN else position % T)
                yield tile


def slot(p, h):
    return (p & ~(N - 1)) | ((p + h) & (N - 1))


def scores(sc, position, row):
    """``row`` : iterator over the score rows, which all heads share."""
    for j in range(sc.heads):
        h = sc.head0 + j
        tiles = position // N + 1
        for t in range(tiles):
            for w in range(KEY_WORDS):
                tile = {
                    "operation": Operation.TILE,
                    "acc": sc.acc,
                    "first": w == 0,
                    "word": sc.src + j * KEY_WORDS + w,
                    "elements": (1 << (sc.tail if w == KEY_WORDS - 1 else T)) - 1,
                    "head": h,
                    "key": 1 << (slot(position, h) % N) if t == slot(position, h) // N else 0,
                    "destination": Destination.NONE,
                }
                if tile["key"]:
                    tile["key_word"] = h * KEY_WORDS + w
                if w == KEY_WORDS - 1:
                    tile |= {"destination": Destination.SCORE, "index": t, "score_row": next(row)}
                    tile["columns"] = sum(1 << n for n in range(N) if ((n - h) & (N - 1)) < position + 1 - t * N)
                    tile["prob"] = sc.prob + j * sc.prob_stride
                yield tile


def values(av, position):
    for j in range(av.heads):
        h = av.head0 + j
        for b in range(position // T + 1):
            for s in range(VALUE_STRIPS):
                valid = 0
                for e in range(T):
                    t, n = (b * T + e) // N, e % N
                    valid |= (((n - h) & (N - 1)) < position + 1 - t * N) << e
                tile = {
                    "operation": Operation.TILE,
                    "acc": av.acc + s,
                    "first": b == 0,
                    "word": av.prob + j * av.prob_stride + b,
                    "elements": valid,
                    "head": h,
                    "value": 1 << (slot(position, h) % T) if b == position // T else 0,
                    "destination": Destination.NONE,
                }
                if tile["value"]:
                    tile["value_strip"] = h * VALUE_STRIPS + s
                if b == position // T:
                    tile |= {"destination": Destination.STRIP, "dst": av.dst + j * VALUE_STRIPS + s}
                yield tile


NAMES = {  # of the model above -> (tag or source, field)
    "which": ("tag", "column_sum"),
    "columns": ("tag", "mask"),
    "word": ("source", "word"),
    "elements": ("source", "mask"),
    "key": ("source", "patch_key"),
    "key_word": ("source", "key_word"),
    "value": ("source", "patch_value"),
    "value_strip": ("source", "value_strip"),
}


def check(program, issued, position=37, token=9):
    want = []
    row = itertools.cycle(range(CONFIG.score_rows))
    for one in program:
        if one.op == Op.SC:
            want += scores(one, position, row)
        elif one.op == Op.AV:
            want += values(one, position)
        else:
            want += products(one, position, token)
    assert len(issued) == len(want)
    for number, ((_, tag, source, _), facts) in enumerate(zip(issued, want, strict=True)):
        for name, value in facts.items():
            where, field = NAMES.get(name, ("tag", name))
            got = (tag if where == "tag" else source)[field]
            assert got == value, f"tile {number}: {name} is {got}, must be {value}"


PROGRAM = [
    Instruction(Op.EMB, last=0, strips=7, group=7, acc=20),
    Instruction(Op.EMB, first=0, operand=Operand.TOKEN, strips=7, group=7, acc=20, dst=8),
    Instruction(Op.MM, params=Params.NORM, words=2, tail=11, strips=19, group=8, acc=3, src=2, dst=64),
    Instruction(Op.MM, params=Params.BIAS, path=Path.RESIDUAL, stats=1, words=3, tail=16, strips=7, group=1, dst=8),
    Instruction(Op.MM, commit=Commit.KEYS, words=1, tail=4, strips=16, group=16, dst=CONFIG.new_key_base),
    Instruction(Op.SC, heads=3, head0=1, src=30, tail=9, prob=17, prob_stride=4, acc=9),
    Instruction(Op.AV, heads=3, head0=1, prob=17, prob_stride=4, acc=40, dst=400),
    Instruction(Op.MM, path=Path.LOGITS, commit=Commit.TOKEN, words=2, tail=16, strips=13, group=5, src=4),
]


@pytest.mark.parametrize("position", [0, 3, 15, 16, 37])
def test_order_follows_the_contract(position):
    check(PROGRAM, play(PROGRAM, position), position)


@pytest.mark.parametrize("seed", range(3))
def test_busy_units_and_late_rows_change_nothing_but_time(seed):
    check(PROGRAM, play(PROGRAM, busy=0.3, rows=0.6, seed=seed))


def test_scores_wait_for_room_only():
    """Without room the unit stops in front of the first score, with its cause."""
    sc = PROGRAM[5]
    unit = Issue(CONFIG)

    async def bench(ctx):
        ctx.set(unit.key_words, KEY_WORDS)
        ctx.set(unit.run, 1)
        ctx.set(unit.hazards.row, 1)
        ctx.set(unit.hazards.score_room, 1)
        ctx.set(unit.work_valid, 1)
        ctx.set(unit.work.code.as_value(), sc.encode())
        ctx.set(unit.work.position, 37)
        await ctx.tick()
        ctx.set(unit.work_valid, 0)
        fired = 0
        for _ in range(20):
            fired += ctx.get(unit.fire)
            await ctx.tick()
        assert fired == KEY_WORDS - 1
        assert ctx.get(unit.stall) == STALL_CAUSES.index("score_room")
        ctx.set(unit.hazards.score_room, 0)
        assert ctx.get(unit.fire)

    run_testbench(unit, bench, cycles=100)


def test_another_tail_is_noticed():
    issued = play(PROGRAM)
    other = [*PROGRAM[:2], Instruction(**{**PROGRAM[2].__dict__, "tail": 12}), *PROGRAM[3:]]
    with pytest.raises(AssertionError, match="elements"):
        check(other, issued)


def test_an_accumulator_is_left_alone_for_its_latency():
    for group in (1, 2, 3, 8):
        issued = play([Instruction(Op.MM, words=5, tail=16, strips=9, group=group, dst=64)])
        last: dict[int, int] = {}
        for cycle, tag, _, _ in issued:
            if not tag["first"]:
                assert cycle - last[tag["acc"]] >= ACCUMULATOR_LATENCY
            last[tag["acc"]] = cycle


def test_results_are_marked_once():
    issued = play(PROGRAM)
    marked = [tag["dst"] for _, tag, _, mark in issued if mark]
    strips = [tag["dst"] for _, tag, _, _ in issued if tag["destination"] == Destination.STRIP]
    assert marked == strips and len(strips) == 7 + 19 + 7 + 16 + 3 * VALUE_STRIPS
