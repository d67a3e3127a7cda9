"""Payloads of the frames that are not strips (docs/ring.md section 4)."""

from __future__ import annotations

from amaranth.lib import data

__all__ = ["best_layout", "hello_layout", "sums_layout"]


def hello_layout() -> data.StructLayout:
    """What a board says of itself before a run."""
    return data.StructLayout(
        {"version": 32, "boards": 8, "board": 8, "reserved": 16, "config_digest": 64, "ring_key": 64}
    )


def sums_layout() -> data.StructLayout:
    """Exact sums of a slice: x in 2^-24 (two's complement), x^2 in 2^-48, whether a NaN was among them."""
    return data.StructLayout({"sum1": 56, "reserved": 8, "sum2": 96, "nan": 1})


def best_layout() -> data.StructLayout:
    """Largest logit of a board and its token id, whether there is one, whether a NaN was among them."""
    return data.StructLayout({"value": 32, "token": 32, "some": 1, "nan": 1})
