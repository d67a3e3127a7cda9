"""Slices of a model: complete, contiguous, in whole steps; nothing else is taken."""

from __future__ import annotations

import pytest

from host.planner import Partition
from host.planner.partition import KINDS, even_split, slice_limits
from sw.models.gpt2_config import GPT2Config
from sw.models.named_sizes import NAMED_SIZES

SIZES = {**NAMED_SIZES, "odd": GPT2Config(1, 9, 252, 16, 1001, n_inner=500)}


def test_even_heads_are_those_of_the_design() -> None:
    assert even_split(25, 4) == (7, 6, 6, 6)
    assert even_split(12, 8) == (2, 2, 2, 2, 1, 1, 1, 1)
    assert even_split(1600, 4, 16) == (400, 400, 400, 400)
    assert even_split(36, 3, 16) == (16, 16, 4)  # the last step is not full


@pytest.mark.parametrize("boards", range(1, 9))
@pytest.mark.parametrize("name", SIZES)
def test_even_slices_cover_the_model_once(name: str, boards: int) -> None:
    model = SIZES[name]
    partition = Partition.even(model, boards)
    partition.check(model)
    whole = {"heads": model.n_head, "x": model.n_embd, "inner": model.n_inner, "vocabulary": model.vocab_size}
    for kind in KINDS:
        ranges = partition.ranges(kind)
        assert [column for own in ranges for column in own] == list(range(whole[kind]))
        step = 1 if kind == "heads" else 16
        steps = [-(-len(own) // step) for own in ranges]
        assert max(steps) - min(steps) <= 1 and all(own.start % step == 0 for own in ranges)


@pytest.mark.parametrize("boards", [0, 9, -1])
def test_boards_are_one_to_eight(boards: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 8, got {boards}"):
        Partition.even(SIZES["gpt2-xl"], boards)


def test_what_cannot_be_shared_is_named() -> None:
    with pytest.raises(ValueError, match="4 boards cannot share 3 heads: at most 3 can"):
        Partition.even(GPT2Config(1, 3, 96, 16, 256), 4)
    with pytest.raises(ValueError, match="2 steps of 16 columns of x"):
        Partition.even(GPT2Config(1, 8, 32, 16, 256), 4)
    with pytest.raises(ValueError, match="3 steps of 16 columns of the logits"):
        Partition.even(GPT2Config(1, 8, 128, 16, 48), 4)
    assert slice_limits(GPT2Config(1, 8, 128, 16, 48, n_inner=20))["inner"][0] == 2


FINE: dict[str, tuple[int, ...]] = {"heads": (2, 1), "x": (16, 32), "inner": (96, 96), "vocabulary": (64, 37)}


@pytest.mark.parametrize(
    "kind,parts,message",
    [
        ("heads", (3, 0), "1 or more on every board"),
        ("heads", (1, 1, 1), "must be given for 3 boards"),
        ("x", (24, 24), "multiples of 16"),
        ("x", (48, -0), "1 or more"),
        ("inner", (96.0, 96), "whole numbers"),
        ("vocabulary", (64,), "must be given for 2 boards"),
    ],
)
def test_slices_that_cannot_be(kind: str, parts: tuple[int, ...], message: str) -> None:
    Partition(**FINE)  # twin
    with pytest.raises(ValueError, match=message):
        Partition(**{**FINE, kind: parts})


def test_slices_of_another_model() -> None:
    model = GPT2Config(1, 3, 48, 16, 101)
    Partition(**FINE).check(model)
    with pytest.raises(ValueError, match="vocabulary of the boards are 101 in all, the model has 102"):
        Partition(**FINE).check(GPT2Config(1, 3, 48, 16, 102))
