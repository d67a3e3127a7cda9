"""Cycles of a core program without data: the control of the gateware and its memory, simulated cycle by cycle."""

from .overrides import TimingOverrides
from .result import SPAN_COLUMNS, Event, TimingResult
from .run import TimingError, run_timing

__all__ = ["SPAN_COLUMNS", "Event", "TimingError", "TimingOverrides", "TimingResult", "run_timing"]
