"""Key/value writer against the layouts of docs/core.md and docs/rows.md, section 1: contents, untouched neighbours,
order of commits; one row and several, of a sequence and of a batch."""

import dataclasses
import random
import sys

import pytest
from amaranth.sim import Simulator

import hw.gpt2.kv_writer as kv_writer
from hw.board.gpt2_map import row_register
from hw.gpt2.config import CoreConfig, core_config
from hw.gpt2.isa import Commit
from hw.gpt2.kv_writer import KvWriter
from sim.rtl.pysim import run_testbench

SMALL = CoreConfig(name="16x4", tile=16, lanes=4, channels=4, port_bits=256, context=64, fifo_words=64)
TWO_PER_LANE = CoreConfig(name="32x4", tile=32, lanes=4, channels=8, port_bits=256, context=64, fifo_words=64)
MANY = [
    dataclasses.replace(core, name=f"{core.name}r{rows}", rows=rows)
    for core in (SMALL, TWO_PER_LANE)
    for rows in (2, 4)
]
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
    **{f"key_base_{r}": 100 + 40_000 * r for r in range(1, 4)},
    **{f"value_base_{r}": 20_000 + 40_000 * r for r in range(1, 4)},
}
UNTOUCHED = 0x7E
ANSWERS_IN_TIME = 0  # how many writes may lack their answer when the memory says that all have it
sys.set_int_max_str_digits(0)  # Amaranth's simulator prints masks of 16,384 bits


def slot(p, h, config):
    return p & ~(config.lanes - 1) | (p + config.rows * h) & (config.lanes - 1)


class Memory:
    """Rows of all channels, and an answer to every write some time later."""

    def __init__(self, config):
        self.config = config
        self.bytes = {}

    def row(self, number):
        return self.bytes.setdefault(number, bytearray([UNTOUCHED]) * (self.config.channels * self.config.port_bytes))

    def write(self, row, channels, word, spread, values, strobe):
        for byte in range(self.config.channels * self.config.port_bytes):
            channel, at = divmod(byte, self.config.port_bytes)
            lane, part = divmod(channel, self.config.channels_per_lane)
            data = values >> (16 * lane + 8 * (at % 2)) if spread else word >> 8 * (part * self.config.port_bytes + at)
            if channels >> channel & 1 and strobe >> at & 1:
                self.row(row)[byte] = data & 0xFF

    def put(self, row, lane, element, half):
        at = (lane * self.config.tile + element) * 2
        self.row(row)[at : at + 2] = half.to_bytes(2, "little")

    def expect_keys(self, layer, p, words, request=0):
        """``words[head*key_words + w]``: T fp16 each. ``request`` : whose region."""
        for i, word in enumerate(words):
            h, w = divmod(i, CFG["key_words"])
            place, lane = divmod(slot(p, h, self.config), self.config.lanes)
            row = (
                CFG[row_register("key_base", request)]
                + layer * CFG["key_layer_rows"]
                + h * CFG["key_head_rows"]
                + place * CFG["key_words"]
                + w
            )
            for element in range(self.config.tile):
                self.put(row, lane, element, word >> (16 * element) & 0xFFFF)

    def expect_values(self, layer, p, strips, request=0):
        """``strips[head*value_strips + s]``: N fp16 each."""
        for i, strip in enumerate(strips):
            h, s = divmod(i, CFG["value_strips"])
            block, element = divmod(slot(p, h, self.config), self.config.tile)
            row = (
                CFG[row_register("value_base", request)] + layer * CFG["value_layer_rows"] + h * CFG["value_head_rows"]
                + block * CFG["value_strips"] + s
            )  # fmt: skip
            for lane in range(self.config.lanes):
                self.put(row, lane, element, strip >> (16 * lane) & 0xFFFF)


