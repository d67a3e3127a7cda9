"""One lane with int8 weights against the golden models: both sums of a tile, their queue, scales, parameters, fp16."""

import dataclasses
import gc

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.lane import Lane
from hw.gpt2.lane_int8 import Int8Lane, make_lane
from hw.gpt2.result_queue import RESULT_QUEUE
from hw.gpt2.tags import ParamKind, Stages
from hw.numerics.convert import fp16_to_fp32, fp32_to_fp16
from hw.numerics.dot import dot_tile
from hw.numerics.dot_dual import dot_tile_int8
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_mul import fp32_mul
from hw.numerics.gelu import gelu
from sim.rtl.int8_faults import INT8_FAULTS
from sim.rtl.unit import VerilatedUnit

CONFIG = core_config("16x4i8")
T, STAGES, GUARD = CONFIG.tile, Stages(CONFIG), CONFIG.guard_bits
SEED = 21
STRIPS, WORDS = 8, 3
PARAM = 8  # where the strips' parameters lie
ONE = int(np.float32(1).view(np.uint32))
NEGATIVE = 1 << 31
RESIDUAL = 5  # address of the first old strip
AT = {name: getattr(STAGES, name) - STAGES.lane for name in ("patched", "accumulate", "total")}
QUEUED = STAGES.drain - STAGES.total - 1  # from an entry's read to the drain unit
BEHIND = {name: getattr(STAGES, name) - STAGES.drain + QUEUED for name in ("drain", "linear", "convert", "write")}
PATHS = ["plain", "bias", "norm", "residual", "gelu"]
SIGNATURE = Int8Lane(CONFIG).signature


@dataclasses.dataclass
class Product:
    """A product of STRIPS strips, by tiles of int8 (``two``) or fp16 weights, first accumulator and parameter."""

    two: bool
    path: str
    acc: int
    param: int
    rows: np.ndarray  # of int8 weights (WORDS, STRIPS / 2, T), of fp16 (WORDS, STRIPS, T)
    words: np.ndarray
    mask: np.ndarray
    norm: tuple[int, int]  # r, r * mean

    def tile_sum(self, word, strip):
        """Golden model of one tile's sum for one strip."""
        operand, mask = self.words[word], self.mask[word]
        if not self.two:
            return int(dot_tile(operand, self.rows[word, strip], mask, GUARD))
        both = self.rows[word, strip // 2]
        weights = (both >> 8 if strip % 2 else both & 0xFF).astype(np.uint8)
        return int(dot_tile_int8(operand, weights, mask, GUARD))


def halves(rng, *shape):
    return rng.normal(size=shape).astype(np.float16).view(np.uint16)


def floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32).view(np.uint32)


