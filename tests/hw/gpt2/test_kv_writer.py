"""Key/value writer against the layout of docs/core.md section 1: contents, untouched neighbours, order of commits."""

import random
import sys

import pytest
from amaranth.sim import Simulator

import hw.gpt2.kv_writer as kv_writer
from hw.gpt2.config import CoreConfig, core_config
from hw.gpt2.isa import Commit
from hw.gpt2.kv_writer import KvWriter
from sim.rtl.pysim import run_testbench

SMALL = CoreConfig(name="16x4", tile=16, lanes=4, channels=4, port_bits=256, context=64, fifo_words=64)
TWO_PER_LANE = CoreConfig(name="32x4", tile=32, lanes=4, channels=8, port_bits=256, context=64, fifo_words=64)
CFG = {
    "heads": 5,
    "key_words": 2,
    "value_strips": 3,
    "key_base": 100,
    "key_layer_rows": 1000,
    "key_head_rows": 64,
    "value_base": 20000,
    "value_layer_rows": 700,
    "value_head_rows": 50,
}
UNTOUCHED = 0x7E
sys.set_int_max_str_digits(0)  # Amaranth's simulator prints masks of 16,384 bits


def slot(p, h, config):
    return p & ~(config.lanes - 1) | (p + h) & (config.lanes - 1)


class Memory:
    """Rows of all channels, and an answer to every write some time later."""

    def __init__(self, config):
        self.config = config
        self.bytes = {}

    def row(self, number):
        return self.bytes.setdefault(number, bytearray([UNTOUCHED]) * (self.config.channels * self.config.port_bytes))

    def write(self, row, channels, data, strobe):
        for byte in range(self.config.channels * self.config.port_bytes):
            if channels >> byte // self.config.port_bytes & 1 and strobe >> byte & 1:
                self.row(row)[byte] = data >> (8 * byte) & 0xFF

    def put(self, row, lane, element, half):
        at = (lane * self.config.tile + element) * 2
        self.row(row)[at : at + 2] = half.to_bytes(2, "little")

    def expect_keys(self, layer, p, words):
        """``words[head*key_words + w]``: T fp16 each."""
        for i, word in enumerate(words):
            h, w = divmod(i, CFG["key_words"])
            place, lane = divmod(slot(p, h, self.config), self.config.lanes)
            row = (
                CFG["key_base"]
                + layer * CFG["key_layer_rows"]
                + h * CFG["key_head_rows"]
                + place * CFG["key_words"]
                + w
            )
            for element in range(self.config.tile):
                self.put(row, lane, element, word >> (16 * element) & 0xFFFF)

    def expect_values(self, layer, p, strips):
        """``strips[head*value_strips + s]``: N fp16 each."""
        for i, strip in enumerate(strips):
            h, s = divmod(i, CFG["value_strips"])
            block, element = divmod(slot(p, h, self.config), self.config.tile)
            row = (
                CFG["value_base"] + layer * CFG["value_layer_rows"] + h * CFG["value_head_rows"]
                + block * CFG["value_strips"] + s
            )  # fmt: skip
            for lane in range(self.config.lanes):
                self.put(row, lane, element, strip >> (16 * lane) & 0xFFFF)


