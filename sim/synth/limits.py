"""What a kernel may take and how deep it may be: the bars of the GPT-2 core, and when a design fits a card."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hw.board.part import SHELL, U280

__all__ = ["CARD_SHARE", "GPT2_64X16", "Limits", "exceeded", "fits_card"]

CARD_SHARE = {"lut": 0.70, "ff": 0.70, "dsp": 0.75, "bram": 0.75, "uram": 0.75}
"""Shares of the part, shell included, up to which tools place and route (caps of HLS tools for the U280, published)."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Highest percentages of the part by resource, and the most levels between two registers."""

    percent: Mapping[str, float]
    levels: int


GPT2_64X16 = Limits({"lut": 30.0, "dsp": 20.0, "bram": 30.0}, 12)
"""The 64x16 core with ring node and rows = 1 (DESIGN section 8); at an assumed 200 MHz a level has 0.4 ns."""


def exceeded(totals: Mapping[str, float], levels: Mapping[str, int], limits: Limits) -> list[str]:
    """A line for every limit that is exceeded. ``totals`` by resource, ``levels`` by unit."""
    part = U280.amounts()
    lines = []
    for kind, most in limits.percent.items():
        share = 100 * totals[kind] / part[kind]
        if share > most:
            lines.append(f"{kind}: {share:.1f} % of the part, at most {most:g} % allowed")
    for unit, depth in sorted(levels.items(), key=lambda entry: (-entry[1], entry[0])):
        if depth > limits.levels:
            lines.append(f"{unit}: {depth} levels between registers, at most {limits.levels} allowed")
    return lines


def fits_card(totals: Mapping[str, float]) -> dict[str, float]:
    """Resources of which design and shell take more than CARD_SHARE, and what share; empty if the design fits."""
    part, shell = U280.amounts(), SHELL.amounts()
    shares = {kind: (totals[kind] + shell[kind]) / part[kind] for kind in CARD_SHARE}
    return {kind: share for kind, share in shares.items() if share > CARD_SHARE[kind]}
