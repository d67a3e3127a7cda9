"""Channel port against an unkind AXI memory behind another clock: contents, order, legality, rates, errors."""

import gc
import random

import pytest

import hw.board.channel_port as channel_port
from hw.board.channel_port import ChannelPort
from sim.rtl.pysim import run_testbench

ROWS = 1024
BASE = 0x40000  # byte address of row 0


def simulate(dut, memory, clocks, main, *background, cycles=5000):
    async def based(ctx):
        ctx.set(dut.base, BASE)
        await main(ctx)

    server = memory.server(dut.axi)
    run_testbench(dut, based, background=[server, *background], cycles=cycles, clocks=clocks)


async def read_commands(ctx, dut, commands, credit, rng, pause):
    """Issue (row, beats) as credits allow; ``credit`` is a one-element list."""
    for row, beats in commands:
        while credit[0] < beats or rng.random() < pause:
            await ctx.tick()
        credit[0] -= beats
        ctx.set(dut.read_valid, 1)
        ctx.set(dut.read_row, row)
        ctx.set(dut.read_beats, beats)
        ready = 0
        while not ready:
            *_, ready = await ctx.tick().sample(dut.read_ready)
        ctx.set(dut.read_valid, 0)


async def pop_words(ctx, dut, count, credit, rng, pause, got):
    """Pop ``count`` words, each once ``level`` has shown it, to (data, error)."""
    popped = False  # in the cycle before, which the level does not show yet
    while len(got) < count:
        pop = rng.random() >= pause and ctx.get(dut.level) > popped
        if pop:
            got.append((ctx.get(dut.data), ctx.get(dut.data_error)))
            credit[0] += 1
        ctx.set(dut.pop, pop)
        await ctx.tick()
        popped = pop
    ctx.set(dut.pop, 0)


def random_commands(rng, count):
    commands = []
    for _ in range(count):
        row = rng.randrange(ROWS)
        commands.append((row, rng.randint(1, 16 - row % 16)))
    return commands


