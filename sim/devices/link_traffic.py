"""Words through the model of a cable alone."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sim.devices.link_timing import ClockPeriods, LinkConfig, LinkTiming
from sim.devices.memory_config import device_sources
from sim.rtl.build_cache import BuildError
from sim.rtl.cpp_library import build_cpp_library

__all__ = ["EVENTS", "LinkRun", "compile_link", "link_sources", "run_link"]

EVENTS = ("reset", "cut", "cut_silently", "mend")
_ARRIVAL = np.dtype([("number", "u8"), ("time", "u8"), ("changed_bits", "u4"), ("last", "u4")])
_EVENT = np.dtype([("cycle", "u8"), ("kind", "u8")])
_READY, _UP, _TAKEN = 1, 2, 4


def link_sources() -> dict[str, str]:
    """Names and texts of the model and of what drives it."""
    driver = pathlib.Path(__file__).with_name("link_traffic.cpp")
    return device_sources() | {driver.name: driver.read_text(encoding="utf-8")}


def compile_link(sources: Mapping[str, str]) -> ctypes.CDLL:
    """Compile the model, once for the same sources. Raises BuildError or ToolMissingError."""
    library = ctypes.CDLL(str(build_cpp_library("link", sources, "link_traffic.cpp")))
    wide, pointer, number = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32
    library.link_run.argtypes = [
        pointer, number, number, wide, pointer, wide, wide, pointer, wide, pointer, pointer, pointer, pointer,
    ]  # fmt: skip
    library.link_run.restype = wide
    if library.link_config_bytes() != ctypes.sizeof(LinkConfig):
        raise BuildError(
            f"LinkConfig has {library.link_config_bytes()} bytes in C and {ctypes.sizeof(LinkConfig)} in Python: "
            "sim/devices/link_timing.h has changed since this process imported it; start again"
        )
    return library


@functools.cache
def _library() -> ctypes.CDLL:
    return compile_link(link_sources())


@dataclasses.dataclass(frozen=True)
class LinkRun:
    """What came of a run; times in units of ``periods``.

    ``taken`` has the edge that took each word that was sent, ``arrivals`` a row a word that arrived (``number``,
    ``time``, ``changed_bits``, ``last``), ``ready``, ``up`` and ``busy`` (a word was taken) an element a cycle,
    ``counters`` the model's own.
    """

    periods: ClockPeriods
    taken: npt.NDArray[np.uint64]
    arrivals: npt.NDArray
    ready: npt.NDArray[np.bool_]
    up: npt.NDArray[np.bool_]
    busy: npt.NDArray[np.bool_]
    counters: dict[str, int]

    def latency_ns(self) -> npt.NDArray[np.float64]:
        """Of every word that arrived."""
        units = self.arrivals["time"] - self.taken[self.arrivals["number"]]
        return units / float(self.periods.units_per_ns)


def run_link(
    timing: LinkTiming,
    last: npt.ArrayLike,
    cycles: int,
    *,
    cable: int = 0,
    end: int = 0,
    phase: float = 0.0,
    events: Sequence[tuple[int, str]] = (),
    periods: ClockPeriods | None = None,
    library: ctypes.CDLL | None = None,
) -> LinkRun:
    """Offer words without a pause for ``cycles`` link cycles.

    Parameters
    ----------
    last : array of bool
        The mark of each word: whether it ends a frame.
    cable, end : int
        Number of the cable in its ring and the end that sends: the draws follow from them.
    phase : float
        By how much of a period the receiver's edges are behind the sender's.
    events : sequence of (cycle, name)
        In order of cycles; names of ``EVENTS``.
    """
    periods = periods or ClockPeriods.of(200, 225)
    marks = np.ascontiguousarray(last, np.uint8)
    made = np.array([(cycle, EVENTS.index(name)) for cycle, name in events], _EVENT)
    taken, states = np.zeros(len(marks), np.uint64), np.zeros(cycles, np.uint8)
    arrivals, counters = np.zeros(len(marks), _ARRIVAL), np.zeros(4, np.uint64)
    config = timing.link_config(periods)
    arrived = (library or _library()).link_run(
        ctypes.byref(config), cable, end, int(phase * periods.link), marks.ctypes.data, len(marks), cycles,
        made.ctypes.data, len(made), taken.ctypes.data, states.ctypes.data, arrivals.ctypes.data, counters.ctypes.data,
    )  # fmt: skip
    busy = states & _TAKEN != 0
    names = ("words_sent", "words_lost", "words_corrupted", "words_received")
    return LinkRun(
        periods, taken[: int(busy.sum())], arrivals[:arrived], states & _READY != 0, states & _UP != 0, busy,
        dict(zip(names, map(int, counters), strict=True)),
    )  # fmt: skip
