"""Stream reader against a Python walk of the access program: rows and their order, bursts, credits, guard, tokens; with
one row, and with several in both kinds of run."""

import dataclasses
import random

import pytest
from amaranth.sim import Simulator

import hw.gpt2.reader as reader
from hw.board.gpt2_map import row_register
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Access, AccessKind, Operand
from hw.gpt2.reader import StreamReader
from sim.rtl.pysim import run_testbench

SMALL = CoreConfig(name="16x4", tile=16, lanes=4, channels=4, port_bits=256, context=64, fifo_words=64)
WIDE = CoreConfig(name="64x16", tile=64, lanes=16, channels=32, port_bits=512, context=256, fifo_words=32)
MANY = [dataclasses.replace(core, name=f"{core.name}r{rows}", rows=rows) for core in (SMALL, WIDE) for rows in (2, 4)]
REGISTERS = {
    "layers": 2,
    "key_words": 3,
    "value_strips": 5,
    "weight_base": 1005,
    "position_base": 3000,
    "token_base": 5000,
    "embed_strips": 9,
    "key_base": 20000,
    "key_layer_rows": 2000,
    "key_head_rows": 300,
    "value_base": 70000,
    "value_layer_rows": 3000,
    "value_head_rows": 410,
}


def access(kind, **fields):
    return Access(kind=AccessKind[kind], **fields)


def typical(layers=2):
    body = [
        access("WEIGHTS", count=37),
        access("KEYS", head0=0, heads=2),
        access("WEIGHTS", count=0),
        access("WEIGHTS", count=5, decode_only=1),
        access("VALUES", head0=0, heads=2),
        access("KEYS", head0=2, heads=3),
        access("WEIGHTS", count=1),
        access("VALUES", head0=2, heads=3),
    ]
    return [
        access("EMBED", operand=Operand.POSITION, count=9),
        access("EMBED", operand=Operand.TOKEN, count=7, offset=2),
        access("LOOP", count=3, length=2),
        access("WEIGHTS", count=3),
        access("WEIGHTS", count=2, decode_only=1),
        access("LOOP", count=layers, length=len(body)),
        *body,
        access("WEIGHTS", count=50, decode_only=1),
        access("NEXT"),
    ]


def one_layer():
    return [
        access("EMBED", operand=Operand.TOKEN, count=3),
        access("LOOP", count=1, length=3),
        access("WEIGHTS", count=2),
        access("KEYS", head0=0, heads=1),
        access("VALUES", head0=0, heads=1),
        access("NEXT"),
    ]


@dataclasses.dataclass
class Row:
    """One row that the reader has to fetch, and what must hold before."""

    number: int
    instance: int | None = None  # layer instance of keys and values
    token: int | None = None  # position of a sequence whose token it needs
    step: int = 0  # of a batch


def sequence_steps(config, cfg):
    """Position of each row at work, step after step to the context limit (docs/rows.md section 2)."""
    steps, p = [], cfg["position"]
    while p < cfg["context_limit"]:
        end = cfg["prompt_end"]
        q = p if p + 1 >= end else min((p | (config.rows - 1)) + 1, end) - 1
        steps.append({position % config.rows: position for position in range(p, q + 1)})
        p = q + 1
    return steps


def batch_steps(config, cfg, rng, count=6):
    """Position of each request at work, step after step; a request ends when it likes, once it has decided."""
    at = {r: cfg[row_register("position", r)] for r in range(config.rows) if rng.random() < 0.8}
    at = at or {config.rows - 1: cfg[row_register("position", config.rows - 1)]}
    steps = []
    while at and len(steps) < count:
        steps.append(dict(at))
        ended = [r for r, p in at.items() if p + 1 >= cfg[row_register("prompt_end", r)] and rng.random() < 0.2]
        at = {r: p + 1 for r, p in at.items() if r not in ended}
    return steps


