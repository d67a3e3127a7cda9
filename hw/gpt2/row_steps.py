"""Which positions a step of a sequence takes, and which rows work on them (docs/rows.md, section 2)."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Value
from amaranth.utils import ceil_log2

__all__ = ["last_position", "sequence_rows"]


def last_position(position: Value, prompt_end: Value, rows: int) -> Value:
    """q, the last position of the step that begins at ``position``: the prompt's rest in its group of ``rows``."""
    if rows == 1:
        return position
    group_end = position | (rows - 1)
    prompt = Mux(group_end + 1 < prompt_end, group_end, (prompt_end - 1)[: len(position)])
    return Mux(position + 1 < prompt_end, prompt, position)


def sequence_rows(position: Value, last: Value, rows: int) -> Value:
    """Bit per row: position % R to ``last`` % R, which lie in one group of ``rows`` positions."""
    if rows == 1:
        return Const(1, 1)
    bits = ceil_log2(rows)
    return Cat((r >= position[:bits]) & (r <= last[:bits]) for r in range(rows))
