"""A board's part of a GPT-2 in the units of one core: words, strips and rows.

T = `tile`, N = `lanes`, S = T/N strips a word (docs/core.md). Nothing here reads weights.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

from host.planner.partition import Partition
from hw.board.gpt2_map import row_register
from hw.gpt2.config import CoreConfig
from sw.models.gpt2_config import GPT2Config

__all__ = ["ALIGNMENT_BYTES", "GROUP", "Shape"]

ALIGNMENT_BYTES = 4096  # regions start where an AXI burst may start whatever its length
GROUP = 8  # output strips that are open together; the sketch's G


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of what one board has of `model` on `core` with a cache of `context` positions.

    Parameters: `partition`: the slices of all boards, None for one board alone; `board`: which of them, from 0.
    Raises ValueError for a partition of another model or a board that it has not.
    """

    model: GPT2Config
    core: CoreConfig
    context: int
    partition: Partition | None = None
    board: int = 0

    def __post_init__(self) -> None:
        if self.partition is not None:
            self.partition.check(self.model)
        if not 0 <= self.board < self.boards:
            raise ValueError(f"board must be 0 to {self.boards - 1}, got {self.board}")

    # --- the board's part
    @property
    def boards(self) -> int:
        """Boards that share the model."""
        return 1 if self.partition is None else self.partition.boards

    def slices(self, kind: str) -> tuple[range, ...]:
        """Heads or columns of every board; `kind` as in `host.planner.partition.KINDS`."""
        partition = Partition.even(self.model, 1) if self.partition is None else self.partition
        return partition.ranges(kind)

    def own(self, kind: str) -> range:
        """Heads or columns of this board."""
        return self.slices(kind)[self.board]

    def own_strips(self, kind: str) -> range:
        """Strips of this board: of the values for heads, else of the vector of that kind."""
        own, lanes = self.own(kind), self.core.lanes
        if kind == "heads":
            return range(own.start * self.value_strips, own.stop * self.value_strips)
        first = own.start // lanes
        return range(first, first + self._product_strips(_ceil(own.stop, lanes) - first))

    def _product_strips(self, strips: int) -> int:
        """Strips of a product, padded to what whole rows of its weights serve."""
        return _ceil(strips, self.core.mm_strips) * self.core.mm_strips

    # --- vectors: words of T, elements of the last word, strips of N
    @property
    def width(self) -> int:
        """d, elements of the residual vector."""
        return self.model.n_embd

    @property
    def x_words(self) -> int:
        """Words of the residual vector; the attention result has as many."""
        return _ceil(self.width, self.core.tile)

    @property
    def x_tail(self) -> int:
        """Valid elements of its last word."""
        return self.width - (self.x_words - 1) * self.core.tile

    @property
    def x_strips(self) -> int:
        """Strips of the residual vector and of the attention result; rows of an embedding block."""
        return self._product_strips(_ceil(self.width, self.core.lanes))

    @property
    def inner_words(self) -> int:
        """Words of the feed-forward vector."""
        return _ceil(self.model.n_inner, self.core.tile)

    @property
    def inner_tail(self) -> int:
        """Valid elements of its last word."""
        return self.model.n_inner - (self.inner_words - 1) * self.core.tile

    @property
    def inner_strips(self) -> int:
        """Strips of the feed-forward vector."""
        return self._product_strips(_ceil(self.model.n_inner, self.core.lanes))

    @property
    def vocab_strips(self) -> int:
        """Strips of the board's logits."""
        return len(self.own_strips("vocabulary"))

    # --- heads
    @property
    def heads(self) -> int:
        """Attention heads of the board."""
        return len(self.own("heads"))

    @property
    def key_words(self) -> int:
        """Words of one head's key and query, padded to whole words."""
        return _ceil(self.model.head_size, self.core.tile)

    @property
    def key_tail(self) -> int:
        """Valid elements of a key's last word."""
        return self.model.head_size - (self.key_words - 1) * self.core.tile

    @property
    def key_strips(self) -> int:
        """Strips of the board's keys or queries."""
        return self.heads * self.key_words * self.core.strips_per_word

    @property
    def value_strips(self) -> int:
        """Strips of one head's value."""
        return _ceil(self.model.head_size, self.core.lanes)

    @property
    def values_strips(self) -> int:
        """Strips of the product that makes the values of all heads of the board."""
        return self._product_strips(self.heads * self.value_strips)

    # --- activation memory: x | q | attention result | feed-forward vector. On several boards the queries stand last,
    # so that the vectors that all boards need lie at the same addresses however many heads a board has.
    @property
    def q_word(self) -> int:
        """First word of the queries."""
        return self.x_words if self.boards == 1 else self.mid_word + self.inner_words

    @property
    def av_word(self) -> int:
        """First word of the attention result."""
        return self.x_words + (self.heads * self.key_words if self.boards == 1 else 0)

    @property
    def mid_word(self) -> int:
        """First word of the feed-forward vector."""
        return self.av_word + self.x_words

    @property
    def act_words(self) -> int:
        """Words of activation memory in use."""
        return max(self.mid_word + self.inner_words, self.q_word + self.heads * self.key_words)

    # --- attention
    @property
    def prob_stride(self) -> int:
        """Probability words of one head."""
        return _ceil(self.context, self.core.tile)

    @property
    def heads_per_pass(self) -> int:
        """Heads whose probabilities fit together: the scores and values of a layer run in passes of so many."""
        return max(1, min(self.heads, self.core.prob_words // max(1, self.prob_stride)))

    @property
    def splits_v(self) -> bool:
        """Whether half of V's product may run before the scores: all strips open, one more accumulator for them."""
        return self.x_words >= 2 and self.values_strips < self.core.acc_depth and self.can_open(self.values_strips)

    def can_open(self, *strips: int) -> bool:
        """Whether products of so many strips can all be open together, one's accumulators behind the other's: parameter
        blocks are taken whole, and the last one must not come round to the first product's."""
        block = self.core.param_strips
        end = sum(strips[:-1]) + _ceil(strips[-1], block) * block
        return sum(strips) <= self.core.acc_depth and end <= self.core.param_depth

    @property
    def embeds_in_one(self) -> bool:
        """Whether all strips of the embedding can be open together (else position and token are two products)."""
        return self.x_strips <= self.core.acc_depth

    # --- rows of memory
    @property
    def position_rows(self) -> int:
        """Rows of the position embedding."""
        return _ceil(self.context, self.core.tile) * self.x_strips

    @property
    def token_rows(self) -> int:
        """Rows of the token embedding."""
        return _ceil(self.model.vocab_size, self.core.tile) * self.x_strips

    @property
    def key_head_rows(self) -> int:
        """Key rows of one head."""
        return _ceil(self.context, self.core.lanes) * self.key_words

    @property
    def value_head_rows(self) -> int:
        """Value rows of one head."""
        return _ceil(self.context, self.core.tile) * self.value_strips

    @property
    def requests(self) -> int:
        """Requests of a batch, one a row of the core: each has keys, values and logits of its own in memory."""
        return self.core.rows

    @property
    def logits_rows(self) -> int:
        """Rows of one position's logits (fp32, all columns of the product)."""
        port_words = _ceil(self.vocab_strips * self.core.lanes * 4, self.core.port_bytes)
        return _ceil(port_words, self.core.channels)

    def product_rows(self, words: int, strips: int, param_rows: int) -> int:
        """Stream rows of a product: tiles, and for every T/2 strips `param_rows` rows, and scales of int8 weights."""
        core = self.core
        return words * _ceil(strips, core.mm_strips) + (param_rows + core.has_int8) * _ceil(strips, core.param_strips)

    @cached_property
    def layer_weight_rows(self) -> int:
        """Rows of a layer's weights on this board."""
        x, inner, own_x = self.x_words, self.inner_words, len(self.own_strips("x"))
        return (
            2 * self.product_rows(x, self.key_strips, 2)
            + self.product_rows(x, self.values_strips, 2)
            + self.product_rows(x, own_x, 1)
            + self.product_rows(x, len(self.own_strips("inner")), 2)
            + self.product_rows(inner, own_x, 1)
        )

    @property
    def head_rows(self) -> int:
        """Rows of the language-model head on this board."""
        return self.product_rows(self.x_words, self.vocab_strips, 2)

    @property
    def weight_rows(self) -> int:
        """Rows of the board's weight stream of one token."""
        return self.model.n_layer * self.layer_weight_rows + self.head_rows

    def attention_rows(self, positions: int) -> int:
        """Rows of a layer's keys and values on this board that a step with `positions` attended positions reads."""
        keys = _ceil(positions, self.core.lanes) * self.key_words
        return self.heads * (keys + _ceil(positions, self.core.tile) * self.value_strips)

    def program_sizes(self) -> tuple[int, int]:
        """At most so many instructions (exactly on one board) and access descriptors of the program."""
        passes = _ceil(self.heads, self.heads_per_pass)
        if self.boards == 1:
            split = 1 if self.splits_v else 0
            instructions = 2 + 1 + 3 + split + 2 * passes + 3 + 1 + 1
        else:  # a run a board of K, Q, V, projection, in, out and head; a cut of V, four further chunks, four GATHERs
            split = 1
            instructions = 2 + 1 + 7 * self.boards + 1 + 4 + 4 + 2 * passes + 1
        descriptors = 2 + 1 + 1 + split + 2 * passes + 1 + 1 + 1
        return instructions, descriptors

    @cached_property
    def region_rows(self) -> dict[str, tuple[int, int]]:
        """(first row, rows) of every region by name, one after the other; each starts on `ALIGNMENT_BYTES`.

        Keys, values and logits of request r > 0 are called ``keys_r``, ``values_r``, ``logits_r``.
        """
        cache = self.model.n_layer * self.heads
        sizes = {
            "weights": self.weight_rows,
            "position_embedding": self.position_rows,
            "token_embedding": self.token_rows,
        }
        for request in range(self.requests):
            sizes[row_register("keys", request)] = cache * self.key_head_rows
            sizes[row_register("values", request)] = cache * self.value_head_rows
        for request in range(self.requests):
            sizes[row_register("logits", request)] = self.context * self.logits_rows
        unit = max(1, ALIGNMENT_BYTES // self.core.port_bytes)
        rows, next_row = {}, 0
        for name, size in sizes.items():
            rows[name] = (next_row, size)
            next_row += _ceil(size, unit) * unit
        return rows

    @property
    def image_rows(self) -> int:
        """Rows of the image: up to the first row behind the embeddings."""
        return self.region_rows["keys"][0]

    @property
    def total_rows(self) -> int:
        """Rows of a channel in use."""
        return max(first + size for first, size in self.region_rows.values())

    @property
    def channel_bytes_used(self) -> int:
        """Bytes of a channel in use."""
        return self.total_rows * self.core.port_bytes
