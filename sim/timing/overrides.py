"""Departures of the timing model from the hardware, for tests that must see the difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from sim.timing.hardware import Sizes
from sim.timing.ring_hardware import RingSizes

__all__ = ["CHANGEABLE", "TimingOverrides"]

_AnySizes = TypeVar("_AnySizes", Sizes, RingSizes)
_CORE = frozenset(field.name for field in dataclasses.fields(Sizes))
_RING = frozenset(field.name for field in dataclasses.fields(RingSizes)) - _CORE
_OF_PROGRAM = frozenset(
    ("tile", "lanes", "rows", "channels", "channels_per_lane", "port_bytes", "strips_per_word", "strips_per_row")
)
CHANGEABLE = tuple(field.name for field in dataclasses.fields(Sizes) if field.name not in _OF_PROGRAM)
"""Sizes, stages and latencies that a program is not compiled for: it stays legal if they differ."""


@dataclasses.dataclass(frozen=True)
class TimingOverrides:
    """Departures from the hardware, in the timing model only.

    Parameters
    ----------
    fifo_words : int, optional
        Rows of the read FIFOs; None for the hardware's.
    extra_cycles : mapping from str to int
        What the named sizes, stages and latencies have more than the hardware: those of ``CHANGEABLE``, in a ring those
        of ``sim.timing.ring_hardware.RingSizes``, too.

    Raises ValueError for a size that programs are compiled for.
    """

    fifo_words: int | None = None
    extra_cycles: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fixed = sorted(_OF_PROGRAM & set(self.extra_cycles))
        if fixed:
            raise ValueError(
                f"programs are compiled for a core's {', '.join(fixed)}; can differ: {', '.join(CHANGEABLE)}"
            )

    def apply(self, sizes: Sizes) -> Sizes:
        """The sizes with these departures. Raises ValueError for a name that ``Sizes`` does not have."""
        for name in self.extra_cycles:
            if name not in _CORE:
                raise ValueError(f"no stage or latency is called {name!r}; known: {', '.join(sorted(_CORE))}")
        return _more(sizes if self.fifo_words is None else dataclasses.replace(sizes, fifo_words=self.fifo_words), self)

    def apply_ring(self, sizes: RingSizes) -> RingSizes:
        """Likewise the sizes of the ring. Raises ValueError for a name that neither structure has."""
        for name in self.extra_cycles:
            if name not in _CORE | _RING:
                raise ValueError(f"no stage or latency is called {name!r}; known: {', '.join(sorted(_CORE | _RING))}")
        return _more(sizes, self)

    def of_core(self) -> TimingOverrides:
        """Those of a board alone."""
        return TimingOverrides(self.fifo_words, {k: v for k, v in self.extra_cycles.items() if k in _CORE})


def _more(sizes: _AnySizes, overrides: TimingOverrides) -> _AnySizes:
    changes = {
        name: getattr(sizes, name) + extra
        for name, extra in overrides.extra_cycles.items()
        if name in (_CORE if isinstance(sizes, Sizes) else _RING)
    }
    return dataclasses.replace(sizes, **changes)
