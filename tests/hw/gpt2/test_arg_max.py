"""Arg-max unit against NumPy: ties, signed zeros, masks, NaN, several steps in a row."""

import numpy as np
import pytest

from hw.gpt2.arg_max import ArgMax
from hw.gpt2.config import core_config
from sim.rtl.unit import VerilatedUnit

LANES = core_config("16x4").lanes
SEED = 11


@pytest.fixture(scope="module")
def unit():
    return VerilatedUnit(ArgMax(core_config("16x4")))


def step(rng, strips, kind):
    values = rng.normal(size=(strips, LANES)).astype(np.float32)
    if kind == "ties":
        values = rng.integers(-1, 2, size=(strips, LANES)).astype(np.float32)
        values[values == 0] *= rng.choice([-1.0, 1.0])  # signed zeros tie
    if kind == "negative":
        values = -np.abs(values)
    mask = rng.random((strips, LANES)) < 0.8
    mask[rng.integers(strips), rng.integers(LANES)] = True
    order = rng.permutation(strips) if kind == "shuffled" else np.arange(strips)
    return values, mask, order


def reference(values, mask, order, highest=False):
    flat = np.full(values.shape, -np.inf)
    flat[order] = np.where(mask, values, -np.inf)  # row i is strip order[i]
    best = np.flatnonzero(flat.ravel() == flat.max())
    return int(best[-1] if highest else best[0])


def play(unit, steps):
    valid, strip, masks, index, commit = [], [], [], [], []
    for values, mask, order in steps:
        for i in range(len(order)):
            valid.append(1)
            strip.append(values[i].view(np.uint32))
            masks.append(int(sum(1 << n for n in range(LANES) if mask[i, n])))
            index.append(order[i])
            commit.append(i == len(order) - 1)
    gap = 8
    rows = {
        "strip_valid": np.array(valid + [0] * gap),
        "strip": np.array([*strip, *[np.zeros(LANES, np.uint32)] * gap]),
        "strip_mask": np.array(masks + [0] * gap),
        "strip_index": np.array(index + [0] * gap),
        "strip_commit": np.array(commit + [0] * gap),
    }
    out = unit.run(rows)
    return out["token"][out["token_valid"] == 1], int(out["nan"].sum())


@pytest.mark.parametrize("kind", ["plain", "ties", "negative", "shuffled"])
def test_equals_numpy(unit, kind):
    rng = np.random.default_rng(SEED)
    steps = [step(rng, int(rng.integers(1, 9)), kind) for _ in range(200)]
    tokens, nans = play(unit, steps)
    assert nans == 0
    assert tokens.tolist() == [reference(*s) for s in steps]


def test_the_tie_rule_matters(unit):
    rng = np.random.default_rng(SEED)
    steps = [step(rng, 6, "ties") for _ in range(50)]
    tokens, _ = play(unit, steps)
    assert tokens.tolist() != [reference(*s, highest=True) for s in steps]


def test_nan_in_a_valid_column_is_reported_and_then_forgotten(unit):
    rng = np.random.default_rng(SEED)
    clean = step(rng, 4, "plain")
    values, mask, order = step(rng, 4, "plain")
    values[2, 1], mask[2, 1] = np.nan, True
    hidden = (values.copy(), mask.copy(), order)
    hidden[1][2, 1] = False
    hidden[1][0, 0] = True
    tokens, nans = play(unit, [(values, mask, order), clean, hidden])
    assert nans == 1
    assert tokens.tolist() == [reference(*clean), reference(*hidden)]
