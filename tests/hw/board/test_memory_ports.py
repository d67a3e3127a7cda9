"""All channels together, behind another clock: rows, their join and pop, writes to several channels, arbiter, levels,
errors."""

import dataclasses
import random

import pytest
from amaranth.hdl import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In

import hw.board.memory_ports as memory_ports
import hw.board.write_arbiter as write_arbiter
from hw.board.channel_port import ChannelPort
from hw.board.memory_ports import JOIN_CHANNELS, MemoryPorts
from hw.board.write_arbiter import WriteArbiter, WriteSignature, connect_write
from hw.gpt2.config import CoreConfig, core_config
from sim.rtl.pysim import run_testbench

ROWS = 256
SMALL = CoreConfig(name="16x4", tile=16, lanes=4, channels=4, port_bits=256, context=64, fifo_words=32)
TWO_PER_LANE = CoreConfig(name="32x2", tile=32, lanes=2, channels=4, port_bits=256, context=64, fifo_words=32)
TWO_GROUPS = CoreConfig(
    name="32x4", tile=32, lanes=4, channels=8, port_bits=256, context=64, fifo_words=32, slr_stages=2
)
COMMAND = ("row", "channels", "word", "spread", "values", "strobe")
POP_STAGES = {SMALL.name: 1, TWO_PER_LANE.name: 1, TWO_GROUPS.name: 3}


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
        connect_write(m, self.kv, self.arbiter.urgent)
        connect_write(m, self.logits, self.arbiter.patient)
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


def simulate(dut, memories, clocks, main, *background, cycles=6000):
    ports = dut.memory_ports

    async def based(ctx):
        for c in range(len(memories)):
            ctx.set(ports.base[c], c << 28)
        await main(ctx)

    servers = [memory.server(ports.ports[c]) for c, memory in enumerate(memories)]
    clocks = clocks | {"kernel": clocks["sync"]}
    run_testbench(dut, based, background=[*servers, *background], cycles=cycles, clocks=clocks)


def row_of(memories, row):
    return int.from_bytes(b"".join(memory.word(row) for memory in memories), "little")


async def command(ctx, ports, row, beats):
    ctx.set(ports.read_valid, 1)
    ctx.set(ports.read_row, row)
    ctx.set(ports.read_beats, beats)
    ready = 0
    while not ready:
        *_, ready = await ctx.tick().sample(ports.read_ready)
    ctx.set(ports.read_valid, 0)


def watcher(ports, config, memories, rows):
    """Background testbench that checks join, pop and counts in every cycle and appends popped rows to ``rows``."""

    async def watch(ctx):
        takes = [0] * POP_STAGES[config.name]
        taken = commanded = popped = 0
        while True:
            *_, valid, take, pop, data, command, ready, beats, outstanding, fewest, most = await ctx.tick().sample(
                ports.row_valid, ports.row_take, ports.row_popped, ports.row_data, ports.read_valid, ports.read_ready,
                ports.read_beats, ports.rows_outstanding, ports.fifo_min, ports.fifo_max,
            )  # fmt: skip
            delivered = [memory.beats for memory in memories]
            assert not valid or taken < min(delivered), f"row {taken} is valid, channels have {delivered}"
            assert pop == takes[0], "pop at another distance from the take"
            assert outstanding == commanded - popped, "rows outstanding"
            assert fewest <= most <= config.fifo_words
            takes = [*takes[1:], take]
            taken += take
            commanded += beats * (command and ready)
            popped += pop
            if pop:
                rows.append(data)

    return watch


