"""Fetch unit against a plain walk of the program: loops, prompt steps, token boundaries, back-pressure, ends; with one
row, and with several in both kinds of run (docs/rows.md)."""

import dataclasses
import random

import pytest

from hw.board.core_interface import run_config_layout
from hw.board.gpt2_map import ErrorCode, Flags, row_register
from hw.gpt2.config import core_config
from hw.gpt2.fetch import Fetch
from hw.gpt2.isa import Instruction, Op, Operand
from sim.rtl.pysim import run_testbench

CONFIG = core_config("16x4")
MANY = [core_config("16x4", rows) for rows in (2, 4)]
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
ROWS_PROGRAM = [
    Instruction(Op.EMB, last=0, strips=1),
    Instruction(Op.EMB, first=0, operand=Operand.TOKEN, strips=1),
    *PROGRAM[1:],
]
RUN = {"position": 2, "prompt_end": 5, "max_new_tokens": 3, "context_limit": 100, "stop_count": 1, "stop_0": 999}
GIVEN = [7, 100, 33, 21, 18]
TIMEOUT = 5_000
SETTLED = 300  # cycles behind a cancel in which what must not come would have come
_REQUEST = ("position", "prompt_end", "max_new_tokens", "stop_count", "stop_0", "stop_1", "stop_2", "stop_3")


@dataclasses.dataclass
class Played:
    """What the unit did: ``taken`` : work, a dict each; ``written`` : (row, address, token); ``steps`` : (rows, their
    positions) of each step that it announced; ``decides`` : rows whose decision it took, each time; ``begins`` : cycles
    between a decision and the next work."""

    taken: list[dict] = dataclasses.field(default_factory=list)
    written: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    events: list = dataclasses.field(default_factory=list)
    steps: list[tuple[int, list[int]]] = dataclasses.field(default_factory=list)
    decides: list[int] = dataclasses.field(default_factory=list)
    begins: list[int] = dataclasses.field(default_factory=list)


def active_positions(rows, positions):
    """The positions of the rows that are marked; those of the others mean nothing."""
    return [p for r, p in enumerate(positions) if rows >> r & 1]


def play(program, run, decisions, pause=0.0, config=CONFIG, given=(GIVEN,), cancel_at=None, go_at=0, make=Fetch):
    """Run the unit. ``decisions`` : of each step that decides, a token of every row; ``given`` : tokens of each row;
    ``make`` : class of the unit."""
    rng = random.Random(4)
    unit = make(config, run_config_layout(config))
    memory = [*(i.encode() for i in program), *([0] * config.instructions)]
    rings = [dict(enumerate(tokens)) for tokens in given]
    played = Played()
    lanes = range(config.rows)

    async def bench(ctx):
        for name, _ in unit.cfg.shape():
            ctx.set(unit.cfg[name], run.get(name, 0))
        ctx.set(unit.run, 1)
        new, wait, step, answered, decided_at = iter(decisions), 0, 0, 0, None
        for cycle in range(TIMEOUT):
            ctx.set(unit.go, cycle >= go_at)
            instr_addr, token_row, token_addr = (ctx.get(x) for x in (unit.instr_addr, unit.token_row, unit.token_addr))
            if cycle == cancel_at:
                ctx.set(unit.run, 0)
            if cancel_at is not None and cycle == cancel_at + SETTLED:
                return
            ctx.set(unit.token_valid, 0)
            if ctx.get(unit.step) != step:
                step = ctx.get(unit.step)
                rows = ctx.get(unit.step_rows)
                positions = [ctx.get(unit.step_positions[r]) for r in lanes]
                played.steps.append((rows, active_positions(rows, positions)))
            wait = wait + 1 if ctx.get(unit.waiting) and len(played.steps) > answered else 0
            if wait == 5:
                ctx.set(unit.token_valid, 1)
                for r, token in zip(lanes, next(new, [0] * config.rows), strict=False):
                    ctx.set(unit.tokens[r], token)
                played.decides.append(ctx.get(unit.decides))
                answered, decided_at = len(played.steps), cycle
            if ctx.get(unit.work_valid) and decided_at is not None:
                played.begins.append(cycle - decided_at)
                decided_at = None
            take = bool(ctx.get(unit.work_valid)) and rng.random() >= pause
            ctx.set(unit.work_take, take)
            if rng.random() >= pause:
                ctx.set(unit.begun, step)
            if take:
                played.taken.append(work_of(ctx, unit.work, config))
            if ctx.get(unit.token_write):
                written = tuple(
                    ctx.get(x) for x in (unit.token_write_row, unit.token_write_addr, unit.token_write_data)
                )
                played.written.append(written)
                rings[written[0]][written[1]] = written[2]
            if ctx.get(unit.finish):
                played.events.append("finish")
            if ctx.get(unit.fail):
                played.events.append((ctx.get(unit.fail_code), ctx.get(unit.fail_info)))
            if played.events:
                return
            await ctx.tick()
            ctx.set(unit.instr_data, memory[instr_addr])
            ctx.set(unit.token_data, rings[token_row].get(token_addr, 0))

    run_testbench(unit, bench, cycles=TIMEOUT + 1)
    return played


