"""The board's sampling against the host's sampler in float64: the same tokens, but where scores all but tie."""

import functools
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

import hw.gpt2.sampled_token as sampled_token_module
from host.runtime.accuracy import text_windows
from host.runtime.sampling import Sampler, gumbel
from hw.gpt2.sampled_token import BoardSampling, sampled_token
from hw.numerics.gumbel import gumbel_fixed
from sw.models.tokenizer import Tokenizer

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny"
SEED = 20240705
BOUND = 2.0**-33
"""Largest distance of two scores that a board may see in the other order (docs/decisions/0009)."""


def scores(sampler, logits, position):
    """The host's scores of all tokens that may be chosen; others are -inf."""
    ids = sampler.candidates(logits)
    result = np.full(len(logits), -np.inf)
    result[ids] = logits[ids].astype(np.float64) / sampler.temperature + gumbel(sampler.seed, position, ids)
    return result


def differences(cases):
    """Of (sampler, logits, position): [(host's token, board's token, distance of their scores)], and the draws."""
    found, draws = [], 0
    for sampler, logits, position in cases:
        board = BoardSampling.of(sampler.temperature, sampler.top_k, sampler.seed, len(logits))
        ours = sampled_token(logits.view(np.uint32), board, position)
        theirs = sampler.choose(logits, position)
        draws += 1
        if ours != theirs:
            values = scores(sampler, logits, position)
            found.append((theirs, ours, float(values[theirs] - values[ours])))
    return found, draws


def samplers(rng, count):
    for _ in range(count):
        seed = int(rng.integers(0, 2**64, dtype=np.uint64))
        yield Sampler(float(rng.choice([0.3, 0.7, 0.8, 1.0, 1.3])), int(rng.choice([0, 0, 1, 5, 40, 64])), seed)


def seeded_logits(rng, vocab):
    """Peaked and flat ones, and (a third) in few values so that most of them tie."""
    logits = (rng.standard_normal(vocab) * rng.choice([0.5, 2, 5])).astype(np.float32)
    return np.round(logits) if rng.random() < 1 / 3 else logits


def test_draws_like_the_host():
    rng = np.random.default_rng(SEED)
    cases = [(sampler, seeded_logits(rng, 500), i % 1024 + 1) for i, sampler in enumerate(samplers(rng, 3000))]
    assert differences(cases) == ([], 3000)


def test_draws_like_the_host_at_a_real_vocabulary():
    rng = np.random.default_rng(SEED)
    cases = [(sampler, seeded_logits(rng, 50257), i + 1) for i, sampler in enumerate(samplers(rng, 40))]
    assert differences(cases) == ([], 40)


@pytest.mark.parametrize(
    "mutation",
    [
        lambda how, position: (how, position + 1),
        lambda how, position: (Sampler(1.01 * how.temperature, how.top_k, how.seed), position),
        lambda how, position: (Sampler(how.temperature, max(how.top_k - 1, 1), how.seed), position),
    ],
    ids=["position", "temperature", "top_k"],
)
def test_twins_draw_otherwise(mutation):
    rng = np.random.default_rng(SEED)
    different = 0
    for i, sampler in enumerate(samplers(rng, 2000)):
        logits = seeded_logits(rng, 500)
        how, position = mutation(sampler, i + 1)
        board = BoardSampling.of(how.temperature, how.top_k, how.seed, 500)
        different += sampled_token(logits.view(np.uint32), board, position) != sampler.choose(logits, i + 1)
    assert different > 0


def near_ties(rng, count, nearest, furthest):
    """Cases in which two tokens' scores are ``nearest`` to ``furthest`` apart and all others are far below.

    The logits are so small that fp32 has room for such distances: two tokens whose Gumbel numbers are near each other.
    """
    ids = np.arange(4000)
    while count:
        seed, position = int(rng.integers(0, 2**64, dtype=np.uint64)), int(rng.integers(1, 1024))
        numbers = gumbel(seed, position, ids)
        order = np.argsort(numbers)
        gaps = np.diff(numbers[order])
        at = int(rng.choice(np.flatnonzero(gaps < 2.0**-14)))
        logits = np.full(len(ids), -1000, np.float32)
        logits[order[at + 1]] = 0
        distance = rng.uniform(nearest, furthest) * rng.choice([-1, 1])
        logits[order[at]] = np.float32(gaps[at] + distance)
        yield Sampler(1.0, int(rng.choice([0, 2])), seed), logits, position
        count -= 1


def test_differences_are_near_ties():
    """Adversarial: scores within the bound of each other. Some tokens differ, and none by more."""
    rng = np.random.default_rng(SEED)
    found, draws = differences(near_ties(rng, 400, 0, BOUND))
    print(f"{len(found)} of {draws}, largest distance {max(gap for *_, gap in found) / BOUND:.2f} of the bound")
    assert found and max(gap for *_, gap in found) <= BOUND


