"""cocotb: a RingNode of 256-bit entries between two neighbours that speak golden frames; see test_ring_node_axi.py."""

import dataclasses
import itertools
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource

from hw.link.frame import MAX_BEATS, SLOTS, Frame, FrameKind, header_layout

KERNEL_PS, LINK_PS = 5000, (2482, 2486)  # 200 MHz; the clocks of the two Aurora cores drift
LEFT, RIGHT = 0, 1
RUN = 7
ENTRY_BITS = 256
SETTLED_CYCLES = 150


def pauses(rng, share):
    return (rng.random() < share for _ in itertools.count())


def random_frame(rng, **fields):
    kind = rng.choice((FrameKind.STRIPS, FrameKind.SUMS, FrameKind.BEST))
    beats = rng.randint(1, MAX_BEATS) if kind == FrameKind.STRIPS else 1
    numbers = {"address": rng.randrange(1 << 16), "strips": rng.randrange(256), "run": RUN}
    return Frame(kind, rng.randbytes(32 * beats), **numbers | fields)


def hello(origin, run=RUN):
    return Frame(FrameKind.HELLO, bytes([origin, run]) * 16, origin=origin, run=run)


class Neighbour:
    """What is behind one port: takes and acknowledges what comes, sends what it is told to."""

    def __init__(self, dut, port, rng):
        clock, reset = getattr(dut, f"link_{port}_clk"), getattr(dut, f"link_{port}_rst")
        cocotb.start_soon(Clock(clock, LINK_PS[port], unit="ps").start())
        reset.value, getattr(dut, f"link_{port}_up").value = 1, 0
        self.source = AxiStreamSource(AxiStreamBus.from_prefix(dut, f"link_{port}_rx"), clock, reset)
        self.sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, f"link_{port}_tx"), clock, reset)
        self.source.set_pause_generator(pauses(rng, 0.1))
        self.sink.set_pause_generator(pauses(rng, 0.1))
        self.heard, self.received, self.sent = [], 0, 0
        self.held = 0  # received frames whose slots are not freed
        self.holds = False
        cocotb.start_soon(self._listen())

    async def _listen(self):
        while True:
            frame = Frame.from_bytes(bytes((await self.sink.recv()).tdata))
            if frame.kind != FrameKind.ACK:
                assert frame.seq == self.received & 255
                self.received += 1
                self.held += self.holds
                self.heard.append(dataclasses.replace(frame, seq=0, ack=0, freed=0, nak=0))
                await self._put(Frame(FrameKind.ACK))

    async def send(self, frame):
        await self._put(dataclasses.replace(frame, seq=self.sent & 255))
        self.sent += 1

    async def _put(self, frame):
        told = dataclasses.replace(frame, ack=self.received & 255, freed=self.received - self.held & 255)
        await self.source.send(AxiStreamFrame(told.to_bytes()))

    async def free(self):
        """The slots of all frames that were held."""
        self.held, self.holds = 0, False
        await self._put(Frame(FrameKind.ACK))

    def channel_down(self):
        self.received = self.sent = 0