class Bench:
    """Writer, the buffers of each row, a memory that answers late, and commits like those of a core.

    ``at`` : position of each row at work, commit after commit; given, or one row that goes on from ``first_position``.
    """

    def __init__(
        self, config, seed, ready_pause, steps=4, layers=3, first_position=13, at=None, batch=False, make=KvWriter
    ):
        print(f"seed {seed}")
        self.config, self.ready_pause, self.batch = config, ready_pause, batch
        self.rng = random.Random(seed)
        self.dut = make(config)
        self.got, self.want = Memory(config), Memory(config)
        self.keys = [[0] * config.new_key_words for _ in range(config.rows)]
        self.values = [[0] * config.new_value_strips for _ in range(config.rows)]
        self.unanswered = []  # cycle of the answer
        self.cycle = 0
        self.answered, self.accepted = 0, 0
        at = at or [{0: p} for p in range(first_position, first_position + steps)]
        self.jobs = [(each, layer) for each in at for layer in range(layers)]
        self.due = [0]  # writes of the jobs up to each one
        for each, _ in self.jobs:
            self.due.append(self.due[-1] + len(each) * CFG["heads"] * (CFG["key_words"] + CFG["value_strips"]))

    async def buffers(self, ctx):
        dut = self.dut
        while True:
            *_, key, value = await ctx.tick().sample(dut.key_addr, dut.value_addr)
            for r in range(self.config.rows):
                ctx.set(dut.key_data[r], self.keys[r][key] if key < len(self.keys[r]) else 0)
                ctx.set(dut.value_data[r], self.values[r][value] if value < len(self.values[r]) else 0)

    async def memory(self, ctx):
        dut = self.dut
        while True:
            ctx.set(dut.write_ready, self.rng.random() >= self.ready_pause)
            *_, valid, ready, committed, row, channels, word, spread, values, strobe = await ctx.tick().sample(
                dut.write_valid, dut.write_ready, dut.committed, dut.write_row, dut.write_channels, dut.write_word,
                dut.write_spread, dut.write_values, dut.write_strobe,
            )  # fmt: skip
            self.cycle += 1
            assert self.due[committed] <= self.answered, "committed before every write was answered"
            if valid and ready:
                self.got.write(row, channels, word, spread, values, strobe)
                self.accepted += 1
                self.unanswered.append(self.cycle + self.rng.randint(1, 40))
            while self.unanswered and self.unanswered[0] <= self.cycle:
                self.unanswered.pop(0)
                self.answered += 1
            ctx.set(dut.writes_unanswered, len(self.unanswered) > ANSWERS_IN_TIME)

    async def wait(self, ctx, cycles):
        for _ in range(cycles):
            await ctx.tick()

    async def commit(self, ctx, kind, layer, at):
        dut = self.dut
        ctx.set(dut.commit_valid, 1)
        ctx.set(dut.commit_kind, kind)
        ctx.set(dut.commit_layer, layer)
        ctx.set(dut.commit_rows, sum(1 << r for r in at))
        for r in range(self.config.rows):
            ctx.set(dut.commit_positions[r], at.get(r, self.rng.randrange(1 << 16)))
        await ctx.tick()
        ctx.set(dut.commit_valid, 0)
        assert ctx.get(dut.busy_keys if kind == Commit.KEYS else dut.busy_values)

    def fill(self, buffers, words, bits, at, expect, layer):
        """New contents of every row's buffer; what the rows at work have reaches memory."""
        for r, buffer in enumerate(buffers):
            new = [self.rng.getrandbits(bits) for _ in range(CFG["heads"] * words)]
            buffer[: len(new)] = new
            if r in at:
                expect(layer, at[r], new, r if self.batch else 0)

    async def core(self, ctx):
        dut, rng = self.dut, self.rng
        for name, _ in dut.cfg.shape():
            ctx.set(dut.cfg[name], CFG[name])
        ctx.set(dut.batch, self.batch)
        await ctx.tick()
        for at, layer in self.jobs:
            while ctx.get(dut.busy_keys):
                await ctx.tick()
            self.fill(self.keys, CFG["key_words"], 16 * self.config.tile, at, self.want.expect_keys, layer)
            await self.commit(ctx, Commit.KEYS, layer, at)
            await self.wait(ctx, rng.randint(1, 20))
            while ctx.get(dut.busy_values):
                await ctx.tick()
            self.fill(self.values, CFG["value_strips"], 16 * self.config.lanes, at, self.want.expect_values, layer)
            await self.commit(ctx, Commit.VALUES, layer, at)
            await self.wait(ctx, rng.randint(1, 60))
        await ctx.tick().until(dut.committed == len(self.jobs))
        assert not ctx.get(dut.busy_keys) and not ctx.get(dut.busy_values) and not ctx.get(dut.write_valid)
        assert self.accepted == self.due[-1]

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


