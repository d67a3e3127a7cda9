"""The planner's choice is brute force's on small cases, whatever the cost, among those that can be built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from host.compiler.ring_cost import BusiestBoard
from host.planner import Partition, choose_partition
from host.planner.search import every_partition, preference
from hw.gpt2.config import core_config
from sw.models.gpt2_config import GPT2Config
from sw.models.named_sizes import NAMED_SIZES

MODELS = {
    "three heads": GPT2Config(2, 3, 48, 64, 101),
    "five heads": GPT2Config(3, 5, 60, 64, 140, n_inner=160),
    "many heads, few columns": GPT2Config(2, 7, 56, 64, 60, n_inner=96),
    "wide": GPT2Config(1, 4, 128, 64, 120, n_inner=64),
}


def _phases(partition: Partition) -> tuple[int, ...]:
    """Boards that wait for the slowest one after every product."""
    heads, x, inner = max(partition.heads), max(partition.x), max(partition.inner)
    return (60 * heads + 5 * x + 3 * inner + max(partition.vocabulary),)


def _crooked(partition: Partition) -> tuple[int, ...]:
    """A first board of half the speed."""
    speeds = [2] + [1] * (partition.boards - 1)
    work = [
        speed * (200 * heads + 3 * x + inner)
        for speed, heads, x, inner in zip(speeds, partition.heads, partition.x, partition.inner, strict=True)
    ]
    return (max(work), *sorted(work, reverse=True), max(partition.vocabulary))


def _costs(model: GPT2Config) -> dict[str, Callable[[Partition], Any]]:
    return {
        "busiest": BusiestBoard(model, core_config("16x4"), 64),
        "phases": _phases,
        "crooked": _crooked,
    }


def _everything(partition: Partition) -> int:
    return 0


def _narrow_first(partition: Partition) -> int:
    """A first board with little memory."""
    return partition.heads[0] - 1 + max(0, partition.vocabulary[0] - 32)


@pytest.mark.parametrize("excess", [_everything, _narrow_first])
@pytest.mark.parametrize("boards", [2, 3])
@pytest.mark.parametrize("cost_name", ["busiest", "phases", "crooked"])
@pytest.mark.parametrize("name", MODELS)
def test_choice_is_that_of_brute_force(
    name: str, cost_name: str, boards: int, excess: Callable[[Partition], int]
) -> None:
    model = MODELS[name]
    cost = _costs(model)[cost_name]
    every = [partition for partition in every_partition(model, boards) if not excess(partition)]
    best = min(every, key=lambda partition: preference(cost(partition), partition))
    chosen = choose_partition(model, boards, cost, excess)
    assert chosen is not None
    print(f"{len(every)} partitions; best {best} at {cost(best)}; chosen {chosen} at {cost(chosen)}")
    assert cost(chosen) == cost(best) and chosen == best


def test_twin_the_even_partition_is_not_always_the_best() -> None:
    model = MODELS["five heads"]
    for name, cost in _costs(model).items():
        chosen = choose_partition(model, 2, cost, _everything)
        assert chosen is not None
        assert cost(chosen) <= cost(Partition.even(model, 2))
        if name != "phases":
            assert chosen != Partition.even(model, 2)


def test_every_partition_is_every_partition() -> None:
    every = list(every_partition(MODELS["three heads"], 2))
    assert len(set(every)) == len(every) == 2 * 2 * 11 * 6
    for partition in every:
        partition.check(MODELS["three heads"])


def test_nothing_that_can_be_built_is_no_choice() -> None:
    assert choose_partition(MODELS["wide"], 2, _phases, lambda partition: 1) is None


def test_a_limit_of_evaluations_is_kept_and_starts_are_looked_at_first() -> None:
    model, asked = NAMED_SIZES["gpt2-xl"], []

    def cost(partition: Partition) -> tuple[int, ...]:
        asked.append(partition)
        return _crooked(partition)

    better = Partition((4, 7, 7, 7), (400,) * 4, (1600,) * 4, (12576, 12560, 12560, 12561))
    starts = (Partition.even(model, 4), better)
    chosen = choose_partition(model, 4, cost, _everything, starts=starts, evaluations=2)
    assert tuple(asked) == starts and chosen == better
    asked.clear()
    assert choose_partition(model, 4, cost, _everything, starts=starts, evaluations=40) != better
    assert len(asked) == len(set(asked)) == 40


def test_xl_on_four_boards_is_balanced() -> None:
    """25 heads do not divide: the board with seven has fewer columns, and no board is much busier than the mean."""
    model = NAMED_SIZES["gpt2-xl"]
    cost = BusiestBoard(model, core_config("64x16"), 1024)
    chosen = choose_partition(model, 4, cost, _everything)
    assert chosen is not None and sorted(chosen.heads) == [6, 6, 6, 7]
    even = Partition.even(model, 4)
    print(f"{cost.cycles(even):,} cycles even, {cost.cycles(chosen):,} chosen: {chosen}")
    whole = cost.cycles(Partition.even(model, 1))
    assert cost.cycles(chosen) < 1.003 * whole / 4 < 0.98 * cost.cycles(even)