def test_no_difference_beyond_the_bound():
    rng = np.random.default_rng(SEED)
    assert differences(near_ties(rng, 400, BOUND, 4 * BOUND)) == ([], 400)


def test_twin_a_coarser_gumbel_number_differs_beyond_the_bound(monkeypatch):
    rng = np.random.default_rng(SEED)
    monkeypatch.setattr(sampled_token_module, "gumbel_fixed", lambda words: gumbel_fixed(words) & -(1 << 12))
    found, _ = differences(near_ties(rng, 400, BOUND, 4 * BOUND))
    assert found


@functools.cache
def held_out_logits(positions):
    """Logits [positions, 1024] of the shipped checkpoint on its held-out text."""
    ids = Tokenizer(TINY).encode((TINY / "heldout.txt").read_text(encoding="utf-8"))
    model = GPT2LMHeadModel.from_pretrained(TINY, dtype=torch.float32).eval()
    with torch.inference_mode():
        windows = [model(torch.tensor([window])).logits[0].numpy() for window in text_windows(ids, 256, positions)]
    return np.concatenate(windows)[:positions]


def checkpoint_cases(rng, positions, draws):
    logits = held_out_logits(positions)
    for i, sampler in enumerate(samplers(rng, positions * draws)):
        yield sampler, logits[i % positions], i % positions + 1


def test_draws_like_the_host_on_the_shipped_checkpoint():
    assert differences(checkpoint_cases(np.random.default_rng(SEED), 256, 8)) == ([], 2048)


@pytest.mark.slow
def test_many_draws_like_the_host():
    """200,000 draws over logits of the checkpoint, 20,000 over seeded ones; each difference is listed."""
    rng = np.random.default_rng(SEED + 1)
    found, draws = differences(checkpoint_cases(rng, 2048, 100))
    more, seeded = differences(
        (how, seeded_logits(rng, 500), i % 1024 + 1) for i, how in enumerate(samplers(rng, 20_000))
    )
    print(f"{draws} draws on the checkpoint, {seeded} seeded ones; differences: {found + more}")
    assert draws >= 200_000 and seeded == 20_000
    assert all(gap <= BOUND for *_, gap in found + more) and len(found + more) <= 1


def test_gumbel_numbers_are_the_hosts():
    """Apart by no more than the board's error and what the host loses where u is rounded near 1: 2^-54 e^G."""
    ids = np.arange(200_000)
    host = gumbel(SEED, 5, ids)
    words = sampled_token_module.splitmix(SEED, np.array([1], np.uint64))
    words = sampled_token_module.splitmix(int(words[0]), np.array([5], np.uint64))
    words = sampled_token_module.splitmix(int(words[0]), ids.astype(np.uint64) + np.uint64(1))
    error = np.abs(gumbel_fixed(words) * 2.0**-43 - host)
    assert (error <= 2.0**-35 + 2.0**-54 * np.exp(host)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_logits(value):
    logits = np.zeros(10, np.float32)
    logits[3] = value
    for top_k in (0, 2):
        assert sampled_token(logits.view(np.uint32), BoardSampling.of(1.0, top_k, 1, 10), 1) is None


def test_what_a_board_leaves_to_the_host():
    assert BoardSampling.of(0.8, 65, 1, vocab=1000) is None
    assert BoardSampling.of(0.0, 0, 1, vocab=1000) is None  # temperature 0 is the arg-max
    assert BoardSampling.of(2.0**17, 0, 1, vocab=1000) is None and BoardSampling.of(2.0**-17, 0, 1, vocab=1000) is None
    assert BoardSampling.of(0.8, 1000, 1, vocab=1000) == BoardSampling.of(0.8, 0, 1, vocab=1000)
    assert BoardSampling.of(0.8, 60, 1, vocab=60) == BoardSampling.of(0.8, 0, 1, vocab=60)
    assert BoardSampling.of(1.0, 64, 2**64 - 1, vocab=1000) == BoardSampling(2**64 - 1, 64, 2**39, 0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((-1, 0, 2**39, 0), r"seed must lie in 0 to 2\^64 - 1, got -1"),
        ((0, 65, 2**39, 0), r"a board's top-k must be 0 \(all\) or 1 to 64, got 65"),
        ((0, 0, 2**40, 0), "mantissa must have 40 bits, got 1099511627776"),
        ((0, 0, 2**39, 17), "exponent must be -16 to 16, got 17"),
    ],
)
def test_registers_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        BoardSampling(*arguments)


def test_fast_enough_for_every_token():
    logits = seeded_logits(np.random.default_rng(SEED), 50257)
    board = BoardSampling.of(0.8, 0, 1, 50257)
    times_s = []
    for position in range(1, 6):
        start = time.perf_counter()
        sampled_token(logits.view(np.uint32), board, position)
        times_s.append(time.perf_counter() - start)
    print(f"{1e3 * min(times_s):.0f} ms for 50,257 logits")
    assert min(times_s) < 0.2
