"""The order of the k words on each board (docs/ring.md, section 2)."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

import pytest

from host.compiler.word_runs import WordRun, arrival_order, word_runs
from host.planner.partition import even_split


def _ranges(columns: tuple[int, ...]) -> tuple[range, ...]:
    return tuple(range(a, b) for a, b in pairwise(accumulate(columns, initial=0)))


def test_arrival_order_is_own_left_right_and_the_farthest_last() -> None:
    assert arrival_order(0, 2) == (0, 1)
    assert arrival_order(0, 3) == (0, 2, 1)
    assert arrival_order(1, 4) == (1, 0, 2, 3)
    assert arrival_order(0, 5) == (0, 4, 1, 3, 2)
    assert arrival_order(6, 8) == (6, 5, 7, 4, 0, 3, 1, 2)


def test_slices_of_whole_words() -> None:
    """345M on four boards: 256 columns each are four words of 64."""
    slices = _ranges(even_split(1024, 4, 16))
    assert word_runs(slices, 64, 1) == (WordRun(1, 4, 4), WordRun(0, 0, 4), WordRun(2, 8, 4), WordRun(3, 12, 4))


def test_a_word_that_slices_share_waits_for_the_latest() -> None:
    """XL on four boards: 400 columns are 6.25 words; words 6, 12 and 18 have two slices each."""
    slices = _ranges(even_split(1600, 4, 16))
    assert word_runs(slices, 64, 0) == (WordRun(0, 0, 6), WordRun(3, 19, 6), WordRun(1, 6, 6), WordRun(2, 12, 7))
    assert word_runs(slices, 64, 2) == (WordRun(2, 13, 5), WordRun(1, 7, 6), WordRun(3, 18, 7), WordRun(0, 0, 7))


@pytest.mark.parametrize("boards", range(1, 9))
def test_every_word_once_and_never_before_its_slices(boards: int) -> None:
    rng = random.Random(boards)
    for _ in range(40):
        tile = rng.choice([16, 32, 64])
        columns = [16 * rng.randint(1, 9) for _ in range(boards)]
        columns[-1] -= rng.choice([0, 4, 12])
        slices = _ranges(tuple(columns))
        board = rng.randrange(boards)
        runs = word_runs(slices, tile, board)
        taken = [word for run in runs for word in range(run.first, run.first + run.words)]
        assert sorted(taken) == list(range(-(-sum(columns) // tile)))
        order = arrival_order(board, boards)
        assert [run.board for run in runs] == [b for b in order if b in {run.board for run in runs}]
        for run in runs:
            for word in range(run.first, run.first + run.words):
                sharing = [b for b, s in enumerate(slices) if set(s) & set(range(word * tile, (word + 1) * tile))]
                assert run.board in sharing
                assert order.index(run.board) == max(order.index(b) for b in sharing)
