"""Memories that commands know by name."""

from __future__ import annotations

from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming

__all__ = ["MEMORIES", "named_memory"]

MEMORIES = {
    "u280": "HBM of an Alveo U280 as measured (docs/devices.md)",
    "ideal": "fixed latency, a word every port cycle, no refresh",
}


def named_memory(name: str, seed: int = 0) -> HbmTiming | MemoryTiming:
    """The memory called ``name``; ``seed`` draws the phases of the refreshes. Raises KeyError for another name."""
    if name not in MEMORIES:
        raise KeyError(name)
    return HbmTiming(seed=seed) if name == "u280" else MemoryTiming(seed=seed)
