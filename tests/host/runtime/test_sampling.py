"""Sampling has softmax's distribution, keeps to its top-k set, and depends on (seed, position, id) only."""

from __future__ import annotations

import decimal

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare, kstest

from host.errors import BadInput
from host.runtime.sampling import Sampler, gumbel

SEED = 20240612


def _logits(size: int, spread: float = 2.0) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(SEED).standard_normal(size) * spread).astype(np.float32)


def _p_value(sampler: Sampler, draws: int, temperature: float, top_k: int) -> float:
    """Chi-square p-value of draws of one step (at different positions) against softmax at `temperature`."""
    logits = _logits(48)
    counts = np.bincount([sampler.choose(logits, position) for position in range(draws)], minlength=len(logits))
    kept = np.argsort(-logits, kind="stable")[: top_k or len(logits)]
    assert counts.sum() == counts[kept].sum() == draws
    weights = np.exp((logits[kept].astype(np.float64) - logits.max()) / temperature)
    return float(chisquare(counts[kept], draws * weights / weights.sum()).pvalue)


@pytest.mark.parametrize("temperature,top_k,draws", [(0.8, 40, 100_000), (1.0, 0, 20_000), (1.7, 5, 20_000)])
def test_frequencies_fit_softmax(temperature: float, top_k: int, draws: int) -> None:
    value = _p_value(Sampler(temperature, top_k, seed=SEED), draws, temperature, top_k)
    print(f"seed {SEED}, p = {value:.3f}")
    assert value > 1e-3


def test_twin_a_slightly_wrong_temperature_does_not_fit() -> None:
    assert _p_value(Sampler(0.8, 0, seed=SEED), 20_000, 0.9, 0) < 1e-6


def test_different_seeds_are_independent_draws() -> None:
    logits = _logits(16)
    counts = np.bincount([Sampler(1.0, 0, seed).choose(logits, 7) for seed in range(20_000)], minlength=16)
    weights = np.exp(logits.astype(np.float64))
    assert chisquare(counts, counts.sum() * weights / weights.sum()).pvalue > 1e-3


def test_gumbel_numbers_have_their_distribution_along_every_axis() -> None:
    many_ids = gumbel(SEED, 3, np.arange(50_000))
    many_positions = np.array([gumbel(SEED, position, np.array([5]))[0] for position in range(20_000)])
    for numbers in (many_ids, many_positions):
        assert kstest(numbers, "gumbel_r").pvalue > 1e-3
    assert abs(np.corrcoef(gumbel(SEED, 3, np.arange(20_000)), gumbel(SEED, 4, np.arange(20_000)))[0, 1]) < 0.03


def test_a_number_depends_on_seed_position_and_id_only() -> None:
    ids = np.array([900, 3, 17])
    apart = [gumbel(1, 5, np.array([token]))[0] for token in ids]
    assert gumbel(1, 5, ids).tolist() == apart
    assert gumbel(2, 5, ids).tolist() != apart and gumbel(1, 6, ids).tolist() != apart


def test_these_numbers_stay_as_they_are() -> None:
    """A change here would change every sampled text: known words of SplitMix64 in another implementation."""

    def mix(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
        return word ^ (word >> 31)

    golden = 0x9E3779B97F4A7C15
    assert mix(golden) == 0xE220A8397B1DCDAF  # first output of SplitMix64 with seed 0
    row = mix((mix((11 + golden) % 2**64) + 5 * golden) % 2**64)
    word = mix((row + 18 * golden) % 2**64)
    uniform = ((word >> 11) + 0.5) * 2.0**-53
    assert gumbel(11, 5, np.array([17]))[0] == pytest.approx(-np.log(-np.log(uniform)), rel=1e-14)


MASK = 2**64 - 1


def _unmixed(word: int) -> int:
    """The word from which SplitMix64's finaliser makes this one."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        shifted = word
        while shifted:
            shifted >>= shift
            word ^= shifted
        word = word * pow(factor, -1, 2**64) & MASK
    return word


def _number_of(word: int) -> float:
    """The Gumbel number of a random word: of the seed that leads to it at position 5, token 0."""
    golden = 0x9E3779B97F4A7C15
    row = (_unmixed(word) - golden) & MASK
    seed = (_unmixed((_unmixed(row) - 5 * golden) & MASK) - golden) & MASK
    return float(gumbel(seed, 5, np.array([0]))[0])


@pytest.mark.parametrize("steps", [0, 1, 2**51, 2**52 - 1, 2**52, 2**52 + 1, 3 * 2**51, 2**53 - 2, 2**53 - 1])
def test_numbers_are_exact_at_the_ends(steps: int) -> None:
    """u near 1 must not be rounded: the largest word gives the largest number, not an infinite one."""
    with decimal.localcontext(prec=60):
        uniform = (decimal.Decimal(steps) + decimal.Decimal("0.5")) / 2**53
        exact = float(-(-uniform.ln()).ln())
    for low_bits in (0, 2**11 - 1):
        assert _number_of(steps << 11 | low_bits) == pytest.approx(exact, rel=1e-14, abs=1e-15)
    if steps == 2**53 - 1:  # twin: as float64 rounds it
        assert exact == pytest.approx(37.43, abs=0.01) and (float(steps) + 0.5) * 2.0**-53 == 1.0


@pytest.mark.parametrize("top_k", [1, 2, 7])
def test_top_k_never_leaves_its_set(top_k: int) -> None:
    logits = _logits(300, spread=0.01)  # nearly flat, so that every id would be drawn
    logits[[4, 9, 200]] = logits.max() + 1  # three equal largest: ties go to lower ids
    allowed = set(np.lexsort((np.arange(300), -logits))[:top_k].tolist())
    sampler = Sampler(5.0, top_k, seed=SEED)
    seen = {sampler.choose(logits, position) for position in range(3000)}
    assert seen == allowed
    if top_k == 2:
        assert seen == {4, 9}


def test_top_k_of_zero_or_beyond_the_vocabulary_is_everything() -> None:
    logits = _logits(20, spread=0.1)
    for top_k in (0, 20, 5000):
        sampler = Sampler(3.0, top_k, seed=SEED)
        assert {sampler.choose(logits, position) for position in range(2000)} == set(range(20))


def test_temperature_zero_is_arg_max_with_the_lowest_id() -> None:
    logits = _logits(100)
    logits[[30, 60, 90]] = 50.0
    for seed in range(20):
        assert Sampler(0.0, 40, seed).choose(logits, seed) == 30
    zeros = np.full(8, -1.0, np.float32)
    zeros[[2, 5]] = -0.0, 0.0  # -0 counts as +0, as on the board
    assert Sampler().choose(zeros, 0) == 2


@pytest.mark.parametrize(
    "arguments", [(-0.1, 0, 0), (float("nan"), 0, 0), (float("inf"), 0, 0), (1, -1, 0), (1, 0, -1)]
)
def test_values_out_of_range(arguments: tuple[float, int, int]) -> None:
    with pytest.raises(BadInput):
        Sampler(*arguments)
