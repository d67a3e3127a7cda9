"""Cycles of a core program without data: the control of the gateware and its memory, simulated cycle by cycle."""

from .overrides import TimingOverrides
from .prepared import TimingError
from .result import SPAN_COLUMNS, Event, TimingResult
from .ring import run_ring_timing
from .run import run_batch_timing, run_timing
from .run_start import Request

__all__ = [
    "SPAN_COLUMNS",
    "Event",
    "Request",
    "TimingError",
    "TimingOverrides",
    "TimingResult",
    "run_batch_timing",
    "run_ring_timing",
    "run_timing",
]