def random_product(rng, two, path, acc, param):
    rows = rng.integers(0, 1 << 16, (WORDS, STRIPS // 2, T)).astype(np.uint16) if two else halves(rng, WORDS, STRIPS, T)
    norm = (int(floats(rng)[()]), int(floats(rng)[()])) if path == "norm" else (ONE, 0)
    return Product(two, path, acc, param, rows, halves(rng, WORDS, T), rng.random((WORDS, T)) < 0.9, norm)


class Drive:
    """Input arrays of a run."""

    def __init__(self, cycles):
        self.arrays = {}
        for name, member in SIGNATURE.members.items():
            if member.flow.name == "In":
                width = member.shape if isinstance(member.shape, int) else 32
                shape, kind = ((cycles, width // 16), np.uint16) if width > 64 else (cycles, np.uint64)
                self.arrays[name] = np.zeros(shape, kind)

    def put(self, cycle, **values):
        for name, value in values.items():
            self.arrays[name][cycle] = value

    def parameters(self, cycle, values):
        """Rows of parameters, a kind a cycle."""
        for i, (kind, row) in enumerate(values.items()):
            self.put(
                cycle + i + AT["patched"],
                row=row.view(np.uint16), param_take=1, param_kind=kind.value, param=PARAM,
            )  # fmt: skip

    def tile(self, cycle, product, word, strip, place):
        """A tile for ``strip``, with int8 weights for the one behind it too; the last one's results go to ``place``."""
        index = strip // 2 if product.two else strip
        self.put(cycle, word=product.words[word], mask=sum(1 << int(i) for i in np.flatnonzero(product.mask[word])))
        self.put(
            cycle + AT["patched"],
            row=product.rows[word, index], param=product.param + strip, int8=product.two,
        )  # fmt: skip
        self.put(
            cycle + AT["accumulate"],
            acc_valid=1, acc_first=word == 0, acc_bias=product.path == "bias", acc=product.acc + strip,
            acc_two=product.two,
        )  # fmt: skip
        if word == WORDS - 1:
            self.put(cycle + AT["total"], queue_write=1, queue_two=product.two, queue_write_at=place)

    def result(self, cycle, product, strip, place):
        """A result that leaves the queue."""
        scale, mean = product.norm
        self.put(cycle, queue_read_at=place, queue_odd=product.two and strip % 2, use_column_scale=product.two)
        self.put(cycle + BEHIND["drain"], scale=scale, norm_mean=mean)
        self.put(cycle + BEHIND["drain"] + 7, residual_read=RESIDUAL + strip)
        self.put(
            cycle + BEHIND["drain"] + 8,
            add_norm=product.path == "norm", add_residual=product.path == "residual",
        )  # fmt: skip
        self.put(cycle + BEHIND["convert"], use_gelu=product.path == "gelu")


def fill_residual(drive, old):
    """The old strips, by products of one word with one element, whose results leave the queue at once."""
    one = np.full(T, 0x3C00, np.uint16)
    for s in range(STRIPS):
        weight = np.zeros(T, np.uint16)
        weight[0] = old[s]
        drive.put(s, word=one, mask=1)
        drive.put(s + AT["patched"], row=weight)
        drive.put(s + AT["accumulate"], acc_valid=1, acc_first=1, acc=s)
        drive.put(s + AT["total"], queue_write=1, queue_write_at=s)
        read = s + AT["total"] + 1
        drive.put(read, queue_read_at=s)
        drive.put(read + BEHIND["drain"], scale=ONE)
        drive.put(read + BEHIND["write"], residual_write=1, residual_address=RESIDUAL + s)


def expected(product, parameters, old):
    """(linear, half) of each strip by the golden models."""
    found = []
    for s in range(STRIPS):
        at = product.param - PARAM + s
        bias, column_sum, scale = (int(parameters[kind][at]) for kind in ParamKind)
        total = bias if product.path == "bias" else 0
        for w in range(WORDS):
            total = int(fp32_add(total, product.tile_sum(w, s)))
        r, mean = product.norm
        addend = 0
        if product.path == "norm":
            addend = int(fp32_add(bias, int(fp32_mul(mean, column_sum)) ^ NEGATIVE))
        if product.path == "residual":
            addend = int(fp16_to_fp32(old[s]))
        y = int(fp32_add(int(fp32_mul(int(fp32_mul(total, scale if product.two else ONE)), r)), addend))
        found.append((y, int(fp32_to_fp16(int(gelu(y)) if product.path == "gelu" else y))))
    return found


def both_products(unit, path, seed):
    """An int8 and an fp16 product whose tiles and results alternate; what the lane says and what it should.

    Results of all tiles wait until the last one is there and leave in any order.
    """
    rng = np.random.default_rng(seed)
    drive = Drive(260)
    old = halves(rng, STRIPS)
    fill_residual(drive, old)
    start = 60
    parameters = {kind: floats(rng, T // 2) for kind in ParamKind}
    drive.parameters(start - 3, parameters)
    products = [random_product(rng, True, path, 2, PARAM), random_product(rng, False, path, 2 + STRIPS, PARAM)]
    if rng.random() < 0.5:  # a strip's accumulator may be in another bank than its parameters
        products[1].acc += 1
    cycle, results = start + 4, []
    first_place = int(rng.integers(RESULT_QUEUE))
    for w in range(WORDS):
        steps = [(p, s) for p in products for s in range(0, STRIPS, 2 if p.two else 1)]
        order = rng.permutation(len(steps)) if w == WORDS - 1 else range(len(steps))
        for product, s in (steps[i] for i in order):
            place = (first_place + cycle) % RESULT_QUEUE
            drive.tile(cycle, product, w, s, place)
            if w == WORDS - 1:
                results += [(product, strip, place) for strip in ((s, s + 1) if product.two else (s,))]
            cycle += 1
        cycle += 4  # as an accumulator is free again
    read = cycle + AT["total"] + 1
    rng.shuffle(results)
    for i, (product, strip, place) in enumerate(results):
        drive.result(read + i, product, strip, place)
    out = unit.run(drive.arrays)
    wanted = {id(product): expected(product, parameters, old) for product in products}
    got = [
        (int(out["linear"][read + i + BEHIND["linear"]]), int(out["half"][read + i + BEHIND["write"]]))
        for i in range(len(results))
    ]
    return got, [wanted[id(product)][strip] for product, strip, _ in results]


def differing(unit, seeds=range(SEED, SEED + 8)):
    """Paths and seeds at which the lane and the golden models differ."""
    found = []
    for path in PATHS:
        for seed in seeds:
            got, want = both_products(unit, path, seed)
            if got != want:
                found.append((path, seed))
    return found


@pytest.fixture(scope="module")
def unit():
    return VerilatedUnit(Int8Lane(CONFIG))


def test_both_kinds_of_product_on_every_path(unit):
    assert differing(unit) == []


def other_format(product):
    rows = np.repeat(product.rows, 2, axis=1) if product.two else product.rows[:, ::2]
    return dataclasses.replace(product, two=not product.two, rows=rows)


@pytest.mark.parametrize(
    "change",
    [
        lambda product, parameters: (dataclasses.replace(product, rows=np.roll(product.rows, 8)), parameters),
        lambda product, parameters: (dataclasses.replace(product, mask=~product.mask), parameters),
        lambda product, parameters: (other_format(product), parameters),
        lambda product, parameters: (product, {kind: np.roll(row, 1) for kind, row in parameters.items()}),
    ],
    ids=["weights", "mask", "format", "parameters"],
)
def test_twin_another_product_has_another_result(unit, monkeypatch, change):
    """The golden models are asked for another product than the lane."""

    def other(product, parameters, old, right=expected):
        return right(*change(product, parameters), old)

    monkeypatch.setattr(f"{__name__}.expected", other)
    assert len(differing(unit, [SEED])) == len(PATHS)


def test_the_lane_of_a_core(monkeypatch):
    monkeypatch.setattr(Lane, "_MustUse__silence", True)  # Amaranth warns of components that are never used
    assert type(make_lane(CONFIG)) is Int8Lane
    assert type(make_lane(core_config("16x4"))) is Lane
    gc.collect()


FAULTY = {
    fault.name: (fault.module, fault.before, fault.after)
    for fault in INT8_FAULTS
    if fault.module == "hw.gpt2.lane_int8"
}
FAULTY |= {
    "odd sum for a single tile": ("hw.gpt2.lane_int8", "Mux(self.acc_two, sums[b], sums[0])", "sums[b]"),
    "total of the parameters' bank": (
        "hw.gpt2.lane_int8",
        "Cat(of_tile(totals, acc_odd))",
        "Cat(of_tile(totals, param_odd))",
    ),
    "bias of the even bank": (
        "hw.gpt2.lane_int8",
        "single_bias = Mux(param_odd, biases[1], biases[0])",
        "single_bias = biases[0]",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_faulty_lanes_are_noticed(mutant, name):
    module, before, after = FAULTY[name]
    assert differing(VerilatedUnit(mutant(module, before, after)["Int8Lane"](CONFIG)), range(SEED, SEED + 4))
