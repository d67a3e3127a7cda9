"""The processor that measurements are made on: its name, and what arithmetic it has."""

from __future__ import annotations

import platform

__all__ = ["processor_flags", "processor_name"]


def processor_name() -> str:
    """As the system calls it."""
    return _fields().get("model name", platform.machine())


def processor_flags() -> frozenset[str]:
    """Features by the names of /proc/cpuinfo (x86), such as ``avx512_fp16``; none where that is not there."""
    return frozenset(_fields().get("flags", "").split())


def _fields() -> dict[str, str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, value in lines.items()}
