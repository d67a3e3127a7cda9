"""The compiled harness as Python sees it: delays of its memory, its C functions, its codes."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import pathlib
from collections.abc import Mapping

__all__ = ["Counter", "MemoryTiming", "Result", "TimingFields", "load_harness"]


class Result(enum.IntEnum):
    """Why ``board_advance`` came back."""

    PASSED = 0
    DONE = 1
    STUCK = 2
    TOO_LONG = 3
    VIOLATION = 4


class Counter(enum.IntEnum):
    """What ``board_counter`` returns."""

    RUN_TICKS = 0
    TICKS = 1
    TILES = 2
    READ_BEATS = 3
    WRITE_BEATS = 4


@dataclasses.dataclass(frozen=True)
class MemoryTiming:
    """Delays of the simulated memory in cycles of the kernel's clock.

    From an accepted read address to the first beat ``read_min`` to ``read_max``, from a complete write to its
    response (when memory changes) ``write_min`` to ``write_max``, drawn anew for each burst. After a beat or an
    address there is, with the given probability in thousandths, a pause of 1 to ``gap_max`` (read data) or
    ``stall_max`` (ready of addresses and write data) cycles. ``early_permille`` of the read bursts take their data
        from memory when the address is accepted instead of when the
    beats leave. All draws follow from ``seed``; equal seeds give equal runs however often the host looks.
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


class TimingFields(ctypes.Structure):
    """MemoryTiming as the C structure ``Timing``."""

    _fields_ = [(field.name, ctypes.c_uint32) for field in dataclasses.fields(MemoryTiming) if field.name != "seed"]


_SIGNATURES: Mapping[str, tuple[object, tuple[object, ...]]] = {
    "board_new": (ctypes.c_void_p, ()),
    "board_delete": (None, (ctypes.c_void_p,)),
    "board_reset": (None, (ctypes.c_void_p,)),
    "board_map": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_uint, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64),
    ),
    "board_memory": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_uint)),
    "board_base": (None, (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64)),
    "board_timing": (None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)),
    "board_limits": (None, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double)),
    "board_write": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)),
    "board_read": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)),
    "board_advance": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)),
    "board_state": (ctypes.c_int, (ctypes.c_void_p,)),
    "board_counter": (ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_int)),
    "board_message": (ctypes.c_char_p, (ctypes.c_void_p,)),
    "board_trace": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)),
}


def load_harness(path: pathlib.Path) -> ctypes.CDLL:
    """Open a compiled harness with the types of its functions set."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
