"""Issue unit against the loops of docs/core.md and docs/rows.md: tiles and parameter rows, accumulators, operands,
masks, patches, of one row and of several.

The other units are played by constants (nothing is busy) or by random busy answers; the order may not depend on them.
"""

import dataclasses
import itertools
import random

import pytest

from hw.board.gpt2_map import STALL_CAUSES
from hw.gpt2.config import core_config
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path
from hw.gpt2.issue import ACCUMULATOR_LATENCY, Issue
from hw.gpt2.tags import Destination, Operation, ParamKind
from sim.rtl.pysim import run_testbench

CONFIG = dataclasses.replace(core_config("16x4"), context=64, score_rows=16)  # three heads wrap the score rows
T, N, S = CONFIG.tile, CONFIG.lanes, CONFIG.strips_per_word
KEY_WORDS, VALUE_STRIPS, WIDTH, VOCAB = 2, 5, 27, 50
TIMEOUT = 20_000
KINDS = (ParamKind.BIAS, ParamKind.COLUMN_SUM)
EACH_ROW = ("position", "mask", "score_row")  # fields of a tag with a value for each row
BUSY = ("operand", "new_kv", "result", "keys", "values", "statistics", "norm", "softmax", "score_room", "logits")
OF_ROWS = ("norm",)  # hazards with an array of an answer for each row


@dataclasses.dataclass
class Work:
    """An instruction as fetch hands it out: ``at`` : position of each row that takes part; ``single`` : one row of a
    batch is at work."""

    code: Instruction
    at: dict[int, int]
    tokens: dict[int, int]
    single: bool = False


def works(program, at, tokens, batch=False):
    """docs/rows.md section 3; with one row at work every instruction once."""
    out = []
    for one in program:
        attends = one.op in (Op.SC, Op.AV)
        of_token = one.op == Op.EMB and one.operand == Operand.TOKEN
        alone = of_token or (batch and (attends or one.op == Op.EMB))
        for rows in [[r] for r in at] if alone else [list(at)]:
            of_rows = {r: at[r] for r in rows}, {r: tokens[r] for r in rows}
            out.append(Work(one, *of_rows, single=batch and alone))
    return out


def hand_out(ctx, work, one, index, config):
    """Set the members of Issue's ``work``. Rows of a sequence that rest have the other positions of the group."""
    ctx.set(work.code.as_value(), one.code.encode())
    row = min(one.at)
    head_kv = one.code.head0 * (KEY_WORDS if one.code.op == Op.SC else VALUE_STRIPS)
    facts = {"index": index, "layer": 3, "rows": sum(1 << r for r in one.at), "single": one.single, "row": row}
    facts["head_kv"] = head_kv
    for name, value in {**facts, "position": max(one.at.values()), "token": one.tokens[row]}.items():
        ctx.set(work[name], value)
    for r in range(config.rows):
        rests = one.at[row] if one.single else one.at[row] - one.at[row] % config.rows + r
        ctx.set(work.positions[r], one.at.get(r, rests))


def play(handed, config=CONFIG, busy=0.0, rows=1.0, seed=1, make=Issue):
    """Feed works; returns what was issued, a dict of tag, source and patch each; scores check their room."""
    rng = random.Random(seed)
    unit = make(config)
    issued = []

    async def bench(ctx):
        for name, value in zip(
            ("key_words", "value_strips", "width", "vocab"), (KEY_WORDS, VALUE_STRIPS, WIDTH, VOCAB), strict=True
        ):
            ctx.set(getattr(unit, name), value)
        ctx.set(unit.run, 1)
        waiting = list(enumerate(handed))
        for cycle in range(TIMEOUT):
            ctx.set(unit.work_valid, bool(waiting))
            if waiting:
                hand_out(ctx, unit.work, waiting[0][1], waiting[0][0], config)
            hazards = unit.hazards
            for name in BUSY:
                said = -1 if rng.random() < busy else 0
                for answer in hazards[name] if name in OF_ROWS else [hazards[name]]:
                    ctx.set(answer, said)
            ctx.set(hazards.row, rng.random() < rows)
            if ctx.get(unit.fire):
                tile = {name: ctx.get(unit.tag[name]) for name, _ in unit.tag.shape() if name not in EACH_ROW}
                tile |= {name: [ctx.get(unit.tag[name][r]) for r in range(config.rows)] for name in EACH_ROW}
                tile |= {name: ctx.get(unit.source[name]) for name, _ in unit.source.shape()}
                tile |= {f"patch_{name}": ctx.get(unit.patch[name]) for name, _ in unit.patch.shape()}
                tile |= {"elements": [ctx.get(unit.elements[r]) for r in range(config.rows)]}
                issued.append(tile | {"cycle": cycle, "result": ctx.get(unit.result)})
                issued[-1]["new_result"] = ctx.get(unit.new_result)
                is_score = tile["destination"] == Destination.SCORE
                assert not is_score or ctx.get(hazards.score_room) == 0, "a score without room"
                assert ctx.get(unit.score_start) == is_score
            elif not waiting and ctx.get(unit.stall) == STALL_CAUSES.index("instruction"):
                return
            if ctx.get(unit.work_take):
                waiting.pop(0)
            await ctx.tick()
        raise AssertionError(f"not finished after {TIMEOUT} cycles, {len(issued)} issued")

    run_testbench(unit, bench, cycles=TIMEOUT + 1)
    return issued


