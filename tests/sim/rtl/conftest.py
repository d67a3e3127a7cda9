"""A small core with the interface of the real one, for tests of the kernel around it and of the harness."""

import dataclasses
import hashlib

import pytest
from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import AsyncFIFO
from amaranth.lib.wiring import In, Out

from hw.board.core_interface import ADDRESS_BITS, core_members, link_members
from hw.board.export import export_verilog
from hw.board.gpt2_map import STALL_CAUSES, ErrorCode
from hw.board.program import MemoryImage, Program, Region
from hw.board.top import U280Top
from hw.bus.axi import Axi4Signature
from hw.bus.shared import Shared
from hw.gpt2.config import core_config
from sim.rtl.build import compile_board

BURST = 16
KEEPALIVE = 512
TRAILER_KEEP = 0xFFFF


class Mixer(wiring.Component):
    """total <- total * 5 + word, one cycle: what every channel of the stand-in has, as a shared module."""

    def __init__(self):
        super().__init__({"clear": In(1), "valid": In(1), "word": In(32), "total": Out(32)})

    def elaborate(self, platform):
        m = Module()
        with m.If(self.clear):
            m.d.sync += self.total.eq(0)
        with m.Elif(self.valid):
            m.d.sync += self.total.eq(self.total * 5 + self.word)
        return m


