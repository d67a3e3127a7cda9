"""Reciprocal and LayerNorm scalars: RTL against golden models, golden models against exact integer arithmetic."""

import gc
import random
from fractions import Fraction
from math import isqrt

import numpy as np
import pytest

import hw.numerics.digit_recurrence as digit_recurrence_module
from hw.numerics.convert import fp16_to_fp32_array
from hw.numerics.digit_recurrence import DigitDivider, DigitRoot
from hw.numerics.fixed_sum import fixed_sums
from hw.numerics.fp32_mul import fp32_mul
from hw.numerics.norm_scalars import NormScalars, norm_eps_term, norm_scalars, norm_scalars_limbs
from hw.numerics.reciprocal import Reciprocal, reciprocal_fixed
from sim.rtl.unit import VerilatedUnit

FP32_NAN = 0x7FC00000


def rounded_to_fp32(value):
    """A positive fraction in the normal range as fp32 bit pattern, nearest even."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    significand = round(value / Fraction(2) ** (exponent - 23))
    return ((exponent + 127) << 23) + significand - (1 << 23)


def operate(component, operands, gap=1):
    """Run one operation after the other; returns the outputs in each `done` cycle, and those held just before it.

    Between starts the operand ports carry other numbers and `start` is given once more while the unit is busy.
    """
    count = len(next(iter(operands.values())))
    period = component.latency + gap
    start = np.zeros(count * period, np.uint8)
    start[::period] = 1
    start[3::period] = 1
    rng = np.random.default_rng(0)
    inputs = {"start": start}
    for name, values in operands.items():
        words = 3
        rows = rng.integers(0, 1 << 32, (count * period, words)).astype(np.uint32)
        rows[::period] = [[value >> 32 * k & 0xFFFFFFFF for k in range(words)] for value in values]
        inputs[name] = rows
    unit = VerilatedUnit(component)
    # the last operation ends in the last cycle
    out = unit.run({name: np.concatenate([rows, np.zeros_like(rows[:gap])]) for name, rows in inputs.items()})
    unit.close()
    done = np.flatnonzero(out["done"])
    np.testing.assert_array_equal(done, np.arange(count) * period + component.latency)
    busy = np.zeros(len(out["busy"]), np.uint64)
    for cycle in range(1, component.latency):
        busy[cycle : count * period : period] = 1
    np.testing.assert_array_equal(out["busy"], busy)
    return {name: rows[done] for name, rows in out.items()}, {name: rows[done - 1] for name, rows in out.items()}


def reciprocal_operands(width, count=4000):
    generator = random.Random(width)
    values = [0, 1, 2, 3, (1 << width) - 1] + [1 << k for k in range(width)] + [(1 << k) - 1 for k in range(1, width)]
    values += [generator.getrandbits(generator.randint(1, width)) for _ in range(count)]
    return values, [int(generator.random() < 0.02) for _ in values]


@pytest.mark.parametrize(("width", "bits_per_cycle", "latency"), [(40, 2, 16), (46, 1, 29), (16, 4, 10)])
def test_reciprocal_rtl_equals_golden(width, bits_per_cycle, latency):
    component = Reciprocal(width, bits_per_cycle)
    assert component.latency == latency
    values, nans = reciprocal_operands(width)
    now, before = operate(component, {"value": values, "nan": nans})
    expected = [FP32_NAN if nan else int(reciprocal_fixed(value)) for value, nan in zip(values, nans, strict=True)]
    assert now["out"].tolist() == expected
    assert before["out"].tolist()[1:] == expected[:-1]  # held until done


def test_reciprocal_without_rounding_is_seen(monkeypatch):
    monkeypatch.setattr(digit_recurrence_module, "rounded_up", lambda keep, half, sticky: 0)
    values, nans = reciprocal_operands(40, 500)
    now, _ = operate(Reciprocal(40), {"value": values, "nan": nans})
    assert now["out"].tolist() != [
        FP32_NAN if n else int(reciprocal_fixed(v)) for v, n in zip(values, nans, strict=True)
    ]


def test_reciprocal_golden_is_correctly_rounded():
    for value in reciprocal_operands(46)[0]:
        expected = rounded_to_fp32(Fraction(1 << 24, value)) if value else FP32_NAN
        assert int(reciprocal_fixed(value)) == expected


def layer_norm_operands(vectors, count=1500):
    """Sums of fp16 vectors with and without offset and outliers, and numbers of all sizes that no vector has."""
    generator, rng = random.Random(7), np.random.default_rng(7)
    cases = [(0, 0, 5, 0, 0), (0, 0, 5, 1, 0), (0, 7, 0, 9, 0), (7, 8, 0, 0, 0), (-3, 9, 1, 0, 0), (-3, 9, 1, 1, 0)]
    cases += [(s * (2**55 - 1), 2**96 - 1, 8191, 2**80 - 1, 0) for s in (1, -1)]
    while len(cases) < count:
        width = generator.choice([1, 2, 7, 64, 100])
        x = rng.standard_normal(width) * 10.0 ** generator.randint(-6, 3) + generator.choice([0, 0, 1, 500])
        if generator.random() < 0.3:
            x[0] *= 300
        sum1, sum2, nan = fixed_sums(np.clip(x, -65504, 65504).astype(np.float16).view(np.uint16))
        cases.append((sum1, sum2, width, norm_eps_term(1e-5, width), int(nan)))
        sum1 = generator.choice([1, -1]) * generator.getrandbits(generator.randint(1, 55))
        d = generator.randint(1, 8191)
        sum2 = generator.choice(
            [generator.getrandbits(generator.randint(1, 96)), sum1 * sum1 // d + generator.randint(0, 2)]
        )
        sum2 = min(sum2, 2**96 - 1)
        cases.append((sum1, sum2, d, generator.choice([0, 1, norm_eps_term(1e-5, d)]), int(generator.random() < 0.02)))
    return cases


def limbs(value):
    return value >> 48, value & (1 << 48) - 1


def as_ports(cases):
    names = ("sum1", "sum2", "count", "eps_term", "nan")
    return {name: [case[k] & (1 << 96) - 1 for case in cases] for k, name in enumerate(names)}


def test_norm_scalars_rtl_equals_golden(vectors):
    cases = layer_norm_operands(vectors)
    assert NormScalars.latency == 53
    now, before = operate(NormScalars(), as_ports(cases), gap=2)
    expected = [norm_scalars(*case) for case in cases]
    assert list(zip(now["r"].tolist(), now["rm"].tolist(), strict=True)) == expected
    assert list(zip(before["r"].tolist(), before["rm"].tolist(), strict=True))[1:] == expected[:-1]
    # the mutation twin: the summand for eps is one too large
    wrong = [norm_scalars(s1, s2, d, eps + 1, nan) for s1, s2, d, eps, nan in cases]
    assert expected != wrong


def test_norm_scalars_on_limbs(vectors):
    for sum1, sum2, d, eps, nan in layer_norm_operands(vectors, 6000):
        out = norm_scalars_limbs(sum1, *limbs(sum2), d, *limbs(eps), bool(nan))
        assert tuple(map(int, out)) == norm_scalars(sum1, sum2, d, eps, bool(nan))


def test_norm_scalars_error(vectors):
    """r is within one unit of the correctly rounded value, r * mean is the product of two fp32 numbers."""
    neighbours = checked = 0
    for sum1, sum2, d, eps, nan in layer_norm_operands(vectors, 6000):
        square = d * sum2 - sum1 * sum1 + eps
        r, rm = norm_scalars(sum1, sum2, d, eps, bool(nan))
        if nan or square <= 0 or d == 0:
            assert r == rm == FP32_NAN
            continue
        exact = rounded_to_fp32(Fraction(d << 224, isqrt(square << 400)))
        assert abs(r - exact) <= 1
        neighbours += r != exact
        checked += 1
        sign = 0x80000000 if sum1 < 0 else 0
        mean = sign | rounded_to_fp32(Fraction(abs(sum1), d << 24)) if sum1 else 0
        assert rm == int(fp32_mul(r, mean))
    assert checked > 2500 and neighbours < 0.01 * checked


def test_norm_scalars_equal_float64():
    """The whole chain from fp16 numbers, against NumPy."""
    rng = np.random.default_rng(3)
    for scale, offset in ((1, 0), (0.02, 0.5), (30, -4)):
        half = (rng.standard_normal(768) * scale + offset).astype(np.float16)
        x = fp16_to_fp32_array(half.view(np.uint16)).view(np.float32).astype(np.float64)
        sum1, sum2, nan = fixed_sums(half.view(np.uint16))
        r, rm = (
            float(np.uint32(v).view(np.float32)) for v in norm_scalars(sum1, sum2, 768, norm_eps_term(1e-5, 768), nan)
        )
        expected = 1 / np.sqrt(x.var() + 1e-5)
        assert abs(r / expected - 1) < 2**-23
        assert abs(rm - expected * x.mean()) <= 2**-22 * abs(expected * x.mean())


def test_divider_and_root_alone():
    """Odd shapes: digits that do not fill the last cycle, one digit a cycle."""
    rng = random.Random(1)
    pairs = [(rng.randint(1, 63), rng.randint(32, 63)) for _ in range(300)]
    now, _ = operate(DigitDivider(6, 7, 3), {"dividend": [n for n, _ in pairs], "divisor": [d for _, d in pairs]})
    assert now["quotient"].tolist() == [(n << 6) // d for n, d in pairs]
    assert now["rest"].tolist() == [int((n << 6) % d != 0) for n, d in pairs]
    radicands = [0, 1, 2, 3, 4, (1 << 18) - 1] + [rng.getrandbits(18) for _ in range(300)]
    now, _ = operate(DigitRoot(9, 3), {"radicand": radicands})
    assert now["root"].tolist() == [isqrt(v) for v in radicands]


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_constructor_errors():
    for make, message in (
        (lambda: Reciprocal(50), r"integer 16\.\.46, got 50"),
        (lambda: Reciprocal(40, 0), r"bits_per_cycle must be an integer 1\.\.8, got 0"),
        (lambda: DigitRoot(9, 2), "must divide the 9 digits, got 2"),
        (lambda: DigitDivider(1, 4), r"width must be an integer 2\.\.128, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    gc.collect()  # amaranth warns of the unfinished components here, where the warning is filtered
