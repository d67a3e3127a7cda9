"""Logits writer against the layout of docs/core.md section 6; room promised by ``ready_soon``; overflow."""

import gc
import random
import sys

import pytest

import hw.gpt2.logits_writer as logits_writer
from hw.gpt2.config import ConfigError, CoreConfig, core_config
from hw.gpt2.logits_writer import LogitsWriter
from sim.rtl.pysim import run_testbench

SMALL = CoreConfig(name="16x4", tile=16, lanes=4, channels=4, port_bits=256, context=64, fifo_words=64)
FOUR_PARTS = CoreConfig(name="64x2", tile=64, lanes=2, channels=8, port_bits=256, context=64, fifo_words=64)
ONE_PART = CoreConfig(name="16x8", tile=16, lanes=8, channels=8, port_bits=256, context=64, fifo_words=64)
LOGITS_BASE, LOGITS_ROWS = 4000, 11
UNTOUCHED = 0x7E
sys.set_int_max_str_digits(0)  # Amaranth's simulator prints masks of 16,384 bits


class Bench:
    """``products``: (position, first strip, strips) in order; each strip's data are random."""

    def __init__(
        self, config, seed, products, ready_pause=0.0, strip_pause=0.5, depth=8, margin=4, obey=True, enable=1
    ):
        print(f"seed {seed}")
        self.config, self.products, self.enable, self.obey = config, products, enable, obey
        self.ready_pause, self.strip_pause = ready_pause, strip_pause
        self.depth = depth
        self.rng = random.Random(seed)
        self.dut = LogitsWriter(config, depth, margin)
        self.margin = margin
        self.got, self.want = {}, {}
        self.writes = 0

    def row(self, memory, channel, row):
        return memory.setdefault((channel, row), bytearray([UNTOUCHED]) * self.config.port_bytes)

    def expect(self, position, strip, data, last):
        """Rule of section 6: this strip, and zeros behind a product's last one up to the end of its port word."""
        size = self.config.lanes * 4
        parts = self.config.port_bytes // size
        for i in range(strip % parts, parts if last else strip % parts + 1):
            word = strip // parts
            row = self.row(
                self.want,
                word % self.config.channels,
                LOGITS_BASE + position * LOGITS_ROWS + word // self.config.channels,
            )
            row[i * size : (i + 1) * size] = data.to_bytes(size, "little") if i == strip % parts else bytes(size)

    async def memory(self, ctx):
        dut, config = self.dut, self.config
        while True:
            ctx.set(dut.write_ready, self.rng.random() >= self.ready_pause)
            *_, valid, ready, row, channels, word, spread, strobe = await ctx.tick().sample(
                dut.write_valid, dut.write_ready, dut.write_row, dut.write_channels, dut.write_word, dut.write_spread,
                dut.write_strobe,
            )  # fmt: skip
            if not (valid and ready):
                continue
            self.writes += 1
            assert not spread, "logits are no strip of values"
            for byte in range(config.channels * config.port_bytes):
                channel, at = divmod(byte, config.port_bytes)
                part = channel % config.channels_per_lane
                if channels >> channel & 1 and strobe >> at & 1:
                    self.row(self.got, channel, row)[at] = word >> 8 * (part * config.port_bytes + at) & 0xFF

    async def drain_unit(self, ctx):
        """Sends up to ``margin`` strips on each sight of ``ready_soon``, as a sequencer with strips under way does."""
        dut, rng = self.dut, self.rng
        ctx.set(dut.cfg.logits_base, LOGITS_BASE)
        ctx.set(dut.cfg.logits_rows, LOGITS_ROWS)
        ctx.set(dut.enable, self.enable)
        allowed, before = 0, None
        for position, first, strips in self.products:
            if position != before:
                await ctx.tick().repeat(4 * self.depth + 4)
                ctx.set(dut.position, position)
                await ctx.tick().repeat(2)
                before = position
            for strip in range(first, first + strips):
                while rng.random() < self.strip_pause:
                    await ctx.tick()
                while self.obey and not allowed:
                    allowed = self.margin if ctx.get(dut.ready_soon) else 0
                    if not allowed:
                        await ctx.tick()
                allowed -= 1
                data, last = rng.getrandbits(32 * self.config.lanes), strip == first + strips - 1
                ctx.set(dut.strip_valid, 1)
                ctx.set(dut.strip_index, strip)
                ctx.set(dut.strip_data, data)
                ctx.set(dut.strip_last, last)
                await ctx.tick()
                ctx.set(dut.strip_valid, 0)
                if self.enable:
                    self.expect(position, strip, data, last)
        await ctx.tick()
        await ctx.tick().until(~dut.busy)
        self.overflow = ctx.get(dut.overflow)

    def simulate(self, cycles=6000):
        run_testbench(self.dut, self.drain_unit, background=[self.memory], cycles=cycles)
        return self

    def check(self):
        assert not self.overflow, "strips were lost"
        assert self.got == self.want, "memory differs"


