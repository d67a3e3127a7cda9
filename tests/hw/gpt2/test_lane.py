"""One lane against the golden models: products, parameters, LayerNorm, residual, GELU, exponentials."""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.gpt2.config import core_config
from hw.gpt2.lane import Lane, lane_module
from hw.gpt2.lane_int8 import make_lane
from hw.gpt2.tags import ParamKind, Stages
from hw.numerics.convert import fp16_to_fp32, fp32_to_fp16
from hw.numerics.dot import dot_tile
from hw.numerics.exponential import exp_negative
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_mul import fp32_mul
from hw.numerics.gelu import gelu
from sim.rtl.unit import VerilatedUnit

CONFIG = core_config("16x4")
T, STAGES = CONFIG.tile, Stages(CONFIG)
GROUP, WORDS, SEED = 4, 3, 21
ONE = np.float32(1).view(np.uint32)
AT = {  # cycles after the lane stage
    "patched": STAGES.patched - STAGES.lane,
    "accumulate": STAGES.accumulate - STAGES.lane,
    "drain": STAGES.drain - STAGES.lane,
    "linear": STAGES.linear - STAGES.lane,
    "convert": STAGES.convert - STAGES.lane,
    "write": STAGES.write - STAGES.lane,
}
NEGATIVE = 1 << 31
SIGNATURE = Lane(CONFIG).signature


@pytest.fixture(scope="module")
def unit():
    return VerilatedUnit(Lane(CONFIG))


