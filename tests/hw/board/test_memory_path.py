"""Reader, ports and both writers together, two runs with a reset between: attention never sees a stale key or value,
and what a run has read ahead is gone when the next one starts."""

import random

import pytest
from amaranth.hdl import Module, ResetInserter
from amaranth.lib import wiring
from amaranth.lib.wiring import In

import hw.gpt2.reader as reader
from hw.board.memory_ports import MemoryPorts
from hw.board.write_arbiter import WriteArbiter, connect_write
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Access, AccessKind, Commit, Operand
from hw.gpt2.kv_writer import KvWriter
from hw.gpt2.logits_writer import LogitsWriter
from hw.gpt2.reader import StreamReader
from sim.rtl.pysim import run_testbench

CONFIG = CoreConfig(name="16x2", tile=16, lanes=2, channels=2, port_bits=256, context=64, fifo_words=64)
ROWS = 4096
HEADS, KEY_WORDS, VALUE_STRIPS = 3, 2, 4
CFG = {
    "prompt_end": 0,
    "context_limit": 64,
    "heads": HEADS,
    "key_words": KEY_WORDS,
    "value_strips": VALUE_STRIPS,
    "weight_base": 37,
    "position_base": 0,
    "token_base": 200,
    "embed_strips": 5,
    "key_base": 1000,
    "key_layer_rows": HEADS * 64,
    "key_head_rows": 64,
    "value_base": 2000,
    "value_layer_rows": HEADS * 16,
    "value_head_rows": 16,
    "logits_base": 3000,
    "logits_rows": 8,
}
WEIGHTS, LOGIT_STRIPS = 9, 21


def flush(run, row_valid):
    """When a row is taken that nobody asked for: once the run has ended."""
    return ~run & row_valid


class MemoryPath(wiring.Component):
    """All of the memory side, with a reset of its own between runs and the core's flush."""

    def __init__(self):
        self.reader, self.ports = StreamReader(CONFIG), MemoryPorts(CONFIG)
        self.kv, self.logits, self.arbiter = KvWriter(CONFIG), LogitsWriter(CONFIG), WriteArbiter(CONFIG)
        super().__init__({"reset": In(1), "take": In(1)})

    def elaborate(self, platform):
        m = Module()
        inner = Module()
        for name in ("reader", "ports", "kv", "logits", "arbiter"):
            inner.submodules[name] = getattr(self, name)
        connect_write(inner, self.kv, self.arbiter.urgent)
        connect_write(inner, self.logits, self.arbiter.patient)
        connect_write(inner, self.arbiter.memory, self.ports)
        inner.d.comb += [
            self.ports.read_valid.eq(self.reader.read_valid),
            self.ports.read_row.eq(self.reader.read_row),
            self.ports.read_beats.eq(self.reader.read_beats),
            self.reader.read_ready.eq(self.ports.read_ready),
            self.reader.row_pop.eq(self.ports.row_popped),
            self.ports.row_take.eq(self.take | flush(self.reader.run, self.ports.row_valid)),
            self.reader.committed.eq(self.kv.committed),
            self.kv.writes_unanswered.eq(self.ports.writes_unanswered),
        ]
        m.submodules.inner = ResetInserter(self.reset)(inner)
        return m