def products(mm, at, tokens):
    """What docs/core.md section 3 says of an MM or EMB."""
    rows = {Params.NONE: 0, Params.BIAS: 1, Params.NORM: 2}[mm.params]
    for g0 in range(0, mm.strips, mm.group):
        for i in range(mm.words if mm.op == Op.MM else 1):
            for s in range(g0, min(g0 + mm.group, mm.strips)):
                if mm.first and i == 0 and s % (T // 2) == 0:
                    for which in range(rows):
                        param = (mm.acc + s) % CONFIG.param_depth
                        yield {"operation": Operation.PARAM, "param": param, "param_kind": KINDS[which]}
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
                    tile["mask"] = dict.fromkeys(at, sum(1 << n for n in range(N) if base + n < limit))
                    tile["index"] = mm.dst + s if logits else s
                    if not logits:
                        tile["dst"] = mm.dst + s
                if mm.op == Op.MM:
                    tile["word"] = mm.src + i
                    tile["elements"] = dict.fromkeys(at, (1 << (mm.tail if last_word else T)) - 1)
                else:
                    of_token = mm.operand == Operand.TOKEN
                    tile["elements"] = {r: 1 << ((tokens[r] if of_token else p) % T) for r, p in at.items()}
                yield tile


def slot(p, h, rows):
    return (p & ~(N - 1)) | ((p + rows * h) & (N - 1))


def valid_lanes(p, h, t, rows):
    """Lanes of tile ``t`` whose slot holds a position up to ``p``."""
    return sum(1 << n for n in range(N) if ((n - rows * h) & (N - 1)) < p + 1 - t * N)


def scores(sc, at, places, rows):
    """``places`` : of each row an iterator over its score rows, which all heads share."""
    for j in range(sc.heads):
        h = sc.head0 + j
        tiles = max(at.values()) // N + 1
        for t in range(tiles):
            for w in range(KEY_WORDS):
                newest = [slot(p, h, rows) for p in at.values()] if t == tiles - 1 else []
                elements = (1 << (sc.tail if w == KEY_WORDS - 1 else T)) - 1
                tile = {
                    "operation": Operation.TILE,
                    "acc": sc.acc,
                    "first": w == 0,
                    "word": sc.src + j * KEY_WORDS + w,
                    "elements": dict.fromkeys(at, elements),
                    "head": h,
                    "patch_key": sum(1 << (place % N) for place in newest),
                    "patch_value": 0,
                    "destination": Destination.NONE,
                }
                if newest:
                    tile["key_word"] = h * KEY_WORDS + w
                if w == KEY_WORDS - 1:
                    tile |= {"destination": Destination.SCORE, "index": t, "prob": sc.prob + j * sc.prob_stride}
                    tile["score_row"] = {r: next(places[r]) for r in at}
                    tile["mask"] = {r: valid_lanes(p, h, t, rows) for r, p in at.items()}
                yield tile


def values(av, at, rows):
    for j in range(av.heads):
        h = av.head0 + j
        blocks = max(at.values()) // T + 1
        for b in range(blocks):
            for s in range(VALUE_STRIPS):
                newest = [slot(p, h, rows) for p in at.values()] if b == blocks - 1 else []
                tile = {
                    "operation": Operation.TILE,
                    "acc": av.acc + s,
                    "first": b == 0,
                    "word": av.prob + j * av.prob_stride + b,
                    "elements": {
                        r: sum(valid_lanes(p, h, b * T // N + g, rows) << g * N for g in range(T // N))
                        for r, p in at.items()
                    },
                    "head": h,
                    "patch_value": sum(1 << (place % T) for place in newest),
                    "patch_key": 0,
                    "destination": Destination.NONE,
                }
                if newest:
                    tile["value_strip"] = h * VALUE_STRIPS + s
                    tile |= {"destination": Destination.STRIP, "dst": av.dst + j * VALUE_STRIPS + s}
                yield tile


def results(tile):
    """Strips of a word that the tile's result goes to."""
    strip = tile.get("dst")
    new = strip is not None and strip >= CONFIG.act_words * S
    bit = 0 if strip is None else 1 << strip % S
    return {"result": 0 if new else bit, "new_result": bit if new else 0}


def check(handed, issued, config=CONFIG):
    want = []
    places = {r: itertools.cycle(range(CONFIG.score_rows)) for r in range(config.rows)}
    for one in handed:
        if one.code.op == Op.SC:
            tiles = list(scores(one.code, one.at, places, config.rows))
        elif one.code.op == Op.AV:
            tiles = list(values(one.code, one.at, config.rows))
        else:
            tiles = [{"patch_key": 0, "patch_value": 0, **tile} for tile in products(one.code, one.at, one.tokens)]
        everyone = {"rows": sum(1 << r for r in one.at), "position": one.at}
        if one.code.op in (Op.SC, Op.AV):
            everyone |= {"patch_single": one.single} | ({"patch_row": min(one.at)} if one.single else {})
        want += [tile | everyone | results(tile) for tile in tiles]
    assert len(issued) == len(want)
    for number, (got, facts) in enumerate(zip(issued, want, strict=True)):
        for name, value in facts.items():
            of_rows = {r: got[name][r] for r in value} if isinstance(value, dict) else got[name]
            assert of_rows == value, f"tile {number}: {name} is {got[name]}, must be {value}"


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


def one_row(position=37, program=None):
    return works(program or PROGRAM, {0: position}, {0: 9})


@pytest.mark.parametrize("position", [0, 3, 15, 16, 37])
def test_order_follows_the_contract(position):
    handed = one_row(position)
    check(handed, play(handed))


@pytest.mark.parametrize("seed", range(3))
def test_busy_units_and_late_rows_change_nothing_but_time(seed):
    check(one_row(), play(one_row(), busy=0.3, rows=0.6, seed=seed))


STEPS = {  # rows of the core -> positions of a sequence's step, or of the requests of a batch
    "beginning of a prompt": (4, {0: 0, 1: 1, 2: 2, 3: 3}, False),
    "whole group": (4, {0: 36, 1: 37, 2: 38, 3: 39}, False),
    "end of a group": (4, {2: 14, 3: 15}, False),
    "beginning of a group": (4, {0: 16, 1: 17}, False),
    "one of four": (4, {3: 47}, False),
    "two rows": (2, {0: 38, 1: 39}, False),
    "second of two": (2, {1: 33}, False),
    "batch": (4, {0: 5, 1: 37, 2: 0, 3: 16}, True),
    "batch with holes": (4, {1: 15, 3: 62}, True),
    "batch of two": (2, {0: 33, 1: 4}, True),
}
TOKENS = {0: 9, 1: 3, 2: 15, 3: 0}


def several_rows(name, seed=1, make=Issue):
    """Check one of the steps; units are busy now and then."""
    rows, at, batch = STEPS[name]
    config = dataclasses.replace(CONFIG, rows=rows)
    handed = works(PROGRAM, at, TOKENS, batch)
    check(handed, play(handed, config, busy=0.05, rows=0.95, seed=seed, make=make), config)


@pytest.mark.parametrize("name", STEPS)
def test_several_rows_follow_the_contract(name):
    several_rows(name)


FAULTY = {
    "rotation by the head": ("turn.eq(place.head << ceil_log2(cfg.rows))", "turn.eq(place.head)"),
    "scores of row 0": ("newest_slot = cur.positions[r][:lane_shift]", "newest_slot = cur.positions[0][:lane_shift]"),
    "values of row 0": ("newest_slot = cur.positions[r][:tile_shift]", "newest_slot = cur.positions[0][:tile_shift]"),
    "all older positions": ("older.eq(index < newest)", "older.eq(0)"),
    "patch of rows that rest": ("here.eq(tile.newest & cur.rows[r]),", "here.eq(tile.newest),"),
    "patch of one row": ("position = cur.positions[r]\n", "position = cur.positions[0]\n"),
    "patch of all rows": ("tile.patch.single.eq(cur.single),", "tile.patch.single.eq(0),"),
    "one-hot word of row 0": ("cur.positions[r][:tile_shift])", "cur.positions[0][:tile_shift])"),
    "operand of the head before": ("following.head_src.eq(place.head_src + of_head),", ""),
    "strips of the group before": ("following.base.eq(base),", "following.base.eq(place.base),"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_walk_is_noticed(mutant, monkeypatch, name):
    """Twin of the steps of several rows."""
    monkeypatch.setattr("hw.gpt2.issue.Walk", mutant("hw.gpt2.walk", *FAULTY[name])["Walk"])
    with pytest.raises(AssertionError, match=r"must be|not finished"):
        for step in ("whole group", "end of a group", "batch"):
            several_rows(step)


def test_score_rows_of_rows_that_rest(mutant):
    """Twin of the steps of several rows."""
    fault = "with m.If(self.score_start & self._cur.rows[r]):", "with m.If(self.score_start):"
    with pytest.raises(AssertionError, match="must be"):
        for step in ("end of a group", "batch with holes"):
            several_rows(step, make=mutant("hw.gpt2.issue", *fault)["Issue"])


def test_only_hazards_of_rows_at_work_hold():
    """Scalars and probabilities of a row that takes no part are not awaited; those of one that does are."""
    config = dataclasses.replace(CONFIG, rows=4)
    for name, program in (("norm", PROGRAM[2]), ("softmax", PROGRAM[6])):
        for busy_row in range(4):
            unit, fired = Issue(config), []

            async def bench(ctx, unit=unit, program=program, name=name, busy_row=busy_row, fired=fired):
                ctx.set(unit.key_words, KEY_WORDS)
                ctx.set(unit.value_strips, VALUE_STRIPS)
                ctx.set(unit.run, 1)
                ctx.set(unit.hazards.row, 1)
                ctx.set(unit.hazards[name][busy_row], -1)
                ctx.set(unit.work_valid, 1)
                hand_out(ctx, unit.work, works([program], {0: 4, 2: 6}, TOKENS)[0], 0, config)
                await ctx.tick()
                ctx.set(unit.work_valid, 0)
                for _ in range(200):
                    fired.append(ctx.get(unit.fire))
                    await ctx.tick()
                fired.append(ctx.get(unit.stall) == STALL_CAUSES.index(name))

            run_testbench(unit, bench, cycles=300)
            assert fired[-1] == (busy_row in (0, 2)), f"{name} of row {busy_row}"


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
        hand_out(ctx, unit.work, one_row(program=[sc])[0], 0, CONFIG)
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
    other = [*PROGRAM[:2], Instruction(**{**PROGRAM[2].__dict__, "tail": 12}), *PROGRAM[3:]]
    with pytest.raises(AssertionError, match="elements"):
        check(one_row(program=other), play(one_row()))


def test_an_accumulator_is_left_alone_for_its_latency():
    for group in (1, 2, 3, 8):
        last: dict[int, int] = {}
        for tile in play(one_row(program=[Instruction(Op.MM, words=5, tail=16, strips=9, group=group, dst=64)])):
            if not tile["first"]:
                assert tile["cycle"] - last[tile["acc"]] >= ACCUMULATOR_LATENCY
            last[tile["acc"]] = tile["cycle"]


def test_results_are_marked_once():
    issued = play(one_row())
    marked = [tile["dst"] for tile in issued if tile["result"] | tile["new_result"]]
    strips = [tile["dst"] for tile in issued if tile["destination"] == Destination.STRIP]
    assert marked == strips and len(strips) == 7 + 19 + 7 + 16 + 3 * VALUE_STRIPS