class Bench:
    """Writer, its two buffers, a memory that answers late, and commits like those of a core."""

    def __init__(self, config, seed, ready_pause, steps=4, layers=3, first_position=13):
        print(f"seed {seed}")
        self.config, self.ready_pause = config, ready_pause
        self.rng = random.Random(seed)
        self.dut = KvWriter(config)
        self.got, self.want = Memory(config), Memory(config)
        self.keys = [0] * config.new_key_words
        self.values = [0] * config.new_value_strips
        self.unanswered = []  # cycle of the answer
        self.cycle = 0
        self.answered, self.accepted = 0, 0
        self.jobs = [(p, layer) for p in range(first_position, first_position + steps) for layer in range(layers)]

    async def buffers(self, ctx):
        dut = self.dut
        while True:
            *_, key, value = await ctx.tick().sample(dut.key_addr, dut.value_addr)
            ctx.set(dut.key_data, self.keys[key] if key < len(self.keys) else 0)
            ctx.set(dut.value_data, self.values[value] if value < len(self.values) else 0)

    async def memory(self, ctx):
        dut = self.dut
        while True:
            ctx.set(dut.write_ready, self.rng.random() >= self.ready_pause)
            *_, valid, ready, row, channels, write_data, strobe, committed = await ctx.tick().sample(
                dut.write_valid, dut.write_ready, dut.write_row, dut.write_channels, dut.write_data, dut.write_strobe,
                dut.committed,
            )  # fmt: skip
            self.cycle += 1
            assert committed * self.per_layer() <= self.answered, "committed before every write was answered"
            if valid and ready:
                self.got.write(row, channels, write_data, strobe)
                self.accepted += 1
                self.unanswered.append(self.cycle + self.rng.randint(1, 40))
            while self.unanswered and self.unanswered[0] <= self.cycle:
                self.unanswered.pop(0)
                self.answered += 1
            ctx.set(dut.writes_outstanding, len(self.unanswered))

    def per_layer(self):
        return CFG["heads"] * (CFG["key_words"] + CFG["value_strips"])

    async def wait(self, ctx, cycles):
        for _ in range(cycles):
            await ctx.tick()

    async def commit(self, ctx, kind, layer, p):
        dut = self.dut
        ctx.set(dut.commit_valid, 1)
        ctx.set(dut.commit_kind, kind)
        ctx.set(dut.commit_layer, layer)
        ctx.set(dut.commit_position, p)
        await ctx.tick()
        ctx.set(dut.commit_valid, 0)
        assert ctx.get(dut.busy_keys if kind == Commit.KEYS else dut.busy_values)

    async def core(self, ctx):
        dut, rng = self.dut, self.rng
        for name, value in CFG.items():
            ctx.set(dut.cfg[name], value)
        await ctx.tick()
        for p, layer in self.jobs:
            while ctx.get(dut.busy_keys):
                await ctx.tick()
            keys = [rng.getrandbits(16 * self.config.tile) for _ in range(CFG["heads"] * CFG["key_words"])]
            self.keys[: len(keys)] = keys
            self.want.expect_keys(layer, p, keys)
            await self.commit(ctx, Commit.KEYS, layer, p)
            await self.wait(ctx, rng.randint(1, 20))
            while ctx.get(dut.busy_values):
                await ctx.tick()
            values = [rng.getrandbits(16 * self.config.lanes) for _ in range(CFG["heads"] * CFG["value_strips"])]
            self.values[: len(values)] = values
            self.want.expect_values(layer, p, values)
            await self.commit(ctx, Commit.VALUES, layer, p)
            await self.wait(ctx, rng.randint(1, 60))
        await ctx.tick().until(dut.committed == len(self.jobs))
        assert not ctx.get(dut.busy_keys) and not ctx.get(dut.busy_values) and not ctx.get(dut.write_valid)
        assert self.accepted == len(self.jobs) * self.per_layer()

    def simulate(self, cycles=6000):
        run_testbench(self.dut, self.core, background=[self.buffers, self.memory], cycles=cycles)
        assert self.got.bytes == self.want.bytes, "memory differs"
        return self


@pytest.mark.parametrize("config", [SMALL, TWO_PER_LANE], ids=lambda config: config.name)
@pytest.mark.parametrize("ready_pause", [0.0, 0.5])
def test_keys_and_values_reach_their_slots(config, ready_pause):
    Bench(config, 71, ready_pause).simulate()


@pytest.mark.parametrize("first_position", [0, 30, 61])
def test_edges_of_tiles(first_position):
    Bench(TWO_PER_LANE, 72, 0.2, steps=3, layers=1, first_position=first_position).simulate()


def test_full_size_core():
    Bench(core_config("64x16"), 73, 0.1, steps=1, layers=1, first_position=77).simulate()


def test_one_write_a_cycle():
    bench = Bench(SMALL, 74, 0.0, steps=1, layers=1)
    accepted = []

    async def watch(ctx):
        for cycle in range(200):
            *_, commit, valid, ready = await ctx.tick().sample(
                bench.dut.commit_valid, bench.dut.write_valid, bench.dut.write_ready
            )
            if commit and not accepted:
                accepted.append(cycle)
            if valid and ready:
                accepted.append(cycle)

    sim = Simulator(bench.dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench.buffers, background=True)
    sim.add_testbench(bench.memory, background=True)
    sim.add_testbench(bench.core)
    sim.add_testbench(watch)
    sim.run()
    assert accepted[1] - accepted[0] == 4, "first write four cycles behind the commit"
    assert accepted[10] - accepted[1] == 9 and accepted[25] - accepted[11] == 14


@pytest.mark.parametrize(
    "name, broken, message",
    [
        ("slot_in_tile", lambda p, h, config: p[:4], "memory differs"),  # no rotation
        ("slot_in_tile", lambda p, h, config: (p + h)[:4], "memory differs"),  # rotated over the whole tile
        ("all_answered", lambda outstanding: True, "committed before every write was answered"),
        ("all_answered", lambda outstanding: outstanding <= 1, "committed before every write was answered"),
    ],
)
def test_twins_fail(monkeypatch, name, broken, message):
    monkeypatch.setattr(kv_writer, name, broken)
    with pytest.raises(AssertionError, match=message):
        Bench(SMALL, 71, 0.0).simulate()
