"""The partition of a GPT-2 with the lowest cost, by descent over moves of heads and columns between boards.

Whatever the cost function says decides: rows of the busiest board in a moment, or simulated cycles in seconds each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, permutations
from typing import Any

from host.planner.partition import COLUMN_STEP, KINDS, Partition, slice_limits
from sw.models.gpt2_config import GPT2Config

__all__ = ["Cost", "choose_partition", "every_partition", "neighbours", "preference"]

FEW_STEPS = 8

Cost = Callable[[Partition], Any]
"""Takes a partition; the lower, the better. Anything that compares: cycles, or a tuple, most important part first."""


def choose_partition(
    model: GPT2Config,
    boards: int,
    cost: Cost,
    excess: Callable[[Partition], int],
    *,
    starts: Sequence[Partition] = (),
    evaluations: int | None = None,
) -> Partition | None:
    """The best partition that is found and can be built, None if none was.

    Parameters
    ----------
    model, boards : what is split, over how many boards.
    cost : Cost
        Asked once a partition.
    excess : callable
        By how much a partition is too large to be built, 0 if it can be. While it is not 0 it comes before the cost;
        then it is asked only for partitions of lower cost.
    starts : sequence of Partition
        Where to begin; the even partition if empty.
    evaluations : int, optional
        Ask for the cost of so many partitions at most, and move one slice at a time. Without a limit two boards
        exchange slices too, which leaves fewer places to get stuck in.

    Raises ValueError if the model cannot be split so (`Partition.even`).
    """
    search = _Search(cost, excess, evaluations)
    for start in starts or (Partition.even(model, boards),):
        search.offer(start)
    while search.improve():
        pass
    return search.best if search.excess == 0 else None


def preference(cost: Any, partition: Partition) -> tuple[Any, ...]:
    """What is minimised: the cost, among equal costs the unevenness; last, larger slices stand first."""
    slices = [getattr(partition, kind) for kind in KINDS]
    unevenness = sum(part * part for parts in slices for part in parts)
    return cost, unevenness, [[-part for part in parts] for parts in slices]


def every_partition(model: GPT2Config, boards: int) -> Iterator[Partition]:
    """All partitions of a model; their number grows with the power `boards` - 1 of every size."""
    whole = dict(zip(KINDS, (model.n_head, model.n_embd, model.n_inner, model.vocab_size), strict=True))

    def all_splits(kind: str) -> list[tuple[int, ...]]:
        step = 1 if kind == "heads" else COLUMN_STEP
        steps = slice_limits(model)[kind][0]
        padding = steps * step - whole[kind]
        return [(*(step * n for n in parts[:-1]), step * parts[-1] - padding) for parts in _compositions(steps, boards)]

    inner, vocabulary = all_splits("inner"), all_splits("vocabulary")
    for heads in all_splits("heads"):
        for x in all_splits("x"):
            for i in inner:
                for v in vocabulary:
                    yield Partition(heads, x, i, v)


def _compositions(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (count,)
        return
    for first in range(1, count - parts + 2):
        for rest in _compositions(count - first, parts - 1):
            yield (first, *rest)


class _Search:
    def __init__(self, cost: Cost, excess: Callable[[Partition], int], evaluations: int | None) -> None:
        self._cost, self._ask_excess = cost, excess
        self._left, self._far = evaluations, evaluations is None
        self._seen: set[Partition] = set()
        self._worth: tuple[Any, ...] = ()
        self.best: Partition | None = None
        self.excess = 0

    def offer(self, partition: Partition) -> bool:
        """Take a partition if it is new and better; returns whether it was taken."""
        if partition in self._seen or self._left == 0:
            return False
        self._seen.add(partition)
        if self._left is not None:
            self._left -= 1
        worth = preference(self._cost(partition), partition)
        cheaper = self.best is None or worth < self._worth
        if not cheaper and not self.excess:
            return False
        excess = self._ask_excess(partition)
        if self.best is not None and (excess > self.excess or (excess == self.excess and not cheaper)):
            return False
        self.best, self._worth, self.excess = partition, worth, excess
        return True

    def improve(self) -> bool:
        """Take the first better neighbour; returns whether there was one."""
        if self.best is None:
            return False
        if any(self.offer(partition) for partition in neighbours(self.best)):
            return True
        if not self._far or self.excess:
            return False
        return any(self.offer(partition) for partition in chain(_swaps(self.best), _exchanges(self.best)))


def neighbours(partition: Partition) -> Iterator[Partition]:
    """Partitions with one slice larger at the expense of another board's, by 1, 2, 4, ... steps; large moves first."""
    for source, target in permutations(range(partition.boards), 2):
        for kind in KINDS:
            most = _spare_steps(partition, kind, source)
            for steps in (1 << n for n in reversed(range(most.bit_length()))):
                yield _moved(partition, kind, source, target, steps)


def _exchanges(partition: Partition) -> Iterator[Partition]:
    """Partitions in which two boards exchange some of one kind for some of another: few steps, or a power of two.

    The vocabulary stays: the head is behind all layers, so none of them can make up for it.
    """

    def amounts(kind: str, source: int) -> list[int]:
        most = _spare_steps(partition, kind, source)
        return [steps for steps in range(1, most + 1) if steps <= FEW_STEPS or steps & (steps - 1) == 0]

    for source, target in permutations(range(partition.boards), 2):
        for kind, other in combinations(KINDS[:3], 2):
            for there in amounts(kind, source):
                once = _moved(partition, kind, source, target, there)
                for back in amounts(other, target):
                    yield _moved(once, other, target, source, back)


def _swaps(partition: Partition) -> Iterator[Partition]:
    """Partitions in which two boards have swapped slices of some kinds."""
    for one, other in combinations(range(partition.boards), 2):
        for count in range(1, len(KINDS) + 1):
            for kinds in combinations(KINDS, count):
                swapped = partition
                for kind in kinds:
                    more = _steps(swapped, kind, one) - _steps(swapped, kind, other)
                    source, target = (one, other) if more > 0 else (other, one)
                    swapped = _moved(swapped, kind, source, target, abs(more))
                yield swapped


def _step(kind: str) -> int:
    return 1 if kind == "heads" else COLUMN_STEP


def _steps(partition: Partition, kind: str, board: int) -> int:
    """Steps of a slice; the last board's may end inside one."""
    return -(-getattr(partition, kind)[board] // _step(kind))


def _spare_steps(partition: Partition, kind: str, board: int) -> int:
    """Steps that a board can give away: one stays."""
    return _steps(partition, kind, board) - 1


def _moved(partition: Partition, kind: str, source: int, target: int, steps: int) -> Partition:
    """The partition with so many steps of `kind` moved from one board to another."""
    moved = list(getattr(partition, kind))
    moved[source] -= steps * _step(kind)
    moved[target] += steps * _step(kind)
    return dataclasses.replace(partition, **{kind: tuple(moved)})
