"""Seeded keys and values are a pure function of (seed, layer, head, position); given ones are checked."""

from __future__ import annotations

import numpy as np
import pytest

from sw.errors import ModelError
from sw.models.gpt2_config import GPT2Config
from sw.models.key_values import GivenKeyValues, SeededKeyValues, stacked

CONFIG = GPT2Config(n_layer=2, n_head=3, n_embd=48, n_positions=64, vocab_size=50)


def test_a_position_is_the_same_however_many_there_are() -> None:
    short, long = stacked(SeededKeyValues(CONFIG, 5, 9)), stacked(SeededKeyValues(CONFIG, 40, 9))
    for few, many in zip(short, long, strict=True):
        assert few.shape == (2, 3, 5, 16) and few.dtype == np.float16
        assert np.array_equal(few, many[:, :, :5])
    assert SeededKeyValues(CONFIG, 0).keys(1).shape == (3, 0, 16)


def test_seed_layer_head_and_kind_all_count() -> None:
    keys, values = stacked(SeededKeyValues(CONFIG, 8, 9))
    rows = np.concatenate([keys, values]).reshape(-1, 8, 16)
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert not np.array_equal(keys, stacked(SeededKeyValues(CONFIG, 8, 10))[0])


def test_the_scale_is_that_of_a_projected_normalised_vector() -> None:
    for rows in stacked(SeededKeyValues(CONFIG, 60, 1)):
        assert abs(rows.astype(np.float64).std() / (0.02 * 48**0.5) - 1) < 0.05
        assert abs(rows.astype(np.float64).mean()) < 0.01


def test_given_arrays_come_back() -> None:
    keys, values = stacked(SeededKeyValues(CONFIG, 7, 2))
    given = GivenKeyValues(CONFIG, keys, values)
    assert given.positions == 7
    for mine, again in zip((keys, values), stacked(given), strict=True):
        assert np.array_equal(mine, again)


@pytest.mark.parametrize("change", ["type", "layers", "head size", "positions differ", "flat"])
def test_given_arrays_of_another_shape_are_refused(change: str) -> None:
    keys, values = stacked(SeededKeyValues(CONFIG, 7, 2))
    if change == "type":
        values = values.astype(np.float32)
    elif change == "layers":
        keys, values = keys[:1], values[:1]
    elif change == "head size":
        keys, values = keys[..., :8], values[..., :8]
    elif change == "positions differ":
        values = values[:, :, :6]
    else:
        keys = keys.reshape(-1)
    with pytest.raises(ModelError, match="wanted float16") as caught:
        GivenKeyValues(CONFIG, keys, values)
    assert caught.value.kind == "bad_cache"


def test_bad_seed_and_positions() -> None:
    for positions, seed, kind in ((3, -1, "bad_seed"), (-1, 0, "bad_position")):
        with pytest.raises(ModelError) as caught:
            SeededKeyValues(CONFIG, positions, seed)
        assert caught.value.kind == kind
