"""Traffic into the models of memory alone: what published measurements did, and what the kernel does."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_config import DeviceTiming, MemoryConfig, device_sources
from sim.rtl.build_cache import BuildError
from sim.rtl.cpp_library import build_cpp_library

__all__ = [
    "Port",
    "Run",
    "compile_models",
    "lateral_efficiency",
    "model_sources",
    "requests_of",
    "run_port",
    "run_switch",
]

_HERE = pathlib.Path(__file__).parent
_REQUEST = np.dtype(
    [("offset", "u8"), ("not_before", "u8"), ("beats", "u4"), ("channel", "u2"), ("write", "u2")], align=True
)
_ANSWER = np.dtype([("accepted", "u8"), ("first", "u8"), ("last", "u8")])
_TOTALS = np.dtype(
    [
        (name, "u8")
        for name in ("cycles", "refreshes", "row_hits", "row_closed", "row_misses", "turnarounds", "late_cycles")
    ]
)


def model_sources() -> dict[str, str]:
    """Names and texts of the models and of what drives them."""
    return device_sources() | {"traffic.cpp": (_HERE / "traffic.cpp").read_text(encoding="utf-8")}


def compile_models(sources: Mapping[str, str]) -> ctypes.CDLL:
    """Compile models, once for the same sources. Raises BuildError or ToolMissingError."""
    library = ctypes.CDLL(str(build_cpp_library("devices", sources, "traffic.cpp")))
    wide, pointer, number, flag = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
    library.traffic_run.argtypes = [pointer, wide, number, pointer, *[wide] * 4, flag, pointer, pointer]
    library.switch_run.argtypes = [pointer, *[number] * 4, wide, pointer, *[wide] * 3, pointer]
    library.lateral_run.argtypes, library.lateral_run.restype = [number, number, wide], wide
    if library.config_bytes() != ctypes.sizeof(MemoryConfig):
        raise BuildError(
            f"MemoryConfig has {library.config_bytes()} bytes in C and {ctypes.sizeof(MemoryConfig)} in Python: "
            "sim/devices/memory_config.h has changed since this process imported it; start again"
        )
    return library


@functools.cache
def _library() -> ctypes.CDLL:
    return compile_models(model_sources())


@dataclasses.dataclass(frozen=True)
class Port:
    """Clock and width of a port of the kernel."""

    mhz: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of a run.

    ``answers`` has one row a port and one element a request: cycles in which the address was ``accepted``, the
    ``first`` and the ``last`` beat came (for writes: the response). ``totals`` has one element a port: ``cycles`` of
    the whole run, counters of the memory, and ``late_cycles`` in which the port waited because of a refresh.
    """

    requests: npt.NDArray
    answers: npt.NDArray
    totals: npt.NDArray
    port: Port

    def gigabytes_per_s(self, skip: float = 0.1) -> npt.NDArray[np.float64]:
        """What each port read and wrote a second, from the answer to request ``skip * count`` to the last answer."""
        first = int(len(self.requests) * skip)
        bytes_after = int(self.requests["beats"][first + 1 :].sum()) * self.port.bytes
        cycles = self.answers["last"].max(axis=1) - self.answers["last"][:, first]
        return bytes_after * self.port.mhz / cycles / 1000

    def latency(self) -> npt.NDArray[np.int64]:
        """Port cycles from address to last beat, a row a port."""
        return (self.answers["last"] - self.answers["accepted"]).astype(np.int64)


def requests_of(offsets: npt.ArrayLike, bytes: int, port_bytes: int, *, write: bool = False) -> npt.NDArray:
    """Requests of ``bytes`` each at ``offsets`` (bytes from the start of the channel)."""
    offsets = np.asarray(offsets, np.uint64)
    requests = np.zeros(len(offsets), _REQUEST)
    requests["offset"], requests["beats"], requests["write"] = offsets, bytes // port_bytes, write
    return requests


def _limit(requests: npt.NDArray) -> int:
    """Cycles within which any run must be through: 1,000 a request and 100 a beat."""
    return 100_000 + int(requests["not_before"].max()) + 1000 * len(requests) + 100 * int(requests["beats"].sum())


def _check(failed: int, requests: npt.NDArray, limit: int) -> None:
    if failed:
        raise RuntimeError(f"{len(requests)} requests were not answered within {limit} port cycles: the model is stuck")


def run_port(
    timing: DeviceTiming,
    requests: npt.NDArray,
    port: Port,
    *,
    ports: int = 1,
    interval: int = 1,
    outstanding: int = 0,
    skip_idle: bool = False,
    library: ctypes.CDLL | None = None,
) -> Run:
    """Let ``ports`` ports, each before its own channel, send the same requests at the same time.

    Reads go in order, writes go in order, neither waits for the other. ``interval``: least port cycles from one read
    address to the next. ``outstanding``: most requests of a kind under way, 0 for what the port takes. ``skip_idle``:
    leave out the cycles in which a port has nothing to do. Raises RuntimeError if the run does not end.
    """
    config = timing.memory_config(port.mhz, port.bytes)
    answers, totals = np.zeros((ports, len(requests)), _ANSWER), np.zeros(ports, _TOTALS)
    limit = _limit(requests)
    failed = (library or _library()).traffic_run(
        ctypes.byref(config), timing.seed, ports, requests.ctypes.data, len(requests), interval, outstanding, limit,
        skip_idle, answers.ctypes.data, totals.ctypes.data,
    )  # fmt: skip
    _check(failed, requests, limit)
    return Run(requests, answers, totals, port)


def run_switch(
    timing: HbmTiming,
    distances: Sequence[int],
    requests: npt.NDArray,
    port: Port,
    *,
    interval: int = 1,
    library: ctypes.CDLL | None = None,
) -> Run:
    """Let one port read with one AXI ID from the channels that the requests name.

    ``distances``: AXI cycles that each channel adds to ``timing.switch_cycles``, the port's own switch. Only ``last``
    and ``accepted`` of the answers are set, ``totals`` is empty. Raises RuntimeError if the run does not end.
    """
    axi = timing.memory_mhz // timing.axi_mhz
    there = timing.switch_cycles // 2 * axi
    back = timing.switch_cycles * axi - there
    behind = (dataclasses.replace(timing, switch_cycles=cycles) for cycles in distances)
    configs = (MemoryConfig * len(distances))(*(channel.memory_config(port.mhz, port.bytes) for channel in behind))
    answers = np.zeros((1, len(requests)), _ANSWER)
    limit = _limit(requests)
    failed = (library or _library()).switch_run(
        ctypes.byref(configs), len(distances), there, back, timing.same_id_cycles * axi, timing.seed,
        requests.ctypes.data, len(requests), interval, limit, answers.ctypes.data,
    )  # fmt: skip
    _check(failed, requests, limit)
    return Run(requests, answers, np.zeros(0, _TOTALS), port)


def lateral_efficiency(masters: int, burst_beats: int, cycles: int = 1_000_000) -> float:
    """Share of the masters' own rate that gets through a lateral link that they share."""
    return _library().lateral_run(masters, burst_beats, cycles) / (masters * cycles)