def work_of(ctx, work, config):
    """The fields of a work that mean something for its operation."""
    found = {name: ctx.get(work[name]) for name in ("index", "layer", "rows", "begins")}
    positions = [ctx.get(work.positions[r]) for r in range(config.rows)]
    found["positions"] = active_positions(found["rows"], positions)
    if ctx.get(work.code.op) in (Op.SC, Op.AV):
        single = ctx.get(work.single)
        found |= {"position": ctx.get(work.position), "single": ctx.get(work.row) if single else None}
    if ctx.get(work.code.op) == Op.EMB and ctx.get(work.code.operand) == Operand.TOKEN:
        found["token"] = ctx.get(work.token)
    bounds = tuple(ctx.get(work.gather[name]) for name in ("first", "end", "own_first", "own_end"))
    found["gather"] = bounds if ctx.get(work.gathers) else None
    return found


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


class Model:
    """docs/rows.md sections 2 and 3 in plain Python: the same lists as :class:`Played`."""

    def __init__(self, program, run, decisions, config, given):
        self.program, self.run, self.rows = program, run, config.rows
        self.tile = config.tile
        self.decisions = iter(decisions)
        self.batch = config.rows > 1 and bool(run.get("flags", 0) & Flags.BATCH)
        self.tokens = [dict(enumerate(tokens)) for tokens in given]
        self.want = Played(events=["finish"])
        if self.batch:
            self.walk_batch()
        else:
            self.walk_sequence()

    def of_row(self, name, row):
        return self.run.get(row_register(name, row), 0)

    def ends(self, row, token, made, position):
        """Whether the request is over, ``position`` being the one that was processed."""
        stops = [self.of_row(f"stop_{i}", row) for i in range(self.of_row("stop_count", row))]
        full = position + 1 == self.run["context_limit"]
        return token in stops or made == self.of_row("max_new_tokens", row) or full

    def walk_sequence(self):
        p, end, made = self.run["position"], self.run["prompt_end"], 0
        while True:
            q = p if p + 1 >= end else min((p | (self.rows - 1)) + 1, end) - 1
            at = {position % self.rows: position for position in range(p, q + 1)}
            self.step(at, q + 1 < end, q)
            if q + 1 >= end:
                token = next(self.decisions)[q % self.rows]
                made += 1
                self.want.decides.append(1 << q % self.rows)
                self.want.written.append((0, q + 1, token))
                self.tokens[0][q + 1] = token
                if self.ends(0, token, made, q):
                    return
            p = q + 1

    def walk_batch(self):
        at = {r: self.of_row("position", r) for r in range(self.rows) if self.run["batch_rows"] >> r & 1}
        made = dict.fromkeys(at, 0)
        while at:
            deciding = [r for r in at if at[r] + 1 >= self.of_row("prompt_end", r)]
            self.step(dict(at), not deciding, None)
            if deciding:
                tokens = next(self.decisions)
                self.want.decides.append(sum(1 << r for r in deciding))
            for r in list(at):
                if r in deciding:
                    made[r] += 1
                    self.want.written.append((r, at[r] + 1, tokens[r]))
                    self.tokens[r][at[r] + 1] = tokens[r]
                over = r in deciding and self.ends(r, tokens[r], made[r], at[r])
                at[r] += 1
                if over:
                    del at[r]

    def step(self, at, prompt_step, q):
        """One pass over the program; ``at`` : position of each active row; ``q`` : last one, of a sequence."""
        everyone = sum(1 << r for r in at)
        self.want.steps.append((everyone, list(at.values())))
        begins = 1
        for index, layer in walk(self.program, prompt_step):
            one = self.program[index]
            attends = one.op in (Op.SC, Op.AV)
            of_token = one.op == Op.EMB and one.operand == Operand.TOKEN
            alone = self.rows > 1 and (of_token or (self.batch and one.op != Op.MM))
            for rows in [[r] for r in at] if alone else [list(at)]:
                work = {
                    "index": index,
                    "layer": layer,
                    "rows": sum(1 << r for r in rows),
                    "positions": [at[r] for r in rows],
                    "begins": begins,
                    "gather": None,
                }
                if attends:
                    work |= {"position": at[rows[0]] if self.batch else q, "single": rows[0] if self.batch else None}
                if of_token:
                    ring = self.tokens[rows[0] if self.batch else 0]
                    work["token"] = ring[at[rows[0]]] % self.tile
                self.want.taken.append(work)
                begins = 0


