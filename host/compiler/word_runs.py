"""The order in which a board takes the k words of a vector whose slices come from several boards.

Own slice first, then the slices in the order in which they arrive, neighbours alternating and the farthest last
(docs/ring.md, section 2). The order is program data: a late slice stalls, it never reorders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

__all__ = ["WordRun", "arrival_order", "word_runs"]


@dataclasses.dataclass(frozen=True)
class WordRun:
    """Neighbouring k words that are taken together: `board` whose slice they wait for, `first` word, `words`."""

    board: int
    first: int
    words: int


def arrival_order(board: int, boards: int) -> tuple[int, ...]:
    """Boards in the order in which their slices reach `board`: itself, left, right, second left, second right, ..."""
    order = [board]
    for hops in range(1, boards // 2 + 1):
        order.append((board - hops) % boards)
        if 2 * hops != boards:
            order.append((board + hops) % boards)
    return tuple(order)


def word_runs(slices: Sequence[range], tile: int, board: int) -> tuple[WordRun, ...]:
    """Runs of `board` over a vector, one for each slice that has words, in arrival order.

    `slices` are the columns of every board, contiguous from 0. A word of `tile` elements that several slices share
    belongs to the latest of them, so a slice may be left without words.
    """
    order = arrival_order(board, len(slices))
    rank = {owner: place for place, owner in enumerate(order)}
    words: dict[int, list[int]] = {owner: [] for owner in order}
    for word in range(-(-slices[-1].stop // tile)):
        sharing = [b for b, s in enumerate(slices) if s.start < (word + 1) * tile and s.stop > word * tile]
        words[max(sharing, key=rank.__getitem__)].append(word)
    return tuple(WordRun(owner, words[owner][0], len(words[owner])) for owner in order if words[owner])