def read_traffic(axi_memory, clocks, config, seed, memory_pause, take_pause, count=24):
    rng, dut, memories = make(axi_memory, config, seed, memory_pause)
    ports = dut.memory_ports
    commands = []
    for _ in range(count):
        row = rng.randrange(ROWS)
        commands.append((row, rng.randint(1, 16 - row % 16)))
    want = [row_of(memories, row + i) for row, beats in commands for i in range(beats)]
    rows, most = [], [0, 0]

    async def issue(ctx):
        commanded = 0
        for row, beats in commands:
            while commanded + beats - len(rows) > config.fifo_words:
                await ctx.tick()
            commanded += beats
            await command(ctx, ports, row, beats)

    async def take(ctx):
        taken = 0
        while taken < len(want):
            go = rng.random() >= take_pause and ctx.get(ports.row_valid)
            ctx.set(ports.row_take, go)
            taken += go
            most[0] = max(most[0], ctx.get(ports.fifo_min))
            most[1] = max(most[1], ctx.get(ports.fifo_max))
            await ctx.tick()
        ctx.set(ports.row_take, 0)
        await ctx.tick().repeat(POP_STAGES[config.name] + 3)
        assert not ctx.get(ports.row_valid) and ctx.get(ports.rows_outstanding) == ctx.get(ports.fifo_max) == 0

    simulate(dut, memories, clocks, take, issue, watcher(ports, config, memories, rows))
    assert rows == want
    assert most[1] > 0
    if take_pause:
        assert most[0] > 0


@pytest.mark.parametrize("memory_pause, take_pause", [(0.0, 0.0), (0.3, 0.5)])
def test_rows_come_complete_and_in_order(axi_memory, clocks, memory_pause, take_pause):
    read_traffic(axi_memory, clocks, SMALL, 31, memory_pause, take_pause)


@pytest.mark.parametrize("config", [TWO_PER_LANE, TWO_GROUPS], ids=lambda config: config.name)
@pytest.mark.parametrize("name, memory_pause, take_pause", [
    ("ports 225:200", 0.0, 0.5), ("ports 225:200", 0.3, 0.0), ("ports 7:11, shifted", 0.3, 0.5),
])  # fmt: skip
def test_rows_of_more_channels(axi_memory, clocks_by_name, config, name, memory_pause, take_pause):
    read_traffic(axi_memory, clocks_by_name[name], config, 32, memory_pause, take_pause, count=12)


def late_channel(axi_memory, clocks, late):
    """Three rows of which one channel answers long after the others; cycles from its beat to ``row_valid``."""
    _, dut, memories = make(axi_memory, TWO_GROUPS, 33, 0.0, latency=(2, 2))
    memories[late].latency = (80, 80)
    ports = dut.memory_ports
    rows, beats, valids = [], [], []

    async def watch(ctx):
        while True:
            *_, beat, valid = await ctx.tick().sample(ports.ports[late].rvalid, ports.row_valid)
            beats.append(beat)
            valids.append(valid)

    async def traffic(ctx):
        for _ in range(5):
            await ctx.tick()
        await command(ctx, ports, 5, 3)
        for _ in range(3):
            while not ctx.get(ports.row_valid):
                await ctx.tick()
            ctx.set(ports.row_take, 1)
            await ctx.tick()
            ctx.set(ports.row_take, 0)
        while ctx.get(ports.rows_outstanding):
            await ctx.tick()
        assert not ctx.get(ports.row_valid)

    watchers = watch, watcher(ports, TWO_GROUPS, memories, rows)
    simulate(dut, memories, clocks, traffic, *watchers, cycles=300)
    assert rows == [row_of(memories, row) for row in (5, 6, 7)]
    assert beats.index(1) > 80
    return valids.index(1) - beats.index(1)


@pytest.mark.parametrize("late", [0, JOIN_CHANNELS - 1, JOIN_CHANNELS, 7])
def test_a_row_waits_for_its_last_channel(axi_memory, clocks_by_name, late):
    """With equal clocks four cycles from the beat to the level, two for the join. The last row of the stream comes like
    the others."""
    assert late_channel(axi_memory, clocks_by_name["equal"], late) == 6