def walk(program, config, cfg, tokens, steps, batch):
    """The rows of a whole run, in order (docs/core.md sections 2, 5, 7; docs/rows.md sections 3 and 4)."""
    rows = []
    instance = 0
    for number, at in enumerate(steps):
        pointer = cfg["weight_base"]
        index = 0
        if batch:
            prompt_step = all(p + 1 < cfg[row_register("prompt_end", r)] for r, p in at.items())
        else:
            prompt_step = max(at.values()) + 1 < cfg["prompt_end"]

        def one(descriptor, layer, instance=0, at=at, number=number, prompt_step=prompt_step):
            nonlocal pointer
            if descriptor.decode_only and prompt_step:
                return
            if descriptor.kind == AccessKind.WEIGHTS:
                rows.extend(Row(pointer + i, step=number) for i in range(descriptor.count))
                pointer += descriptor.count
                return
            embeds, of_token = descriptor.kind == AccessKind.EMBED, descriptor.operand == Operand.TOKEN
            if batch or (embeds and of_token):
                turns = [(r, p) for r, p in sorted(at.items())]
            else:  # once for all, whose positions are in one block
                turns = [(0, max(at.values()))]
            for r, p in turns:
                if embeds:
                    block = (tokens[r if batch else 0][p] if of_token else p) // config.tile
                    table = cfg["token_base" if of_token else "position_base"]
                    first, token = table + block * cfg["embed_strips"] + descriptor.offset, p if of_token else None
                    rows.extend(Row(first + i, token=token, step=number) for i in range(descriptor.count))
                else:
                    attended(descriptor, layer, instance, r if batch else 0, p, number)

        def attended(descriptor, layer, instance, r, p, number):
            kind, group, words = (
                ("key", config.lanes, cfg["key_words"])
                if descriptor.kind == AccessKind.KEYS
                else ("value", config.tile, cfg["value_strips"])
            )
            base = cfg[row_register(f"{kind}_base", r)] + layer * cfg[f"{kind}_layer_rows"]
            for h in range(descriptor.head0, descriptor.head0 + descriptor.heads):
                for i in range(-(-(p + 1) // group) * words):
                    rows.append(Row(base + h * cfg[f"{kind}_head_rows"] + i, instance=instance, step=number))

        while program[index].kind != AccessKind.NEXT:
            if program[index].kind == AccessKind.LOOP:
                body = program[index + 1 : index + 1 + program[index].length]
                attends = any(d.kind in (AccessKind.KEYS, AccessKind.VALUES) for d in body)
                for layer in range(program[index].count):
                    for descriptor in body:
                        one(descriptor, layer, instance)
                    instance += attends
                index += 1 + len(body)
            else:
                one(program[index], 0)
                index += 1
    return rows


class Bench:
    """Reader with its two memories, a row source behind the commands, fetch's steps of a batch, and the checks."""

    def __init__(
        self, program, config, seed, position=0, prompt_end=3, context_limit=7, ready_pause=0.0, pop_pause=0.0,
        batch=False, make=None,
    ):  # fmt: skip
        print(f"seed {seed}")
        self.config = config
        self.rng = random.Random(seed)
        self.program, self.batch = program, batch
        self.cfg = {**REGISTERS, "position": position, "prompt_end": prompt_end, "context_limit": context_limit}
        self.cfg["layers"] = max(d.count for d in program if d.kind == AccessKind.LOOP)
        for r in range(1, config.rows):  # of a sequence: nobody's
            at = self.rng.randrange(context_limit)
            self.cfg |= {f"position_{r}": at, f"prompt_end_{r}": at + self.rng.choice([1, 1, 2, 4])}
            self.cfg |= {f"key_base_{r}": 200_000 * r + 7, f"value_base_{r}": 200_000 * r + 90_003}
        self.tokens = [[self.rng.randrange(60000) for _ in range(context_limit + 9)] for _ in range(config.rows)]
        self.steps = batch_steps(config, self.cfg, self.rng) if batch else sequence_steps(config, self.cfg)
        self.rows = walk(program, config, self.cfg, self.tokens, self.steps, batch)
        self.ready_pause, self.pop_pause = ready_pause, pop_pause
        self.dut = (make or StreamReader)(config)
        self.fetched = 0  # rows of accepted commands
        self.delivered = 0
        self.popped = 0
        self.lengths = []
        self.accepts = []  # cycle of each command
        self.cycle = 0
        self.guards = 0
        self.begun = 0  # steps of the batch
        self.stop_at = None  # clear `run` in this cycle

    def check(self, row, beats, committed, tokens_valid):
        assert 1 <= beats <= 16 and row // 16 == (row + beats - 1) // 16, f"burst of {beats} at row {row} crosses"
        want = self.rows[self.fetched : self.fetched + beats]
        assert [row + i for i in range(beats)] == [w.number for w in want], f"rows differ at row {self.fetched}"
        for w in want:
            assert w.instance is None or committed + self.cfg["layers"] > w.instance, "guard not respected"
            assert self.batch or w.token is None or w.token < tokens_valid, "token not yet known"
            assert not self.batch or w.step < self.begun, "a step that has not begun"
        self.fetched += beats
        assert self.fetched - self.popped <= self.config.fifo_words, "credits exceeded"

    async def memories(self, ctx):
        words = [descriptor.encode() for descriptor in self.program]
        words += [access("LOOP", count=5, length=5).encode()] * (self.config.descriptors - len(words))
        dut = self.dut
        while True:
            *_, desc, row, token = await ctx.tick().sample(dut.desc_addr, dut.token_row, dut.token_addr)
            ctx.set(dut.desc_data, words[desc])
            known = self.batch or token < ctx.get(dut.tokens_valid)
            ctx.set(dut.token_data, self.tokens[row][token] if known and token < len(self.tokens[row]) else 0xFFFFFFF)

    def begin_step(self, ctx):
        """Begin the next step of a batch as fetch does: at the earliest when all but the last rows are used."""
        if self.begun == len(self.steps):
            return
        before = [i for i, row in enumerate(self.rows) if row.step == self.begun - 1]
        late = self.rng.randrange(80)  # rows that the matrix unit has not taken
        if before and not (self.fetched > before[0] and self.popped > before[-1] - late):
            return
        if self.rng.random() < 0.2:
            dut, at = self.dut, self.steps[self.begun]
            self.begun += 1
            ctx.set(dut.step, self.begun & 1)
            ctx.set(dut.step_rows, sum(1 << r for r in at))
            for r in range(self.config.rows):
                ctx.set(dut.step_positions[r], at.get(r, self.rng.randrange(1 << 16)))

    async def run(self, ctx):
        dut, cfg = self.dut, self.cfg
        for name, _ in dut.cfg.shape():
            ctx.set(dut.cfg[name], cfg[name])
        ctx.set(dut.batch, self.batch)
        instances = 1 + max((w.instance for w in self.rows if w.instance is not None), default=0)
        committed, tokens_valid, idle = 0, cfg["prompt_end"], 0
        ctx.set(dut.tokens_valid, tokens_valid)
        await ctx.tick().repeat(3)
        ctx.set(dut.run, 1)
        while self.popped < len(self.rows) or self.stop_at:
            ctx.set(dut.read_ready, self.rng.random() >= self.ready_pause)
            pop = self.delivered > self.popped and self.rng.random() >= self.pop_pause
            ctx.set(dut.row_pop, pop)
            *_, valid, ready, row, beats, waits = await ctx.tick().sample(
                dut.read_valid, dut.read_ready, dut.read_row, dut.read_beats, dut.waiting_guard
            )
            self.cycle += 1
            self.guards += waits
            self.popped += pop
            idle = 0 if valid or pop else idle + 1
            if valid and ready:
                self.check(row, beats, committed, tokens_valid)
                self.lengths.append(beats)
                self.accepts.append(self.cycle)
            if self.delivered < self.fetched and self.rng.random() < 0.98:
                self.delivered += 1
            if self.cycle == self.stop_at:
                await self.stop(ctx)
                return
            if self.batch:
                self.begin_step(ctx)
            if idle > 40:  # the reader can only go on with a commit or a token
                idle = 0
                if self.rng.random() < 0.5 and committed < instances:
                    committed += 1
                elif tokens_valid < cfg["context_limit"]:
                    tokens_valid += 1
                ctx.set(dut.committed, committed)
                ctx.set(dut.tokens_valid, tokens_valid)
        ctx.set(dut.row_pop, 0)
        for _ in range(50):
            *_, valid = await ctx.tick().sample(dut.read_valid)
            assert not valid, "commands behind the end"

    async def stop(self, ctx):
        ctx.set(self.dut.run, 0)
        for _ in range(50):
            assert not ctx.get(self.dut.read_valid), "command while run is low"
            await ctx.tick()

    def simulate(self, cycles=30000):
        run_testbench(
            self.dut,
            self.run,
            background=[self.memories],
            cycles=cycles,
            progress=lambda: f"no end: {self.fetched} of {len(self.rows)} rows",
        )
        return self


@pytest.mark.parametrize("config", [SMALL, WIDE], ids=lambda config: config.name)
@pytest.mark.parametrize("ready_pause", [0.0, 0.5])
@pytest.mark.parametrize("pop_pause", [0.0, 0.4])
def test_follows_the_access_program(config, ready_pause, pop_pause):
    bench = Bench(typical(), config, 61, ready_pause=ready_pause, pop_pause=pop_pause).simulate()
    assert bench.guards > 0, "the guard was met"


@pytest.mark.parametrize("start", [(14, 15, 19), (15, 18, 19), (63, 64, 64)])
def test_starts_anywhere_and_ends_at_the_context_limit(start):
    position, prompt_end, context_limit = start
    Bench(typical(3), SMALL, 62, position, prompt_end, context_limit).simulate()


def random_program(rng):
    def some(inside):
        out = []
        for _ in range(rng.randint(1, 4)):
            kind = rng.choice(["WEIGHTS", "WEIGHTS", "KEYS", "VALUES"] if inside else ["WEIGHTS", "EMBED"])
            if kind == "WEIGHTS":
                out.append(access(kind, count=rng.choice([0, 1, 2, 15, 16, 17, 40]), decode_only=rng.random() < 0.3))
            elif kind == "EMBED":
                out.append(access(kind, operand=rng.randrange(2), count=rng.randint(1, 9), offset=rng.randrange(9)))
            else:
                out.append(access(kind, head0=rng.randrange(4), heads=rng.randint(1, 3)))
        return out

    body = some(True)
    program = [*some(False), access("LOOP", count=rng.randint(1, 3), length=len(body)), *body, *some(False)]
    return [*program, access("NEXT")]


def random_bench(seed, configs, batch=False, make=None):
    rng = random.Random(seed)
    position = rng.randrange(20)
    prompt_end = position + rng.randint(1, 4 if configs[0].rows == 1 else 11)
    return Bench(
        random_program(rng), rng.choice(configs), seed, position, prompt_end, prompt_end + rng.randint(0, 3),
        rng.choice([0.0, 0.3]), rng.choice([0.0, 0.3]), batch, make,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(100, 112))
def test_random_programs(seed):
    random_bench(seed, [SMALL, WIDE]).simulate()


def several_rows(config, batch, pause, make=None):
    """A run whose steps have different numbers of rows; a batch's next one begins while tokens are being embedded."""
    prompt_end = 5 if batch else 11
    program = [*typical()[:-1], *[access("EMBED", operand=Operand.TOKEN, count=1)] * 3, access("NEXT")]
    return Bench(program, config, 74, 2, prompt_end, 14, pause, pause, batch, make).simulate()


@pytest.mark.parametrize("config", MANY, ids=lambda config: config.name)
@pytest.mark.parametrize("batch", [False, True], ids=["sequence", "batch"])
@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_several_rows_follow_the_access_program(config, batch, pause):
    bench = several_rows(config, batch, pause)
    assert bench.guards > 0, "the guard was met"
    assert len(bench.steps) > 3 and len({len(at) for at in bench.steps}) > 1, "not only steps of all rows"


@pytest.mark.parametrize("seed", range(200, 216))
def test_random_programs_of_several_rows(seed):
    random_bench(seed, MANY, batch=seed % 2 == 1).simulate()


@pytest.mark.parametrize("stop_at", [20, 33, 61, 90])
def test_run_low_stops_commands_at_once(stop_at):
    bench = Bench(typical(), SMALL, 63, ready_pause=0.5)
    bench.stop_at = stop_at
    bench.simulate()


def test_long_runs_reach_a_row_a_cycle():
    program = [access("WEIGHTS", count=400), access("WEIGHTS", count=600), access("LOOP", count=1, length=1),
               access("WEIGHTS", count=1000), access("NEXT")]  # fmt: skip
    bench = Bench(program, dataclasses.replace(SMALL, fifo_words=4096), 64, context_limit=1, prompt_end=1).simulate()
    cycles = bench.accepts[-1] - bench.accepts[0]
    assert len(bench.lengths) <= 2000 // 16 + 6 and cycles < 160, f"{len(bench.lengths)} bursts in {cycles} cycles"


def test_heads_of_one_burst_take_little_more_than_a_cycle_each():
    program = [access("LOOP", count=1, length=1), access("KEYS", heads=40), access("NEXT")]
    bench = Bench(program, dataclasses.replace(SMALL, fifo_words=1024), 65, context_limit=1, prompt_end=1).simulate()
    assert bench.accepts[-1] - bench.accepts[0] <= len(bench.lengths) + 2


def test_token_read_follows_the_token_by_seven_cycles():
    bench = Bench(one_layer(), SMALL, 66, prompt_end=1, context_limit=2)
    dut, seen = bench.dut, []

    async def token(ctx):
        for name, value in bench.cfg.items():
            ctx.set(dut.cfg[name], value)
        ctx.set(dut.run, 1)
        ctx.set(dut.read_ready, 1)
        await ctx.tick().repeat(20)
        assert not ctx.get(dut.read_valid), "without its token nothing may be read"
        ctx.set(dut.tokens_valid, 1)
        while not ctx.get(dut.read_valid):
            seen.append(1)
            await ctx.tick()

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench.memories, background=True)
    sim.add_testbench(token)
    sim.run()
    assert len(seen) == 7


@pytest.mark.parametrize(
    "name, broken, message",
    [
        ("burst_beats", lambda row, left: reader.Mux(left < 16, left[:5], 16), "crosses"),
        ("guard_open", lambda committed, layers, instance: committed + layers >= instance, "guard not respected"),
        ("credits_suffice", lambda credits, beats: credits + 1 >= beats, "credits exceeded"),
        ("token_known", lambda position, tokens_valid: position <= tokens_valid, "token not yet known|rows differ"),
    ],
)
def test_twins_fail(monkeypatch, name, broken, message):
    monkeypatch.setattr(reader, name, broken)
    with pytest.raises(AssertionError, match=message):
        Bench(typical(), SMALL, 61, pop_pause=0.4).simulate()
        Bench(one_layer(), SMALL, 61, prompt_end=1, context_limit=20).simulate()


FAULTY = {
    "step not awaited": ("with m.If(~self.batch | (self.step != self.begun)):", "with m.If(1):"),
    "step not kept": (
        "active.eq(kept_rows), positions.eq(kept_positions)",
        "active.eq(self.step_rows), positions.eq(self.step_positions)",
    ),
    "bases of row 0": ("Mux(self.batch, Array(bases)[row], bases[0])", "bases[0]"),
    "tokens of row 0": ("self.token_row.eq(Mux(self.batch, row, 0)),", "self.token_row.eq(0),"),
    "keys up to row 0": ("attended_to.eq(Mux(self.batch, row_position, last))", "attended_to.eq(positions[0])"),
    "one row decides": ("prompt_step.eq(~Cat(deciding).any())", "prompt_step.eq(~Cat(deciding).all())"),
    "token of one row": ("(embeds & (of_token | self.batch))", "(embeds & self.batch)"),
    "last row left out": ("with m.If(by_row & (others != 0)):", "with m.If(by_row & ((others & (others - 1)) != 0)):"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_reader_is_noticed(mutant, name):
    """Twin of the runs of several rows."""
    make = mutant("hw.gpt2.reader", *FAULTY[name])["StreamReader"]
    with pytest.raises(AssertionError, match=r"rows differ|has not begun|no end"):
        several_rows(MANY[1], False, 0.0, make)
        several_rows(MANY[1], True, 0.4, make)


def test_one_layer_meets_guard_and_token():
    bench = Bench(one_layer(), SMALL, 61, prompt_end=1, context_limit=20).simulate()
    assert bench.guards > 0
