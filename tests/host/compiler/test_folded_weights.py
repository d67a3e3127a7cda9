"""A LayerNorm folded into its product: the compiled weights are those of `folded`, and its parts are what they say."""

from __future__ import annotations

import numpy as np
import pytest

from host.compiler.shape import Shape
from host.compiler.weights import WeightSource, column_sums, folded, to_fp32
from hw.gpt2.config import core_config
from sw.models.gpt2_config import GPT2Config
from sw.models.seeded_weights import SeededCheckpoint

MODEL = GPT2Config(n_layer=2, n_head=4, n_embd=512, n_positions=32, vocab_size=96)


class UnevenNorms(SeededCheckpoint):
    """Gammas, betas and biases that are not those of an untrained model."""

    def tensor(self, name: str) -> np.ndarray:
        values = super().tensor(name)
        if values.ndim > 1:
            return values
        return np.random.default_rng(len(name)).normal(1.0, 0.5, values.shape).astype(np.float32)


def test_compiled_weights_are_the_folded_ones() -> None:
    """512 x 2048 is read in four blocks."""
    weights = UnevenNorms(MODEL, 3)
    compiled = WeightSource(weights).product(Shape(MODEL, core_config("16x4"), 32), "feed_in", 1)
    names = ("h.1.mlp.c_fc.weight", "h.1.ln_2.weight", "h.1.ln_2.bias", "h.1.mlp.c_fc.bias")
    weight, gamma, beta, bias = (weights.tensor(name) for name in names)
    matrix, parameters = folded(weight, gamma, beta, bias)
    assert matrix.dtype == parameters.dtype == np.float32
    assert np.array_equal(matrix, weight * gamma[:, None])
    assert np.array_equal(compiled.matrix, matrix.astype(np.float16))
    assert np.array_equal(compiled.bias, parameters)
    assert compiled.column_sums is not None
    assert np.array_equal(compiled.column_sums, column_sums(compiled.matrix))
    assert parameters == pytest.approx(bias + beta.astype(np.float64) @ weight.astype(np.float64), rel=1e-6)
    for twin in ((weight, beta, beta, bias), (weight, gamma, gamma, bias), (weight, gamma, beta, beta.repeat(4))):
        other, moved = folded(*twin)
        assert not (np.array_equal(other.astype(np.float16), compiled.matrix) and np.array_equal(moved, compiled.bias))
    assert not np.array_equal(column_sums(matrix), compiled.column_sums)  # twin: sums of what was not rounded


def test_parameters_are_never_subnormal() -> None:
    tiny = np.array([2.0**-126, 2.0**-127, -(2.0**-140), 0.0, 1.0])
    assert np.array_equal(to_fp32(tiny), np.array([2.0**-126, 0, 0, 0, 1], np.float32))
    assert np.signbit(to_fp32(tiny)[2])
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    assert folded(np.array([[2.0**-130]], np.float32), one, one, zero)[1] == 0.0
    assert folded(np.array([[2.0**-120]], np.float32), one, one, zero)[1] == 2.0**-120