def read_traffic(axi_memory, clocks, seed, memory_pause, pop_pause, commands=None, fifo_words=32):
    rng = random.Random(seed)
    print(f"seed {seed}")
    dut = ChannelPort(256, fifo_words)
    memory = axi_memory(rng, 32, ROWS * 32, BASE, pause=memory_pause, latency=(2, 30))
    memory.fill(lambda row: rng.randbytes(32))
    commands = commands or random_commands(rng, 60)
    rows = [row + i for row, beats in commands for i in range(beats)]
    bad = rows[len(rows) // 2]
    memory.bad_address = bad * 32
    want = [(int.from_bytes(memory.word(row), "little"), int(row == bad)) for row in rows]
    credit, got = [fifo_words], []

    async def issue(ctx):
        await read_commands(ctx, dut, commands, credit, rng, memory_pause)

    async def take(ctx):
        await pop_words(ctx, dut, len(want), credit, rng, pop_pause, got)
        await ctx.tick().repeat(2)
        assert ctx.get(dut.level) == 0

    simulate(dut, memory, clocks, take, issue)
    assert got == want and memory.beats == len(want)


@pytest.mark.parametrize("memory_pause", [0.0, 0.4])
@pytest.mark.parametrize("pop_pause", [0.0, 0.5])
def test_reads_arrive_complete_and_in_order(axi_memory, clocks, memory_pause, pop_pause):
    read_traffic(axi_memory, clocks, 11, memory_pause, pop_pause)


def test_model_catches_a_burst_across_sixteen_rows(axi_memory, clocks):
    with pytest.raises(AssertionError, match="crosses 16 rows"):
        read_traffic(axi_memory, clocks, 12, 0.0, 0.0, commands=[(8, 16)])


@pytest.mark.parametrize("name", ["ports 225:200", "ports 7:11, shifted"])
def test_twin_with_a_fifo_too_small_loses_words(axi_memory, clocks_by_name, monkeypatch, name):
    real = channel_port.AsyncFIFO

    def half(*, width, depth, **domains):
        return real(width=width, depth=depth // 2, **domains)

    monkeypatch.setattr(channel_port, "AsyncFIFO", half)
    with pytest.raises(AssertionError):
        read_traffic(axi_memory, clocks_by_name[name], 11, 0.0, 0.9)


@pytest.mark.parametrize("name", ["ports 225:200", "ports 13:11, shifted", "ports 7:11, shifted"])
def test_twin_that_knows_one_clock_only_fails(axi_memory, clocks_by_name, monkeypatch, name):
    """Words that are written with the core's clock are lost or doubled wherever the ports' differs."""
    real = channel_port.AsyncFIFO

    def one_clock(*, w_domain, r_domain, **sizes):
        return real(w_domain="sync", r_domain="sync", **sizes)

    monkeypatch.setattr(channel_port, "AsyncFIFO", one_clock)
    with pytest.raises(AssertionError):
        read_traffic(axi_memory, clocks_by_name[name], 11, 0.0, 0.0)


@pytest.mark.parametrize("name, side", [("equal", "ports"), ("ports 225:200", "ports"), ("ports 225:200", "core")])
def test_reads_run_at_the_rate_of_the_slower_clock(axi_memory, clocks_by_name, name, side):
    """40 cycles of latency: commands leave early enough that beats follow each other without a gap, until faster ports
    have filled the FIFO; from then on the core never waits."""
    rng = random.Random(3)
    dut = ChannelPort(512, 256)
    memory = axi_memory(rng, 64, ROWS * 64, BASE, latency=(40, 40))
    commands = [(16 * i, 16) for i in range(32)] + [(512 + i, 1) for i in range(64)]
    credit, got, arrivals, pops = [256], [], [], []

    async def issue(ctx):
        await read_commands(ctx, dut, commands, credit, rng, 0.0)

    async def take(ctx):
        await pop_words(ctx, dut, 576, credit, rng, 0.0, got)

    async def watch_port(ctx):
        while True:
            *_, valid = await ctx.tick("port").sample(dut.axi.rvalid)
            arrivals.extend([memory.cycle] * valid)

    async def watch_core(ctx):
        cycle = 0
        while True:
            *_, pop = await ctx.tick().sample(dut.pop)
            cycle += 1
            pops.extend([cycle] * pop)

    simulate(dut, memory, clocks_by_name[name], take, issue, watch_port, watch_core)
    if side == "ports":
        assert arrivals[255] - arrivals[0] == 255, "full bursts must follow without a gap"
    else:
        assert pops[511] - pops[0] == 511, "full bursts must follow without a gap"
    assert max(memory.burst_lengths) == 16 and len(memory.burst_lengths) == 96


def test_latencies(clocks_by_name):
    """Equal clocks: command to address, data to level, write to address and data: four cycles each."""
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
        await ctx.tick().repeat(5)  # the reset crosses between the clocks
        ctx.set(dut.read_beats, 1)
        ctx.set(dut.read_valid, 1)
        assert await cycles_until(ctx, dut.axi.arvalid) == 4
        ctx.set(dut.axi.rvalid, 1)
        assert await cycles_until(ctx, dut.level) == 4
        ctx.set(dut.write_valid, 1)
        assert await cycles_until(ctx, dut.axi.awvalid & dut.axi.wvalid) == 4

    run_testbench(dut, measure, cycles=50, clocks=clocks_by_name["equal"])


@pytest.mark.parametrize("limit", [1, 4])
def test_bursts_unanswered_stay_within_the_limit(axi_memory, clocks, limit):
    rng = random.Random(4)
    dut = ChannelPort(256, 64, bursts=limit)
    memory = axi_memory(rng, 32, ROWS * 32, BASE, latency=(20, 40), bursts=limit)
    commands, got, credit = random_commands(rng, 30), [], [64]

    async def issue(ctx):
        await read_commands(ctx, dut, commands, credit, rng, 0.0)

    async def take(ctx):
        await pop_words(ctx, dut, sum(beats for _, beats in commands), credit, rng, 0.0, got)

    simulate(dut, memory, clocks, take, issue)
    assert len(memory.burst_lengths) == 30 and memory.beats == sum(memory.burst_lengths)


def write_traffic(axi_memory, clocks, seed, memory_pause, issue_pause):
    rng = random.Random(seed)
    print(f"seed {seed}")
    dut = ChannelPort(256, 32)
    memory = axi_memory(rng, 32, ROWS * 32, BASE, pause=memory_pause, latency=(1, 50))
    memory.fill(lambda row: rng.randbytes(32))
    want = bytearray(memory.memory)

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
            assert ctx.get(dut.writes_outstanding) > 0
            for i in range(32):
                if strobe >> i & 1:
                    want[row * 32 + i] = data[i]
        await ctx.tick().until(dut.writes_outstanding == 0)
        assert memory.memory == want, "all writes are in memory once none is outstanding"

    async def count(ctx):
        unanswered = 0
        while True:
            *_, outstanding, room, valid, ready, answered = await ctx.tick().sample(
                dut.writes_outstanding, dut.write_room, dut.write_valid, dut.write_ready, dut.write_answered
            )
            assert outstanding == unanswered and ready == (unanswered < 32) and room == (unanswered <= 30)
            unanswered += (valid and ready) - answered

    simulate(dut, memory, clocks, issue, count)


@pytest.mark.parametrize("memory_pause", [0.0, 0.4])
@pytest.mark.parametrize("issue_pause", [0.0, 0.5])
def test_writes_reach_memory_in_order(axi_memory, clocks, memory_pause, issue_pause):
    write_traffic(axi_memory, clocks, 21, memory_pause, issue_pause)


def test_twin_with_a_wrong_write_address_fails(axi_memory, clocks, monkeypatch):
    address = ChannelPort._address
    monkeypatch.setattr(ChannelPort, "_address", lambda port, row: address(port, row ^ 1))
    with pytest.raises(AssertionError, match="all writes are in memory"):
        write_traffic(axi_memory, clocks, 21, 0.0, 0.0)


def test_a_write_error_is_a_strobe_for_each_bad_write(axi_memory, clocks):
    rng = random.Random(5)
    dut = ChannelPort(256, 32)
    memory = axi_memory(rng, 32, ROWS * 32, BASE, pause=0.3)
    memory.bad_address = 7 * 32
    rows, strobes = [6, 7, 8, 7, 7, 6], []

    async def traffic(ctx):
        for row in rows:
            ctx.set(dut.write_valid, 1)
            ctx.set(dut.write_row, row)
            await ctx.tick().until(dut.write_ready)
            ctx.set(dut.write_valid, 0)
        await ctx.tick().until(dut.writes_outstanding == 0)

    async def watch(ctx):
        while True:
            *_, error = await ctx.tick().sample(dut.write_error)
            strobes.append(error)

    simulate(dut, memory, clocks, traffic, watch)
    assert sum(strobes) == rows.count(7)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((128, 64), "port_bits must be 256 or 512, got 128"),
        ((256, 16), "fifo_words must be a power of two and at least 32"),
        ((256, 48), "fifo_words must be a power of two and at least 32 .*, got 48"),
        ((256, 64, 34, 0), "bursts must be 1 to 64, got 0"),
        ((256, 64, 34, 32, 128), "writes must be a power of two, 2 to 64, got 128"),
        ((256, 64, 34, 32, 12), "writes must be a power of two, 2 to 64, got 12"),
    ],
)
def test_refuses_sizes(monkeypatch, arguments, text):
    monkeypatch.setattr(ChannelPort, "_MustUse__silence", True)  # Amaranth warns of components that are never used
    with pytest.raises(ValueError, match=text):
        ChannelPort(*arguments)
    gc.collect()
