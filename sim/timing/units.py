"""How long each unit of the core worked in a part of a run, and how long the matrix unit waited for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sim.timing.attribution import LOST, Attribution, AttributionError, Ledger
from sim.timing.result import Event, TimingResult

__all__ = ["UNIT_LOSSES", "UNIT_MEANINGS", "UnitWork", "unit_losses", "unit_work"]

UNIT_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "reader": "an access descriptor was being turned into read commands, or waited for room in the FIFOs",
        "matrix_unit": "a tile or a parameter row was issued",
        "drain_unit": "a strip of results entered it",
        "softmax": "exponentials of a head or the reciprocal of their sum were under way",
        "layernorm_scalars": "mean and 1/deviation of a vector were under way",
        "kv_writer": "keys or values were being written, for values until the last response",
        "logits_writer": "a word of logits was handed to memory",
    }
)
"""When each unit counts as working."""

UNIT_LOSSES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "reader": ("memory", "refresh"),
        "matrix_unit": ("parameters", "embedding", "padding", "idle_rows", "dependency"),
        "drain_unit": ("drain",),
        "softmax": ("softmax",),
        "layernorm_scalars": ("layernorm",),
        "kv_writer": ("key_value_write",),
        "logits_writer": (),
        "fetch": ("instruction",),
        "token_path": ("token_gap", "step_gap"),
        "link": ("link",),
        "run_control": ("run_start", "run_end"),
    }
)
"""Buckets of lost cycles that each unit is the cause of: the matrix unit waited for it, or, for the matrix unit itself,
issued something that is no useful product or could not go on alone. The reader stands for the memory behind it. The
last four do their work between instructions, positions, boards and runs, so it is not counted: they have no meaning in
``UNIT_MEANINGS``."""

_EVENTS: Mapping[str, tuple[str, ...]] = {
    "reader": ("reader",),
    "softmax": ("exponential", "reciprocal"),
    "layernorm_scalars": ("norm_scalars",),
    "kv_writer": ("kv_writer",),
    "logits_writer": ("logits_writer",),
}


@dataclasses.dataclass(frozen=True)
class UnitWork:
    """Cycles in which a unit worked (None: not counted), of all ``cycles`` of the part, and those lost by it."""

    unit: str
    worked: int | None
    cycles: int
    lost_cycles: Mapping[str, int | float]

    @property
    def share(self) -> float | None:
        """Part of the cycles in which it worked."""
        if self.worked is None:
            return None
        return self.worked / self.cycles if self.cycles else 0.0


def unit_losses(part: Attribution) -> dict[str, dict[str, int | float]]:
    """Lost cycles of a part by the unit that they were lost by and by cause: over all units exactly its lost cycles.

    Raises AttributionError for a cause that belongs to no unit or to two: a defect of ``UNIT_LOSSES``.
    """
    named = [cause for causes in UNIT_LOSSES.values() for cause in causes]
    if sorted(named) != sorted(LOST):
        wrong = sorted(cause for cause in {*named, *LOST} if named.count(cause) != 1 or cause not in LOST)
        raise AttributionError(f"lost cycles must belong to one unit each, not so: {', '.join(wrong)}")
    lost = part.lost_cycles
    return {unit: {cause: lost[cause] for cause in causes} for unit, causes in UNIT_LOSSES.items()}


def unit_work(ledger: Ledger, result: TimingResult, position: int) -> list[UnitWork]:
    """Work of every unit in the step at ``position``, and the step's lost cycles by unit, in the order of
    ``UNIT_LOSSES``.

    ``result`` must have events. What a unit still does behind the step's last tile belongs to the next step.
    """
    start, end = ledger.window(position)
    at = ledger.at(position)
    own = zip(ledger.spans["index"][at].tolist(), ledger.spans["position"][at].tolist(), strict=True)
    worked: dict[str, int] = {
        "matrix_unit": int(ledger.spans["tiles"][at].sum() + ledger.spans["params"][at].sum()),
        "drain_unit": sum(ledger.work.result_strips(index, position) for index, position in own),
    }
    for unit, names in _EVENTS.items():
        worked[unit] = _covered((event for event in result.events if event.unit in names), start, end)
    losses = unit_losses(ledger.step(position))
    return [UnitWork(unit, worked.get(unit), end - start, lost) for unit, lost in losses.items()]


def _covered(events: Iterable[Event], start: int, end: int) -> int:
    """Cycles from ``start`` to before ``end`` in which at least one of the events lasts, its tail included."""
    covered, reached = 0, start
    for event in sorted(events, key=lambda event: event.start):
        first, last = max(event.start, reached), min(event.end + event.tail, end)
        if last > first:
            covered += last - first
            reached = last
    return covered
