"""The tag that travels with every tile through the core, and the stage numbers at which it is looked at.

The core's pipeline never stalls behind the issue point, so every unit sees a tile a fixed number of cycles after its
issue; :class:`Stages` names these distances.
"""

from __future__ import annotations

import dataclasses

from amaranth.lib import data, enum

from hw.board.memory_ports import pop_stages
from hw.gpt2.config import CoreConfig
from hw.numerics.dot import DotTile

__all__ = ["Destination", "Operation", "ParamKind", "Stages", "tag_layout"]


class Operation(enum.Enum, shape=2):
    """What a tag in the pipeline is."""

    NONE = 0
    PARAM = 1  # a parameter row
    TILE = 2


class ParamKind(enum.Enum, shape=2):
    """What a parameter row holds."""

    BIAS = 0
    COLUMN_SUM = 1
    SCALE = 2  # of int8 weights


class Destination(enum.Enum, shape=3):
    """Where the result of a strip's last tile goes."""

    NONE = 0  # not the last tile
    STRIP = 1
    LOGITS = 2
    SCORE = 3


@dataclasses.dataclass(frozen=True)
class Stages:
    """Cycles after issue.

    ``operand``: the row leaves its FIFOs and the operand memories are read; ``lane``: operand word at the lane's
    inputs; ``patched``: weights with new keys and values there; ``accumulate``: tile sum at the adder; ``total``: final
    sum behind it; ``drain``: at the drain unit, scaled if it must be; ``linear``: fp32 result in the lane, ``report``:
    the same back from the lanes; ``convert``: at the rounding to fp16; ``write``: fp16 strip at the memories. A strip
    that is written in a cycle can be read by a tile whose ``operand`` stage is one cycle later, so it is free to issue
    ``operand`` cycles before that (``written``).
    """

    config: CoreConfig

    @property
    def operand(self) -> int:
        """The registers on the way of the pop to the read FIFOs."""
        return pop_stages(self.config)

    @property
    def lane(self) -> int:
        """Two registers from the memories, then the crossings to the lanes."""
        return self.operand + 2 + self.config.slr_stages

    @property
    def patched(self) -> int:
        """The register behind the patch."""
        return self.lane + 1

    @property
    def accumulate(self) -> int:
        """Dot tile, register."""
        return self.patched + DotTile.latency_of(self.config.tile) + 1

    @property
    def total(self) -> int:
        """The adder's three registers and the one behind it."""
        return self.accumulate + 4

    @property
    def drain(self) -> int:
        """With int8 weights at the earliest: an entry of the result queue, and multiply 3 + 1."""
        return self.total + (5 if self.config.has_int8 else 0)

    @property
    def linear(self) -> int:
        """Multiply, prepare c, add: 3 + 1, 3 + 1, 3 + 1 registers."""
        return self.drain + 12

    @property
    def report(self) -> int:
        """fp32 result back from the lanes."""
        return self.linear + self.config.slr_stages

    @property
    def exponential(self) -> int:
        """From the score's address to its probability: read, subtract 3 + 1, exponential 6, register, crossing."""
        return 1 + 4 + 6 + 1 + self.config.slr_stages

    @property
    def convert(self) -> int:
        """GELU's eight registers and one behind it."""
        return self.linear + 9

    @property
    def write(self) -> int:
        """fp16 rounding, a register, and the crossings back."""
        return self.convert + 2 + self.config.slr_stages

    @property
    def written(self) -> int:
        """From here on a tile may issue that reads the strip."""
        return self.write - self.operand


def tag_layout(config: CoreConfig) -> data.StructLayout:
    """Fields of a tag. Widths come from the core's sizes; ``dst`` is a strip address, ``index`` a strip index.

    A tile of int8 weights has two results (``two``); its tag is that of the even one but for ``strip_last``, ``flush``
    and ``commit``, which are the odd one's.
    """
    two = {"two": 1, "mask_odd": config.lanes} if config.has_int8 else {}
    return data.StructLayout(
        {
            **two,
            "operation": Operation,
            "param_kind": ParamKind,
            "param": range(config.param_depth),  # first strip of a PARAM row, strip of a TILE
            "first": 1,  # accumulator starts from its initial value
            "bias": 1,  # ... which is the bias, else +0
            "acc": range(config.acc_depth),
            "destination": Destination,
            "use_norm": 1,
            "norm_set": 1,
            "use_residual": 1,
            "use_gelu": 1,
            "use_scale": 1,  # multiply by the score scale
            "use_inverse": 1,  # multiply by 1/sum of the head
            "head": 7,
            "dst": range(config.strip_addresses),
            "index": 16,  # strip within the product
            "stats": 1,
            "stats_set": 1,
            "strip_first": 1,  # first strip of the vector or head
            "strip_last": 1,  # last one
            "send": 1,  # to the other boards as well
            "flush": 1,  # what was sent up to here shall go out
            "commit": 2,
            "layer": 8,
            "rows": config.rows,  # rows that take part
            "position": data.ArrayLayout(16, config.rows),
            "mask": data.ArrayLayout(config.lanes, config.rows),  # lanes whose result counts
            # where a strip of scores waits for the exponential
            "score_row": data.ArrayLayout(range(config.score_rows), config.rows),
            "prob": range(config.prob_words),  # first probability word of the head
        }
    )
