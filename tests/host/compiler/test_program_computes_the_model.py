"""The compiled program, read word by word as docs/core.md says and evaluated in float64, gives the model's logits.

The evaluator (conftest.py) shares nothing with the compiler, the golden models or the functional executor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.compiler import compile_model
from hw.gpt2.config import CoreConfig, core_config

Fixture = Callable[..., Any]


def _small(**sizes: int) -> CoreConfig:
    """A 16x4 core with some memories changed."""
    return dataclasses.replace(core_config("16x4"), **sizes)


BASE = {"n_layer": 1, "n_head": 2, "n_embd": 48, "n_positions": 20, "vocab_size": 50}
CASES = {  # changes of the model, core, context (0: the model's)
    "three heads of 16, width 48": ({"n_layer": 2, "n_head": 3, "vocab_size": 97}, core_config("16x4"), 0),
    "heads of 12 leave a tail": ({"n_layer": 2, "n_head": 3, "n_embd": 36, "n_inner": 50}, core_config("16x4"), 0),
    "heads of 32, two words a key": ({"n_embd": 64, "n_positions": 33, "vocab_size": 64}, core_config("16x4"), 0),
    "64x16": ({"n_layer": 2, "n_head": 3, "vocab_size": 97}, core_config("64x16"), 0),
    "V not split, embedding not in one": ({}, _small(acc_depth=8, param_depth=8), 0),
    "two passes of heads": ({"n_head": 3}, _small(prob_words=5), 0),
    "one word: V whole": ({"n_embd": 8, "n_positions": 16, "vocab_size": 33}, core_config("16x4"), 0),
    "short cache": ({"n_embd": 32, "n_positions": 64, "vocab_size": 64}, core_config("16x4"), 9),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_of_the_program_are_those_of_the_model(
    name: str, tmp_path: Path, random_model: Fixture, both: Fixture
) -> None:
    sizes, core, context = CASES[name]
    model = random_model(tmp_path, **{**BASE, **sizes})
    program, image = compile_model(tmp_path, core, tmp_path / "out", context=context or None)
    tokens, got, want = both(model, [(program, image)])
    print(f"tokens {tokens}, largest error {np.abs(got - want).max():.2e} of {np.abs(want).max():.1f}")
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("row", ["weights", "parameters", "position", "token"])
def test_twin_one_changed_row_shows(row: str, tmp_path: Path, random_model: Fixture, both: Fixture) -> None:
    model = random_model(tmp_path, n_layer=1, n_head=2, n_embd=32, n_positions=32, vocab_size=64)
    program, image = compile_model(tmp_path, core_config("16x4"), tmp_path / "out")
    tokens, good, _ = both(model, [(program, image)])
    port = program.core.port_bytes
    place = {
        "weights": 3,  # a tile of the keys
        "parameters": 0,  # b' of the keys
        "position": program.registers["position_base"],
        "token": program.registers["token_base"] + (tokens[4] // 16) * program.registers["embed_strips"],
    }[row]
    data = bytearray(image.files[0].read_bytes())
    element = tokens[4] % 16 if row == "token" else 3
    data[place * port + 2 * element + 1] ^= 0x44
    image.files[0].write_bytes(data)
    _, bad, _ = both(model, [(program, image)])
    assert np.abs(bad - good).max() > 1e-4
