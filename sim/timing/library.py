"""The compiled timing model: built once for all cores, kept in the build cache."""

from __future__ import annotations

import ctypes
import functools
import pathlib
from collections.abc import Mapping

from sim.devices.link_timing import LinkConfig
from sim.devices.memory_config import MemoryConfig, device_sources
from sim.rtl.cpp_library import build_cpp_library
from sim.timing.hardware import hardware_header
from sim.timing.ring_hardware import ring_header

__all__ = ["load_library"]

_HERE = pathlib.Path(__file__).parent
_POINTER, _U64, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
_SIGNATURES: Mapping[str, tuple[object, tuple[object, ...]]] = {
    "timing_new": (
        _POINTER,
        (
            *(_POINTER, _POINTER),
            *(_POINTER, _U64) * 2,
            *(_POINTER, _POINTER),
            *(ctypes.POINTER(MemoryConfig), _U64, _POINTER),
        ),
    ),
    "timing_ring_new": (_POINTER, (_POINTER, _U64, _POINTER, ctypes.POINTER(LinkConfig))),
    "timing_ring_delete": (None, (_POINTER,)),
    "timing_ring_run": (_INT, (_POINTER, _U64, _U64, ctypes.c_int64)),
    "timing_ring_strips": (_U64, (_POINTER, ctypes.c_uint32)),
    "timing_ring_ports": (None, (_POINTER, _POINTER)),
    "timing_keep_events": (None, (_POINTER, _INT)),
    "timing_delete": (None, (_POINTER,)),
    "timing_run": (_INT, (_POINTER, _U64, _U64, ctypes.c_int64)),
    "timing_totals": (None, (_POINTER, _POINTER)),
    **{f"timing_{what}_count": (_U64, (_POINTER,)) for what in ("span", "event", "token")},
    **{f"timing_{what}s": (_POINTER, (_POINTER,)) for what in ("span", "event", "token")},
}


def _sources() -> dict[str, str]:
    own = {path.name: path.read_text(encoding="utf-8") for path in sorted((*_HERE.glob("*.h"), *_HERE.glob("*.cpp")))}
    return {**device_sources(), **own, "hardware.h": hardware_header(), "ring_hardware.h": ring_header()}


@functools.cache
def load_library() -> ctypes.CDLL:
    """The compiled model with the types of its functions set. Raises BuildError if the compiler fails."""
    flags = ("-fvisibility=hidden", "-fvisibility-inlines-hidden")
    library = ctypes.CDLL(str(build_cpp_library("timing", _sources(), "timing.cpp", flags)))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