def expected(program, run, decisions, config=CONFIG, given=(GIVEN,)):
    return Model(program, run, decisions, config, given).want


def check(program, run, decisions, pause=0.0, config=CONFIG, given=(GIVEN,), make=Fetch):
    played = play(program, run, decisions, pause, config, given, make=make)
    want = expected(program, run, decisions, config, given)
    for name in ("events", "steps", "decides", "written", "taken"):
        assert getattr(played, name) == getattr(want, name), f"{name} differ"
    return played


NEW = [[50], [51], [52]]


@pytest.mark.parametrize("pause", [0.0, 0.6])
@pytest.mark.parametrize("program", [PROGRAM, ROWS_PROGRAM], ids=["without tokens", "with tokens"])
def test_steps_loops_and_count(program, pause):
    played = check(program, RUN, NEW, pause)
    assert played.written == [(0, 5, 50), (0, 6, 51), (0, 7, 52)]
    assert played.taken != expected(program, RUN | {"prompt_end": 4}, NEW).taken


@pytest.mark.parametrize(
    ("change", "last"),
    [
        ({"stop_0": 51}, (0, 6, 51)),
        ({"stop_count": 4, "stop_3": 50}, (0, 5, 50)),
        ({"stop_count": 0, "stop_0": 50}, (0, 7, 52)),
        ({"max_new_tokens": 1}, (0, 5, 50)),
        ({"max_new_tokens": 70_000, "context_limit": 6}, (0, 6, 51)),
    ],
)
def test_ends(change, last):
    played = check(PROGRAM, RUN | change, NEW, 0.3)
    assert played.written[-1] == last and played.events == ["finish"]


def test_a_gather_goes_with_the_instruction_behind_it():
    gather = Instruction(Op.GATHER, dst=40, strips=12, src=3, words=5)
    program = [*PROGRAM[:3], gather, *PROGRAM[3:]]
    program[1] = Instruction(Op.LOOP, strips=3, words=3)
    played = play(program, RUN, NEW, 0.4, go_at=20)
    assert played.events == ["finish"]
    plain = expected(PROGRAM, RUN, NEW).taken
    for name in ("positions", "layer", "begins"):
        assert [work[name] for work in played.taken] == [work[name] for work in plain]
    assert all((work["gather"] == (40, 52, 43, 48)) == (work["index"] == 4) for work in played.taken)
    firsts = [work["index"] for work in played.taken if work["begins"]]
    assert firsts == [0] * 5, "the first instruction of each of the five positions"


