"""Stream reader against a Python walk of the access program: rows and their order, bursts, credits, guard, tokens."""

import dataclasses
import random

import pytest
from amaranth.sim import Simulator

import hw.gpt2.reader as reader
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Access, AccessKind, Operand
from hw.gpt2.reader import StreamReader
from sim.rtl.pysim import run_testbench

SMALL = CoreConfig(name="16x4", tile=16, lanes=4, channels=4, port_bits=256, context=64, fifo_words=64)
WIDE = CoreConfig(name="64x16", tile=64, lanes=16, channels=32, port_bits=512, context=256, fifo_words=32)
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
    token: int | None = None  # position whose token it needs


def walk(program, config, cfg, tokens):
    """The rows of a whole run, in order (docs/core.md sections 2, 5, 7)."""
    rows = []
    instance = 0
    for p in range(cfg["position"], cfg["context_limit"]):
        pointer = cfg["weight_base"]
        at = 0

        def one(descriptor, layer, instance=0, p=p):
            nonlocal pointer
            if descriptor.decode_only and p + 1 < cfg["prompt_end"]:
                return
            if descriptor.kind == AccessKind.WEIGHTS:
                rows.extend(Row(pointer + i) for i in range(descriptor.count))
                pointer += descriptor.count
            elif descriptor.kind == AccessKind.EMBED:
                token = descriptor.operand == Operand.TOKEN
                block = (tokens[p] if token else p) // config.tile
                base = cfg["token_base" if token else "position_base"] + block * cfg["embed_strips"] + descriptor.offset
                rows.extend(Row(base + i, token=p if token else None) for i in range(descriptor.count))
            else:
                kind, group, words = (
                    ("key", config.lanes, cfg["key_words"])
                    if descriptor.kind == AccessKind.KEYS
                    else ("value", config.tile, cfg["value_strips"])
                )
                for h in range(descriptor.head0, descriptor.head0 + descriptor.heads):
                    base = cfg[f"{kind}_base"] + layer * cfg[f"{kind}_layer_rows"] + h * cfg[f"{kind}_head_rows"]
                    for i in range(-(-(p + 1) // group) * words):
                        rows.append(Row(base + i, instance=instance))

        while program[at].kind != AccessKind.NEXT:
            if program[at].kind == AccessKind.LOOP:
                body = program[at + 1 : at + 1 + program[at].length]
                attends = any(d.kind in (AccessKind.KEYS, AccessKind.VALUES) for d in body)
                for layer in range(program[at].count):
                    for descriptor in body:
                        one(descriptor, layer, instance)
                    instance += attends
                at += 1 + len(body)
            else:
                one(program[at], 0)
                at += 1
    return rows


class Bench:
    """Reader with its two memories, a row source behind the commands and the checks."""

    def __init__(
        self, program, config, seed, position=0, prompt_end=3, context_limit=7, ready_pause=0.0, pop_pause=0.0
    ):
        print(f"seed {seed}")
        self.config = config
        self.rng = random.Random(seed)
        self.program = program
        self.cfg = {**REGISTERS, "position": position, "prompt_end": prompt_end, "context_limit": context_limit}
        self.cfg["layers"] = max(d.count for d in program if d.kind == AccessKind.LOOP)
        self.tokens = [self.rng.randrange(60000) for _ in range(context_limit + 1)]
        self.rows = walk(program, config, self.cfg, self.tokens)
        self.ready_pause, self.pop_pause = ready_pause, pop_pause
        self.dut = StreamReader(config)
        self.fetched = 0  # rows of accepted commands
        self.delivered = 0
        self.popped = 0
        self.lengths = []
        self.accepts = []  # cycle of each command
        self.cycle = 0
        self.guards = 0
        self.stop_at = None  # clear `run` in this cycle

    def check(self, row, beats, committed, tokens_valid):
        assert 1 <= beats <= 16 and row // 16 == (row + beats - 1) // 16, f"burst of {beats} at row {row} crosses"
        want = self.rows[self.fetched : self.fetched + beats]
        assert [row + i for i in range(beats)] == [w.number for w in want], f"rows differ at row {self.fetched}"
        for w in want:
            assert w.instance is None or committed + self.cfg["layers"] > w.instance, "guard not respected"
            assert w.token is None or w.token < tokens_valid, "token not yet known"
        self.fetched += beats
        assert self.fetched - self.popped <= self.config.fifo_words, "credits exceeded"

    async def memories(self, ctx):
        words = [descriptor.encode() for descriptor in self.program]
        words += [access("LOOP", count=5, length=5).encode()] * (self.config.descriptors - len(words))
        while True:
            *_, desc, token = await ctx.tick().sample(self.dut.desc_addr, self.dut.token_addr)
            ctx.set(self.dut.desc_data, words[desc])
            known = ctx.get(self.dut.tokens_valid)
            ctx.set(self.dut.token_data, self.tokens[token] if token < known else 0xFFFFFFF)

    async def run(self, ctx):
        dut, cfg = self.dut, self.cfg
        for name, value in cfg.items():
            ctx.set(dut.cfg[name], value)
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


@pytest.mark.parametrize("seed", range(100, 112))
def test_random_programs(seed):
    rng = random.Random(seed)
    position = rng.randrange(20)
    prompt_end = position + rng.randint(1, 4)
    Bench(
        random_program(rng), rng.choice([SMALL, WIDE]), seed, position, prompt_end, prompt_end + rng.randint(0, 3),
        rng.choice([0.0, 0.3]), rng.choice([0.0, 0.3]),
    ).simulate()  # fmt: skip


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


def test_one_layer_meets_guard_and_token():
    bench = Bench(one_layer(), SMALL, 61, prompt_end=1, context_limit=20).simulate()
    assert bench.guards > 0
