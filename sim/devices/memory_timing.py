"""Memory of fixed or random delays, for tests of correctness and for ideal memory."""

from __future__ import annotations

import dataclasses

from sim.devices.memory_config import MemoryConfig, MemoryKind, check_port

__all__ = ["MemoryTiming"]


@dataclasses.dataclass(frozen=True)
class MemoryTiming:
    """Delays of the simulated memory in cycles of the kernel's memory port.

    From an accepted read address to the first beat ``read_min`` to ``read_max``, from a complete write to its
    response (when memory changes) ``write_min`` to ``write_max``, drawn anew for each burst. After a beat or an
    address there is, with the given probability in thousandths, a pause of 1 to ``gap_max`` (read data) or
    ``stall_max`` (ready of addresses and write data) cycles. ``early_permille`` of the read bursts take their data
    from memory when the address is accepted instead of when the beats leave. All draws follow from ``seed``; equal
    seeds give equal runs however often the host looks.
    """

    read_min: int = 64
    read_max: int = 64
    write_min: int = 32
    write_max: int = 32
    gap_permille: int = 0
    gap_max: int = 1
    stall_permille: int = 0
    stall_max: int = 1
    early_permille: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for kind in ("read", "write"):
            low, high = getattr(self, f"{kind}_min"), getattr(self, f"{kind}_max")
            if not 1 <= low <= high < 1 << 32:
                raise ValueError(f"{kind} latency must be 1 <= min <= max cycles, got {low!r} to {high!r}")
        for name in ("gap_permille", "stall_permille", "early_permille"):
            if not 0 <= getattr(self, name) <= 1000:
                raise ValueError(f"{name} must be 0 to 1000, got {getattr(self, name)!r}")
        for name in ("gap_max", "stall_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 cycle, got {getattr(self, name)!r}")

    @classmethod
    def random(cls, seed: int, read_max: int = 200, write_max: int = 200) -> MemoryTiming:
        """Latencies from 1 cycle up, pauses everywhere: what tests of correctness use."""
        return cls(1, read_max, 1, write_max, 100, 8, 200, 16, 500, seed)

    def memory_config(self, port_mhz: int, port_bytes: int) -> MemoryConfig:
        """The C structure for ports of this clock and width."""
        check_port(port_mhz, port_bytes)
        delays = {name: value for name, value in dataclasses.asdict(self).items() if name != "seed"}
        return MemoryConfig(kind=MemoryKind.DELAYS, port_mhz=port_mhz, port_bytes=port_bytes, **delays)
