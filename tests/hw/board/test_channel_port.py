"""Channel port against an unkind AXI memory: contents, order, legality, rates, errors."""

import gc
import random

import pytest
from amaranth.sim import Simulator

import hw.board.channel_port as channel_port
from hw.board.channel_port import ChannelPort

ROWS = 1024
BASE = 0x40000  # byte address of row 0


def simulate(dut, memory, *testbenches, cycles=4000):
    """Run until all testbenches ended; AssertionError if they do not within ``cycles``."""
    ended = []

    def ending(bench):
        async def run(ctx):
            await bench(ctx)
            ended.append(bench)

        return run

    async def watchdog(ctx):
        ctx.set(dut.base, BASE)
        for _ in range(cycles):
            await ctx.tick()
            if len(ended) == len(testbenches):
                await ctx.tick().repeat(3)
                return
        raise AssertionError(f"no end within {cycles} cycles")

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(memory.server(dut.axi), background=True)
    for bench in testbenches:
        sim.add_testbench(ending(bench))
    sim.add_testbench(watchdog)
    sim.run()


async def read_commands(ctx, dut, commands, credit, rng, pause):
    """Issue (row, beats) as credits allow; ``credit`` is a one-element list."""
    for row, beats in commands:
        while credit[0] < beats or rng.random() < pause:
            await ctx.tick()
        credit[0] -= beats
        ctx.set(dut.read_valid, 1)
        ctx.set(dut.read_row, row)
        ctx.set(dut.read_beats, beats)
        await ctx.tick().until(dut.read_ready)
        ctx.set(dut.read_valid, 0)


async def pop_words(ctx, dut, count, credit, rng, pause, got):
    while len(got) < count:
        ctx.set(dut.data_pop, 0)
        if rng.random() >= pause and ctx.get(dut.data_valid):
            got.append(ctx.get(dut.data))
            ctx.set(dut.data_pop, 1)
            credit[0] += 1
        await ctx.tick()
    ctx.set(dut.data_pop, 0)


def random_commands(rng, count):
    commands = []
    for _ in range(count):
        row = rng.randrange(ROWS)
        commands.append((row, rng.randint(1, 16 - row % 16)))
    return commands


def read_traffic(axi_memory, seed, memory_pause, pop_pause, commands=None, fifo_words=32):
    rng = random.Random(seed)
    print(f"seed {seed}")
    dut = ChannelPort(256, fifo_words)
    memory = axi_memory(rng, 32, ROWS * 32, BASE, pause=memory_pause, latency=(2, 30))
    memory.fill(lambda row: rng.randbytes(32))
    commands = commands or random_commands(rng, 60)
    want = [int.from_bytes(memory.word(row + i), "little") for row, beats in commands for i in range(beats)]
    credit, got = [fifo_words], []

    async def issue(ctx):
        await read_commands(ctx, dut, commands, credit, rng, memory_pause)

    async def take(ctx):
        await pop_words(ctx, dut, len(want), credit, rng, pop_pause, got)
        await ctx.tick()
        assert ctx.get(dut.reads_outstanding) == 0 and ctx.get(dut.level) == 0

    async def watch_credits(ctx):
        while len(got) < len(want):
            await ctx.tick()
            assert ctx.get(dut.reads_outstanding) + ctx.get(dut.level) <= fifo_words

    simulate(dut, memory, issue, take, watch_credits)
    assert got == want and memory.beats == len(want)


@pytest.mark.parametrize("memory_pause", [0.0, 0.4])
@pytest.mark.parametrize("pop_pause", [0.0, 0.5])
def test_reads_arrive_complete_and_in_order(axi_memory, memory_pause, pop_pause):
    read_traffic(axi_memory, 11, memory_pause, pop_pause)


def test_model_catches_a_burst_across_sixteen_rows(axi_memory):
    with pytest.raises(AssertionError, match="crosses 16 rows"):
        read_traffic(axi_memory, 12, 0.0, 0.0, commands=[(8, 16)])


def test_twin_with_a_fifo_too_small_loses_words(axi_memory, monkeypatch):
    real = channel_port.SyncFIFOBuffered
    monkeypatch.setattr(channel_port, "SyncFIFOBuffered", lambda width, depth: real(width=width, depth=depth - 2))
    with pytest.raises(AssertionError):
        read_traffic(axi_memory, 11, 0.0, 0.9)


def test_reads_run_at_full_rate(axi_memory):
    """40 cycles of latency: commands leave early enough that beats follow each other without a gap."""
    rng = random.Random(3)
    dut = ChannelPort(512, 256)
    memory = axi_memory(rng, 64, ROWS * 64, BASE, latency=(40, 40))
    commands = [(16 * i, 16) for i in range(32)] + [(512 + i, 1) for i in range(64)]
    credit, got, arrivals = [256], [], []

    async def issue(ctx):
        await read_commands(ctx, dut, commands, credit, rng, 0.0)

    async def take(ctx):
        await pop_words(ctx, dut, 576, credit, rng, 0.0, got)

    async def watch(ctx):
        while len(arrivals) < 576:
            (*_, cycle_valid) = await ctx.tick().sample(dut.axi.rvalid)
            if cycle_valid:
                arrivals.append(memory.cycle)

    simulate(dut, memory, issue, take, watch)
    assert arrivals[511] - arrivals[0] == 511, "full bursts must follow without a gap"
    assert max(memory.burst_lengths) == 16 and len(memory.burst_lengths) == 96


