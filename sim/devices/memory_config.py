"""The C structure ``MemoryConfig`` as Python sees it; its fields are read from ``memory_config.h``."""

from __future__ import annotations

import ctypes
import pathlib
import re
from typing import Protocol

__all__ = ["DeviceTiming", "MemoryConfig", "MemoryKind", "check_port", "device_sources"]

_HERE = pathlib.Path(__file__).parent
_FIELD = re.compile(r"\bX\((\w+)\)")


class MemoryKind:
    """Values of ``MemoryConfig.kind``."""

    DELAYS = 0
    HBM = 1
    DDR = 2


class MemoryConfig(ctypes.Structure):
    """Parameters of ``PortTiming``, all of them unsigned 32-bit numbers; ``memory_config.h`` says what each means."""

    _fields_ = [(name, ctypes.c_uint32) for name in _FIELD.findall((_HERE / "memory_config.h").read_text("utf-8"))]


class DeviceTiming(Protocol):
    """What a model of a memory says about itself: MemoryTiming, HbmTiming, DdrTiming."""

    @property
    def seed(self) -> int:
        """Seed of all that is drawn."""

    def memory_config(self, port_mhz: int, port_bytes: int) -> MemoryConfig:
        """The C structure for ports of this clock and width."""


def device_sources() -> dict[str, str]:
    """Names and texts of all headers of the device models: what a build that uses them depends on."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(_HERE.glob("*.h"))}


def check_port(port_mhz: int, port_bytes: int) -> None:
    """Raise ValueError unless this is a port that the models know."""
    if not 1 <= port_mhz <= 1000:
        raise ValueError(f"port_mhz must be 1 to 1000, got {port_mhz!r}")
    if port_bytes not in (32, 64):
        raise ValueError(f"port_bytes must be 32 or 64, got {port_bytes!r}")
