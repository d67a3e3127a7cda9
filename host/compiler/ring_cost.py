"""What a partition costs without simulation: the rows that the busiest board streams, one a cycle at best.

Boards need each other's slices only at the end of a product, and have their own work to do meanwhile, so the busiest
board sets the pace of a layer as a whole, not of each product in it.
"""

from __future__ import annotations

from host.compiler.shape import Shape
from host.planner.partition import Partition
from host.planner.plan import Estimate
from hw.gpt2.config import CoreConfig
from sw.models.gpt2_config import GPT2Config

__all__ = ["BusiestBoard"]

POSITIONS = 128  # attended in the step that is counted, if the context is as long


class BusiestBoard:
    """Cost of partitions of `model` on boards of `core` with a cache of `context` positions."""

    SOURCE = "ideal: rows of the busiest board, one a cycle, no stalls"

    def __init__(self, model: GPT2Config, core: CoreConfig, context: int) -> None:
        self._shape = Shape(model, core, context)
        self.positions = min(POSITIONS, context)
        shape, x, inner = self._shape, self._shape.x_words, self._shape.inner_words
        per_word = core.strips_per_word
        self._heads = [
            2 * shape.product_rows(x, heads * shape.key_words * per_word, 2)
            + shape.product_rows(x, heads * shape.value_strips, 2)
            + heads * shape.attention_rows(self.positions) // shape.heads
            for heads in range(model.n_head + 1)
        ]
        self._x = [
            shape.product_rows(x, strips, 1) + shape.product_rows(inner, strips, 1)
            for strips in range(shape.x_strips + 1)
        ]
        self._inner = [shape.product_rows(x, strips, 2) for strips in range(shape.inner_strips + 1)]

    def __call__(self, partition: Partition) -> tuple[int, int, list[int], list[int]]:
        """(most heads less fewest, cycles, then the rows of all boards: of a layer, of the head; busiest first).

        Even heads come first: their rows grow with the context, so columns can balance them at one context only.
        Cycles and rows count in thousandths of a board's share, below which a more even partition is worth more.
        """
        spread = max(partition.heads) - min(partition.heads)
        layers, heads = self._rows(partition)
        whole, boards = self._shape, partition.boards
        return (
            spread,
            _in_thousandths([self.cycles(partition)], whole.weight_rows // boards)[0],
            _in_thousandths(layers, whole.layer_weight_rows // boards),
            _in_thousandths(heads, whole.head_rows // boards),
        )

    def cycles(self, partition: Partition) -> int:
        """Cycles of a decode step if nothing ever stalls."""
        layers, heads = self._rows(partition)
        return 2 * self._shape.x_strips + self._shape.model.n_layer * max(layers) + max(heads)

    def estimate(self, partition: Partition) -> Estimate:
        """The same with its source."""
        return Estimate(self.cycles(partition), self.positions, self.SOURCE)

    def _rows(self, partition: Partition) -> tuple[list[int], list[int]]:
        """Rows of a layer and of the head, by board."""

        def strips(columns: int) -> int:
            return -(-columns // self._shape.core.lanes)

        layers = [
            self._heads[heads] + self._x[strips(x)] + self._inner[strips(inner)]
            for heads, x, inner in zip(partition.heads, partition.x, partition.inner, strict=True)
        ]
        head = [self._shape.product_rows(self._shape.x_words, strips(own), 2) for own in partition.vocabulary]
        return layers, head


def _in_thousandths(rows: list[int], share: int) -> list[int]:
    """Rows in thousandths of a board's share, rounded up, most first."""
    unit = max(1, share // 1000)
    return sorted((-(-own // unit) for own in rows), reverse=True)
