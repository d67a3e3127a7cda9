"""Which heads and columns of a GPT-2 each board of a ring has: contiguous slices in the order of the boards.

Attention is split by heads; projection and feed-forward out (the columns of x), feed-forward in and the language-model
head by columns in steps of `COLUMN_STEP` (docs/ring.md, section 1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import accumulate, pairwise

from hw.board.gpt2_map import MAX_BOARDS
from sw.models.gpt2_config import GPT2Config

__all__ = ["COLUMN_STEP", "KINDS", "Partition", "even_split", "slice_limits"]

COLUMN_STEP = 16  # every core has whole strips of N lanes in it
KINDS = ("heads", "x", "inner", "vocabulary")


def slice_limits(model: GPT2Config) -> dict[str, tuple[int, str]]:
    """By kind (`KINDS`): the most boards that it can be split over, and in words what would have to be split."""

    def steps(columns: int, what: str) -> tuple[int, str]:
        count = -(-columns // COLUMN_STEP)
        return count, f"{count} steps of {COLUMN_STEP} columns of {what}"

    return {
        "heads": (model.n_head, f"{model.n_head} heads"),
        "x": steps(model.n_embd, "x"),
        "inner": steps(model.n_inner, "the feed-forward vector"),
        "vocabulary": steps(model.vocab_size, "the logits"),
    }


def even_split(count: int, boards: int, step: int = 1) -> tuple[int, ...]:
    """`count` in `boards` parts of whole steps, the first ones a step larger where they do not divide; the last part
    ends with what is left of the last step."""
    whole, more = divmod(-(-count // step), boards)
    parts = [step * (whole + (board < more)) for board in range(boards)]
    parts[-1] -= sum(parts) - count
    return tuple(parts)


@dataclasses.dataclass(frozen=True)
class Partition:
    """A GPT-2 on `boards` boards.

    Parameters
    ----------
    heads : tuple of int
        Heads of each board.
    x, inner, vocabulary : tuple of int
        Columns of each board: of x (projection, feed-forward out), of the feed-forward vector (feed-forward in), of the
        language-model head. Multiples of `COLUMN_STEP` except on the last board.

    Raises ValueError for other than 1 to 8 boards, an empty slice, or a slice off the steps.
    """

    heads: tuple[int, ...]
    x: tuple[int, ...]
    inner: tuple[int, ...]
    vocabulary: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.heads) <= MAX_BOARDS:
            raise ValueError(f"a partition has 1 to {MAX_BOARDS} boards, got {len(self.heads)}")
        for kind in KINDS:
            parts: tuple[int, ...] = getattr(self, kind)
            if len(parts) != len(self.heads):
                raise ValueError(f"{kind} must be given for {len(self.heads)} boards as heads are, got {parts}")
            if any(type(part) is not int or part < 1 for part in parts):
                raise ValueError(f"{kind} must be whole numbers of 1 or more on every board, got {parts}")
            if kind != "heads" and any(part % COLUMN_STEP for part in parts[:-1]):
                raise ValueError(f"{kind} must be multiples of {COLUMN_STEP} on all boards but the last, got {parts}")

    @classmethod
    def even(cls, model: GPT2Config, boards: int) -> Partition:
        """The most even partition, larger slices first. Raises ValueError if it would leave a board without a slice."""
        if not 1 <= boards <= MAX_BOARDS:
            raise ValueError(f"boards must be 1 to {MAX_BOARDS}, got {boards}")
        for most, what in slice_limits(model).values():
            if boards > most:
                raise ValueError(f"{boards} boards cannot share {what}: at most {most} can")
        return cls(
            even_split(model.n_head, boards),
            even_split(model.n_embd, boards, COLUMN_STEP),
            even_split(model.n_inner, boards, COLUMN_STEP),
            even_split(model.vocab_size, boards, COLUMN_STEP),
        )

    @property
    def boards(self) -> int:
        """Number of boards."""
        return len(self.heads)

    def ranges(self, kind: str) -> tuple[range, ...]:
        """The heads or columns of every board, `kind` of `KINDS`."""
        ends = accumulate(getattr(self, kind), initial=0)
        return tuple(range(start, stop) for start, stop in pairwise(ends))

    def check(self, model: GPT2Config) -> None:
        """Raise ValueError unless the slices are those of `model`, complete."""
        for kind, whole in zip(KINDS, (model.n_head, model.n_embd, model.n_inner, model.vocab_size), strict=True):
            parts: Sequence[int] = getattr(self, kind)
            if sum(parts) != whole:
                raise ValueError(f"{kind} of the boards are {sum(parts)} in all, the model has {whole}")