def of_sequence(config):
    """Steps of a sequence: the end of a group of rows, a whole one, one at the end of a tile, the beginning of one."""
    rows = config.rows
    at = [range(2 * rows - 1, 2 * rows), range(2 * rows, 3 * rows), range(32 - rows, 32), range(32, 31 + rows)]
    return [{p % rows: p for p in step} for step in at]


def of_batch(config):
    """Three steps of requests at random places; in each another set of them."""
    rng = random.Random(config.rows)
    masks = [1, 2, 3] if config.rows == 2 else [0b1011, 0b0100, 0b1111]
    return [{r: rng.randrange(64) for r in range(config.rows) if mask >> r & 1} for mask in masks]


def several_rows(config, batch, ready_pause, make=KvWriter):
    at = of_batch(config) if batch else of_sequence(config)
    return Bench(config, 75, ready_pause, layers=2, at=at, batch=batch, make=make).simulate()


@pytest.mark.parametrize("config", MANY, ids=lambda config: config.name)
@pytest.mark.parametrize("batch", [False, True], ids=["sequence", "batch"])
@pytest.mark.parametrize("ready_pause", [0.0, 0.5])
def test_every_row_writes_its_keys_and_values(config, batch, ready_pause):
    several_rows(config, batch, ready_pause)


def test_two_idle_cycles_between_rows():
    bench = Bench(MANY[1], 76, 0.0, layers=1, at=[{0: 4, 1: 5, 3: 7}])
    writes = []

    async def watch(ctx):
        while True:
            *_, valid = await ctx.tick().sample(bench.dut.write_valid)
            writes.append(valid)

    sim = Simulator(bench.dut)
    sim.add_clock(1e-6)
    for background in (bench.buffers, bench.memory, watch):
        sim.add_testbench(background, background=True)
    sim.add_testbench(bench.core)
    sim.run()
    of_row = CFG["heads"] * CFG["key_words"]
    first = writes.index(1)
    assert writes[first : first + 3 * of_row + 4] == [1] * of_row + ([0] * 2 + [1] * of_row) * 2


FAULTY = {
    "base of row 0": ("base.eq(Mux(self.batch, Array(bases)[row], bases[0]))", "base.eq(bases[0])"),
    "base of the row": ("base.eq(Mux(self.batch, Array(bases)[row], bases[0]))", "base.eq(Array(bases)[row])"),
    "last row left out": ("& (others != 0)):", "& ((others & (others - 1)) != 0)):"),
    "buffer of row 0": (
        "value, key = self.value_data[row], self.key_data[row]",
        "value, key = self.value_data[0], self.key_data[0]",
    ),
    "position of row 0": ("[row.eq(r), position.eq(now.positions[r])]", "[row.eq(r), position.eq(now.positions[0])]"),
    "rotation by the head": (
        "(position + (head << ceil_log2(config.rows)))[:lane_bits]",
        "(position + head)[:lane_bits]",
    ),
    "buffer goes on": ("now.rows.eq(others), head.eq(0), index.eq(0)]", "now.rows.eq(others), head.eq(0)]"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_writer_is_noticed(mutant, name):
    """Twin of the runs of several rows."""
    make = mutant("hw.gpt2.kv_writer", *FAULTY[name])["KvWriter"]
    with pytest.raises(AssertionError):
        for batch in (False, True):
            several_rows(MANY[1], batch, 0.0, make)


@pytest.mark.parametrize(
    "name, broken, message",
    [
        ("slot_in_tile", lambda p, h, config: p[:4], "memory differs"),  # no rotation
        ("slot_in_tile", lambda p, h, config: (p + h)[:4], "memory differs"),  # rotated over the whole tile
        ("all_answered", lambda unanswered: True, "committed before every write was answered"),
        ("ANSWERS_IN_TIME", 1, "committed before every write was answered"),
    ],
)
def test_twins_fail(monkeypatch, name, broken, message):
    if name in globals():
        monkeypatch.setitem(globals(), name, broken)
    else:
        monkeypatch.setattr(kv_writer, name, broken)
    with pytest.raises(AssertionError, match=message):
        Bench(SMALL, 71, 0.0).simulate()
