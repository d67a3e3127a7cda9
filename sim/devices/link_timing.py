"""The cables of a ring: how long words take, which are lost or changed, and the C structure that says so."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import pathlib
import re
from fractions import Fraction

__all__ = ["CHANNEL_DOWN_CYCLES", "LINK_CLOCK_MHZ", "ClockPeriods", "LinkConfig", "LinkTiming"]

LINK_CLOCK_MHZ = Fraction(25_781_250, 64_000)
"""``user_clk`` of an Aurora core with 25.78125 Gb/s lanes: 402.832 MHz, 256 bit a cycle."""

_HEADER = (pathlib.Path(__file__).parent / "link_timing.h").read_text(encoding="utf-8")
_NEVER = (1 << 64) - 1

CHANNEL_DOWN_CYCLES = int(re.findall(r"CHANNEL_DOWN_CYCLES = (\d+);", _HEADER)[0])
"""Link cycles from the reset of an end until the channel is up."""


class LinkConfig(ctypes.Structure):
    """Parameters of ``Cable`` and ``Link``, all unsigned 64-bit; ``link_timing.h`` says what each means."""

    _fields_ = [(name, ctypes.c_uint64) for name in re.findall(r"\bX\((\w+)\)", _HEADER)]


@dataclasses.dataclass(frozen=True)
class ClockPeriods:
    """Periods of a board's three clocks as whole numbers of one unit, ``units_per_ns`` of which are a nanosecond."""

    core: int
    port: int
    link: int
    units_per_ns: Fraction

    @classmethod
    def of(cls, core_mhz: int, port_mhz: int) -> ClockPeriods:
        """The coarsest unit in which all three are whole."""
        exact = [1000 / Fraction(mhz) for mhz in (core_mhz, port_mhz, LINK_CLOCK_MHZ)]
        scale = math.lcm(*(period.denominator for period in exact))
        whole = [int(period * scale) for period in exact]
        divisor = math.gcd(*whole)
        core, port, link = (period // divisor for period in whole)
        return cls(core, port, link, Fraction(scale, divisor))

    def units(self, ns: float) -> int:
        """The whole number of units nearest to so many nanoseconds."""
        return round(Fraction(ns) * self.units_per_ns)


@dataclasses.dataclass(frozen=True)
class LinkTiming:
    """A cable between the Aurora cores of two boards; both directions alike, each with draws of its own from ``seed``.

    Parameters
    ----------
    hop_ns : float
        From the clock edge at which the sender's core takes a word to the first edge at which the receiver's may show
        it: Aurora cores and cable, one way. A hop takes at least a cycle of the kernel's core clock and one of the
        link's, so 0 means that.
    word_drop_rate, word_corrupt_rate : float
        Probability that a word is lost, or has changed bits.
    frame_error_rate : float
        Probability that a frame has exactly one word with changed bits.
    jitter_ns : float
        Longest additional delay of a word, drawn evenly for each; words keep their order and come at most one a cycle.
    cut_at_ns : float, optional
        From so long after the channel came up on (of the time in which the ring moves) nothing arrives any more.
    cut_drops_channel : bool
        Whether both ends then see the channel go down, as with a fibre; else it stays up and carries nothing.
    seed : int
        Seed of all that is drawn, the phases of the transmit stalls too.

    The transmitting core takes no word in 1 cycle of 33 (gearbox) nor in 8 of 4,992 (clock compensation). A reset of an
    end takes the channel down for ``CHANNEL_DOWN_CYCLES``. Raises ValueError for figures out of range.
    """

    hop_ns: float = 500.0
    word_drop_rate: float = 0.0
    word_corrupt_rate: float = 0.0
    frame_error_rate: float = 0.0
    jitter_ns: float = 0.0
    cut_at_ns: float | None = None
    cut_drops_channel: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("hop_ns", "jitter_ns", "cut_at_ns"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1e9:
                raise ValueError(f"{name} must be 0 to 1e9 nanoseconds, got {value!r}")
        for name in ("word_drop_rate", "word_corrupt_rate", "frame_error_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a probability from 0 to 1, got {getattr(self, name)!r}")
        if not 0 <= self.seed < 1 << 40:
            raise ValueError(f"seed must be 0 to 2^40 - 1, got {self.seed!r}")

    def link_config(self, periods: ClockPeriods) -> LinkConfig:
        """The C structure in the unit of ``periods``."""
        return LinkConfig(
            period=periods.link,
            hop=max(periods.units(self.hop_ns), periods.core + periods.link),
            jitter=periods.units(self.jitter_ns),
            cut_at=_NEVER if self.cut_at_ns is None else periods.units(self.cut_at_ns),
            cut_drops_channel=self.cut_drops_channel,
            word_drop=_probability(self.word_drop_rate),
            word_corrupt=_probability(self.word_corrupt_rate),
            frame_error=_probability(self.frame_error_rate),
            seed=self.seed,
        )


def _probability(rate: float) -> int:
    """In units of 2^-64."""
    return min(int(Fraction(rate) * (1 << 64)), (1 << 64) - 1)
