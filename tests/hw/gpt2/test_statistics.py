"""Statistics unit against the golden scalars and against float64."""

from types import SimpleNamespace

import numpy as np
import pytest

import hw.gpt2.statistics as statistics
from hw.gpt2.config import core_config
from hw.gpt2.statistics import Statistics
from hw.gpt2.tags import Stages
from hw.numerics.fixed_sum import fixed_sums
from hw.numerics.norm_scalars import norm_eps_term, norm_scalars
from sim.rtl.unit import VerilatedUnit

CONFIG = core_config("16x4")
EPS = 1e-5
WAIT = 120


@pytest.fixture(scope="module")
def unit():
    return VerilatedUnit(Statistics(CONFIG))


def play(unit, x, chosen):
    """Feed one vector; returns (r, rm) bits of the chosen set."""
    lanes = CONFIG.lanes
    strips = -(-len(x) // lanes)
    padded = np.full(strips * lanes, 0x7E00, np.uint16)  # columns behind the width are masked, so NaN must not show
    padded[: len(x)] = x.view(np.uint16)
    eps_term = norm_eps_term(EPS, len(x))
    words = np.array([[eps_term >> 32 * i & 0xFFFFFFFF for i in range(3)]] * (strips + WAIT), np.uint32)
    idle = np.zeros(WAIT, np.uint64)
    mask = [(1 << min(lanes, len(x) - s * lanes)) - 1 for s in range(strips)]
    out = unit.run(
        {
            "valid": np.concatenate([np.ones(strips), idle]).astype(np.uint64),
            "x": np.concatenate([padded.reshape(strips, lanes), np.zeros((WAIT, lanes), np.uint16)]),
            "mask": np.concatenate([mask, idle]).astype(np.uint64),
            "first": np.concatenate([np.arange(strips) == 0, idle]).astype(np.uint64),
            "last": np.concatenate([np.arange(strips) == strips - 1, idle]).astype(np.uint64),
            "set": np.full(strips + WAIT, chosen, np.uint64),
            "width": np.full(strips + WAIT, len(x), np.uint64),
            "eps_term": words,
        }
    )
    assert out["done"].sum() == out["soon"].sum() == 1
    done, soon = int(out["done"].argmax()), int(out["soon"].argmax())
    assert out["soon_set"][soon] == chosen
    # a tile that issues in the cycle after `soon` is at the drain unit when the scalars are there, and not later
    assert done - (soon + 1) == Stages(CONFIG).drain
    scale, mean = (out[f"{name}_{chosen}"] for name in ("scale", "mean"))
    assert (scale[done:] == scale[-1]).all() and (mean[done:] == mean[-1]).all()
    assert scale[done - 1] != scale[done], "the vector before has another scale"
    return int(scale[-1]), int(mean[-1])


def vectors():
    rng = np.random.default_rng(3)
    for width, mean, spread in ((128, 0, 1), (48, 5, 1), (130, 100, 0.01), (1, 2, 0), (1000, -3, 40), (8, 0, 1e-4)):
        yield (rng.normal(size=width) * spread + mean).astype(np.float16)


def test_equals_golden_and_float64(unit):
    for i, x in enumerate(vectors()):
        r, rm = play(unit, x, i & 1)
        sum1, sum2, nan = fixed_sums(x.view(np.uint16))
        assert (r, rm) == norm_scalars(sum1, sum2, len(x), norm_eps_term(EPS, len(x)), nan)
        exact = x.astype(np.float64)
        want = 1 / np.sqrt(exact.var() + EPS)
        got, got_mean = np.array([r, rm], np.uint32).view(np.float32)
        assert abs(got - want) <= 2e-7 * want
        assert abs(got_mean - want * exact.mean()) <= 3e-7 * abs(want * exact.mean()) + 1e-30


@pytest.mark.parametrize("change", [-1, 1])
def test_twin_with_another_drain_stage_fails(monkeypatch, change):
    real = Stages.drain.fget
    monkeypatch.setattr(statistics, "Stages", lambda config: SimpleNamespace(drain=real(Stages(config)) + change))
    unit = VerilatedUnit(Statistics(CONFIG))
    with pytest.raises(AssertionError, match="Stages"):
        play(unit, np.linspace(-1, 1, 64).astype(np.float16), 0)


def test_another_epsilon_differs(unit):
    x = np.linspace(-1, 1, 64).astype(np.float16)
    r, _ = play(unit, x, 0)
    sum1, sum2, _ = fixed_sums(x.view(np.uint16))
    assert r != norm_scalars(sum1, sum2, len(x), norm_eps_term(EPS * 100, len(x)))[0]