def test_rows_leave_at_one_a_cycle(axi_memory, clocks_by_name):
    config = dataclasses.replace(TWO_GROUPS, fifo_words=128)
    _, dut, memories = make(axi_memory, config, 34, 0.0, latency=(20, 20))
    ports = dut.memory_ports
    rows, pops, count = [], [], 16 * 16

    async def issue(ctx):
        for row in range(0, count, 16):
            while row + 16 - len(rows) > config.fifo_words:
                await ctx.tick()
            await command(ctx, ports, row, 16)

    async def take(ctx):
        cycle = 0
        while len(rows) < count:
            ctx.set(ports.row_take, ctx.get(ports.row_valid))
            if ctx.get(ports.row_popped):
                pops.append(cycle)
            await ctx.tick()
            cycle += 1

    clocks = clocks_by_name["ports 225:200"]
    simulate(dut, memories, clocks, take, issue, watcher(ports, config, memories, rows))
    assert pops[-1] - pops[0] == count - 1


def without_last_channel(real):
    return lambda self, m, levels: real(self, m, levels[:-1])


def a_row_early(real):
    return lambda self, m, levels: real(self, m, [level + 1 for level in levels])


def a_row_late(real):
    return lambda self, m, levels: real(self, m, [Mux(level == 0, 0, level - 1) for level in levels])


@pytest.mark.parametrize("mutate, message", [
    (without_last_channel, "is valid, channels have"), (a_row_early, "is valid, channels have"), (a_row_late, "no end"),
])  # fmt: skip
def test_twins_of_the_join_fail(axi_memory, clocks, monkeypatch, mutate, message):
    monkeypatch.setattr(MemoryPorts, "_elaborate_join", mutate(MemoryPorts._elaborate_join))
    with pytest.raises(AssertionError, match=message):
        late_channel(axi_memory, clocks, 7)


@pytest.mark.parametrize("change", [-1, 1])
def test_twin_with_another_way_to_the_pop_fails(axi_memory, clocks_by_name, monkeypatch, change):
    monkeypatch.setattr(memory_ports, "pop_stages", lambda config: POP_STAGES[config.name] + change)
    with pytest.raises(AssertionError, match="pop at another distance"):
        read_traffic(axi_memory, clocks_by_name["equal"], TWO_GROUPS, 31, 0.0, 0.0)


def write_watcher(ports, config, memories):
    """Background testbench: no channel has more writes than it can hold, and none is forgotten before its answer."""

    async def watch(ctx):
        taken = [0] * config.channels
        while True:
            *_, valid, ready, channels, unanswered = await ctx.tick().sample(
                ports.write_valid, ports.write_ready, ports.write_channels, ports.writes_unanswered
            )
            waiting = [count - memory.answered for count, memory in zip(taken, memories, strict=True)]
            assert unanswered or not any(waiting), f"answered, but channels wait for {waiting} answers"
            assert max(waiting) <= 32, f"channels have {waiting} writes"
            taken = [count + (valid and ready and channels >> c & 1) for c, count in enumerate(taken)]

    return watch


