"""Random words, Gumbel numbers and scaled logits: RTL against golden model, golden model against exact arithmetic."""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

import hw.numerics.gumbel as gumbel_module
import hw.numerics.scaled_logit as scaled_logit_module
import hw.numerics.splitmix as splitmix_module
from hw.numerics.cubic_table import cubic, cubic_rows
from hw.numerics.gumbel import Gumbel, gumbel_fixed
from hw.numerics.gumbel_table import logarithm_ratio_rows, logarithm_rows
from hw.numerics.scaled_logit import ScaledLogit, inverse_temperature, scaled_logits
from hw.numerics.splitmix import SplitMix, splitmix

SEED = 20240701
ALL_ONES = 2**64 - 1


def words(rng, each, random):
    """Ends, and words of every number of leading zeros and ones (`each` random ones of a kind), and any."""
    runs = [0, ALL_ONES]
    for zeros in range(64):
        top = ALL_ONES >> zeros
        for word in (top, top ^ (top >> 1), *(int(w) >> zeros for w in rng.integers(0, 2**64, each, np.uint64))):
            runs += [word, ALL_ONES ^ word]
    return np.concatenate([np.array(runs, np.uint64), rng.integers(0, 2**64, random, np.uint64)])


def signed_bits(rows, width):
    """Python integers of a unit's output port."""
    rows = rows.reshape(len(rows), -1)
    size = 64 if rows.dtype == np.uint64 else 32
    values = [sum(int(word) << size * i for i, word in enumerate(row)) for row in rows]
    return [value - (value >> (width - 1) << width) for value in values]