class Drive:
    """Input arrays of a run: ``put(name, cycle, value)``."""

    def __init__(self, cycles):
        self.arrays = {}
        for name, member in SIGNATURE.members.items():
            if member.flow.name == "In":
                width = member.shape if isinstance(member.shape, int) else 32
                wide = width > 64
                self.arrays[name] = np.zeros((cycles, width // 16), np.uint16) if wide else np.zeros(cycles, np.uint64)

    def put(self, name, cycle, value):
        self.arrays[name][cycle] = value


def halves(rng, *shape):
    return rng.normal(size=shape).astype(np.float16).view(np.uint16)


def floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32).view(np.uint32)


def product(unit, path, guard_bits=CONFIG.guard_bits, seed=SEED):
    """Run GROUP strips of WORDS words through the lane; returns (linear, half) of hardware and golden model."""
    rng = np.random.default_rng(seed)
    drive = Drive(200)
    rows, words = halves(rng, WORDS, GROUP, T), halves(rng, WORDS, T)
    mask = rng.random((WORDS, T)) < 0.9
    bias, column_sum = floats(rng, T // 2), floats(rng, T // 2)
    scale, mean = (floats(rng)[()], floats(rng)[()]) if path == "norm" else (ONE, 0)
    old = halves(rng, GROUP)
    if path == "residual":  # put the old strips in place by products of one word, one element
        for s in range(GROUP):
            weight = np.zeros(T, np.uint16)
            weight[0] = old[s]
            one = np.full(T, 0x3C00, np.uint16)
            tile(drive, s, s, weight, one, np.arange(T) == 0, first=True, last=True, scale=ONE)
            drive.put("residual_write", s + AT["write"], 1)
            drive.put("residual_address", s + AT["write"], 5 + s)
    start = 60
    if path in ("norm", "bias"):
        kinds = ((ParamKind.BIAS, bias), (ParamKind.COLUMN_SUM, column_sum))
        for i, (kind, values) in enumerate(kinds[: 2 if path == "norm" else 1]):
            cycle = start - 2 + i + AT["patched"]
            drive.put("row", cycle, values.view(np.uint16))
            drive.put("param_take", cycle, 1)
            drive.put("param_kind", cycle, kind.value)
            drive.put("param", cycle, 8)
    linear, half = [], []
    totals = [0] * GROUP
    for w in range(WORDS):
        for s in range(GROUP):
            cycle = start + w * GROUP + s
            tile(
                drive, cycle, s, rows[w, s], words[w], mask[w],
                first=w == 0, last=w == WORDS - 1, scale=scale, mean=mean, path=path, param=8 + s,
            )  # fmt: skip
            begin = (bias[s] if path == "bias" else 0) if w == 0 else totals[s]
            totals[s] = int(fp32_add(begin, dot_tile(words[w], rows[w, s], mask[w], guard_bits)))
    for s in range(GROUP):
        addend = 0
        if path == "norm":
            addend = int(fp32_add(bias[s], int(fp32_mul(mean, column_sum[s])) ^ NEGATIVE))
        if path == "residual":
            addend = int(fp16_to_fp32(old[s]))
        y = int(fp32_add(int(fp32_mul(totals[s], scale)), addend))
        linear.append(y)
        half.append(int(fp32_to_fp16(int(gelu(y)) if path == "gelu" else y)))
    out = unit.run(drive.arrays)
    last = start + (WORDS - 1) * GROUP + np.arange(GROUP)
    return (out["linear"][last + AT["linear"]].tolist(), out["half"][last + AT["write"]].tolist()), (linear, half)


def tile(drive, cycle, acc, row, word, mask, *, first, last, scale, mean=0, path="plain", param=0):
    drive.put("word", cycle, word)
    drive.put("mask", cycle, sum(1 << i for i in range(T) if mask[i]))
    drive.put("row", cycle + AT["patched"], row)
    drive.put("param", cycle + AT["patched"], param)
    drive.put("acc_valid", cycle + AT["accumulate"], 1)
    drive.put("acc_first", cycle + AT["accumulate"], first)
    drive.put("acc_bias", cycle + AT["accumulate"], path == "bias")
    drive.put("acc", cycle + AT["accumulate"], acc)
    if last:
        drive.put("scale", cycle + AT["drain"], scale)
        drive.put("norm_mean", cycle + AT["drain"], mean)
        drive.put("residual_read", cycle + AT["drain"] + 7, 5 + acc)
        drive.put("add_norm", cycle + AT["drain"] + 8, path == "norm")
        drive.put("add_residual", cycle + AT["drain"] + 8, path == "residual")
        drive.put("use_gelu", cycle + AT["convert"], path == "gelu")


@pytest.mark.parametrize("path", ["plain", "bias", "norm", "residual", "gelu"])
def test_paths(unit, path):
    for seed in range(SEED, SEED + 20):
        got, want = product(unit, path, seed=seed)
        assert got == want, f"seed {seed}"


class Through(wiring.Component):
    """A register, and an output that is none."""

    def __init__(self):
        super().__init__({"x": In(40), "late": Out(40), "now": Out(40)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.late.eq(self.x)
        m.d.comb += self.now.eq(self.late ^ self.x)
        return m


def last_outputs(component, changed):
    """Outputs in the last of some random cycles; ``changed`` gives that cycle other inputs."""
    rng, unit = np.random.default_rng(SEED), VerilatedUnit(component)
    rows = {}
    for name, width in unit.inputs.items():
        bits = rng.integers(0, 2, (60, width), np.uint8)
        bits[-1] ^= changed
        rows[name] = np.packbits(bits, axis=1, bitorder="little")
    out = unit.run(rows)
    unit.close()
    return {name: np.atleast_1d(values[-1]).tolist() for name, values in out.items()}


@pytest.mark.parametrize("core", ["16x4", "16x4i8"])
def test_outputs_come_from_registers(core):
    """Whoever compiles the lane apart (sim.rtl.hierarchy) relies on it."""
    config = core_config(core)
    assert last_outputs(make_lane(config), False) == last_outputs(make_lane(config), True)


def test_twin_an_output_that_is_no_register_is_noticed():
    assert last_outputs(Through(), False) != last_outputs(Through(), True)


def test_module_name_is_an_identifier():
    assert lane_module(CONFIG) == "ringfly_lane_16x4"
    assert lane_module(dataclasses.replace(CONFIG, name="16x4 fast-ports.2")).isidentifier()


def test_fewer_guard_bits_differ(unit):
    results = [product(unit, "plain", guard_bits=CONFIG.guard_bits - 1, seed=seed) for seed in range(20)]
    assert any(got != want for got, want in results)


def test_exponentials(unit):
    rng = np.random.default_rng(SEED)
    drive = Drive(160)
    for s in range(GROUP):  # scores come from products, like everything that is stored
        row, word = halves(rng, T), halves(rng, T)
        tile(drive, s, s, row, word, np.ones(T, bool), first=True, last=True, scale=ONE)
        drive.put("score_write", s + AT["linear"], 1)
        drive.put("score_address", s + AT["linear"], 3 + s)
    maximum = np.float32(9.5).view(np.uint32)
    for s in range(GROUP):
        drive.put("score_read", 100 + s, 3 + s)
        drive.put("score_max", 101 + s, maximum)
    out = unit.run(drive.arrays)
    scores = out["linear"][np.arange(GROUP) + AT["linear"]]
    want = [int(exp_negative(int(fp32_add(int(score), int(maximum) ^ NEGATIVE)))) for score in scores]
    assert out["exponential"][100 + np.arange(GROUP) + STAGES.exponential].tolist() == want
    assert len(set(want)) > 1
