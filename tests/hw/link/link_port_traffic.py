"""cocotb: a LinkPort of 256-bit entries against frames made and read in Python; see test_link_port_frames.py."""

import dataclasses
import itertools
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource

from hw.link.frame import KEEPALIVE, MAX_BEATS, RETRY, SLOTS, Frame, FrameKind, header_layout
from hw.link.port import RECEIVE_KERNEL_EDGES, RECEIVE_LINK_EDGES, SEND_LINK_EDGES

KERNEL_PS, LINK_PS = 5000, 2482  # 200 and 402.9 MHz


def gearbox():
    return (cycle % 33 == 32 for cycle in itertools.count())


def pauses(rng, share):
    return (rng.random() < share for _ in itertools.count())


def random_frame(rng):
    """A frame as the core makes it: what belongs to the link is 0."""
    beats = rng.randint(0, MAX_BEATS)
    kind = FrameKind(rng.randint(1, 4)) if beats else FrameKind.ABORT
    numbers = {name: rng.randrange(size) for name, size in (("hops", 8), ("origin", 8), ("run", 256), ("strips", 256))}
    return Frame(kind, rng.randbytes(32 * beats), address=rng.randrange(1 << 16), **numbers)


def header_bits(frame):
    value = 0
    for name, field in header_layout():
        part = getattr(frame, name)
        value |= (part.value if name == "kind" else part) << field.offset
    return value


def without_link(frame):
    """The frame without what the link adds."""
    return dataclasses.replace(frame, seq=0, ack=0, freed=0, nak=0)


class Bench:
    """The port, the core's side of it, and the far end of its cable."""

    def __init__(self, dut, rng):
        self.dut, self.rng = dut, rng
        self.seq, self.ack, self.freed = 0, 0, 0  # of the far end
        self.heard = []  # (link cycle, frame) of everything that the port has sent
        self.cycle = 0

    async def start(self, sink_pause=None):
        dut = self.dut
        cocotb.start_soon(Clock(dut.kernel_clk, KERNEL_PS, unit="ps").start())
        cocotb.start_soon(Clock(dut.link_clk, LINK_PS, unit="ps").start())
        for name in ("write", "push", "pop", "read_entry", "channel_up", "write_transit", "push_transit"):
            getattr(dut, name).value = 0
        self.source = AxiStreamSource(AxiStreamBus.from_prefix(dut, "rx"), dut.link_clk, dut.link_rst)
        self.sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, "tx"), dut.link_clk, dut.link_rst)
        if sink_pause:
            self.sink.set_pause_generator(sink_pause)
        dut.kernel_rst.value = dut.link_rst.value = 1
        await self.kernel(8)
        dut.kernel_rst.value = dut.link_rst.value = 0
        await self.kernel(8)
        assert not int(dut.up.value) and int(dut.dead.value) and not int(dut.room_local.value)
        dut.channel_up.value = 1
        cocotb.start_soon(self._listen())
        while not int(dut.up.value):
            await self.kernel(1)

    async def kernel(self, cycles):
        for _ in range(cycles):
            await RisingEdge(self.dut.kernel_clk)

    async def link(self, cycles):
        for _ in range(cycles):
            await RisingEdge(self.dut.link_clk)

    async def _listen(self):
        cocotb.start_soon(self._count())
        while True:
            got = await self.sink.recv()
            self.heard.append((self.cycle, Frame.from_bytes(bytes(got.tdata))))

    async def _count(self):
        while True:
            await RisingEdge(self.dut.link_clk)
            self.cycle += 1

    async def hear(self, count, since=0, acks=False):
        """Wait for so many frames from ``since`` on, ACKs apart; all of them so far."""
        while True:
            frames = [frame for _, frame in self.heard[since:] if acks or frame.kind != FrameKind.ACK]
            if len(frames) >= count:
                return frames
            await RisingEdge(self.dut.link_clk)

    async def push(self, frame, transit):
        """Write a frame in any order and push it, with its last entry or behind it."""
        dut, rng = self.dut, self.rng
        room = dut.room_transit if transit else dut.room_local
        while not int(room.value):
            await self.kernel(1)
        dut.write_transit.value = dut.push_transit.value = transit
        dut.push_header.value = header_bits(frame)
        entries = rng.sample(range(frame.beats), frame.beats)
        together = rng.random() < 0.5 and entries
        for entry in entries:
            dut.write.value, dut.write_entry.value = 1, entry
            dut.write_data.value = int.from_bytes(frame.payload[32 * entry : 32 * entry + 32], "little")
            dut.push.value = int(bool(together) and entry == entries[-1])
            await self.kernel(1)
        dut.write.value = 0
        if not together:
            dut.push.value = 1
            await self.kernel(1)
        dut.push.value = 0
        await self.kernel(1)  # room shows the push

    async def send(self, frame=None, content=None):
        """From the far end: a frame with its link fields as they are, or bytes."""
        await self.source.send(AxiStreamFrame(frame.to_bytes() if content is None else content))

    async def send_ack(self, **fields):
        await self.send(Frame(FrameKind.ACK, ack=self.ack, freed=self.freed, **fields))

    async def take(self):
        """The oldest received frame, as the core sees it."""
        dut = self.dut
        while True:
            await ReadOnly()
            if int(dut.frame_valid.value):
                break
            await self.kernel(1)
        value = dut.header.value.to_unsigned()
        fields = {name: value >> field.offset & (1 << field.width) - 1 for name, field in header_layout()}
        beats, kind = fields.pop("beats"), FrameKind(fields.pop("kind"))
        payload = b""
        await self.kernel(1)
        for entry in range(beats):
            dut.read_entry.value = entry
            dut.pop.value = int(entry == beats - 1)
            await self.kernel(1)
            dut.pop.value = 0
            await ReadOnly()
            payload += dut.read_data.value.to_unsigned().to_bytes(32, "little")
            await self.kernel(1) if entry < beats - 1 else None
        if not beats:
            dut.pop.value = 1
            await self.kernel(1)
            dut.pop.value = 0
            await ReadOnly()
        await self.kernel(1)
        return Frame(kind, payload, **fields)