def mix(word):
    """SplitMix64's output function as its authors write it."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & ALL_ONES
    word = (word ^ word >> 27) * 0x94D049BB133111EB & ALL_ONES
    return word ^ word >> 31


def counters(rng):
    bases = words(rng, 20, 5000)
    numbers = rng.integers(0, 2**21, len(bases)).astype(np.uint64)
    numbers[:4], numbers[4:8] = 2**21 - 1, 0
    return bases, numbers


def test_words_of_rtl_and_golden_model_are_those_of_splitmix64(pipeline_output):
    bases, numbers = counters(np.random.default_rng(SEED))
    exact = [mix((int(b) + int(n) * 0x9E3779B97F4A7C15) & ALL_ONES) for b, n in zip(bases, numbers, strict=True)]
    golden = [int(splitmix(int(b), numbers[i : i + 1])[0]) for i, b in enumerate(bases)]
    assert golden == exact
    assert int(splitmix(0, np.array([1], np.uint64))[0]) == 0xE220A8397B1DCDAF  # its first output with seed 0
    assert pipeline_output(SplitMix(), {"base": bases, "number": numbers})["out"].tolist() == exact


def test_twin_a_wrong_bit_of_a_factor_is_seen(pipeline_output, monkeypatch):
    bases, numbers = counters(np.random.default_rng(SEED))
    exact = [int(splitmix(int(b), numbers[i : i + 1])[0]) for i, b in enumerate(bases)]
    monkeypatch.setattr(splitmix_module, "_MIX_2", splitmix_module._MIX_2 ^ 1 << 63)
    assert pipeline_output(SplitMix(), {"base": bases, "number": numbers})["out"].tolist() != exact


def test_gumbel_numbers_of_rtl_equal_the_golden_model(pipeline_output):
    inputs = words(np.random.default_rng(SEED), 100, 100_000)
    out = signed_bits(pipeline_output(Gumbel(), {"word": inputs})["out"], 50)
    assert out == gumbel_fixed(inputs).tolist()


@pytest.mark.parametrize("rows", ["logarithm_rows", "logarithm_ratio_rows"])
def test_twin_one_wrong_table_bit_is_seen(rows, pipeline_output, monkeypatch):
    inputs = words(np.random.default_rng(SEED), 100, 100_000)
    broken = getattr(gumbel_module, rows)().copy()
    broken[1, 200] ^= 1 << 10
    monkeypatch.setattr(gumbel_module, rows, lambda: broken)
    out = pipeline_output(Gumbel(), {"word": inputs})["out"]
    monkeypatch.undo()
    assert signed_bits(out, 50) != gumbel_fixed(inputs).tolist()


def gumbel_decimal(word):
    """-ln(-ln(u)) to 30 digits."""
    with localcontext() as context:
        context.prec = 50
        return -(-(Decimal(2 * (word >> 11) + 1) / 2**54).ln()).ln()


def gumbel_float64(inputs):
    """-ln(-ln(u)); where u is near 1, by 1 - u, which float64 holds exactly."""
    places = inputs >> np.uint64(11)
    near_one = ((np.uint64(2**53 - 1) - places).astype(np.float64) + 0.5) * 2.0**-53
    uniform = (np.minimum(places, np.uint64(2**52)).astype(np.float64) + 0.5) * 2.0**-53
    return np.where(places >= 2**52, -np.log(-np.log1p(-np.minimum(near_one, 0.5))), -np.log(-np.log(uniform)))


def test_gumbel_error_in_exact_arithmetic():
    inputs = words(np.random.default_rng(SEED + 1), 8, 1500)
    errors = [
        abs(Decimal(number) / 2**43 - gumbel_decimal(int(word)))
        for word, number in zip(inputs, gumbel_fixed(inputs).tolist(), strict=True)
    ]
    print(f"largest error 2**{float(max(errors).ln()) / np.log(2):.2f} over {len(errors)} words")
    assert max(errors) <= Decimal(2) ** -35


def gumbel_errors(random):
    inputs = words(np.random.default_rng(SEED + 2), 2000, random)
    return gumbel_fixed(inputs) * 2.0**-43 - gumbel_float64(inputs)


def test_gumbel_error_over_many_words():
    errors = gumbel_errors(1_000_000)
    random = errors[-1_000_000:]
    print(f"largest error 2**{np.log2(np.abs(errors).max()):.2f}, RMS 2**{np.log2(np.sqrt(np.mean(errors**2))):.2f}")
    assert np.abs(errors).max() <= 2.0**-35
    assert np.sqrt(np.mean(errors**2)) <= 2.0**-36.8
    assert np.sqrt(np.mean(random**2)) <= 2.0**-36.9 and abs(random.mean()) <= 2.0**-44  # no bias


def test_twin_a_coarser_place_is_seen(monkeypatch):
    """Two bits less of a place are an error of 2**-34, which the bound does not allow."""
    monkeypatch.setattr(gumbel_module, "cubic", lambda rows, segment, place: cubic(rows, segment, place & -8))
    assert np.abs(gumbel_errors(100_000)).max() > 2.0**-34


def test_a_function_that_does_not_fit_the_table_is_refused():
    with pytest.raises(ValueError, match=r"coefficient c1 = .* of segment 0 does not fit unsigned\(34\)"):
        cubic_rows(lambda x: 2 * x, Decimal(0), Decimal(1), 256)
    for rows in (logarithm_rows(), logarithm_ratio_rows()):
        assert rows.shape == (4, 256) and rows.dtype == np.int64


def logits(vectors, rng):
    """Corners, every exponent, and numbers like logits."""
    plain = (rng.standard_normal(5_000) * 30).astype(np.float32).view(np.uint32)
    bits = np.concatenate([vectors.fp32_corners(), vectors.stratified(rng, range(1, 255), 20), plain])
    return bits[(bits >> 23) & 0xFF != 0xFF]


def scaled_fraction(bits, mantissa, exponent):
    """Rule of `ScaledLogit` in exact arithmetic, in units of 2**-40."""
    value = Fraction(float(np.uint32(bits).view(np.float32))) if bits >> 23 & 0xFF else Fraction(0)
    units = int(abs(value) * mantissa * Fraction(2) ** (exponent - 39 + 40))
    return min(units, 2**71 - 1) * (-1 if value < 0 else 1)


def test_scaled_logits_of_rtl_and_golden_model_are_exact_products(vectors, pipeline_output):
    rng = np.random.default_rng(SEED)
    bits = logits(vectors, rng)
    mantissas = rng.integers(2**39, 2**40, len(bits))
    mantissas[::5], mantissas[1::5] = 2**39, 2**40 - 1
    exponents = rng.integers(-16, 17, len(bits))
    exact = [scaled_fraction(int(b), int(k), int(e)) for b, k, e in zip(bits, mantissas, exponents, strict=True)]
    golden = []
    for i in range(len(bits)):
        whole, fraction = scaled_logits(bits[i : i + 1], int(mantissas[i]), int(exponents[i]))
        assert 0 <= fraction[0] < 2**40
        golden.append((int(whole[0]) << 40) + int(fraction[0]))
    assert golden == exact
    assert max(exact) == 2**71 - 1 and min(exact) == 1 - 2**71  # some are limited
    out = pipeline_output(ScaledLogit(), {"x": bits, "mantissa": mantissas, "exponent": exponents})["out"]
    assert signed_bits(out, 72) == exact


def test_twin_a_binary_point_one_place_off_is_seen(vectors, pipeline_output, monkeypatch):
    rng = np.random.default_rng(SEED)
    bits = logits(vectors, rng)
    exact = [scaled_fraction(int(b), 2**39, 16) for b in bits]
    inputs = {"x": bits, "mantissa": np.full(len(bits), 2**39), "exponent": np.full(len(bits), 16)}
    monkeypatch.setattr(scaled_logit_module, "_NO_SHIFT", scaled_logit_module._NO_SHIFT + 1)
    assert signed_bits(pipeline_output(ScaledLogit(), inputs)["out"], 72) != exact


@pytest.mark.parametrize("temperature", [2.0**-16, 0.1, 0.7, 0.8, 1 - 2.0**-53, 1.0, 1 + 2.0**-52, 3.0, 2.0**16])
def test_inverse_temperature(temperature):
    mantissa, exponent = inverse_temperature(temperature)
    assert 2**39 <= mantissa < 2**40 and -16 <= exponent <= 16
    error = Fraction(mantissa) * Fraction(2) ** (exponent - 39) * Fraction(temperature) - 1
    assert abs(error) <= Fraction(1, 2**40)


@pytest.mark.parametrize("temperature", [0.0, -1.0, 2.0**-16 * (1 - 2.0**-53), 2.0**16 * (1 + 2.0**-52), float("nan")])
def test_a_temperature_that_boards_do_not_know_is_refused(temperature):
    with pytest.raises(ValueError, match=r"a board's temperature must lie in 2\^-16 to 2\^16"):
        inverse_temperature(temperature)