class Bench:
    """The node, its core's side and both neighbours."""

    def __init__(self, dut, rng, boards, board):
        self.dut, self.rng, self.boards, self.board = dut, rng, boards, board
        self.delivered = ([], [])  # frames by port
        self.begun = [b"", b""]

    async def start(self):
        dut = self.dut
        cocotb.start_soon(Clock(dut.kernel_clk, KERNEL_PS, unit="ps").start())
        for name in ("active", "joined", "send_valid", "deliver_ready", "send"):
            getattr(dut, name).value = 0
        dut.boards.value, dut.board.value, dut.run.value, dut.kernel_rst.value = self.boards, self.board, RUN, 1
        self.neighbours = [Neighbour(dut, port, self.rng) for port in (LEFT, RIGHT)]
        await self.kernel(8)
        dut.kernel_rst.value = dut.link_0_rst.value = dut.link_1_rst.value = 0
        await self.kernel(8)
        dut.link_0_up.value = dut.link_1_up.value = 1
        cocotb.start_soon(self._take())
        while int(dut.up.value) != 3 or int(dut.dead.value):
            await self.kernel(1)

    async def kernel(self, cycles):
        for _ in range(cycles):
            await RisingEdge(self.dut.kernel_clk)

    async def until(self, condition):
        while not condition():
            await self.kernel(1)

    async def offer(self, frame, beat, port=0):
        """One entry of the core's frame, until it is taken."""
        dut = self.dut
        last = int(beat + 1 >= frame.beats)
        tail = last | frame.kind.value << 1 | frame.beats << 4 | frame.address << 9 | frame.strips << 25 | port << 33
        content = int.from_bytes(frame.payload[32 * beat : 32 * beat + 32], "little")
        dut.send_valid.value, dut.send.value = 1, tail << ENTRY_BITS | content
        while True:
            await ReadOnly()
            taken = int(dut.send_ready.value)
            await RisingEdge(dut.kernel_clk)
            if taken:
                break
        dut.send_valid.value = 0

    async def send(self, frame, port=0):
        """The core's frame, with pauses; ``port`` is that of a HELLO."""
        for beat in range(max(frame.beats, 1)):
            while self.rng.random() < 0.1:
                await self.kernel(1)
            await self.offer(frame, beat, port)

    async def _take(self):
        dut = self.dut
        while True:
            dut.deliver_ready.value = ready = int(self.rng.random() < 0.6)
            await ReadOnly()
            if ready and int(dut.deliver_valid.value):
                self._entry(dut.deliver.value.to_unsigned())
            await RisingEdge(dut.kernel_clk)

    def _entry(self, value):
        content, tail = value & (1 << ENTRY_BITS) - 1, value >> ENTRY_BITS
        last, index, port, header = tail & 1, tail >> 1 & 15, tail >> 5 & 1, tail >> 6
        fields = {name: header >> field.offset & (1 << field.width) - 1 for name, field in header_layout()}
        beats, kind = fields.pop("beats"), FrameKind(fields.pop("kind"))
        assert index * 32 == len(self.begun[port]) and last == (index + 1 >= beats)
        self.begun[port] += content.to_bytes(32, "little")
        if last:
            self.delivered[port].append(Frame(kind, self.begun[port][: 32 * beats], **fields))
            self.begun[port] = b""

    async def join(self):
        """HELLO both ways, from here and from there."""
        self.dut.active.value = 1
        origins = ((self.board - 1) % self.boards, (self.board + 1) % self.boards)
        for port, neighbour in enumerate(self.neighbours):
            await self.send(hello(self.board), port)
            await neighbour.send(hello(origins[port]))
        await self.until(lambda: all(self.delivered) and all(neighbour.heard for neighbour in self.neighbours))
        for port, neighbour in enumerate(self.neighbours):
            assert self.delivered[port] == [hello(origins[port])] and neighbour.heard == [hello(self.board)]
            self.delivered[port].clear()
            neighbour.heard.clear()
        self.dut.joined.value = 1


def reach(boards, number):
    """Boards that frame ``number`` of a run reaches to the left and to the right (docs/ring.md section 4)."""
    half = (boards - 1) // 2
    farthest = None if boards % 2 else (RIGHT if number % 2 == 0 else LEFT)
    return [half + (farthest == way) for way in (LEFT, RIGHT)]


async def own_frames(dut, boards, spoil=False):
    bench = Bench(dut, random.Random(boards), boards, board=boards - 1)
    await bench.start()
    await bench.join()
    ways = [[], []]
    for number in range(30):
        frame = random_frame(bench.rng, origin=bench.board)
        await bench.send(frame)
        for way, reached in enumerate(reach(boards, number)):
            if reached:
                ways[way].append(dataclasses.replace(frame, hops=reached - 1))
    if spoil:
        ways[RIGHT][9] = dataclasses.replace(ways[RIGHT][9], hops=ways[RIGHT][9].hops ^ 1)
    await bench.until(lambda: sum(len(n.heard) for n in bench.neighbours) >= sum(map(len, ways)))
    await bench.kernel(SETTLED_CYCLES)
    assert [neighbour.heard for neighbour in bench.neighbours] == ways
    assert bench.delivered == ([], [])


