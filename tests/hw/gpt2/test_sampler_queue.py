"""Strips taken apart into ranks: which tokens come out, on which way, in which cycle."""

import numpy as np
import pytest

import hw.gpt2.sampler_queue as sampler_queue
from hw.gpt2.config import core_config
from hw.gpt2.sampler_list import ID_BITS, RANK_BITS
from hw.gpt2.sampler_queue import SamplerQueue
from hw.numerics.fp32_max import fp32_key
from sim.rtl.unit import VerilatedUnit

CONFIG = core_config("16x4")
LANES = CONFIG.lanes
SEED = 20240704
DEPTH, MARGIN = 64, 8


def rank(bits, index, lane):
    """Rule of ``rank_of``: the larger logit, then the lower id."""
    return fp32_key(bits) << ID_BITS | (1 << ID_BITS) - 1 - (index * LANES + lane)


def strips(rng, count):
    """(values as bits, mask, index), few different values so that bounds and ids meet."""
    values = rng.integers(-3, 3, (count, LANES)).astype(np.float32)
    values[values == 0] *= rng.choice([-1.0, 1.0])
    return values.view(np.uint32), rng.random((count, LANES)) < 0.7, rng.permutation(count)


def play(unit, coming, choose, least, take):
    """[(cycle, way, rank)], cycles with ``end``, the last ``nan``. A strip a cycle; ``take`` has a bit for each."""
    bits, masks, index = coming
    count, cycles = len(index), len(take)
    rows = {name: np.zeros(cycles, np.uint32) for name in ("strip_valid", "strip_mask", "strip_index", "strip_commit")}
    rows["strip"] = np.zeros((cycles, LANES), np.uint32)
    rows["strip_valid"][:count], rows["strip_commit"][count - 1] = 1, 1
    rows["strip"][:count], rows["strip_index"][:count] = bits, index
    rows["strip_mask"][:count] = (masks << np.arange(LANES)).sum(axis=1)
    rows |= {"enable": np.ones(cycles), "choose": np.full(cycles, choose), "take": take}
    rows["least"] = np.full(cycles, least, np.uint64)
    rows["clear"] = np.arange(cycles) == 0
    out = unit.run({name: np.asarray(row, None if row.ndim == 2 else np.uint64) for name, row in rows.items()})
    ways = unit.outputs["valid"]
    words = out["ranks"].reshape(cycles, -1)
    size = 64 if words.dtype == np.uint64 else 32
    wide = [sum(int(word) << size * i for i, word in enumerate(row)) for row in words]
    got = [
        (cycle, w, wide[cycle] >> RANK_BITS * w & (1 << RANK_BITS) - 1)
        for cycle in range(cycles)
        for w in range(ways)
        if int(out["valid"][cycle]) >> w & 1
    ]
    return got, np.flatnonzero(out["end"]).tolist(), int(out["nan"][-1])


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda ways: f"{ways} ways")
def unit(request):
    return VerilatedUnit(SamplerQueue(CONFIG, request.param, DEPTH, MARGIN))


def expected(coming, ways, choose, least):
    """What comes out of each strip: a list of groups of (way, rank), a group a cycle."""
    for bits, mask, index in zip(*coming, strict=True):
        mine = [[rank(bits[n], index, n) for n in range(w, LANES, ways) if mask[n]] for w in range(ways)]
        if choose:
            one_by_one = [(w, r) for w, tokens in enumerate(mine) for r in tokens if r > least]
            yield [[token] for token in one_by_one] or [[]]
        else:
            slowest = max(map(len, mine))
            yield [[(w, tokens[i]) for w, tokens in enumerate(mine) if i < len(tokens)] for i in range(slowest)] or [[]]


@pytest.mark.parametrize("choose", [0, 1])
@pytest.mark.parametrize("pause", [0.0, 0.6])
def test_every_token_once_in_its_cycle(unit, choose, pause):
    rng = np.random.default_rng(SEED)
    ways = unit.outputs["valid"]
    for _ in range(10):
        coming = strips(rng, int(rng.integers(1, DEPTH)))
        least = rank(np.uint32(0), int(rng.integers(20)), 1) if choose else 0
        take = rng.random(1500) >= pause
        got, ends, nan = play(unit, coming, choose, least, take)
        groups = [group for strip in expected(coming, ways, choose, least) for group in strip]
        assert [token[1:] for token in got] == [token for group in groups for token in group]
        assert len(ends) == 1 and nan == 0 and (not got or got[-1][0] <= ends[0])
        if pause == 0:  # the first strip is at work in the third cycle after its own
            cycles = [4 + i for i, group in enumerate(groups) for _ in group]
            assert [token[0] for token in got] == cycles and ends == [3 + len(groups)]


def test_twin_ranks_that_order_ids_the_other_way_are_seen(monkeypatch):
    rng = np.random.default_rng(SEED)
    right = sampler_queue.rank_of
    monkeypatch.setattr(sampler_queue, "rank_of", lambda key, token: right(key, ~token))
    broken = VerilatedUnit(SamplerQueue(CONFIG, 1, DEPTH, MARGIN))
    coming = strips(rng, 20)
    got, _, _ = play(broken, coming, 0, 0, np.ones(200))
    assert [r for _, _, r in got] != [r for strip in expected(coming, 1, 0, 0) for group in strip for _, r in group]


@pytest.mark.parametrize("masked", [False, True])
def test_nan(unit, masked):
    bits, masks, index = strips(np.random.default_rng(SEED), 12)
    bits[7, 2], masks[7, 2] = 0x7F800000, not masked
    for choose in (0, 1):
        least = (1 << RANK_BITS) - 1 if choose else 0  # nothing passes; NaN counts all the same
        _, ends, nan = play(unit, (bits, masks, index), choose, least, np.ones(200))
        assert len(ends) == 1 and nan == (not masked)
