"""cocotb: MemoryPorts of a 16x4 core against cocotbext-axi's AxiRam; started by test_memory_ports_axi_ram.py."""

import itertools
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiBus, AxiRam

CHANNELS, BYTES, ROWS, FIFO_WORDS = 4, 32, 512, 512
CORE_PS = 5000  # 200 MHz
PORT_PS = [4444, 7130]  # 225 MHz, and a slower clock


def pauses(rng, share):
    return (rng.random() < share for _ in itertools.count())


async def setup(dut, rng, pause, port_ps):
    cocotb.start_soon(Clock(dut.clk, CORE_PS, unit="ps").start())
    cocotb.start_soon(Clock(dut.port_clk, port_ps, unit="ps").start())
    for name in ("read_valid", "row_take", "write_valid"):
        getattr(dut, name).value = 0
    rams = []
    for c in range(CHANNELS):
        getattr(dut, f"base_{c}").value = 0x2000 * c
        ram = AxiRam(AxiBus.from_prefix(dut, f"ports_{c}"), dut.port_clk, dut.port_rst, size=2**16)
        ram.write(0x2000 * c, rng.randbytes(ROWS * BYTES))
        if pause:
            read, write = ram.read_if, ram.write_if
            for channel in (read.ar_channel, read.r_channel, write.aw_channel, write.w_channel, write.b_channel):
                channel.set_pause_generator(pauses(rng, pause))
        rams.append(ram)
    dut.rst.value = dut.port_rst.value = 1
    for _ in range(8):
        await RisingEdge(dut.clk)
    dut.rst.value = dut.port_rst.value = 0
    for _ in range(8):  # the reset crosses between the clocks
        await RisingEdge(dut.clk)
    return rams


def row_of(rams, row):
    return b"".join(ram.read(0x2000 * c + row * BYTES, BYTES) for c, ram in enumerate(rams))


async def taken(dut, ready):
    """Wait for the edge at which a valid that was just set is taken."""
    while True:
        await ReadOnly()
        go = int(ready.value)
        await RisingEdge(dut.clk)
        if go:
            return


async def issue_reads(dut, commands, credit):
    for row, beats in commands:
        while credit[0] < beats:
            await RisingEdge(dut.clk)
        credit[0] -= beats
        dut.read_valid.value, dut.read_row.value, dut.read_beats.value = 1, row, beats
        await taken(dut, dut.read_ready)
        dut.read_valid.value = 0


async def take_rows(dut, count, credit, rng, pause):
    """Take rows at random; they come with ``row_popped``."""
    rows = []
    taken = 0
    while len(rows) < count:
        take = rng.random() >= pause and taken < count
        dut.row_take.value = 0
        await ReadOnly()
        valid, popped, data = int(dut.row_valid.value), int(dut.row_popped.value), dut.row_data.value
        if popped:
            rows.append(data.to_unsigned().to_bytes(CHANNELS * BYTES, "little"))
            credit[0] += 1
        await RisingEdge(dut.clk)
        if valid and take:
            taken += 1
            dut.row_take.value = 1
            await ReadOnly()
            if int(dut.row_popped.value):
                rows.append(dut.row_data.value.to_unsigned().to_bytes(CHANNELS * BYTES, "little"))
                credit[0] += 1
            await RisingEdge(dut.clk)
    dut.row_take.value = 0
    return rows


async def idle(dut, signal):
    while int(signal.value):
        await RisingEdge(dut.clk)


async def read_traffic(dut, memory_pause, take_pause, port_ps, spoil=False):
    rng = random.Random(101)
    rams = await setup(dut, rng, memory_pause, port_ps)
    commands = []
    for _ in range(30):
        row = rng.randrange(ROWS)
        commands.append((row, rng.randint(1, 16 - row % 16)))
    want = [row_of(rams, row + i) for row, beats in commands for i in range(beats)]
    if spoil:
        at = 0x2000 + commands[15][0] * BYTES
        rams[1].write(at, bytes([rams[1].read(at, 1)[0] ^ 1]))
    credit = [FIFO_WORDS]
    cocotb.start_soon(issue_reads(dut, commands, credit))
    assert await take_rows(dut, len(want), credit, rng, take_pause) == want
    await idle(dut, dut.rows_outstanding)
    assert not int(dut.read_error.value)


@cocotb.test(timeout_time=500, timeout_unit="us")
@cocotb.parametrize(memory_pause=[0.0, 0.3], take_pause=[0.0, 0.5], port_ps=PORT_PS)
async def reads(dut, memory_pause, take_pause, port_ps):
    await read_traffic(dut, memory_pause, take_pause, port_ps)


@cocotb.test(timeout_time=500, timeout_unit="us", expect_fail=True)
async def twin_with_one_bit_of_memory_flipped(dut):
    await read_traffic(dut, 0.0, 0.0, PORT_PS[0], spoil=True)


@cocotb.test(timeout_time=500, timeout_unit="us")
@cocotb.parametrize(memory_pause=[0.0, 0.3], port_ps=PORT_PS)
async def writes_then_reads(dut, memory_pause, port_ps):
    rng = random.Random(102)
    rams = await setup(dut, rng, memory_pause, port_ps)
    want = [bytearray(row_of(rams, row)) for row in range(16)]
    for _ in range(80):
        row, channels = rng.randrange(16), rng.getrandbits(CHANNELS)
        word, values, spread = rng.randbytes(BYTES), rng.randbytes(2 * CHANNELS), rng.getrandbits(1)
        strobe = rng.getrandbits(BYTES)
        dut.write_valid.value, dut.write_row.value, dut.write_channels.value = 1, row, channels
        dut.write_word.value, dut.write_strobe.value = int.from_bytes(word, "little"), strobe
        dut.write_values.value, dut.write_spread.value = int.from_bytes(values, "little"), spread
        await taken(dut, dut.write_ready)
        dut.write_valid.value = 0
        for c, i in itertools.product(range(CHANNELS), range(BYTES)):
            if channels >> c & 1 and strobe >> i & 1:
                want[row][c * BYTES + i] = values[2 * c + i % 2] if spread else word[i]
        if rng.random() < 0.3:
            await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    await idle(dut, dut.writes_unanswered)
    credit = [FIFO_WORDS]
    cocotb.start_soon(issue_reads(dut, [(0, 16)], credit))
    assert await take_rows(dut, 16, credit, rng, 0.0) == [bytes(row) for row in want]
    assert [row_of(rams, row) for row in range(16)] == [bytes(row) for row in want]
    assert not int(dut.write_error.value)
