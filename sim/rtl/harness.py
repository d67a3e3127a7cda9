"""The compiled harness as Python sees it: its C functions, its codes."""

from __future__ import annotations

import ctypes
import enum
import pathlib
from collections.abc import Mapping

__all__ = ["Counter", "Result", "load_harness"]


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
    REFRESH_STALLS = 5


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
    "board_threads": (None, (ctypes.c_void_p, ctypes.c_uint)),
    "board_limits": (None, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double)),
    "board_write": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)),
    "board_read": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)),
    "board_advance": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)),
    "board_state": (ctypes.c_int, (ctypes.c_void_p,)),
    "board_counter": (ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_int)),
    "board_message": (ctypes.c_char_p, (ctypes.c_void_p,)),
    "board_waiting": (ctypes.c_char_p, (ctypes.c_void_p,)),
    "board_trace": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)),
    "ring_ports": (ctypes.c_uint, ()),
    "ring_new": (
        ctypes.c_void_p,
        (ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64, ctypes.c_double),
    ),
    "ring_delete": (None, (ctypes.c_void_p,)),
    "ring_board": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_uint)),
    "ring_move": (None, (ctypes.c_void_p, ctypes.c_uint64)),
    "ring_cut": (None, (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_int)),
    "ring_mend": (None, (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)),
    "ring_counters": (None, (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p)),
    "ring_message": (ctypes.c_char_p, (ctypes.c_void_p,)),
}


def load_harness(path: pathlib.Path) -> ctypes.CDLL:
    """Open a compiled harness with the types of its functions set."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