def test_latencies():
    """Command to address, data to FIFO, write to address and data: two cycles each."""
    dut = ChannelPort(256, 32)

    async def cycles_until(ctx, signal):
        await ctx.tick()
        ctx.set(dut.read_valid, 0)
        ctx.set(dut.write_valid, 0)
        ctx.set(dut.axi.rvalid, 0)
        count = 1
        while not ctx.get(signal):
            await ctx.tick()
            count += 1
        return count

    async def measure(ctx):
        ctx.set(dut.read_beats, 1)
        ctx.set(dut.read_valid, 1)
        assert await cycles_until(ctx, dut.axi.arvalid) == 2
        ctx.set(dut.axi.rvalid, 1)
        assert await cycles_until(ctx, dut.data_valid) == 2
        ctx.set(dut.write_valid, 1)
        assert await cycles_until(ctx, dut.axi.awvalid & dut.axi.wvalid) == 2

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(measure)
    sim.run()


@pytest.mark.parametrize("limit", [1, 4])
def test_bursts_unanswered_stay_within_the_limit(axi_memory, limit):
    rng = random.Random(4)
    dut = ChannelPort(256, 64, bursts=limit)
    memory = axi_memory(rng, 32, ROWS * 32, BASE, latency=(20, 40), bursts=limit)
    got, credit = [], [64]

    async def issue(ctx):
        await read_commands(ctx, dut, random_commands(rng, 30), credit, rng, 0.0)

    async def take(ctx):
        while ctx.get(dut.data_valid) or memory.cycle < 1500:
            await pop_words(ctx, dut, len(got) + 1, credit, rng, 0.0, got) if ctx.get(
                dut.data_valid
            ) else await ctx.tick()

    simulate(dut, memory, issue, take)
    assert len(memory.burst_lengths) == 30 and memory.beats == sum(memory.burst_lengths)


def write_traffic(axi_memory, seed, memory_pause, issue_pause):
    rng = random.Random(seed)
    print(f"seed {seed}")
    dut = ChannelPort(256, 32)
    memory = axi_memory(rng, 32, ROWS * 32, BASE, pause=memory_pause, latency=(1, 50))
    memory.fill(lambda row: rng.randbytes(32))
    want = bytearray(memory.memory)
    accepted = [0]

    async def issue(ctx):
        for _ in range(150):
            while rng.random() < issue_pause:
                await ctx.tick()
            row, data, strobe = rng.randrange(8), rng.randbytes(32), rng.getrandbits(32) & rng.getrandbits(32)
            ctx.set(dut.write_valid, 1)
            ctx.set(dut.write_row, row)
            ctx.set(dut.write_data, int.from_bytes(data, "little"))
            ctx.set(dut.write_strobe, strobe)
            await ctx.tick().until(dut.write_ready)
            ctx.set(dut.write_valid, 0)
            accepted[0] += 1
            assert ctx.get(dut.writes_outstanding) > 0
            for i in range(32):
                if strobe >> i & 1:
                    want[row * 32 + i] = data[i]
        await ctx.tick().until(dut.writes_outstanding == 0)
        assert memory.memory == want, "all writes are in memory once none is outstanding"

    simulate(dut, memory, issue)


@pytest.mark.parametrize("memory_pause", [0.0, 0.4])
@pytest.mark.parametrize("issue_pause", [0.0, 0.5])
def test_writes_reach_memory_in_order(axi_memory, memory_pause, issue_pause):
    write_traffic(axi_memory, 21, memory_pause, issue_pause)


def test_twin_with_a_wrong_write_address_fails(axi_memory, monkeypatch):
    address = ChannelPort._address
    monkeypatch.setattr(ChannelPort, "_address", lambda port, row: address(port, row ^ 1))
    with pytest.raises(AssertionError, match="all writes are in memory"):
        write_traffic(axi_memory, 21, 0.0, 0.0)


def test_errors_are_kept(axi_memory):
    rng = random.Random(5)
    dut = ChannelPort(256, 32)
    memory = axi_memory(rng, 32, ROWS * 32, BASE)
    memory.bad_address = 7 * 32

    async def traffic(ctx):
        await read_commands(ctx, dut, [(0, 7)], [32], rng, 0.0)
        await ctx.tick().until(dut.reads_outstanding == 0)
        assert not ctx.get(dut.read_error)
        await read_commands(ctx, dut, [(0, 8), (8, 4)], [32], rng, 0.0)
        await ctx.tick().until(dut.reads_outstanding == 0)
        assert ctx.get(dut.read_error) and not ctx.get(dut.write_error)
        ctx.set(dut.write_valid, 1)
        ctx.set(dut.write_row, 7)
        await ctx.tick().repeat(2)
        ctx.set(dut.write_valid, 0)
        await ctx.tick().until(dut.writes_outstanding == 0)
        assert ctx.get(dut.write_error)

    simulate(dut, memory, traffic)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((128, 64), "port_bits must be 256 or 512, got 128"),
        ((256, 16), "fifo_words must be at least 32"),
        ((256, 64, 34, 0), "bursts must be 1 to 64, got 0"),
        ((256, 64, 34, 32, 65), "writes must be 1 to 64, got 65"),
    ],
)
def test_refuses_sizes(monkeypatch, arguments, text):
    monkeypatch.setattr(ChannelPort, "_MustUse__silence", True)  # Amaranth warns of components that are never used
    with pytest.raises(ValueError, match=text):
        ChannelPort(*arguments)
    gc.collect()
