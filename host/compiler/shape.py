"""A GPT-2 in the units of one core: words, strips, rows, and the list of everything that does not fit.

T = `tile`, N = `lanes`, S = T/N strips a word (docs/core.md). Nothing here reads weights.
"""

from __future__ import annotations

import bisect
import dataclasses
from functools import cached_property

from host.compiler.errors import Problem
from hw.board.board_model import BANK_BYTES
from hw.gpt2.config import CoreConfig
from sw.models.gpt2_config import GPT2Config

__all__ = ["ALIGNMENT_BYTES", "GROUP", "Shape"]

ALIGNMENT_BYTES = 4096  # regions start where an AXI burst may start whatever its length
GROUP = 8  # output strips that are open together; the sketch's G
MAX_WIDTH = (1 << 13) - 1  # count of hw.numerics.norm_scalars
MAX_K_WORDS = (1 << 10) - 1  # field `words`
MAX_STRIPS = (1 << 16) - 1  # field `strips`
MAX_HEADS = (1 << 7) - 1  # field `heads`
MAX_LAYERS = (1 << 8) - 1  # the key/value path counts layers in 8 bits
MAX_EPS = 2.0**32  # epsilon * d^2: 80 bits with the 48 of the fraction
MAX_PROB_STRIDE = (1 << 8) - 1  # field `prob_stride`


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of `model` on `core` with a cache of `context` positions."""

    model: GPT2Config
    core: CoreConfig
    context: int

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
        """Strips of the residual vector, of values, and rows of an embedding block."""
        return _ceil(self.width, self.core.lanes)

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
        return _ceil(self.model.n_inner, self.core.lanes)

    @property
    def vocab_strips(self) -> int:
        """Strips of the logits."""
        return _ceil(self.model.vocab_size, self.core.lanes)

    # --- heads
    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.model.n_head

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
        """Strips of all heads' keys or queries."""
        return self.heads * self.key_words * self.core.strips_per_word

    @property
    def value_strips(self) -> int:
        """Strips of one head's value."""
        return _ceil(self.model.head_size, self.core.lanes)

    # --- activation memory: x | q | attention result | feed-forward vector
    @property
    def q_word(self) -> int:
        """First word of the queries."""
        return self.x_words

    @property
    def av_word(self) -> int:
        """First word of the attention result."""
        return self.q_word + self.heads * self.key_words

    @property
    def mid_word(self) -> int:
        """First word of the feed-forward vector."""
        return self.av_word + self.x_words

    @property
    def act_words(self) -> int:
        """Words of activation memory in use."""
        return self.mid_word + self.inner_words

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
        padded = _ceil(self.x_strips, self.core.param_strips) * self.core.param_strips
        return self.x_words >= 2 and self.x_strips < self.core.acc_depth and padded <= self.core.param_depth

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
    def logits_rows(self) -> int:
        """Rows of one position's logits (fp32, all columns of the product)."""
        port_words = _ceil(self.vocab_strips * self.core.lanes * 4, self.core.port_bytes)
        return _ceil(port_words, self.core.channels)

    def product_rows(self, words: int, strips: int, param_rows: int) -> int:
        """Stream rows of a product: tiles, and `param_rows` rows for every T/2 strips."""
        return words * strips + param_rows * _ceil(strips, self.core.param_strips)

    @cached_property
    def weight_rows(self) -> int:
        """Rows of the weight stream of one token."""
        x, inner = self.x_words, self.inner_words
        layer = (
            2 * self.product_rows(x, self.key_strips, 2)
            + self.product_rows(x, self.x_strips, 2)
            + self.product_rows(x, self.x_strips, 1)
            + self.product_rows(x, self.inner_strips, 2)
            + self.product_rows(inner, self.x_strips, 1)
        )
        return self.model.n_layer * layer + self.product_rows(x, self.vocab_strips, 2)

    def problems(self, channel_bytes: int = BANK_BYTES) -> list[Problem]:
        """Everything that does not fit or is not supported, in one list; empty if the model can be built."""
        core, model = self.core, self.model
        found: list[Problem] = []

        def most(what: str, value: int, limit: int, hint: str = "") -> None:
            if value > limit:
                found.append(Problem(what, value, f"at most {limit}", hint))

        larger = "use a core with larger memories or a smaller model"
        if model.head_size % core.lanes:
            lanes = f"a multiple of the core's {core.lanes} lanes"
            found.append(Problem("head size", model.head_size, lanes, "use another core"))
        if not 1 <= self.context <= min(model.n_positions, core.context):
            limit = min(model.n_positions, core.context)
            found.append(
                Problem(
                    "context",
                    self.context,
                    f"1 to {limit}",
                    f"the model has {model.n_positions} positions, the core holds {core.context}",
                )
            )
        most("width", self.width, MAX_WIDTH, "LayerNorm's sums are made for this width")
        most("strips of the residual vector", self.x_strips, core.residual_strips, larger)
        most("activation words", self.act_words, core.act_words, larger)
        most("words of the new keys", self.heads * self.key_words, core.new_key_words, larger)
        most("strips of the new values", self.heads * self.value_strips, core.new_value_strips, larger)
        most("probability words of one head", self.prob_stride, core.prob_words, "ask for a shorter context")
        most("probability words of one head", self.prob_stride, MAX_PROB_STRIDE, "ask for a shorter context")
        most("accumulators of one head's values", self.value_strips, core.acc_depth, larger)
        most("open output strips", GROUP, core.acc_depth, larger)
        most("strips of parameters", max(GROUP, core.param_strips), core.param_depth, larger)
        epsilon = model.layer_norm_epsilon * self.width**2
        if epsilon >= MAX_EPS:
            found.append(Problem("layer_norm_epsilon x width^2", epsilon, "below 2^32"))
        most("heads", self.heads, MAX_HEADS)
        most("layers", model.n_layer, MAX_LAYERS)
        most("k words of a product", max(self.x_words, self.inner_words), MAX_K_WORDS)
        most("strips of the feed-forward vector", self.inner_strips, MAX_STRIPS)
        most("strips of the logits", self.vocab_strips, MAX_STRIPS)
        instructions, descriptors = self.program_sizes()
        most("instructions", instructions, core.instructions, "ask for a shorter context")
        most("access descriptors", descriptors, core.descriptors, "ask for a shorter context")
        if self.channel_bytes_used > channel_bytes:
            found.append(self._too_large(channel_bytes))
        return found

    def program_sizes(self) -> tuple[int, int]:
        """Instructions and (at most) access descriptors of the program."""
        passes = _ceil(self.heads, self.heads_per_pass)
        split = 1 if self.splits_v else 0
        instructions = 2 + 1 + 3 + split + 2 * passes + 3 + 1 + 1
        descriptors = 2 + 1 + 1 + split + 2 * passes + 1 + 1 + 1
        return instructions, descriptors

    def _too_large(self, channel_bytes: int) -> Problem:
        """By how much the regions exceed the channels, and what context would fit."""
        used, channels = self.channel_bytes_used, self.core.channels
        shorter = range(1, min(self.context, self.core.context))
        fitting = bisect.bisect_right(
            shorter, channel_bytes, key=lambda n: dataclasses.replace(self, context=n).channel_bytes_used
        )
        weights = f"weights and embeddings take {self.image_rows * self.core.port_bytes:,}"
        advice = f"a context of {shorter[fitting - 1]} would fit" if fitting else "no context is short enough"
        return Problem(
            "bytes per memory channel",
            used,
            f"at most {channel_bytes}",
            f"{used - channel_bytes:,} too many in each of {channels} channels, {used * channels / 1e9:.2f} GB of "
            f"{channel_bytes * channels / 1e9:.2f} in all; {weights}; {advice}",
        )

    @cached_property
    def region_rows(self) -> dict[str, tuple[int, int]]:
        """(first row, rows) of every region by name, one after the other; each starts on `ALIGNMENT_BYTES`."""
        cache = self.model.n_layer * self.heads
        sizes = {
            "weights": self.weight_rows,
            "position_embedding": self.position_rows,
            "token_embedding": self.token_rows,
            "keys": cache * self.key_head_rows,
            "values": cache * self.value_head_rows,
            "logits": self.context * self.logits_rows,
        }
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
        return sum(self.region_rows["logits"])

    @property
    def channel_bytes_used(self) -> int:
        """Bytes of a channel in use."""
        return self.total_rows * self.core.port_bytes