PRODUCTS = [(5, 0, 21), (5, 21, 1), (5, 22, 20), (9, 3, 6), (9, 9, 30), (63, 0, 2), (63, 2, 5)]


@pytest.mark.parametrize("config", [SMALL, FOUR_PARTS, ONE_PART], ids=lambda config: config.name)
@pytest.mark.parametrize("ready_pause", [0.0, 0.6])
@pytest.mark.parametrize("strip_pause", [0.0, 0.6])
def test_strips_fill_port_words(config, ready_pause, strip_pause):
    Bench(config, 81, PRODUCTS, ready_pause, strip_pause).simulate().check()


def test_full_size_core():
    bench = Bench(core_config("64x16"), 82, [(2, 0, 40), (2, 40, 3)], 0.2).simulate()
    bench.check()
    assert bench.writes == 43


def test_disabled_writes_nothing():
    bench = Bench(SMALL, 83, PRODUCTS, enable=0).simulate()
    bench.check()
    assert bench.writes == 0


@pytest.mark.parametrize("depth, margin", [(8, 4), (16, 16), (5, 1)])
def test_ready_soon_is_enough_room(depth, margin):
    """A memory that hardly takes anything: nothing is lost by a sender that obeys ``ready_soon``."""
    Bench(ONE_PART, 84, [(2, 0, 40)], 0.9, 0.0, depth, margin).simulate().check()


def test_overflow_is_kept():
    bench = Bench(SMALL, 85, [(1, 0, 60)], ready_pause=0.9, strip_pause=0.0, obey=False).simulate()
    assert bench.overflow


@pytest.mark.parametrize(
    "broken",
    [
        lambda word, config: (word[:2], word[2:] + 1),
        lambda word, config: (word[:2] ^ 1, word[2:]),
    ],
)
def test_twins_fail(monkeypatch, broken):
    monkeypatch.setattr(logits_writer, "port_word_place", broken)
    with pytest.raises(AssertionError, match="memory differs"):
        Bench(SMALL, 81, PRODUCTS).simulate().check()


def test_twin_with_too_small_a_margin_fails():
    """A sender that takes ``ready_soon`` for more room than it promises loses strips."""
    bench = Bench(ONE_PART, 84, [(2, 0, 40)], 0.9, 0.0)
    bench.margin = 6
    with pytest.raises(AssertionError, match="strips were lost"):
        bench.simulate().check()


def test_refuses_sizes(monkeypatch):
    monkeypatch.setattr(LogitsWriter, "_MustUse__silence", True)  # Amaranth warns of components that are never used
    with pytest.raises(ConfigError, match="a strip of fp32 logits \\(16 x 32 bits\\) must fit a port word of 256 bits"):
        LogitsWriter(CoreConfig(name="16x16", tile=16, lanes=16, channels=16, port_bits=256))
    with pytest.raises(ValueError, match="margin must be 1 to depth \\(8\\), got 9"):
        LogitsWriter(SMALL, 8, 9)
    gc.collect()