@cocotb.test(timeout_time=100, timeout_unit="us")
@cocotb.parametrize(boards=[2, 3, 4, 7, 8])
async def own_frames_go_their_ways(dut, boards):
    await own_frames(dut, boards)


@cocotb.test(timeout_time=100, timeout_unit="us", expect_fail=True)
async def twin_with_other_hops(dut):
    await own_frames(dut, 4, spoil=True)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def an_abort_goes_both_ways_in_the_middle_of_a_frame(dut):
    bench = Bench(dut, random.Random(11), 8, board=0)
    await bench.start()
    await bench.join()
    strips = Frame(FrameKind.STRIPS, bytes(512), run=RUN)
    for beat in range(3):
        await bench.offer(strips, beat)
    dut.active.value = dut.joined.value = 0
    abort = Frame(FrameKind.ABORT, address=9, run=RUN, origin=0, hops=3)
    await bench.send(abort)
    await bench.until(lambda: all(neighbour.heard for neighbour in bench.neighbours))
    dut.active.value = 1
    await bench.send(hello(0), RIGHT)
    await bench.until(lambda: len(bench.neighbours[RIGHT].heard) == 2)
    await bench.kernel(SETTLED_CYCLES)
    assert [neighbour.heard for neighbour in bench.neighbours] == [[abort], [abort, hello(0)]]


async def others_frames(dut, spoil=False):
    bench = Bench(dut, random.Random(12), 8, board=3)
    await bench.start()
    await bench.join()
    sent = ([], [])
    for _ in range(40):
        port = bench.rng.randrange(2)
        frame = random_frame(bench.rng, origin=bench.rng.choice((0, 1, 2, 4, 5, 6, 7)), hops=bench.rng.randrange(4))
        await bench.neighbours[port].send(frame)
        sent[port].append(frame)
    for _ in range(10):
        await bench.send(random_frame(bench.rng, origin=3))
    passed = [
        [dataclasses.replace(frame, hops=frame.hops - 1) for frame in sent[1 - port] if frame.hops]
        for port in (LEFT, RIGHT)
    ]
    await bench.until(lambda: sum(map(len, bench.delivered)) >= 40)
    await bench.until(lambda: all(len(n.heard) >= len(p) + 10 for n, p in zip(bench.neighbours, passed, strict=True)))
    await bench.kernel(SETTLED_CYCLES)
    if spoil:
        frame = sent[RIGHT][7]
        sent[RIGHT][7] = dataclasses.replace(frame, payload=bytes([frame.payload[0] ^ 1]) + frame.payload[1:])
    assert bench.delivered == sent
    for port in (LEFT, RIGHT):
        assert [frame for frame in bench.neighbours[port].heard if frame.origin != 3] == passed[port]


@cocotb.test(timeout_time=100, timeout_unit="us")
async def frames_of_others_are_delivered_and_go_on(dut):
    await others_frames(dut)


