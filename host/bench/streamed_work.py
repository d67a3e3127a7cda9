"""What a decode step or a prompt has to stream of a GPT-2, in products and in bytes, and the time that no core beats.

A core that takes one weight a multiplier and cycle needs at least `limit_cycles`: weights and K/V at full rate, nothing
else. It is what the yardsticks call the limit.
"""

from __future__ import annotations

import dataclasses
import math

from host.planner.partition import Partition
from sw.models.gpt2_config import GPT2Config
from sw.models.weights import expected_shapes

__all__ = [
    "HALF_BITS",
    "Work",
    "even_split_cycles",
    "key_value_bytes",
    "limit_cycles",
    "streamed_parameters",
    "token_bytes",
]

HALF_BITS = 16
_NOT_STREAMED = "wpe.weight"  # of the position embedding a token reads one row; the token embedding is also the head


@dataclasses.dataclass(frozen=True)
class Work:
    """How often what is streamed.

    Members: `layer_passes`, `head_passes`: times that the weights of all layers, and of the language-model head, are
    read; `attended`: positions whose keys and values are read, summed over steps and sequences.
    """

    layer_passes: int
    head_passes: int
    attended: int

    @classmethod
    def decode(cls, attended: int, requests: int = 1) -> Work:
        """One decode step of `requests` sequences that share the weights, each with `attended` positions attended."""
        return cls(1, 1, requests * attended)

    @classmethod
    def prompt(cls, tokens: int, rows: int = 1) -> Work:
        """A prompt up to its first new token; `rows` tokens share a pass over the weights and over K/V."""
        ends = range(rows, tokens + rows, rows)  # of the passes; the last one may be shorter
        return cls(len(ends), 1, sum(min(end, tokens) for end in ends))


def limit_cycles(
    config: GPT2Config, work: Work, boards: int = 1, *, products_per_cycle: int, weight_bits: int = HALF_BITS
) -> float:
    """Least cycles of `work` on `boards` boards: its products divided evenly, whatever heads and columns allow.

    `products_per_cycle`: of one board, for fp16; weights of fewer bits stream faster in proportion, keys and values
    stay fp16. A pass over the weights serves all the rows that share it.
    """
    whole = (config.n_head, config.n_embd, config.n_inner, config.vocab_size)
    return _cycles(config, work, whole, products_per_cycle, weight_bits) / boards


def even_split_cycles(
    config: GPT2Config, work: Work, boards: int = 1, *, products_per_cycle: int, weight_bits: int = HALF_BITS
) -> float:
    """The same for the busiest board of the most even split of whole heads and of steps of 16 columns.

    A plan that gives a board with one head more fewer columns can beat it, `limit_cycles` it cannot. Raises ValueError
    for more boards than heads.
    """
    split = Partition.even(config, boards)
    parts = zip(split.heads, split.x, split.inner, split.vocabulary, strict=True)
    return max(_cycles(config, work, part, products_per_cycle, weight_bits) for part in parts)


def _cycles(
    config: GPT2Config, work: Work, part: tuple[int, int, int, int], products_per_cycle: int, weight_bits: int
) -> float:
    """Of `part` = heads, columns of x, of the feed-forward vector, of the logits."""
    heads, x, inner, vocabulary = part
    width, own = config.n_embd, heads * config.head_size
    layer = 3 * width * own + width * x + width * inner + config.n_inner * x
    weights = config.n_layer * layer * work.layer_passes + width * vocabulary * work.head_passes
    attention = 2 * config.n_layer * own * work.attended
    return (weights * weight_bits / HALF_BITS + attention) / products_per_cycle


def streamed_parameters(config: GPT2Config) -> int:
    """Parameters that every decode step reads: all but the position embedding; the token embedding is the head."""
    return sum(math.prod(shape) for name, shape in expected_shapes(config).items() if name != _NOT_STREAMED)


def key_value_bytes(config: GPT2Config, attended: float, bits: int = HALF_BITS) -> float:
    """Bytes of the keys and values of `attended` positions in all layers."""
    return 2 * config.n_layer * config.n_embd * attended * bits / 8


def token_bytes(
    config: GPT2Config, attended: float, *, weight_bits: int = HALF_BITS, kv_bits: int = HALF_BITS
) -> float:
    """Bytes that a decode step has to read on all boards together: parameters times precision, and K/V."""
    return streamed_parameters(config) * weight_bits / 8 + key_value_bytes(config, attended, kv_bits)
