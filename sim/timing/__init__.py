"""Cycles of a core program without data: the control of the gateware and its memory, simulated cycle by cycle."""

from .overrides import TimingOverrides
from .prepared import TimingError
from .result import SPAN_COLUMNS, Event, TimingResult
from .ring import run_ring_timing
from .run import run_timing

__all__ = [
    "SPAN_COLUMNS",
    "Event",
    "TimingError",
    "TimingOverrides",
    "TimingResult",
    "run_ring_timing",
    "run_timing",
]