async def settle(bench):
    """Until an ACK has told everything and any word under way has come."""
    await bench.link(80)


@cocotb.test(timeout_time=200, timeout_unit="us")
@cocotb.parametrize(pause=["gearbox", "often"])
async def frames_on_the_cable_are_the_golden_ones(dut, pause):
    rng = random.Random(1)
    bench = Bench(dut, rng)
    await bench.start(gearbox() if pause == "gearbox" else pauses(rng, 0.5))
    pushed = ([], [])
    for number in range(60):
        transit = rng.randrange(2)
        frame = random_frame(rng)
        await bench.push(frame, transit)
        pushed[transit].append(frame)
        if number % 8 == 7:
            heard = await bench.hear(number + 1)
            bench.ack = bench.freed = len(heard) & 255
            await bench.send_ack()
    heard = await bench.hear(60)
    assert [frame.seq for frame in heard] == list(range(60))
    assert all(frame.ack == frame.freed == frame.nak == 0 for frame in heard)
    heard = [without_link(frame) for frame in heard]
    for frames in pushed:  # each region in order; which one goes first is the port's choice
        assert [frame for frame in heard if frame in frames] == frames
    assert int(dut.frames_sent.value) == 60 and int(dut.resends.value) == 0


@cocotb.test(timeout_time=100, timeout_unit="us")
@cocotb.parametrize(gaps=[0.0, 0.3])
async def golden_frames_reach_the_core(dut, gaps):
    rng = random.Random(2)
    bench = Bench(dut, rng)
    await bench.start()
    if gaps:
        bench.source.set_pause_generator(pauses(rng, gaps))
    sent = [dataclasses.replace(random_frame(rng), seq=seq) for seq in range(50)]
    for frame in sent:
        await bench.send(frame)
    for frame in sent:
        assert await bench.take() == without_link(frame)
    await settle(bench)
    last = bench.heard[-1][1]
    assert (last.kind, last.ack, last.freed, last.nak) == (FrameKind.ACK, 50, 50, 0)
    assert int(dut.frames_received.value) == 50 and int(dut.frames_dropped.value) == 0


@cocotb.test(timeout_time=50, timeout_unit="us", expect_fail=True)
async def twin_with_one_bit_changed_and_the_crc_made_anew(dut):
    """Twin of both: the comparisons see a single bit of payload."""
    rng = random.Random(3)
    bench = Bench(dut, rng)
    await bench.start()
    frame = Frame(FrameKind.SUMS, bytes(64))
    await bench.send(dataclasses.replace(frame, payload=bytes(40) + b"\x04" + bytes(23)))
    assert await bench.take() == frame


@cocotb.test(timeout_time=50, timeout_unit="us")
async def what_is_no_frame_is_dropped_and_asked_for_once(dut):
    rng = random.Random(4)
    bench = Bench(dut, rng)
    await bench.start()
    first, second = (dataclasses.replace(random_frame(rng), seq=seq) for seq in (0, 1))
    await bench.send(first)
    await settle(bench)
    content = Frame(FrameKind.STRIPS, bytes(96), seq=1).to_bytes()
    long = Frame(FrameKind.STRIPS, bytes(512), seq=1).to_bytes()
    bad = [
        content[:40] + b"\x01" + content[41:],  # payload
        content[:-8] + bytes([content[-8] ^ 2]) + content[-7:],  # trailer
        content[32:],  # a word is lost
        content[:32] + content,  # a word too many
        bytes(32 * 20) + long,  # far too long
        content[:-10],  # not whole words
        content[-16:],  # trailer alone
        Frame(FrameKind.STRIPS, bytes(32), seq=2).to_bytes(),  # one further
        Frame(FrameKind.STRIPS, bytes(32), seq=0).to_bytes(),  # it has that one
        Frame(FrameKind.STRIPS, bytes(32), seq=129).to_bytes(),
    ]
    for content in bad:
        await bench.send(content=content)
    await settle(bench)
    await settle(bench)
    naks = [frame for _, frame in bench.heard if frame.nak]
    assert [frame.ack for frame in naks] == [1] and int(dut.frames_dropped.value) == len(bad)
    await bench.send(second)
    for frame in (first, second):
        assert await bench.take() == without_link(frame)
    await settle(bench)
    await bench.send(content=bad[0])
    await settle(bench)
    assert [frame.ack for _, frame in bench.heard if frame.nak] == [1, 2]


