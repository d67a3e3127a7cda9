"""int8 weights as they are compiled: rounding, scales, biases, column sums, padding, boards."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
import pytest

from host.compiler.int8_weights import (
    SMALLEST_SCALE,
    Int8Weights,
    accumulator_starts,
    int8_product,
    quantised,
    scaled_sums,
)
from host.compiler.shape import Shape
from host.compiler.weights import LAYER_PRODUCTS, WeightSource
from host.planner.partition import Partition
from hw.gpt2.config import core_config
from sw.models.gpt2_config import GPT2Config
from sw.models.seeded_weights import SeededCheckpoint

CORE = core_config("16x4", weights="int8")
MODEL = GPT2Config(
    n_layer=2, n_head=4, n_embd=48, n_positions=32, vocab_size=98
)  # heads of 12: padded to 16; 25 strips
LATE = ("keys", "queries", "values", "feed_in", "head")


class UnevenNorms(SeededCheckpoint):
    """Gammas, betas and biases that are not those of an untrained model."""

    def tensor(self, name: str) -> np.ndarray:
        values = super().tensor(name)
        if values.ndim > 1:
            return values
        return np.random.default_rng(len(name)).normal(1.0, 0.5, values.shape).astype(np.float32)


WEIGHTS = UnevenNorms(MODEL, 3)


@functools.cache
def _compiled(name: str, layer: int = 1) -> Int8Weights:
    return int8_product(WeightSource(WEIGHTS), Shape(MODEL, CORE, 32), name, layer)


def _exact(name: str, layer: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(gamma * W in fp32, b + beta @ W in float64) [k, columns], straight from the tensors."""
    if name == "head":
        weight, gamma, beta = (WEIGHTS.tensor(f"{part}.weight") for part in ("wte", "ln_f", "ln_f"))
        beta = WEIGHTS.tensor("ln_f.bias")
        return (weight * gamma).T, weight.astype(np.float64) @ beta
    block = f"h.{layer}."
    matrix, norm = {
        "projection": ("attn.c_proj", ""),
        "feed_in": ("mlp.c_fc", "ln_2"),
        "feed_out": ("mlp.c_proj", ""),
    }.get(name, ("attn.c_attn", "ln_1"))
    weight, bias = WEIGHTS.tensor(f"{block}{matrix}.weight"), WEIGHTS.tensor(f"{block}{matrix}.bias").astype(np.float64)
    if matrix == "attn.c_attn":
        part = slice(*(np.array([0, 1]) + ("queries", "keys", "values").index(name)) * MODEL.n_embd)
        weight, bias = weight[:, part], bias[part]
    if not norm:
        return weight, bias
    gamma, beta = (WEIGHTS.tensor(f"{block}{norm}.{part}") for part in ("weight", "bias"))
    return weight * gamma[:, None], bias + beta.astype(np.float64) @ weight


def _places(name: str) -> np.ndarray:
    """Where the true columns stand among the padded ones."""
    if name in ("keys", "queries"):
        return np.arange(64).reshape(4, 16)[:, :12].reshape(-1)
    return np.arange({"feed_in": 192, "head": 98}.get(name, 48))