class Bench:
    """Acts as a core: takes rows, makes keys, values and logits, and knows what memory must hold."""

    def __init__(self, axi_memory, seed, layers, pause, latency):
        print(f"seed {seed}")
        self.rng = random.Random(seed)
        self.layers = layers
        self.dut = MemoryPath()
        self.tokens = [self.rng.randrange(16 * 60) for _ in range(64)]
        self.keys = [0] * CONFIG.new_key_words
        self.values = [0] * CONFIG.new_value_strips
        self.program = [
            Access(AccessKind.EMBED, operand=Operand.POSITION, count=5),
            Access(AccessKind.EMBED, operand=Operand.TOKEN, count=5),
            Access(AccessKind.LOOP, count=layers, length=3),
            Access(AccessKind.WEIGHTS, count=WEIGHTS),
            Access(AccessKind.KEYS, heads=HEADS),
            Access(AccessKind.VALUES, heads=HEADS),
            Access(AccessKind.NEXT),
        ]
        self.memories = []
        for c in range(CONFIG.channels):
            memory = axi_memory(self.rng, 32, ROWS * 32, c << 28, pause=pause, latency=latency)
            memory.fill(lambda row: self.rng.randbytes(32))
            self.memories.append(memory)
        self.start = [bytes(memory.memory) for memory in self.memories]
        self.key_of, self.value_of = {}, {}  # (layer, position): words, strips
        self.logits_of = {}  # position: strips

    def constant_row(self, row):
        return b"".join(start[row * 32 : (row + 1) * 32] for start in self.start)

    async def memories_of_core(self, ctx):
        dut = self.dut
        while True:
            *_, desc, token, key, value = await ctx.tick().sample(
                dut.reader.desc_addr, dut.reader.token_addr, dut.kv.key_addr, dut.kv.value_addr
            )
            ctx.set(dut.reader.desc_data, self.program[desc].encode() if desc < len(self.program) else 0)
            ctx.set(dut.reader.token_data, self.tokens[token] if token < len(self.tokens) else 0)
            ctx.set(dut.kv.key_data[0], self.keys[key])
            ctx.set(dut.kv.value_data[0], self.values[value])

    async def row(self, ctx):
        ports = self.dut.ports
        await ctx.tick()
        while not ctx.get(ports.row_valid):
            await ctx.tick()
        ctx.set(self.dut.take, 1)
        await ctx.tick()
        ctx.set(self.dut.take, 0)
        while not ctx.get(ports.row_popped):
            await ctx.tick()
        return ctx.get(ports.row_data).to_bytes(CONFIG.channels * 32, "little")

    async def constant_rows(self, ctx, first, count):
        for row in range(first, first + count):
            assert await self.row(ctx) == self.constant_row(row), f"row {row} differs"

    async def commit(self, ctx, kind, layer, p):
        kv = self.dut.kv
        while ctx.get(kv.busy_keys if kind == Commit.KEYS else kv.busy_values):
            await ctx.tick()
        if kind == Commit.KEYS:
            words = [self.rng.randbytes(2 * CONFIG.tile) for _ in range(HEADS * KEY_WORDS)]
            self.key_of[layer, p] = words
            self.keys[: len(words)] = [int.from_bytes(word, "little") for word in words]
        else:
            strips = [self.rng.randbytes(2 * CONFIG.lanes) for _ in range(HEADS * VALUE_STRIPS)]
            self.value_of[layer, p] = strips
            self.values[: len(strips)] = [int.from_bytes(strip, "little") for strip in strips]
        ctx.set(kv.commit_valid, 1)
        ctx.set(kv.commit_kind, kind)
        ctx.set(kv.commit_layer, layer)
        ctx.set(kv.commit_rows, 1)
        ctx.set(kv.commit_positions[0], p)
        await ctx.tick()
        ctx.set(kv.commit_valid, 0)

    async def attention(self, ctx, kind, layer, p):
        """Take the rows of all heads; every older position must be there."""
        group = CONFIG.lanes if kind == Commit.KEYS else CONFIG.tile
        for h in range(HEADS):
            slots = {(q & ~(CONFIG.lanes - 1)) | ((q + h) & (CONFIG.lanes - 1)): q for q in range(p)}
            for block in range(p // group + 1):
                for w in range(KEY_WORDS if kind == Commit.KEYS else VALUE_STRIPS):
                    data = await self.row(ctx)
                    for slot, q in slots.items():
                        if slot // group != block:
                            continue
                        if kind == Commit.KEYS:
                            at = slot % group * 2 * CONFIG.tile
                            want = self.key_of[layer, q][h * KEY_WORDS + w]
                            assert data[at : at + len(want)] == want, f"stale key of position {q} at {p}"
                            continue
                        strip = self.value_of[layer, q][h * VALUE_STRIPS + w]
                        for lane in range(CONFIG.lanes):
                            at = 2 * (lane * CONFIG.tile + slot % group)
                            assert data[at : at + 2] == strip[2 * lane : 2 * lane + 2], f"stale value of {q} at {p}"

    async def logits(self, ctx, p):
        logits = self.dut.logits
        ctx.set(logits.position, p)
        self.logits_of[p] = [self.rng.randbytes(4 * CONFIG.lanes) for _ in range(LOGIT_STRIPS)]
        await ctx.tick().repeat(2)
        for i, strip in enumerate(self.logits_of[p]):
            while not ctx.get(logits.ready_soon):
                await ctx.tick()
            ctx.set(logits.strip_valid, 1)
            ctx.set(logits.strip_index, i)
            ctx.set(logits.strip_data, int.from_bytes(strip, "little"))
            ctx.set(logits.strip_last, i == LOGIT_STRIPS - 1)
            await ctx.tick()
            ctx.set(logits.strip_valid, 0)

    async def begin(self, ctx, position):
        dut = self.dut
        for unit in (dut.reader, dut.kv, dut.logits):
            for name, value in {**CFG, "position": position, "layers": self.layers}.items():
                if name in unit.cfg.shape().members:
                    ctx.set(unit.cfg[name], value)
        ctx.set(dut.reader.tokens_valid, position + 1)
        ctx.set(dut.logits.enable, 1)
        for _ in range(5):
            await ctx.tick()
        ctx.set(dut.reader.run, 1)

    async def embeddings(self, ctx, p):
        await self.constant_rows(ctx, CFG["position_base"] + p // 16 * 5, 5)
        await self.constant_rows(ctx, CFG["token_base"] + self.tokens[p] // 16 * 5, 5)

    async def run(self, ctx, position, end):
        dut = self.dut
        await self.begin(ctx, position)
        for p in range(position, end):
            await self.embeddings(ctx, p)
            for layer in range(self.layers):
                await self.constant_rows(ctx, CFG["weight_base"] + layer * WEIGHTS, WEIGHTS)
                await self.commit(ctx, Commit.KEYS, layer, p)
                await self.attention(ctx, Commit.KEYS, layer, p)
                await self.commit(ctx, Commit.VALUES, layer, p)
                await self.attention(ctx, Commit.VALUES, layer, p)
            await self.logits(ctx, p)
            if p + 1 < end:
                ctx.set(dut.reader.tokens_valid, p + 2)
        await self.drain(ctx)
        assert ctx.get(dut.kv.committed) == (end - position) * self.layers
        assert not ctx.get(dut.logits.overflow)

    async def drain(self, ctx):
        dut = self.dut
        ctx.set(dut.reader.run, 0)
        waits = (
            (dut.ports.rows_outstanding != 0) | dut.ports.writes_unanswered
            | dut.kv.busy_keys | dut.kv.busy_values | dut.logits.busy
        )  # fmt: skip
        await ctx.tick()
        while ctx.get(waits):
            await ctx.tick()
        await ctx.tick()
        assert not ctx.get(dut.ports.row_valid)

    async def reset(self, ctx):
        ctx.set(self.dut.reset, 1)
        await ctx.tick()
        await ctx.tick()
        ctx.set(self.dut.reset, 0)
        assert ctx.get(self.dut.ports.row_valid) == 0 and ctx.get(self.dut.kv.committed) == 0

    async def bases(self, ctx):
        for c in range(CONFIG.channels):
            ctx.set(self.dut.ports.base[c], c << 28)

    async def two_runs(self, ctx):
        await self.bases(ctx)
        await self.run(ctx, 0, 6)
        await self.reset(ctx)
        await self.run(ctx, 6, 9)
        self.check_logits()

    async def run_that_is_cut_off(self, ctx):
        """Ends in the middle of a position, with the reader far ahead; then a whole run."""
        ports = self.dut.ports
        await self.bases(ctx)
        for rows_taken in (0, 4, 10):
            await self.begin(ctx, 3)
            await self.constant_rows(ctx, CFG["position_base"], min(rows_taken, 5))
            await self.constant_rows(ctx, CFG["token_base"] + self.tokens[3] // 16 * 5, max(rows_taken - 5, 0))
            for _ in range(self.rng.randrange(30, 60)):
                await ctx.tick()
            assert ctx.get(ports.rows_outstanding) > 5, "the reader is ahead"
            await self.drain(ctx)
            await self.reset(ctx)
        await self.run(ctx, 0, 2)
        self.check_logits()

    async def error_ahead(self, ctx):
        """A read error of a row that the run never took."""
        ports = self.dut.ports
        await self.bases(ctx)
        self.memories[1].bad_address = (CFG["weight_base"] + 3) * 32
        await self.begin(ctx, 0)
        await self.embeddings(ctx, 0)
        while ctx.get(ports.fifo_min) < 8:
            await ctx.tick()
        assert not ctx.get(ports.read_error), "it counts when the word is popped"
        await self.drain(ctx)
        assert ctx.get(ports.read_error) and ctx.get(ports.error_channel) == 1
        self.memories[1].bad_address = None
        await self.reset(ctx)
        assert not ctx.get(ports.read_error)
        await self.run(ctx, 0, 1)
        assert not ctx.get(ports.read_error)

    def check_logits(self):
        for p, strips in self.logits_of.items():
            data = b"".join(strips)
            data += bytes(-len(data) % 32)
            for j in range(len(data) // 32):
                got = self.memories[j % CONFIG.channels].word(CFG["logits_base"] + p * CFG["logits_rows"] + j // 2)
                assert got == data[32 * j : 32 * j + 32], f"logits of position {p} differ in port word {j}"

    def simulate(self, clocks, main, cycles=20000):
        servers = [memory.server(self.dut.ports.ports[c]) for c, memory in enumerate(self.memories)]
        clocks = clocks | {"kernel": clocks["sync"]}
        run_testbench(self.dut, main, background=[self.memories_of_core, *servers], cycles=cycles, clocks=clocks)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("pause, latency", [(0.0, (2, 2)), (0.2, (20, 80))])
def test_rows_are_current(axi_memory, clocks_by_name, layers, pause, latency):
    bench = Bench(axi_memory, 91, layers, pause, latency)
    bench.simulate(clocks_by_name["ports 225:200"], bench.two_runs)


def test_rows_are_current_with_any_clocks(axi_memory, clocks):
    bench = Bench(axi_memory, 92, 1, 0.1, (5, 40))
    bench.simulate(clocks, bench.two_runs)


@pytest.mark.parametrize("slack", [1, 2])
def test_twin_with_an_early_guard_reads_stale_rows(axi_memory, clocks_by_name, monkeypatch, slack):
    monkeypatch.setattr(reader, "guard_open", lambda committed, layers, instance: committed + layers + slack > instance)
    bench = Bench(axi_memory, 91, 1, 0.2, (20, 80))
    with pytest.raises(AssertionError, match="stale"):
        bench.simulate(clocks_by_name["ports 225:200"], bench.two_runs)


def test_what_was_read_ahead_is_gone_in_the_next_run(axi_memory, clocks):
    bench = Bench(axi_memory, 93, 1, 0.1, (5, 60))
    bench.simulate(clocks, bench.run_that_is_cut_off)


def test_twin_without_the_flush_does_not_drain(axi_memory, clocks_by_name, monkeypatch):
    monkeypatch.setitem(globals(), "flush", lambda run, row_valid: 0)
    bench = Bench(axi_memory, 93, 1, 0.1, (5, 60))
    with pytest.raises(AssertionError, match="no end within 2000 cycles"):
        bench.simulate(clocks_by_name["equal"], bench.run_that_is_cut_off, cycles=2000)


def test_twin_that_resets_without_the_flush_starts_with_old_rows(axi_memory, clocks_by_name, monkeypatch):
    async def no_drain(self, ctx):
        ctx.set(self.dut.reader.run, 0)
        for _ in range(200):
            await ctx.tick()

    monkeypatch.setitem(globals(), "flush", lambda run, row_valid: 0)
    monkeypatch.setattr(Bench, "drain", no_drain)
    bench = Bench(axi_memory, 93, 1, 0.1, (5, 60))
    with pytest.raises(AssertionError, match=r"row \d+ differs"):
        bench.simulate(clocks_by_name["equal"], bench.run_that_is_cut_off)


def test_a_read_error_of_a_flushed_row_is_kept(axi_memory, clocks):
    bench = Bench(axi_memory, 94, 1, 0.1, (5, 40))
    bench.simulate(clocks, bench.error_ahead)
