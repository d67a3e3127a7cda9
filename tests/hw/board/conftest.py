"""An AXI4 memory for Amaranth's simulator: random delays within the protocol, and checks of what the master does; pairs
of clocks for what stands between it and the core; the host of a kernel's control."""

import collections

import pytest
from amaranth.sim import Simulator

from hw.board.gpt2_map import RunState

# Period and first rising edge of the core's clock and of the ports', in a common unit.
CLOCKS = {
    "ports 225:200": ((18, 9), (16, 8)),
    "equal": ((16, 8), (16, 8)),
    "equal, shifted": ((16, 8), (16, 11)),
    "ports 13:11, shifted": ((26, 13), (22, 5)),
    "ports 7:11, shifted": ((14, 7), (22, 4)),
}


class AxiMemory:
    """One port's memory. ``pause`` is the share of cycles in which a ready is low or an answer is held back.

    It is as unkind as AXI allows: data are read when the address is taken, writes reach memory just before their
    response. Illegal bursts, a valid that is taken back and too many unanswered transactions raise AssertionError.
    """

    def __init__(self, random, beat_bytes, size, base=0, pause=0.0, latency=(2, 2), bursts=32, writes=32):
        self.random = random
        self.beat_bytes = beat_bytes
        self.memory = bytearray(size)
        self.base = base  # byte address of the first row
        self.pause = pause
        self.latency = latency
        self.bursts, self.writes = bursts, writes
        self.cycle = 0
        self.reads = collections.deque()  # (due, [beat data])
        self.answers = collections.deque()  # (due, address, data, strobe)
        self.addresses = collections.deque()
        self.data = collections.deque()
        self.bad_address = None  # a read or write of the beat at this byte address is answered with SLVERR
        self.held = {}
        self.beats = self.answered = 0  # beats of reads delivered, writes answered
        self.burst_lengths = []

    def fill(self, make_word):
        """Fill with ``make_word(row)`` of ``beat_bytes`` bytes."""
        for row in range(len(self.memory) // self.beat_bytes):
            self.memory[row * self.beat_bytes : (row + 1) * self.beat_bytes] = make_word(row)

    def word(self, row):
        return bytes(self.memory[row * self.beat_bytes : (row + 1) * self.beat_bytes])

    def _due(self, queue):
        due = self.cycle + self.random.randint(*self.latency)
        return max(due, queue[-1][0]) if queue else due

    def _go(self):
        return self.random.random() >= self.pause

    def _check_held(self, name, valid, ready, payload):
        before = self.held.get(name)
        assert before is None or (valid and payload == before), f"{name} was taken back in cycle {self.cycle}"
        self.held[name] = payload if valid and not ready else None

    def _take_read(self, address, length, size, burst):
        beats = length + 1
        self.burst_lengths.append(beats)
        assert burst == 1 and 1 << size == self.beat_bytes, "burst is not INCR of full beats"
        address -= self.base
        assert 0 <= address < len(self.memory), f"read at {address:#x}"
        assert address % self.beat_bytes == 0 and beats <= 16, f"burst of {beats} at {address:#x}"
        first = address // self.beat_bytes
        assert first // 16 == (first + beats - 1) // 16, f"burst of {beats} at row {first} crosses 16 rows"
        assert len(self.reads) < self.bursts, "too many bursts"
        words = [(self.word(row), row * self.beat_bytes) for row in range(first, first + beats)]
        self.reads.append((self._due(self.reads), words))

    def server(self, axi):
        """A background testbench that answers everything that comes over ``axi``, in domain ``port``."""

        async def serve(ctx):
            await self._serve(ctx, axi)

        return serve

    async def _serve(self, ctx, axi):
        watch = [getattr(axi, name) for name in (
            "arvalid", "arready", "araddr", "arlen", "arsize", "arburst", "rvalid", "rready", "rlast",
            "awvalid", "awready", "awaddr", "awlen", "awsize", "awburst", "wvalid", "wready", "wdata", "wstrb", "wlast",
            "bvalid", "bready",
        )]  # fmt: skip
        while True:
            ctx.set(axi.arready, self._go())
            ctx.set(axi.awready, self._go())
            ctx.set(axi.wready, self._go())
            self._answer(ctx, axi)
            (*_, ar, ar_go, ar_at, ar_len, ar_size, ar_burst, r, r_go, r_last, aw, aw_go, aw_at, aw_len, aw_size,
             aw_burst, w, w_go, w_data, w_strobe, w_last, b, b_go) = await ctx.tick("port").sample(*watch)  # fmt: skip
            self.cycle += 1
            self._check_held("AR", ar, ar_go, (ar_at, ar_len))
            self._check_held("AW", aw, aw_go, aw_at)
            self._check_held("W", w, w_go, (w_data, w_strobe))
            assert r_go and b_go, "RREADY and BREADY must be 1"
            if r:
                self.beats += 1
                self.reads[0][1].pop(0)
                if r_last:
                    self.reads.popleft()
            if b:
                self.answers.popleft()
                self.answered += 1
            if ar and ar_go:
                self._take_read(ar_at, ar_len, ar_size, ar_burst)
            if aw and aw_go:
                assert (
                    (aw_len, aw_burst, 1 << aw_size) == (0, 1, self.beat_bytes)
                    and aw_at % self.beat_bytes == 0
                    and 0 <= aw_at - self.base < len(self.memory)
                )
                self.addresses.append(aw_at - self.base)
            if w and w_go:
                assert w_last
                self.data.append((w_data, w_strobe))
            while self.addresses and self.data:
                self.answers.append((self._due(self.answers), self.addresses.popleft(), *self.data.popleft()))
                assert len(self.answers) <= self.writes, "too many writes"

    def _answer(self, ctx, axi):
        valid = bool(self.reads) and self.reads[0][0] <= self.cycle and self._go()
        ctx.set(axi.rvalid, valid)
        if valid:
            words = self.reads[0][1]
            ctx.set(axi.rdata, int.from_bytes(words[0][0], "little"))
            ctx.set(axi.rlast, len(words) == 1)
            ctx.set(axi.rresp, 2 if words[0][1] == self.bad_address else 0)
        valid = bool(self.answers) and self.answers[0][0] <= self.cycle and self._go()
        ctx.set(axi.bvalid, valid)
        if valid:
            _, address, data, strobe = self.answers[0]
            for i in range(self.beat_bytes):
                if strobe >> i & 1:
                    self.memory[address + i] = data >> (8 * i) & 0xFF
            ctx.set(axi.bresp, 2 if address == self.bad_address else 0)


@pytest.fixture
def axi_memory():
    """The class AxiMemory."""
    return AxiMemory


@pytest.fixture(params=CLOCKS.values(), ids=CLOCKS.keys())
def clocks(request):
    """Clocks of the core and of its ports, for ``run_testbench``; a test with it runs for every pair."""
    core, port = request.param
    return {"sync": core, "port": port}


@pytest.fixture
def clocks_by_name():
    """One pair of clocks for tests that do not need all."""
    return {name: {"sync": core, "port": port} for name, (core, port) in CLOCKS.items()}


GOOD_RUN = {"position": 0, "prompt_end": 3, "max_new_tokens": 5, "context_limit": 64}


class ControlHost:
    """AXI4-Lite master and core in one testbench."""

    def __init__(self, ctx, control):
        self.ctx, self.control, self.bus, self.core = ctx, control, control.s_axi_control, control.core
        self.map = control.map
        self.cycle = 0

    async def tick(self, cycles=1):
        for _ in range(cycles):
            await self.ctx.tick()
            self.cycle += 1

    async def write_word(self, offset, value, aw_delay=0, w_delay=0, strobe=15):
        ctx, bus = self.ctx, self.bus
        ctx.set(bus.bready, 1)
        open_address = open_data = True
        for cycle in range(100):
            if open_address and cycle >= aw_delay:
                ctx.set(bus.awaddr, offset)
                ctx.set(bus.awvalid, 1)
            if open_data and cycle >= w_delay:
                ctx.set(bus.wdata, value)
                ctx.set(bus.wstrb, strobe)
                ctx.set(bus.wvalid, 1)
            address = ctx.get(bus.awvalid & bus.awready)
            data = ctx.get(bus.wvalid & bus.wready)
            answer = ctx.get(bus.bresp) if ctx.get(bus.bvalid) else None
            await self.tick()
            if address:
                open_address = False
                ctx.set(bus.awvalid, 0)
            if data:
                open_data = False
                ctx.set(bus.wvalid, 0)
            if answer is not None:
                ctx.set(bus.bready, 0)
                return answer
        raise AssertionError("no write response")

    async def read_word(self, offset):
        ctx, bus = self.ctx, self.bus
        ctx.set(bus.araddr, offset)
        ctx.set(bus.arvalid, 1)
        ctx.set(bus.rready, 1)
        for _ in range(100):
            address = ctx.get(bus.arready)
            answer = (ctx.get(bus.rdata), ctx.get(bus.rresp)) if ctx.get(bus.rvalid) else None
            await self.tick()
            if address:
                ctx.set(bus.arvalid, 0)
            if answer is not None:
                ctx.set(bus.rready, 0)
                return answer
        raise AssertionError("no read response")

    async def write(self, name, value):
        for i in range(self.map[name].bits // 32):
            assert await self.write_word(self.map[name].offset + 4 * i, value >> 32 * i & 0xFFFFFFFF) == 0, name

    async def read(self, name):
        value = 0
        for i in range(self.map[name].bits // 32):
            word, response = await self.read_word(self.map[name].offset + 4 * i)
            assert response == 0, name
            value |= word << 32 * i
        return value

    async def start(self, **values):
        for name, value in {**GOOD_RUN, **values}.items():
            await self.write(name, value)
        self.ctx.set(self.core.drained, 1)
        await self.write("ctrl", 1)

    async def pulse(self, *signals):
        for signal in signals:
            self.ctx.set(signal, 1)
        await self.tick()
        for signal in signals:
            self.ctx.set(signal, 0)

    async def until_idle(self, limit=100):
        for _ in range(limit):
            if self.ctx.get(self.control.state) == RunState.IDLE:
                return
            await self.tick()
        raise AssertionError("the run does not end")


@pytest.fixture
def control_run():
    """A function that simulates a control and a scenario, a testbench that takes a ControlHost."""

    def run(control, scenario):
        simulator = Simulator(control)
        simulator.add_clock(1e-6)

        async def testbench(ctx):
            await scenario(ControlHost(ctx, control))

        simulator.add_testbench(testbench)
        simulator.run()

    return run