@pytest.mark.parametrize("name", [*LAYER_PRODUCTS, "head"])
def test_a_product_is_its_quantised_columns(name: str) -> None:
    found, places = _compiled(name), _places(name)
    exact, bias = _exact(name)
    scale = np.abs(exact).max(axis=0) / np.float32(127)
    integers = np.rint(exact.astype(np.float64) / scale)
    assert np.array_equal(found.scales[places], scale)
    rows = len(exact)
    assert np.array_equal(found.matrix[:rows, places], integers)
    assert np.array_equal(np.abs(found.matrix).max(axis=0)[places], np.full(len(places), 127))
    others = np.setdiff1d(np.arange(found.matrix.shape[1]), places)
    assert not found.matrix[rows:].any() and not found.matrix[:, others].any() and not found.bias[others].any()
    assert (found.scales[others] == SMALLEST_SCALE).all()
    assert found.matrix.shape == (-(-rows // 16) * 16, -(-(places.max() + 1) // 8) * 8)  # whole words, pairs of strips
    if name in LATE:
        assert np.array_equal(found.bias[places], bias.astype(np.float32))
        assert found.column_sums is not None and not found.column_sums[others].any()
        for column in range(0, len(places), 7):
            total = Fraction(float(scale[column])) * int(integers[:, column].sum())
            assert found.column_sums[places[column]] == np.float32(float(total))
    else:
        assert found.column_sums is None
        assert np.array_equal(found.bias[places], (bias / scale).astype(np.float32))


def test_twins_of_folding_are_seen() -> None:
    found, places = _compiled("feed_in"), _places("feed_in")
    weight = WEIGHTS.tensor("h.1.mlp.c_fc.weight")
    assert not np.array_equal(quantised(weight)[0], found.matrix[:48, places])  # gamma is folded in before
    assert not np.array_equal(_exact("feed_in")[0].sum(axis=0), found.column_sums)  # sums are of what was rounded


def test_rounding() -> None:
    """The largest magnitude is 127; halves go to the even step; what fp16 could not hold becomes zero."""
    weights = np.array([[127.0, -2.54, 2.0**-30], [0.5, 0.01, 0], [-1.5, -0.03, 0], [2.5, 0.0, 0]], np.float32)
    matrix, scales = quantised(weights)
    assert scales[0] == 1.0 and scales[1] == pytest.approx(0.02) and scales[2] == SMALLEST_SCALE
    assert matrix.dtype == np.int8 and scales.dtype == np.float32
    assert matrix[:, 0].tolist() == [127, 0, -2, 2]
    assert matrix[0, 1] == -127 and matrix[2, 1] in (-1, -2)
    assert not matrix[:, 2].any()
    assert np.array_equal(quantised(weights.T.copy(), axis=1)[0], matrix.T)


def test_a_weight_is_off_by_half_a_step_at_most() -> None:
    rng = np.random.default_rng(2)
    weights = (rng.standard_normal((256, 40)) * np.exp(rng.normal(0, 4, 40))).astype(np.float32)
    matrix, scales = quantised(weights)
    error = np.abs(matrix * scales.astype(np.float64) - weights) / scales
    assert 0.45 < error.max() < 0.5 + 1e-5
    coarse, wide = quantised(weights[:, :1] * np.float32(2))  # twin: another scale is seen
    assert np.abs(coarse * wide - weights[:, :1]).max() > scales[0]


def test_late_layer_norm_is_the_dequantised_product() -> None:
    """r*(s*acc) + (b' - r*mean*colsum) = LayerNorm(x) @ (s*W) + b, also where the mean of x is large; twin: with the
    column sums of the weights before rounding it is not."""
    rng = np.random.default_rng(5)
    exact, bias = _exact("feed_in")
    matrix, scales = quantised(exact)
    x = 50 + rng.standard_normal((8, 48))
    r, mean = 1 / x.std(axis=1, keepdims=True), x.mean(axis=1, keepdims=True)
    wanted = (x - mean) * r @ (matrix * scales.astype(np.float64)) + bias
    for sums, good in ((scaled_sums(matrix, scales), True), (exact.sum(axis=0), False)):
        found = r * (scales * (x @ matrix)) + (bias - r * mean * sums)
        assert (np.abs(found - wanted).max() < 1e-5) == good


def test_accumulators_start_at_the_bias_in_steps() -> None:
    scales = np.array([0.5, 2.0**-24, 3.0], np.float32)
    bias = np.array([1.0, 2.0, 1.0])
    assert np.array_equal(accumulator_starts(bias, scales), np.array([2.0, 2.0**25, np.float32(1 / 3)], np.float32))
    assert np.isfinite(accumulator_starts(np.array([2e31]), scales[1:2])).all()


def test_strips_are_columns() -> None:
    whole, part = _compiled("keys"), _compiled("keys").strips(3, 4, CORE.lanes)
    assert np.array_equal(part.matrix, whole.matrix[:, 12:28]) and np.array_equal(part.scales, whole.scales[12:28])
    assert part.column_sums is not None and whole.column_sums is not None
    assert np.array_equal(part.bias, whole.bias[12:28]) and np.array_equal(part.column_sums, whole.column_sums[12:28])
    assert _compiled("projection").strips(0, 2, CORE.lanes).column_sums is None


@pytest.mark.parametrize("name", ["feed_in", "projection", "head"])
def test_boards_have_the_columns_of_one(name: str) -> None:
    """A channel's scale does not depend on how many boards share the model."""
    model = GPT2Config(n_layer=1, n_head=4, n_embd=64, n_positions=32, vocab_size=128)
    source = WeightSource(SeededCheckpoint(model, 1))
    partition = Partition.even(model, 2)
    parts = [int8_product(source, Shape(model, CORE, 32, partition, board), name) for board in range(2)]
    whole = int8_product(source, Shape(model, CORE, 32), name)
    for member in ("matrix", "scales", "bias"):
        joined = np.concatenate([getattr(part, member) for part in parts], axis=-1)
        assert np.array_equal(joined, getattr(whole, member))
