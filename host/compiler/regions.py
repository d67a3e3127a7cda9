"""Where everything lies in memory, and the start values of the registers that say so to the core."""

from __future__ import annotations

import dataclasses
import math
import struct

from host.compiler.shape import Shape
from hw.board.gpt2_map import row_register
from hw.board.program import Region
from hw.numerics.norm_scalars import norm_eps_term

__all__ = ["Layout", "initial_registers"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Row ranges of one board's memory, the same in every channel; (first row, rows) by region name."""

    shape: Shape
    rows: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, shape: Shape) -> Layout:
        """Place weights, embeddings, keys and values of every request, and logits of every request, in this order."""
        return cls(shape, shape.region_rows)

    def base(self, name: str) -> int:
        """First row of a region."""
        return self.rows[name][0]

    @property
    def image_rows(self) -> int:
        """Rows of the image: up to the first row behind the embeddings."""
        return self.shape.image_rows

    def regions_of_channel(self, channel: int) -> tuple[Region, ...]:
        """The regions of one channel, in bytes."""
        kinds = {"weights": "weights", "position_embedding": "embedding", "token_embedding": "embedding"}
        for request in range(self.shape.requests):
            kinds |= {row_register(kind, request): kind for kind in ("keys", "values", "logits")}
        port = self.shape.core.port_bytes
        return tuple(
            Region(name, kinds[name], channel, start * port, size * port) for name, (start, size) in self.rows.items()
        )

    def regions(self) -> tuple[Region, ...]:
        """One region a channel and name, in bytes."""
        channels = range(self.shape.core.channels)
        return tuple(region for channel in channels for region in self.regions_of_channel(channel))


def initial_registers(layout: Layout, ring_key: int = 0) -> dict[str, int]:
    """Start values by register name (hw/board/gpt2_map.py), without those that belong to a run or to the loader.

    Those of the ring, `ring_key` among them, are only set on several boards; of rows behind the first, where the keys,
    values and logits of their requests are.
    """
    shape = layout.shape
    own = shape.own("vocabulary")
    ring = {
        "ring_boards": shape.boards,
        "ring_board": shape.board,
        "ring_key": ring_key,
        "token_offset": own.start,
    }
    of_rows = {
        row_register(f"{base}_base", row): layout.base(row_register(kind, row))
        for row in range(1, shape.requests)
        for base, kind in (("key", "keys"), ("value", "values"), ("logits", "logits"))
    }
    score_scale = struct.unpack("<I", struct.pack("<f", 1.0 / math.sqrt(shape.model.head_size)))[0]
    return {
        "context_limit": shape.context,
        "width": shape.width,
        "eps_term": norm_eps_term(shape.model.layer_norm_epsilon, shape.width),
        "score_scale": score_scale,
        "vocab": len(own),
        "layers": shape.model.n_layer,
        "heads": shape.heads,
        "key_words": shape.key_words,
        "value_strips": shape.value_strips,
        "weight_base": layout.base("weights"),
        "position_base": layout.base("position_embedding"),
        "token_base": layout.base("token_embedding"),
        "embed_strips": shape.x_strips,
        "key_base": layout.base("keys"),
        "key_layer_rows": shape.heads * shape.key_head_rows,
        "key_head_rows": shape.key_head_rows,
        "value_base": layout.base("values"),
        "value_layer_rows": shape.heads * shape.value_head_rows,
        "value_head_rows": shape.value_head_rows,
        "logits_base": layout.base("logits"),
        "logits_rows": shape.logits_rows,
        **of_rows,
        **(ring if shape.boards > 1 else {}),
    }