def written_data(config, word, spread, values):
    """The words of all channels, lowest channel first (docs of ``write_members``)."""
    words = []
    for c in range(config.channels):
        lane, part = divmod(c, config.channels // config.lanes)
        value = (values >> 16 * lane & 0xFFFF).to_bytes(2, "little")
        own = word.to_bytes(2 * config.tile, "little")[part * config.port_bytes : (part + 1) * config.port_bytes]
        words.append(value * (config.port_bytes // 2) if spread else own)
    return words


def write_traffic(axi_memory, clocks, config, seed, memory_pause, issue_pause):
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
                rng.getrandbits(16 * config.tile),
                rng.getrandbits(1),
                rng.getrandbits(16 * config.lanes),
                rng.getrandbits(config.port_bytes),
            )
            ctx.set(port.write_valid, 1)
            for name, value in zip(COMMAND, command, strict=True):
                ctx.set(getattr(port, f"write_{name}"), value)
            await ctx.tick().until(port.write_ready)
            ctx.set(port.write_valid, 0)
            accepted.append(first_row)
            row, channels, word, spread, values, strobe = command
            data = written_data(config, word, spread, values)
            for c in range(config.channels):
                for i in range(config.port_bytes):
                    if channels >> c & 1 and strobe >> i & 1:
                        want[c][row * config.port_bytes + i] = data[c][i]

    async def write_logits(ctx):
        await write(ctx, dut.logits, 4, 60)

    async def write_kv(ctx):
        await write(ctx, dut.kv, 0, 60)
        while len(accepted) < 120:
            await ctx.tick()
        while ctx.get(dut.memory_ports.writes_unanswered):
            await ctx.tick()
        for memory, bytes_wanted in zip(memories, want, strict=True):
            assert memory.memory == bytes_wanted, "memory differs"

    simulate(dut, memories, clocks, write_kv, write_logits, write_watcher(dut.memory_ports, config, memories))
    assert accepted.count(0) == accepted.count(4) == 60
    if not issue_pause:
        assert accepted[:60].count(4) <= 1, "keys and values have priority"


@pytest.mark.parametrize("memory_pause", [0.0, 0.5])
@pytest.mark.parametrize("issue_pause", [0.0, 0.6])
def test_writes_of_both_writers_reach_memory(axi_memory, clocks, memory_pause, issue_pause):
    write_traffic(axi_memory, clocks, SMALL, 41, memory_pause, issue_pause)


def test_writes_to_two_channels_a_lane(axi_memory, clocks_by_name):
    write_traffic(axi_memory, clocks_by_name["ports 225:200"], TWO_PER_LANE, 42, 0.5, 0.6)


def test_twin_that_answers_both_writers_fails(axi_memory, clocks_by_name, monkeypatch):
    """An arbiter that tells the loser that it was taken loses writes."""
    elaborate = WriteArbiter.elaborate

    def mutated(self, platform):
        m = elaborate(self, platform)
        m.d.comb += self.patient.write_ready.eq(self.memory.write_ready)
        return m

    monkeypatch.setattr(write_arbiter.WriteArbiter, "elaborate", mutated)
    with pytest.raises(AssertionError, match="memory differs"):
        write_traffic(axi_memory, clocks_by_name["equal"], SMALL, 41, 0.5, 0.0)


def full_channel(axi_memory, clocks, channels, pause, own):
    """40 writes to a memory that does not answer for long, the first ``own`` to ``channels``, the others to the last
    one: how many were taken before the first answer, and after it."""
    _, dut, memories = make(axi_memory, TWO_GROUPS, 43, 0.0, latency=(400, 400))
    ports, early, late, taken = dut.memory_ports, [], [], [0] * TWO_GROUPS.channels
    full = memories[(channels & -channels).bit_length() - 1]

    async def write(ctx):
        for i in range(40):
            ctx.set(dut.kv.write_valid, 1)
            ctx.set(dut.kv.write_channels, channels if i < own else 1 << TWO_GROUPS.channels - 1)
            ready = 0
            while not ready:
                *_, ready = await ctx.tick().sample(dut.kv.write_ready)
            ctx.set(dut.kv.write_valid, 0)
            (late if full.answered else early).append(i)
            for _ in range(pause):
                await ctx.tick()
        while ctx.get(ports.writes_unanswered):
            await ctx.tick()
        assert [memory.answered for memory in memories] == taken

    async def count(ctx):
        while True:
            *_, valid, ready, which = await ctx.tick().sample(
                ports.write_valid, ports.write_ready, ports.write_channels
            )
            for c in range(TWO_GROUPS.channels):
                taken[c] += valid and ready and which >> c & 1

    simulate(dut, memories, clocks, write, count, write_watcher(ports, TWO_GROUPS, memories))
    return len(early), len(late)


@pytest.mark.parametrize("channels", [0b1, 0b1010110])
def test_a_full_channel_stops_all_writes(axi_memory, clocks_by_name, channels):
    """One write after the other: the 31st leaves no room for two, so the next, to another channel, waits as well. A
    write in every cycle comes before the register says so, and finds room."""
    clocks = clocks_by_name["ports 225:200"]
    assert full_channel(axi_memory, clocks, channels, 2, own=31) == (31, 9)
    assert full_channel(axi_memory, clocks, channels, 0, own=40) == (32, 8)


@pytest.mark.parametrize("name, old, new, message", [
    ("hw.board.channel_port", "self.writes_outstanding <= self.writes - 2", "self.writes_outstanding < self.writes",
     "channels have"),
    ("hw.board.memory_ports", "written | (self.writes_outstanding != 0)", "self.writes_outstanding != 0",
     "answered, but"),
    ("hw.board.memory_ports", "written.eq(write)", "written.eq(0)", "answered, but"),
])  # fmt: skip
def test_twins_of_the_count_of_writes_fail(axi_memory, clocks_by_name, mutant, monkeypatch, name, old, new, message):
    changed = mutant(name, old, new)
    if name == ChannelPort.__module__:
        monkeypatch.setattr(memory_ports, "ChannelPort", changed["ChannelPort"])
    else:
        monkeypatch.setitem(globals(), "MemoryPorts", changed["MemoryPorts"])
    with pytest.raises(AssertionError, match=message):
        full_channel(axi_memory, clocks_by_name["ports 225:200"], 0b11, 0, own=40)


@pytest.mark.parametrize("bad", [0, 2, 3])
def test_first_error_names_its_channel(axi_memory, clocks, bad):
    """A read error is kept when the word is popped; what comes later does not change the channel."""
    _, dut, memories = make(axi_memory, SMALL, 51, 0.0)
    ports = dut.memory_ports
    memories[bad].bad_address = 3 * SMALL.port_bytes

    async def traffic(ctx):
        await command(ctx, ports, 0, 16)
        await ctx.tick().until(ports.fifo_min == 16)
        for popped in range(16):
            assert ctx.get(ports.read_error) == (popped > 3), "the error comes with its word"
            while not ctx.get(ports.row_valid):
                await ctx.tick()
            ctx.set(ports.row_take, 1)
            await ctx.tick()
            ctx.set(ports.row_take, 0)
            await ctx.tick().repeat(POP_STAGES[SMALL.name] + 1)
        assert ctx.get(ports.rows_outstanding) == 0
        assert ctx.get(ports.read_error) and not ctx.get(ports.write_error) and ctx.get(ports.error_channel) == bad
        memories[1].bad_address = 0
        ctx.set(dut.kv.write_valid, 1)
        ctx.set(dut.kv.write_channels, 2)
        await ctx.tick().until(dut.kv.write_ready)
        ctx.set(dut.kv.write_valid, 0)
        while ctx.get(ports.writes_unanswered):
            assert not ctx.get(ports.write_error)
            await ctx.tick()
        assert ctx.get(ports.write_error) and ctx.get(ports.error_channel) == bad, "the first error stays"

    simulate(dut, memories, clocks, traffic)


def test_write_error_alone(axi_memory, clocks):
    _, dut, memories = make(axi_memory, SMALL, 52, 0.0)
    ports = dut.memory_ports
    memories[3].bad_address = 0

    async def traffic(ctx):
        ctx.set(dut.logits.write_valid, 1)
        ctx.set(dut.logits.write_channels, 0b1010)
        await ctx.tick().until(dut.logits.write_ready)
        ctx.set(dut.logits.write_valid, 0)
        assert ctx.get(ports.writes_unanswered) and ctx.get(ports.writes_outstanding) == 0
        await ctx.tick()
        assert ctx.get(ports.writes_unanswered) and ctx.get(ports.writes_outstanding) == 2
        while ctx.get(ports.writes_unanswered):
            await ctx.tick()
        assert ctx.get(ports.write_error) and not ctx.get(ports.read_error) and ctx.get(ports.error_channel) == 3

    simulate(dut, memories, clocks, traffic)


def test_signatures_compare_and_print():
    assert WriteSignature(SMALL) == WriteSignature(SMALL) != WriteSignature(core_config("64x16"))
    assert repr(WriteSignature(SMALL)) == "WriteSignature('16x4')"
