"""Cores with rows or int8 weights: gateware equals the functional executor bit for bit on random programs.

Sequences and batches, greedy and sampled. Compared are the tokens of every row, error and its information, tiles, all
logits, all keys and values.
"""

from __future__ import annotations

import pytest

from hw.gpt2.config import core_config
from sim.programs.agreement import disagreement
from sim.programs.replay import replay_command
from sim.programs.sampled_case import samples
from sim.rtl.build import BuiltBoard, build_board


@pytest.fixture(scope="module", params=("16x4r2", "16x4r4", "16x4i8"))
def built(request: pytest.FixtureRequest) -> BuiltBoard:
    return build_board(core_config(request.param))


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_rtl_equals_functional(built: BuiltBoard, first: int) -> None:
    for seed in range(first, first + 5):
        print(f"seed {seed}; to look into it: {replay_command(seed, built.config.name, samples(seed))}")
        assert disagreement(seed, built.config, built) == ""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(20, 200, 20))
def test_rtl_equals_functional_on_many(built: BuiltBoard, first: int) -> None:
    seeds = range(first, first + 20)
    assert [text for seed in seeds if (text := disagreement(seed, built.config, built))] == []
