"""The timing model with one thing wrong: a comparison with the gateware proves something if it notices that."""

from __future__ import annotations

import dataclasses

from hw.gpt2.config import CoreConfig
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_config import DeviceTiming
from sim.timing.hardware import core_sizes
from sim.timing.overrides import CHANGEABLE, TimingOverrides

__all__ = ["TWINS", "Twin"]

TWINS = ("fifo_words=128", "refresh=off", "accumulator_latency=+4")
"""What every table must notice: shallow read FIFOs, no refresh, a slow accumulator."""


@dataclasses.dataclass(frozen=True)
class Twin:
    """A change of the timing model alone: fifo_words=N, refresh=off, or STAGE=+N for a size, stage or latency that
    is N more, of those that programs are not compiled for.

    ``name`` is the text that :meth:`parse` read.
    """

    name: str
    overrides: TimingOverrides
    refresh: bool = True

    @classmethod
    def parse(cls, text: str) -> Twin:
        """Raises ValueError for anything else."""
        name, _, value = text.partition("=")
        if (name, value) == ("refresh", "off"):
            return cls(text, TimingOverrides(), refresh=False)
        if name == "fifo_words" and value.isdecimal():
            return cls(text, TimingOverrides(fifo_words=int(value)))
        if name in CHANGEABLE and value.startswith("+") and value[1:].isdecimal():
            return cls(text, TimingOverrides(extra_cycles={name: int(value[1:])}))
        raise ValueError(
            f"cannot change {text!r}; use fifo_words=N, refresh=off or STAGE=+N, STAGE one of {', '.join(CHANGEABLE)}"
        )

    def memory(self, memory: DeviceTiming) -> DeviceTiming:
        """The memory that the timing model sees."""
        if self.refresh or not isinstance(memory, HbmTiming):
            return memory
        return dataclasses.replace(memory, refresh_interval_ns=0.0)

    def why_unnoticed(self, core: CoreConfig, memory: DeviceTiming) -> str:
        """What it means that not one counter of a run changes."""
        if not self.refresh:
            return "no refresh delays it" if isinstance(memory, HbmTiming) else "its memory has no refresh"
        sizes = core_sizes(core)
        changed = self.overrides.apply(sizes)
        if changed == sizes:
            return f"core {core.name} has that value"
        if changed.fifo_words != sizes.fifo_words:
            return f"FIFOs of {changed.fifo_words} rows are enough for it"
        if changed.accumulator_latency != sizes.accumulator_latency:
            return f"no two of its tiles on one accumulator are closer than {changed.accumulator_latency} cycles"
        return "it changes no counter"