@cocotb.test(timeout_time=50, timeout_unit="us")
async def repeated_frames_are_not_asked_for(dut):
    """After a needless resend the port does not ask the far end to go back once more."""
    bench = Bench(dut, random.Random(5))
    await bench.start()
    for seq in (0, 1, 2, 0, 1, 2, 3):
        await bench.send(Frame(FrameKind.STRIPS, bytes([seq]) * 64, seq=seq))
    await settle(bench)
    await settle(bench)
    assert not any(frame.nak for _, frame in bench.heard) and bench.heard[-1][1].ack == 4
    assert [(await bench.take()).payload[0] for _ in range(4)] == [0, 1, 2, 3]
    assert int(dut.frames_dropped.value) == 3


@cocotb.test(timeout_time=100, timeout_unit="us")
async def the_port_goes_back_to_what_is_asked_for(dut):
    rng = random.Random(6)
    bench = Bench(dut, rng)
    await bench.start()
    for number in range(20):
        await bench.push(random_frame(rng), number % 3 == 0)
    sent = await bench.hear(20)
    bench.ack = 7
    since = len(bench.heard)
    await bench.send_ack(nak=1)
    again = await bench.hear(13, since)
    assert again == sent[7:] and int(dut.resends.value) == 1 and int(dut.frames_sent.value) == 20
    await settle(bench)
    assert len(await bench.hear(13, since)) == 13, "once"

    since, before = len(bench.heard), bench.cycle
    bench.ack = 15
    await bench.send_ack()
    again = await bench.hear(5, since)
    waited = next(cycle for cycle, frame in bench.heard[since:] if frame.kind != FrameKind.ACK) - before
    assert again == sent[15:] and RETRY <= waited < RETRY + 40 and int(dut.resends.value) == 2
    bench.ack, bench.freed = 20, 20
    await bench.send_ack(nak=1)
    since = len(bench.heard)
    await bench.link(RETRY + 100)
    assert not await bench.hear(0, since) and int(dut.resends.value) == 2, "nothing is left to send"


@cocotb.test(timeout_time=100, timeout_unit="us")
async def credits_come_with_freed(dut):
    rng = random.Random(7)
    bench = Bench(dut, rng)
    await bench.start()
    frame = Frame(FrameKind.SUMS, bytes(32))
    for _ in range(SLOTS):
        await bench.push(frame, 0)
    await settle(bench)
    assert len(await bench.hear(0)) == SLOTS - 1, "the last slot is for frames in transit"
    bench.ack = SLOTS - 1
    await bench.send_ack()
    await settle(bench)
    assert len(await bench.hear(0)) == SLOTS - 1, "acknowledged is not freed"
    assert int(dut.room_local.value)
    await bench.push(frame, 1)
    await settle(bench)
    assert len(await bench.hear(0)) == SLOTS
    bench.freed = 2
    await bench.send_ack()
    await settle(bench)
    assert len(await bench.hear(0)) == SLOTS + 1


@cocotb.test(timeout_time=50, timeout_unit="us")
async def an_idle_port_says_so(dut):
    bench = Bench(dut, random.Random(8))
    await bench.start(gearbox())
    await bench.link(6 * KEEPALIVE)
    cycles = [cycle for cycle, _ in bench.heard]
    assert all(frame == Frame(FrameKind.ACK) for _, frame in bench.heard)
    assert len(cycles) >= 6 and all(b - a <= KEEPALIVE for a, b in itertools.pairwise(cycles))


async def edges_until(clock, signal):
    """Rising edges of the clock until the signal is 1 behind one."""
    edges = 0
    while not int(signal.value):
        await RisingEdge(clock)
        await ReadOnly()
        edges += 1
    return edges


@cocotb.test(timeout_time=20, timeout_unit="us")
async def latencies(dut):
    bench = Bench(dut, random.Random(9))
    await bench.start()
    await bench.kernel(20)
    frame = Frame(FrameKind.STRIPS, bytes(32))
    dut.push.value, dut.push_header.value = 1, header_bits(frame)
    await RisingEdge(dut.kernel_clk)
    dut.push.value = 0
    assert await edges_until(dut.link_clk, dut.tx_tvalid) == SEND_LINK_EDGES
    await bench.kernel(2)
    await bench.send(frame)
    await edges_until(dut.link_clk, dut.rx_tlast)
    for _ in range(RECEIVE_LINK_EDGES):
        await RisingEdge(dut.link_clk)
    assert await edges_until(dut.kernel_clk, dut.frame_valid) == RECEIVE_KERNEL_EDGES
