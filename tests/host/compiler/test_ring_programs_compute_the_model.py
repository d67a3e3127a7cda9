"""The programs of all boards together, read word by word as docs/ring.md says and evaluated in float64, give the
model's logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.compiler import compile_ring
from host.planner import Partition
from hw.gpt2.config import CoreConfig, core_config
from hw.gpt2.isa import Instruction, Op

Fixture = Callable[..., Any]
SMALL, LARGE = core_config("16x4"), core_config("64x16")


def _small(**sizes: int) -> CoreConfig:
    """A 16x4 core with some memories changed."""
    return dataclasses.replace(SMALL, **sizes)


BASE = {"n_layer": 2, "n_head": 5, "n_embd": 60, "n_positions": 20, "vocab_size": 140}
EIGHT = {"n_layer": 1, "n_head": 8, "n_embd": 128, "n_inner": 128}
CASES: dict[str, tuple[dict[str, int], CoreConfig, int, Partition | None]] = {
    **{f"eight heads on {boards}": (EIGHT, SMALL, boards, None) for boards in range(1, 9)},
    "heads of 12 straddle words on 2": ({}, SMALL, 2, None),
    "heads of 12 straddle words on 4": ({}, SMALL, 4, None),
    "a word of 64 has four slices": ({"n_head": 5, "n_embd": 80}, LARGE, 5, None),
    "slices without words": ({"n_head": 8, "n_embd": 128, "n_inner": 160}, LARGE, 8, None),
    "one word in all": ({"n_head": 2, "n_embd": 32, "n_inner": 48}, LARGE, 2, None),
    "uneven by hand": ({}, SMALL, 3, Partition((1, 3, 1), (16, 16, 28), (112, 32, 96), (16, 112, 12))),
    "two words a key": ({"n_head": 2, "n_embd": 64}, SMALL, 2, None),
    "more strips than accumulators": ({}, _small(acc_depth=16, param_depth=16), 2, None),
    "hardly any accumulators": ({}, _small(acc_depth=8, param_depth=8), 2, None),
    "K, Q and V do not fit together": ({}, _small(acc_depth=16, param_depth=16), 3, None),
    "two passes of heads": ({}, _small(prob_words=2), 2, None),
    "parameter blocks overlap": (EIGHT, _small(acc_depth=64, param_depth=64), 3, None),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_of_the_boards_are_those_of_the_model(
    name: str, tmp_path: Path, random_model: Fixture, both: Fixture
) -> None:
    sizes, core, boards, partition = CASES[name]
    model = random_model(tmp_path, **{**BASE, **sizes})
    ring = compile_ring(tmp_path, core, tmp_path / "out", boards, partition=partition)
    assert partition is None or ring.plan.partition == partition
    tokens, got, want = both(model, ring.boards)
    print(f"tokens {tokens}, largest error {np.abs(got - want).max():.2e} of {np.abs(want).max():.1f}")
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


def _changed(word: int, **fields: int) -> int:
    return dataclasses.replace(Instruction.decode(word), **fields).encode()


@pytest.mark.filterwarnings("ignore:invalid value")  # what memory outside the weights holds is NaN
@pytest.mark.parametrize("twin", ["words", "tail", "strip", "rest first", "boards exchanged"])
def test_twin_a_changed_program_shows(twin: str, tmp_path: Path, random_model: Fixture, both: Fixture) -> None:
    model = random_model(tmp_path, **BASE)
    ring = compile_ring(tmp_path, SMALL, tmp_path / "out", 2)
    _, good, want = both(model, ring.boards)
    assert np.abs(good - want).max() < 2e-3 * np.abs(want).max()
    (program, image), other = ring.boards
    words = list(program.instructions)
    runs = [n for n, word in enumerate(words) if Instruction.decode(word).op == Op.MM]
    rest = next(n for n in runs if not Instruction.decode(words[n]).first)
    projection = next(n for n in runs if Instruction.decode(words[n]).send)
    if twin == "words":  # another order of the k words than the weights have
        words[rest] = _changed(words[rest], src=Instruction.decode(words[rest]).src - 1)
    elif twin == "tail":
        words[rest] = _changed(words[rest], tail=Instruction.decode(words[rest]).tail - 1)
    elif twin == "strip":  # an own strip beside its place
        words[projection] = _changed(words[projection], dst=Instruction.decode(words[projection]).dst + 1)
    elif twin == "rest first":
        at = next(n for n in runs if Instruction.decode(words[n]).first)
        words[at], words[at + 1] = words[at + 1], words[at]
    broken = dataclasses.replace(program, instructions=tuple(words))
    boards = [(broken, image), other]
    if twin == "boards exchanged":
        boards = [(program, other[1]), (other[0], image)]
    try:
        _, bad, _ = both(model, boards)
    except (AssertionError, ValueError):
        return  # boards wait for each other, or strips are left over
    assert not np.abs(bad - want).max() < 2e-3 * np.abs(want).max()
