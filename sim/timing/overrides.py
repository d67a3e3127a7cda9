"""Departures of the timing model from the hardware, for tests that must see the difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sim.timing.hardware import Sizes

__all__ = ["TimingOverrides"]


@dataclasses.dataclass(frozen=True)
class TimingOverrides:
    """Departures from the hardware, in the timing model only.

    Parameters
    ----------
    fifo_words : int, optional
        Rows of the read FIFOs; None for the hardware's.
    extra_cycles : mapping from str to int
        What the named sizes, stages and latencies of ``sim.timing.hardware.Sizes`` have more than the hardware.
    """

    fifo_words: int | None = None
    extra_cycles: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def apply(self, sizes: Sizes) -> Sizes:
        """The sizes with these departures. Raises ValueError for a name that ``Sizes`` does not have."""
        changes = {} if self.fifo_words is None else {"fifo_words": self.fifo_words}
        known = {field.name for field in dataclasses.fields(Sizes)}
        for name, extra in self.extra_cycles.items():
            if name not in known:
                raise ValueError(f"no stage or latency is called {name!r}; known: {', '.join(sorted(known))}")
            changes[name] = changes.get(name, getattr(sizes, name)) + extra
        return dataclasses.replace(sizes, **changes)