class StandInCore(wiring.Component):
    """For each position p: read 16 rows from weight_base + 16p, mix the low words of each channel, write the totals
    to row key_base + p; from the last prompt position on append a token: (total of channel 0 + tokens[p]) & 0xFF.

    vocab == 1: hang at the first position. vocab == 2: a burst that crosses 4 KB.
    """

    def __init__(self, config):
        self.config = config
        self.pattern = Mixer()
        self.may_go = Signal(init=1)  # into the next position
        self.addend = Signal(8)  # to every token
        self.leaves, self.done_position = Signal(), Signal()  # for the next position, behind one
        self.total = Signal(32)  # of channel 0
        members = core_members(config) | link_members()
        members["m_axi"] = Out(Axi4Signature(ADDRESS_BITS, config.port_bits, 1)).array(config.channels)
        super().__init__(members)

    def shared_modules(self):
        return {"mixer": self.pattern}

    def elaborate(self, platform):
        m = Module()
        cfg, config = self.cfg, self.config
        size = (config.port_bytes - 1).bit_length()
        position, made = Signal(16), Signal(16)
        started, clear = Signal(), Signal()
        address_open, data_open = Signal(config.channels), Signal(config.channels)
        aw_open, w_open, response_open = (Signal(config.channels, name=f"{n}_open") for n in ("aw", "w", "b"))
        totals = []
        for c, port in enumerate(self.m_axi):
            m.submodules[f"mixer_{c}"] = mixer = Shared("mixer", self.pattern if c == 0 else Mixer())
            totals.append(mixer.total)
            row = cfg.weight_base + (position << 4)
            m.d.comb += [
                mixer.clear.eq(clear),
                mixer.valid.eq(port.rvalid & port.rready),
                mixer.word.eq(port.rdata[:32]),
                port.araddr.eq(cfg[f"hbm{c}"] + (row << size) + Mux(cfg.vocab == 2, 4096 - 8 * config.port_bytes, 0)),
                port.arlen.eq(BURST - 1),
                port.arsize.eq(size),
                port.arburst.eq(1),
                port.arvalid.eq(address_open[c]),
                port.rready.eq(data_open[c]),
                port.awaddr.eq(cfg[f"hbm{c}"] + ((cfg.key_base + position) << size)),
                port.awsize.eq(size),
                port.awburst.eq(1),
                port.awvalid.eq(aw_open[c]),
                port.wdata.eq(mixer.total.replicate(config.port_bits // 32)),
                port.wstrb.eq(~0),
                port.wlast.eq(1),
                port.wvalid.eq(w_open[c]),
                port.bready.eq(response_open[c]),
            ]
            with m.If(port.arvalid & port.arready):
                m.d.sync += address_open[c].eq(0)
            with m.If(port.rvalid & port.rready & port.rlast):
                m.d.sync += data_open[c].eq(0)
            with m.If(port.awvalid & port.awready):
                m.d.sync += aw_open[c].eq(0)
            with m.If(port.wvalid & port.wready):
                m.d.sync += w_open[c].eq(0)
            with m.If(port.bvalid & port.bready):
                m.d.sync += response_open[c].eq(0)
            with m.If(port.rvalid & port.rready & (port.rresp != 0)):
                m.d.comb += [self.fail.eq(1), self.fail_code.eq(ErrorCode.READ), self.fail_info.eq(c)]
            with m.If(port.bvalid & port.bready & (port.bresp != 0)):
                m.d.comb += [self.fail.eq(1), self.fail_code.eq(ErrorCode.WRITE), self.fail_info.eq(c)]
        all_open = (1 << config.channels) - 1
        m.d.comb += [
            self.token_addr_core.eq(position),
            self.token_addr_reader.eq(position),
            self.total.eq(totals[0]),
            self.token_write_addr.eq(position + 1),
            self.token_write_data.eq((totals[0] + self.token_data_core + self.addend)[:8]),
            self.stall.eq(STALL_CAUSES.index("stream")),
            self.dump_position.eq(position),
            self.dump_stall.eq(STALL_CAUSES.index("stream")),
            self.dump_reads.eq(Cat(data_open).any()),
            self.dump_units.eq(1),
        ]
        # like the core's, from a register: harnesses do not evaluate what their inputs change before the next edge
        m.d.sync += self.tile.eq(self.m_axi[0].rvalid & self.m_axi[0].rready)
        decode = position + 1 >= cfg.prompt_end
        ends = (made + 1 == cfg.max_new_tokens) | (position + 1 == cfg.context_limit)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.drained.eq(1)
                with m.If(self.run & ~started):
                    m.d.sync += [position.eq(cfg.position), started.eq(1)]
                    m.next = "HANG"
            with m.State("HANG"):
                with m.If((cfg.vocab != 1) & self.may_go):
                    m.d.comb += self.leaves.eq(self.run)
                    m.next = "READ"
                with m.If(~self.run):
                    m.next = "IDLE"
            with m.State("READ"):
                m.d.comb += clear.eq(1)
                m.d.sync += [address_open.eq(all_open), data_open.eq(all_open)]
                m.next = "DATA"
            with m.State("DATA"), m.If((address_open | data_open) == 0):
                m.d.sync += [aw_open.eq(all_open), w_open.eq(all_open), response_open.eq(all_open)]
                m.next = "WRITE"
            with m.State("WRITE"), m.If((aw_open | w_open | response_open) == 0):
                m.next = "TOKEN"
            with m.State("TOKEN"):
                m.next = "HANG"
                m.d.comb += self.done_position.eq(1)
                m.d.sync += position.eq(position + 1)
                with m.If(decode & self.run):
                    m.d.comb += self.token_write.eq(1)
                    m.d.sync += made.eq(made + 1)
                    with m.If(ends):
                        m.d.comb += self.finish.eq(1)
                        m.next = "IDLE"
        return m


class Exchange(wiring.Component):
    """Sends values to the right (port 1) as frames of two words, and takes those that come from the left (port 0).

    ``send``, ``value`` : a value to the right. ``take``, ``valid``, ``taken`` : the oldest one from the left. Domain
    ``kernel``; ``link_q_*`` in ``link_q``. A port that has nothing to say sends an ACK every 512 cycles of its clock.
    A value whose frame loses a word is lost.
    """

    def __init__(self):
        kernel = {"send": In(1), "value": In(32), "take": In(1), "valid": Out(1), "taken": Out(32)}
        super().__init__(kernel | link_members())

    def elaborate(self, platform):
        m = Module()
        m.submodules.outgoing = outgoing = AsyncFIFO(width=32, depth=16, w_domain="kernel", r_domain="link_1")
        m.submodules.incoming = incoming = AsyncFIFO(width=32, depth=16, w_domain="link_0", r_domain="kernel")
        m.d.comb += [
            outgoing.w_en.eq(self.send),
            outgoing.w_data.eq(self.value),
            incoming.r_en.eq(self.take),
            self.valid.eq(incoming.r_rdy),
            self.taken.eq(incoming.r_data),
        ]
        self._transmit(m, 0, None)
        self._transmit(m, 1, outgoing)
        payload, whole = Signal(32), Signal()
        with m.If(self.link_0_rx.tvalid):
            m.d.link_0 += [payload.eq(self.link_0_rx.tdata), whole.eq(~self.link_0_rx.tlast)]
            with m.If(self.link_0_rx.tlast & self.link_0_rx.tdata[32:35].any()):
                m.d.comb += [incoming.w_en.eq(whole), incoming.w_data.eq(payload)]
        return m

    def _transmit(self, m, q, queue):
        """Payload and trailer of a value, or an ACK."""
        domain, stream = m.d[f"link_{q}"], getattr(self, f"link_{q}_tx")
        idle, trailer_next = Signal(range(KEEPALIVE + 1), name=f"idle_{q}"), Signal(name=f"trailer_next_{q}")
        ready = Signal(name=f"ready_{q}")
        m.d.comb += ready.eq(getattr(self, f"link_{q}_up") & (~stream.tvalid | stream.tready))
        domain += idle.eq(idle + (idle != KEEPALIVE))
        with m.If(stream.tready):
            domain += stream.tvalid.eq(0)
        with m.If(~getattr(self, f"link_{q}_up")):
            domain += [stream.tvalid.eq(0), trailer_next.eq(0)]
        with m.Elif(ready & trailer_next):
            domain += [stream.tvalid.eq(1), stream.tlast.eq(1), stream.tkeep.eq(TRAILER_KEEP), trailer_next.eq(0)]
            domain += stream.tdata.eq(1 << 32)
        with m.Elif(ready & (Const(0) if queue is None else queue.r_rdy)):
            domain += [stream.tvalid.eq(1), stream.tlast.eq(0), stream.tkeep.eq(~0), trailer_next.eq(1), idle.eq(0)]
            if queue is not None:
                domain += stream.tdata.eq(queue.r_data)
                m.d.comb += queue.r_en.eq(1)
        with m.Elif(ready & (idle == KEEPALIVE)):
            domain += [stream.tvalid.eq(1), stream.tlast.eq(1), stream.tkeep.eq(TRAILER_KEEP), idle.eq(0)]
            domain += stream.tdata.eq(0)


class RingStandInCore(StandInCore):
    """With ring_boards > 1 a board sends the total of channel 0 to the right after every position but the last, and
    waits before every position but the first for the one from the left, which it adds to the next token.
    """

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.submodules.exchange = exchange = Exchange()
        for name in link_members():
            ours, theirs = getattr(self, name), getattr(exchange, name)
            if name.endswith("up"):
                m.d.comb += theirs.eq(ours)
            else:
                wiring.connect(m, wiring.flipped(ours), theirs)
        several, first = self.cfg.ring_boards > 1, Signal(init=1)
        m.d.comb += [
            self.may_go.eq(~several | first | exchange.valid),
            exchange.take.eq(several & ~first & self.leaves),
            exchange.send.eq(several & self.done_position & self.run & ~self.finish),
            exchange.value.eq(self.total),
        ]
        with m.If(~self.run):
            m.d.sync += first.eq(1)
        with m.Elif(self.leaves):
            m.d.sync += [first.eq(0), self.addend.eq(Mux(several & ~first, exchange.taken[:8], 0))]
        return m


def stand_in_export(config, core=StandInCore):
    top = U280Top(config, core)
    return export_verilog(top, top.shared, "stand_in")


@pytest.fixture(scope="session")
def config():
    return core_config("16x4")


@pytest.fixture(scope="session")
def one_clock(config):
    """The stand-in drives its memory ports from the core's clock, so theirs has to be the same."""
    return dataclasses.replace(config, port_clock_mhz=config.core_clock_mhz)


@pytest.fixture(scope="session")
def built(one_clock):
    return compile_board(one_clock, stand_in_export(one_clock))


ROWS = 4096  # of a channel
KEY_ROW, VALUE_ROW = 1024, 2048


@pytest.fixture(scope="session")
def ring_built(one_clock):
    return compile_board(one_clock, stand_in_export(one_clock, RingStandInCore))


@pytest.fixture(scope="session")
def program(one_clock, tmp_path_factory):
    """Program and image of the stand-in: `fingerprint` bytes as weights, 200 positions of keys."""
    config = one_clock
    folder = tmp_path_factory.mktemp("program")
    files, digests = [], []
    for c in range(config.channels):
        data = b"".join(hashlib.sha256(f"{c} {r}".encode()).digest() for r in range(1000))
        (folder / f"ch{c:02}.bin").write_bytes(data)
        files.append(folder / f"ch{c:02}.bin")
        digests.append(hashlib.sha256(data).hexdigest())
    regions = tuple(
        Region(kind, kind, c, row * 32, 200 * 32)
        for kind, row in (("keys", KEY_ROW), ("values", VALUE_ROW))
        for c in range(config.channels)
    )
    registers = {"weight_base": 0, "key_base": KEY_ROW, "context_limit": 64}
    made = Program(config, "0" * 64, 0, 1, (1,), (1,), regions, registers)
    return made, MemoryImage(tuple(files), 32000, ROWS * 32, tuple(digests))


def start(board, position=0, prompt_end=3, max_new_tokens=5, tokens=(7, 8, 9), **more):
    """Write the run registers and start."""
    for name, value in {
        "position": position,
        "prompt_end": prompt_end,
        "max_new_tokens": max_new_tokens,
        **more,
    }.items():
        register = board.map[name]
        board.write_register(register.offset, value, register.bits // 8)
    window = board.map.window("tokens")
    for index, token in enumerate(tokens):
        board.write_register(window.offset + 4 * index, token)
    board.write_register(board.map["ctrl"].offset, 1)


def read(board, name):
    register = board.map[name]
    return board.read_register(register.offset, register.bits // 8)


def expected_tokens(program, position=0, prompt_end=3, max_new_tokens=5, tokens=(7, 8, 9)):
    """What the stand-in makes of the image of `program`, in Python."""
    data = program[1].files[0].read_bytes()
    found = list(tokens)
    while len(found) < prompt_end + max_new_tokens:
        total = 0
        for row in range(16 * position, 16 * position + 16):
            total = (total * 5 + int.from_bytes(data[32 * row : 32 * row + 4], "little")) & 0xFFFFFFFF
        if position + 1 >= prompt_end:
            found.append((total + found[position]) & 0xFF)
        position += 1
    return found


def expected_ring_tokens(program, boards, prompt_end=3, max_new_tokens=5, tokens=(7, 8, 9)):
    """What the boards of a ring make of it if board b starts with row 16 b, in Python; a list a board."""
    data = program[1].files[0].read_bytes()

    def total(board, position):
        value = 0
        for row in range(16 * (position + board), 16 * (position + board) + 16):
            value = (value * 5 + int.from_bytes(data[32 * row : 32 * row + 4], "little")) & 0xFFFFFFFF
        return value

    found = [list(tokens) for _ in range(boards)]
    for position in range(prompt_end - 1, prompt_end + max_new_tokens - 1):
        for board, made in enumerate(found):
            left = total((board - 1) % boards, position - 1) if position else 0
            made.append((total(board, position) + left + made[position]) & 0xFF)
    return found


@pytest.fixture(scope="session")
def stand_in():
    """The functions of this file that tests call."""

    class Namespace:
        Core = StandInCore
        RingCore = RingStandInCore
        export = staticmethod(stand_in_export)
        start = staticmethod(start)
        read = staticmethod(read)
        expected_tokens = staticmethod(expected_tokens)
        expected_ring_tokens = staticmethod(expected_ring_tokens)

    return Namespace
