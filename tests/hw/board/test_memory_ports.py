"""All channels together: rows, writes to several channels, arbiter, levels, errors."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In
from amaranth.sim import Simulator

import hw.board.write_arbiter as write_arbiter
from hw.board.memory_ports import MemoryPorts
from hw.board.write_arbiter import WriteArbiter, WriteSignature, connect_write
from hw.gpt2.config import CoreConfig, core_config

ROWS = 256
SMALL = CoreConfig(name="16x4", tile=16, lanes=4, channels=4, port_bits=256, context=64, fifo_words=32)
TWO_PER_LANE = CoreConfig(name="32x2", tile=32, lanes=2, channels=4, port_bits=256, context=64, fifo_words=32)


class Harness(wiring.Component):
    """Memory ports behind the arbiter."""

    def __init__(self, config):
        self.memory_ports = MemoryPorts(config)
        self.arbiter = WriteArbiter(config)
        super().__init__({"kv": In(WriteSignature(config)), "logits": In(WriteSignature(config))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory_ports = self.memory_ports
        m.submodules.arbiter = self.arbiter
        connect_write(m, self.kv, self.arbiter.kv)
        connect_write(m, self.logits, self.arbiter.logits)
        connect_write(m, self.arbiter.memory, self.memory_ports)
        return m


def make(axi_memory, config, seed, pause, latency=(2, 30)):
    rng = random.Random(seed)
    print(f"seed {seed}")
    dut = Harness(config)
    memories = []
    for c in range(config.channels):
        memory = axi_memory(rng, config.port_bytes, ROWS * config.port_bytes, c << 28, pause=pause, latency=latency)
        memory.fill(lambda row: rng.randbytes(config.port_bytes))
        memories.append(memory)
    return rng, dut, memories


def simulate(dut, memories, *testbenches, cycles=6000):
    ended = []

    def ending(bench):
        async def run(ctx):
            await bench(ctx)
            ended.append(bench)

        return run

    async def watchdog(ctx):
        for c in range(len(memories)):
            ctx.set(dut.memory_ports.base[c], c << 28)
        for _ in range(cycles):
            await ctx.tick()
            if len(ended) == len(testbenches):
                return
        raise AssertionError(f"no end within {cycles} cycles")

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    for c, memory in enumerate(memories):
        sim.add_testbench(memory.server(dut.memory_ports.ports[c]), background=True)
    for bench in testbenches:
        sim.add_testbench(ending(bench))
    sim.add_testbench(watchdog)
    sim.run()


def row_of(memories, row):
    return int.from_bytes(b"".join(memory.word(row) for memory in memories), "little")


def read_traffic(axi_memory, config, seed, memory_pause, pop_pause):
    rng, dut, memories = make(axi_memory, config, seed, memory_pause)
    ports = dut.memory_ports
    commands = []
    for _ in range(40):
        row = rng.randrange(ROWS)
        commands.append((row, rng.randint(1, 16 - row % 16)))
    want = [row_of(memories, row + i) for row, beats in commands for i in range(beats)]
    got, credit, extremes = [], [config.fifo_words], [0, 0]

    async def issue(ctx):
        for row, beats in commands:
            while credit[0] < beats:
                await ctx.tick()
            credit[0] -= beats
            ctx.set(ports.read_valid, 1)
            ctx.set(ports.read_row, row)
            ctx.set(ports.read_beats, beats)
            await ctx.tick().until(ports.read_ready)
            ctx.set(ports.read_valid, 0)
            assert ctx.get(ports.reads_outstanding) >= beats

    async def take(ctx):
        while len(got) < len(want):
            ctx.set(ports.row_pop, 0)
            if rng.random() >= pop_pause and ctx.get(ports.row_valid):
                got.append(ctx.get(ports.row_data))
                ctx.set(ports.row_pop, 1)
                credit[0] += 1
            extremes[0] = max(extremes[0], ctx.get(ports.fifo_min))
            extremes[1] = max(extremes[1], ctx.get(ports.fifo_max))
            assert ctx.get(ports.fifo_min) <= ctx.get(ports.fifo_max)
            await ctx.tick()
        ctx.set(ports.row_pop, 0)
        await ctx.tick().repeat(2)
        assert ctx.get(ports.reads_outstanding) == 0 and ctx.get(ports.fifo_max) == 0

    simulate(dut, memories, issue, take)
    assert got == want
    assert 0 < extremes[1] <= config.fifo_words
    if pop_pause:
        assert extremes[0] > 0


@pytest.mark.parametrize("config", [SMALL, TWO_PER_LANE], ids=lambda config: config.name)
@pytest.mark.parametrize("memory_pause", [0.0, 0.3])
@pytest.mark.parametrize("pop_pause", [0.0, 0.5])
def test_rows_come_complete_and_in_order(axi_memory, config, memory_pause, pop_pause):
    read_traffic(axi_memory, config, 31, memory_pause, pop_pause)


def test_twin_that_joins_one_channel_too_few_fails(axi_memory, monkeypatch):
    """`row_valid` without the last channel: rows then mix."""
    elaborate = MemoryPorts.elaborate

    def mutated(self, platform):
        m = elaborate(self, platform)
        m.d.comb += self.row_valid.eq(1)
        return m

    monkeypatch.setattr(MemoryPorts, "elaborate", mutated)
    with pytest.raises(AssertionError):
        read_traffic(axi_memory, SMALL, 31, 0.3, 0.0)


def write_traffic(axi_memory, config, seed, memory_pause, issue_pause):
    """Two writers; each must see its own writes in its own order, both in memory at the end."""
    rng, dut, memories = make(axi_memory, config, seed, memory_pause)
    want = [bytearray(memory.memory) for memory in memories]
    accepted = []

    async def write(ctx, port, first_row, count):
        for _ in range(count):
            while rng.random() < issue_pause:
                await ctx.tick()
            command = (
                first_row + rng.randrange(4),
                rng.getrandbits(config.channels),
                rng.getrandbits(config.channels * config.port_bits),
                rng.getrandbits(config.channels * config.port_bytes),
            )
            ctx.set(port.write_valid, 1)
            for name, value in zip(("row", "channels", "data", "strobe"), command, strict=True):
                ctx.set(getattr(port, f"write_{name}"), value)
            await ctx.tick().until(port.write_ready)
            ctx.set(port.write_valid, 0)
            accepted.append(first_row)
            row, channels, data, strobe = command
            for c in range(config.channels):
                for i in range(config.port_bytes):
                    byte = c * config.port_bytes + i
                    if channels >> c & 1 and strobe >> byte & 1:
                        want[c][row * config.port_bytes + i] = data >> (8 * byte) & 0xFF

    async def write_kv(ctx):
        await write(ctx, dut.kv, 0, 60)
        await finish(ctx)

    async def write_logits(ctx):
        await write(ctx, dut.logits, 4, 60)
        await finish(ctx)

    async def finish(ctx):
        if len(accepted) == 120:
            await ctx.tick().until(dut.memory_ports.writes_outstanding == 0)
            for memory, bytes_wanted in zip(memories, want, strict=True):
                assert memory.memory == bytes_wanted, "memory differs"

    simulate(dut, memories, write_kv, write_logits)
    assert accepted.count(0) == accepted.count(4) == 60
    if not issue_pause:
        assert accepted[:60].count(4) <= 1, "keys and values have priority"


@pytest.mark.parametrize("config", [SMALL, TWO_PER_LANE], ids=lambda config: config.name)
@pytest.mark.parametrize("memory_pause", [0.0, 0.5])
@pytest.mark.parametrize("issue_pause", [0.0, 0.6])
def test_writes_of_both_writers_reach_memory(axi_memory, config, memory_pause, issue_pause):
    write_traffic(axi_memory, config, 41, memory_pause, issue_pause)


def test_twin_that_answers_both_writers_fails(axi_memory, monkeypatch):
    """An arbiter that tells the loser that it was taken loses writes."""
    elaborate = WriteArbiter.elaborate

    def mutated(self, platform):
        m = elaborate(self, platform)
        m.d.comb += self.logits.write_ready.eq(self.memory.write_ready)
        return m

    monkeypatch.setattr(write_arbiter.WriteArbiter, "elaborate", mutated)
    with pytest.raises(AssertionError, match="memory differs"):
        write_traffic(axi_memory, SMALL, 41, 0.5, 0.0)


@pytest.mark.parametrize("bad", [0, 2, 3])
def test_first_error_names_its_channel(axi_memory, bad):
    _, dut, memories = make(axi_memory, SMALL, 51, 0.0)
    ports = dut.memory_ports
    memories[bad].bad_address = 3 * SMALL.port_bytes

    async def traffic(ctx):
        ctx.set(ports.read_beats, 16)
        ctx.set(ports.read_valid, 1)
        await ctx.tick().until(ports.read_ready)
        ctx.set(ports.read_valid, 0)
        await ctx.tick().until(ports.reads_outstanding == 0)
        await ctx.tick().repeat(2)
        assert ctx.get(ports.read_error) and not ctx.get(ports.write_error) and ctx.get(ports.error_channel) == bad
        memories[1].bad_address = 0
        ctx.set(dut.kv.write_valid, 1)
        ctx.set(dut.kv.write_channels, 2)
        await ctx.tick().until(dut.kv.write_ready)
        ctx.set(dut.kv.write_valid, 0)
        await ctx.tick().until(ports.writes_outstanding == 0)
        await ctx.tick().repeat(2)
        assert ctx.get(ports.write_error) and ctx.get(ports.error_channel) == bad, "the first error stays"

    simulate(dut, memories, traffic)


def test_write_error_alone(axi_memory):
    _, dut, memories = make(axi_memory, SMALL, 52, 0.0)
    ports = dut.memory_ports
    memories[3].bad_address = 0

    async def traffic(ctx):
        ctx.set(dut.logits.write_valid, 1)
        ctx.set(dut.logits.write_channels, 0b1010)
        await ctx.tick().until(dut.logits.write_ready)
        ctx.set(dut.logits.write_valid, 0)
        assert ctx.get(ports.writes_outstanding) == 2
        await ctx.tick().until(ports.writes_outstanding == 0)
        await ctx.tick().repeat(2)
        assert ctx.get(ports.write_error) and not ctx.get(ports.read_error) and ctx.get(ports.error_channel) == 3

    simulate(dut, memories, traffic)


def test_signatures_compare_and_print():
    assert WriteSignature(SMALL) == WriteSignature(SMALL) != WriteSignature(core_config("64x16"))
    assert repr(WriteSignature(SMALL)) == "WriteSignature('16x4')"