def test_nothing_begins_before_the_other_boards_do():
    played = play(PROGRAM, RUN, NEW, go_at=TIMEOUT)
    assert not (played.taken or played.written or played.events)


def test_unknown_operation_fails_with_its_index():
    program = [PROGRAM[0], Instruction(Op.MM), Instruction(Op.NEXT)]
    memory = [i.encode() for i in program]
    memory[1] = memory[1] & ~0xF | 9

    class Raw:
        def __init__(self, word):
            self.word = word

        def encode(self):
            return self.word

    played = play([Raw(word) for word in memory], RUN, [])
    assert played.events == [(ErrorCode.ILLEGAL, 1)]
    assert [work["index"] for work in played.taken] == [0]


def test_a_cancelled_run_appends_no_token():
    for cycle in range(60, 130, 4):
        played = play(PROGRAM, RUN | {"prompt_end": 3}, NEW, cancel_at=cycle)
        assert "finish" not in played.events or len(played.written) == 3
    assert play(PROGRAM, RUN, [[50]], cancel_at=0).taken == []


def random_run(rng, config):
    """Registers of a run, a batch or a sequence, the tokens given to each row, and decisions enough."""
    limit = rng.randint(8, 40)
    batch = rng.random() < 0.7
    run = {
        "context_limit": limit,
        "flags": Flags.BATCH if batch else 0,
        "batch_rows": rng.randrange(1, 1 << config.rows),
    }
    decisions = [[rng.randrange(60_000) for _ in range(config.rows)] for _ in range(limit)]
    for r in range(config.rows):
        position = rng.randrange(limit - 1)
        prompt_end = min(limit, position + rng.choice([1, 1, 2, 3, 9]))
        stops = [rng.choice(decisions[: 1 + rng.randrange(9)])[r] for _ in range(4)]
        values = (position, prompt_end, rng.choice([1, 2, 5, 70_000]), rng.choice([0, 0, 1, 4]), *stops)
        run |= {row_register(name, r): value for name, value in zip(_REQUEST, values, strict=True)}
    given = [[rng.randrange(60_000) for _ in range(limit + 1)] for _ in range(config.rows)]
    return run, decisions, given


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("config", MANY, ids=lambda config: config.name)
def test_random_runs_of_several_rows(config, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    run, decisions, given = random_run(rng, config)
    check(ROWS_PROGRAM, run, decisions, rng.choice([0.0, 0.5]), config, given)


SEQUENCE = RUN | {"flags": 0, "batch_rows": 0, "position": 3, "prompt_end": 11}
BATCH = {
    "context_limit": 100,
    "flags": Flags.BATCH,
    "batch_rows": 0b1101,
    **{row_register("position", r): p for r, p in enumerate((5, 0, 0, 9))},
    **{row_register("prompt_end", r): end for r, end in enumerate((6, 0, 3, 10))},
    **{row_register("max_new_tokens", r): most for r, most in enumerate((1, 0, 2, 5))},
    "stop_count_3": 2,
    "stop_1_3": 723,
}
LONG = [[1000 * r + p for p in range(40)] for r in range(4)]
DECISIONS = [[700 + 10 * k + r for r in range(4)] for k in range(8)]


def test_a_sequence_takes_the_rest_of_its_group_at_once():
    """From position 3 to a prompt's end at 11: the steps of docs/rows.md section 2, by hand."""
    played = check(ROWS_PROGRAM, SEQUENCE, DECISIONS, 0.3, MANY[1], LONG)
    assert played.steps == [
        (0b1000, [3]),
        (0b1111, [4, 5, 6, 7]),
        (0b0111, [8, 9, 10]),
        (0b1000, [11]),
        (0b0001, [12]),
    ]
    assert played.decides == [0b0100, 0b1000, 0b0001]
    assert played.written == [(0, 11, 702), (0, 12, 713), (0, 13, 720)]


def test_requests_of_a_batch_end_by_themselves():
    """Row 0 ends with its only token, row 2 has two prompt steps before its first one, row 3 meets a stop id."""
    played = check(ROWS_PROGRAM, BATCH, DECISIONS, 0.3, MANY[1], LONG)
    assert played.decides == [0b1001, 0b1000, 0b1100, 0b0100]
    assert played.steps == [(0b1101, [5, 0, 9]), (0b1100, [1, 10]), (0b1100, [2, 11]), (0b0100, [3])]
    assert played.written == [(0, 6, 700), (3, 10, 703), (3, 11, 713), (2, 3, 722), (3, 12, 723), (2, 4, 732)]


@pytest.mark.parametrize("config", [CONFIG, *MANY], ids=lambda config: config.name)
def test_cycles_between_a_decision_and_the_next_work(config):
    """The first instruction is decoded 4 + R cycles behind it, in a batch 2 + 3 R; it is handed out a cycle later."""
    rows = config.rows
    sequence = play(ROWS_PROGRAM, SEQUENCE | {"max_new_tokens": 4}, DECISIONS, 0.0, config, LONG)
    assert sequence.begins == [5 + rows] * 3
    if rows == 1:
        return
    both = BATCH | {"batch_rows": 3, "max_new_tokens": 4, "max_new_tokens_1": 4, "prompt_end_1": 1}
    assert play(ROWS_PROGRAM, both, DECISIONS, 0.0, config, LONG).begins == [3 + 3 * rows] * 3


def test_a_cancelled_batch_appends_no_token():
    run, config = BATCH | {"batch_rows": 0b1111, "prompt_end_1": 1, "max_new_tokens_1": 9}, MANY[1]
    whole = play(ROWS_PROGRAM, run, DECISIONS, 0.0, config, LONG)
    counts = set()
    for cycle in range(40, 400, 18):
        played = play(ROWS_PROGRAM, run, DECISIONS, 0.0, config, LONG, cancel_at=cycle)
        assert played.written == whole.written[: len(played.written)] and played.events in ([], whole.events)
        counts.add(len(played.written))
    assert len(counts) > 3


@pytest.mark.parametrize("change", [{"position": 4}, {"prompt_end": 10}, {"flags": Flags.BATCH}])
def test_another_sequence_has_other_steps(change):
    other = expected(ROWS_PROGRAM, SEQUENCE | {"batch_rows": 1} | change, DECISIONS, MANY[1], LONG)
    assert play(ROWS_PROGRAM, SEQUENCE, DECISIONS, 0.0, MANY[1], LONG).steps != other.steps


FAULTY = {
    "token of row 0": ("self.token_row.eq(Mux(self._batch, reading, 0)),", "self.token_row.eq(0),"),
    "every row decides": ("decides.eq(deciding.bit_select(chosen, 1)),", "decides.eq(1),"),
    "an ended row decides": ("(at[r] + 1 >= given[r]) & self._alive[r] for", "(at[r] + 1 >= given[r]) for"),
    "ends of row 0": ("return Array([cfg[row_register(name, r)] for r in range(rows)])[row]", "return cfg[name]"),
    "position of the lowest row": (
        "self._positions[r].eq((at[0] & ~(rows - 1)) + r if",
        "self._positions[r].eq(at[0] if",
    ),
    "last row not by itself": ("more = by_row & ((todo & (todo - 1)[:rows]) != 0)", "more = by_row & 0"),
    "attention for all rows": ("(attends & self._batch))", "(attends & 0))"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_fetch_is_noticed(mutant, name):
    """Twin of the random runs."""
    make = mutant("hw.gpt2.fetch", *FAULTY[name])["Fetch"]
    noticed = []
    for seed in range(8):
        run, decisions, given = random_run(random.Random(seed), MANY[1])
        try:
            check(ROWS_PROGRAM, run, decisions, 0.0, MANY[1], given, make)
        except AssertionError as error:
            noticed.append((seed, str(error).splitlines()[0]))
    print(noticed)
    assert noticed
