"""The list of the largest ranks against Python's sorting; the bound that lets other ranks be left out."""

import gc

import numpy as np
import pytest

from hw.gpt2.sampler_list import ID_BITS, RANK_BITS, LargestList
from sim.rtl.unit import VerilatedUnit

SEED = 20240703
SIZES = [(64, 8), (6, 3), (4, 4), (5, 1)]
PORTS = ("insert", "rank", "shift", "clear")


class Bench:
    def __init__(self, size, block):
        part = LargestList(size, block)
        self.size, self.settle = size, part.settle
        self.unit = VerilatedUnit(part)

    def play(self, coming, rng, pause=0.0, settle=None):
        """(what comes out first, second ..., the bound in each cycle up to that)."""
        rows = [(0, 0, 0, 1)]
        for rank in coming:
            rows += [(0, int(rng.integers(1, 1 << RANK_BITS)), 0, 0)] * int(rng.random() < pause)  # not inserted
            rows.append((1, int(rank), 0, 0))
        rows += [(0, 0, 0, 0)] * ((settle or self.settle) - 1)
        start = len(rows)
        rows += [(0, 0, 1, 0)] * (self.size + 2)
        out = self.unit.run(dict(zip(PORTS, np.array(rows, np.uint64).T, strict=True)))
        return out["first"][start:].tolist(), out["last"][1 : start + 1]

    def largest(self, coming):
        kept = sorted(map(int, coming), reverse=True)[: self.size]
        return kept + [0] * (self.size + 2 - len(kept))


@pytest.fixture(scope="module", params=SIZES, ids=lambda sizes: f"{sizes[0]} by {sizes[1]}")
def bench(request):
    return Bench(*request.param)


def ranks(rng, count, kind="plain"):
    """Different ones; with ties of the key the id decides."""
    keys = rng.integers(1, 4 if kind == "ties" else 1 << 32, count).astype(np.uint64)
    numbers = np.unique(keys << np.uint64(ID_BITS) | rng.permutation(count).astype(np.uint64))
    return {"rising": numbers, "falling": numbers[::-1]}.get(kind, rng.permutation(numbers))


@pytest.mark.parametrize("pause", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["plain", "ties", "rising", "falling"])
def test_equals_sorting(bench, kind, pause):
    rng = np.random.default_rng(SEED)
    for _ in range(20):
        coming = ranks(rng, int(rng.integers(1, 4 * bench.size)), kind)
        assert bench.play(coming, rng, pause)[0] == bench.largest(coming)


def test_the_bound_never_leaves_out_what_is_among_the_largest(bench):
    rng = np.random.default_rng(SEED)
    coming = ranks(rng, 6 * bench.size)
    _, bound = bench.play(coming, rng)
    assert bound[-1] == bench.largest(coming)[bench.size - 1]
    assert (bound[1:] >= bound[:-1]).all() and bound[bench.size - 1] == 0


def test_what_is_not_above_the_bound_makes_no_difference(bench):
    rng = np.random.default_rng(SEED)
    coming = ranks(rng, 6 * bench.size)
    _, bound = bench.play(coming, rng)
    passing = [rank for rank, least in zip(coming, bound, strict=False) if rank > least]
    assert len(passing) < len(coming)
    assert bench.play(passing, rng)[0] == bench.largest(coming)


def test_twin_a_bound_that_is_one_rank_too_high_is_seen(bench):
    """The largest but one for the bound: what lies between the two is missing."""
    rng = np.random.default_rng(SEED)
    coming = ranks(rng, 6 * bench.size)
    largest = bench.largest(coming)
    passing = [rank for rank in coming if rank > largest[bench.size - 1]]
    assert bench.play(passing, rng)[0] != largest


def test_twin_a_shift_before_the_list_has_settled_is_seen():
    bench = Bench(64, 8)
    rng = np.random.default_rng(SEED)
    coming = ranks(rng, 256, "rising")
    assert bench.play(coming, rng)[0] == bench.largest(coming)
    assert bench.play(coming, rng, settle=bench.settle - 1)[0] != bench.largest(coming)


def test_refuses_sizes(monkeypatch):
    monkeypatch.setattr(LargestList, "_MustUse__silence", True)  # Amaranth warns of components that are never used
    with pytest.raises(ValueError, match=r"cells of a block must divide those of the list \(64\), got 7"):
        LargestList(64, 7)
    gc.collect()