@cocotb.test(timeout_time=100, timeout_unit="us", expect_fail=True)
async def twin_with_one_bit_changed(dut):
    await others_frames(dut, spoil=True)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def frames_of_other_runs_wait_or_are_dropped(dut):
    bench = Bench(dut, random.Random(13), 4, board=1)
    await bench.start()
    left, right = bench.neighbours
    abort = Frame(FrameKind.ABORT, address=9, run=RUN, origin=0)
    for run in (RUN - 1, RUN - 1, RUN):  # before a run all waits; in it, before HELLO, nothing counts but its ABORT
        await left.send(random_frame(bench.rng, origin=0, hops=1, run=run))
    await left.send(dataclasses.replace(abort, run=RUN - 1))
    await left.send(abort)
    await bench.kernel(SETTLED_CYCLES)
    assert bench.delivered == ([], [])
    dut.active.value = 1
    await bench.until(lambda: bench.delivered[LEFT])
    await bench.kernel(SETTLED_CYCLES)
    assert bench.delivered == ([abort], []) and right.heard == left.heard == []

    early = random_frame(bench.rng, origin=2, hops=1)  # from a board that has joined before this one
    await left.send(hello(0))
    await right.send(hello(2))
    await right.send(early)
    await bench.kernel(SETTLED_CYCLES)
    assert bench.delivered == ([abort, hello(0)], [hello(2)]) and left.heard == []
    dut.joined.value = 1
    await bench.until(lambda: left.heard)
    assert bench.delivered[RIGHT] == [hello(2), early] and left.heard == [dataclasses.replace(early, hops=0)]

    following = random_frame(bench.rng, origin=0, hops=1, run=RUN + 1)
    await left.send(hello(0, RUN + 1))  # the neighbour has begun the next run: HELLO waits, and all behind it
    await left.send(following)
    await bench.kernel(SETTLED_CYCLES)
    assert len(bench.delivered[LEFT]) == 2 and right.heard == []
    dut.active.value = dut.joined.value = 0
    await bench.kernel(20)
    dut.run.value, dut.active.value = RUN + 1, 1
    await right.send(hello(2, RUN + 1))
    await bench.until(lambda: bench.delivered[LEFT][2:] and bench.delivered[RIGHT][2:])
    dut.joined.value = 1
    await bench.until(lambda: right.heard)
    assert bench.delivered[LEFT][2:] == [hello(0, RUN + 1), following]
    assert right.heard == [dataclasses.replace(following, hops=0)]


@cocotb.test(timeout_time=200, timeout_unit="us")
async def what_is_left_of_a_broken_run_does_not_follow_the_next_hello(dut):
    bench = Bench(dut, random.Random(15), 4, board=1)
    await bench.start()
    await bench.join()
    left, right = bench.neighbours
    right.holds = True  # its slots fill, then the slots for frames in transit, and the next ones wait before them
    for _ in range(2 * SLOTS + 8):
        await left.send(Frame(FrameKind.SUMS, bytes(32), run=RUN, origin=0, hops=1))
    await bench.until(lambda: len(right.heard) == SLOTS and len(bench.delivered[LEFT]) == 2 * SLOTS)
    await bench.kernel(SETTLED_CYCLES)
    assert len(right.heard) == SLOTS and len(bench.delivered[LEFT]) == 2 * SLOTS
    dut.active.value = dut.joined.value = 0
    await bench.kernel(20)
    dut.run.value, dut.active.value = RUN + 1, 1
    await bench.send(hello(1, RUN + 1), LEFT)
    await bench.send(hello(1, RUN + 1), RIGHT)
    await right.free()
    await bench.until(lambda: right.heard[-1].kind == FrameKind.HELLO)
    await bench.kernel(2 * SETTLED_CYCLES)
    assert [frame.run for frame in right.heard] == [RUN] * 2 * SLOTS + [RUN + 1]
    assert len(bench.delivered[LEFT]) == 2 * SLOTS


@cocotb.test(timeout_time=100, timeout_unit="us")
async def a_channel_that_goes_down_in_a_frame_leaves_nothing_of_it(dut):
    bench = Bench(dut, random.Random(14), 4, board=1)
    await bench.start()
    await bench.join()
    left, right = bench.neighbours
    await left.send(Frame(FrameKind.STRIPS, bytes(range(256)) * 2, run=RUN, origin=0, hops=1))
    await bench.until(lambda: bench.begun[LEFT])
    dut.link_0_up.value = 0
    await bench.kernel(50)
    assert int(dut.dead.value) == 1 and int(dut.up.value) == 2
    assert 0 < len(bench.begun[LEFT]) < 512 and not right.heard
    dut.active.value = dut.joined.value = 0
    bench.begun[LEFT] = b""
    left.channel_down()
    dut.link_0_up.value = 1
    await bench.kernel(50)
    assert int(dut.dead.value) == 0 and int(dut.up.value) == 3
    dut.run.value, dut.active.value = RUN + 1, 1
    await left.send(hello(0, RUN + 1))
    await bench.until(lambda: bench.delivered[LEFT])
    assert bench.delivered[LEFT] == [hello(0, RUN + 1)]
