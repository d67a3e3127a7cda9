"""Two link ports on one cable, compiled by Verilator, with drawn traffic that is compared where it arrives."""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib
from fractions import Fraction
from types import TracebackType

from hw.board.export import export_verilog
from hw.link.port import COUNTERS, LinkPort
from sim.devices.link_timing import ClockPeriods, LinkConfig, LinkTiming
from sim.devices.memory_config import device_sources
from sim.rtl.verilator import build_library

__all__ = ["KERNEL_MHZ", "TOP", "LinkPair", "PairError", "PairStatistics", "PairTraffic", "port_verilog"]

KERNEL_MHZ = 200
TOP = "link_port"
_HERE = pathlib.Path(__file__).parent
_DEVICES = _HERE.parent / "devices"
# seconds of one processor to compile and link cycles simulated in one: -O0 9 and 10,000; -O1 16 and 180,000; -O2 21 and
# 190,000
_COMPILE_FLAGS = ("-std=c++20", "-O1", "-fPIC")
_PERIODS = ClockPeriods.of(KERNEL_MHZ, KERNEL_MHZ)


class PairError(RuntimeError):
    """A frame arrived that was not sent, twice, out of order or changed; or frames did not arrive in time."""


@dataclasses.dataclass(frozen=True)
class PairTraffic:
    """What each board sends to the other one, or with ``one_way`` board 0 to board 1.

    Parameters
    ----------
    local, transit : int
        Frames of each region.
    full : bool
        All frames have 16 beats and are pushed with their last write; else sizes are drawn.
    write_pause, read_pause : float
        Share of kernel cycles in which the sender writes, the receiver reads nothing.
    long_pause, long_pause_cycles : float, int
        Probability of a pause of the receiver of so many kernel cycles, in each cycle.
    rewrite : float
        Share of writes instead of which the frame is begun anew; entries are then written in any order.
    seed : int
    """

    local: int
    transit: int
    one_way: bool = False
    full: bool = False
    write_pause: float = 0.0
    read_pause: float = 0.0
    long_pause: float = 0.0
    long_pause_cycles: int = 0
    rewrite: float = 0.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class PairStatistics:
    """What one board has done. Pairs: local, transit; ``last_delivery`` in link cycles; the counters are the port's."""

    pushed: tuple[int, int]
    delivered: tuple[int, int]
    payload_bytes: int
    last_delivery: int
    up: bool
    dead: bool
    frames_sent: int
    frames_received: int
    frames_dropped: int
    resends: int
    words_sent: int


class _Traffic(ctypes.Structure):
    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("frames", ctypes.c_uint64 * 4),
        *((name, ctypes.c_uint64) for name in ("full_frames", "write_pause", "rewrite", "read_pause", "long_pause")),
        ("long_pause_cycles", ctypes.c_uint64),
    ]


class _Statistics(ctypes.Structure):
    _fields_ = [
        ("pushed", ctypes.c_uint64 * 2),
        ("delivered", ctypes.c_uint64 * 2),
        *((name, ctypes.c_uint64) for name in ("payload_bytes", "last_delivery", "up", "dead")),
        ("counters", ctypes.c_uint64 * 4),
        ("words_sent", ctypes.c_uint64),
    ]


def port_verilog(entry_bits: int) -> str:
    """Verilog of a port alone."""
    return export_verilog(LinkPort(entry_bits), {}, TOP).text


def _library(verilog: str, entry_bits: int) -> ctypes.CDLL:
    sources = device_sources() | {
        "link_pair.cpp": f"#define ENTRY_BITS {entry_bits}\n" + (_HERE / "link_pair.cpp").read_text(encoding="utf-8"),
        "link_timing.h": (_DEVICES / "link_timing.h").read_text(encoding="utf-8"),
    }
    path = build_library(
        f"link pair {entry_bits}",
        verilog=verilog,
        top=TOP,
        prefix=f"V{TOP}",
        sources=sources,
        compile_flags=_COMPILE_FLAGS,
    )
    library = ctypes.CDLL(str(path))
    pointer, wide = ctypes.c_void_p, ctypes.c_uint64
    library.pair_open.restype = pointer
    library.pair_open.argtypes = [ctypes.POINTER(_Traffic), ctypes.POINTER(LinkConfig), wide]
    library.pair_error.restype, library.pair_now.restype = ctypes.c_char_p, wide
    library.pair_run.argtypes = [pointer, wide, ctypes.c_int]
    library.pair_cut.argtypes = library.pair_hold.argtypes = [pointer, ctypes.c_int]
    library.pair_statistics.argtypes = [pointer, ctypes.c_uint, ctypes.POINTER(_Statistics)]
    for name in ("close", "error", "now", "reset_channel", "mend"):
        getattr(library, f"pair_{name}").argtypes = [pointer]
    return library


class LinkPair:
    """Boards 0 and 1, each a port and the core's side of it.

    Parameters
    ----------
    verilog : str
        Of the port (:func:`port_verilog`), or of a faulty one.
    entry_bits : int
        The one of the port.
    traffic : PairTraffic
    links : LinkTiming
        The cable.

    Cycles are those of the link. Raises ToolMissingError or BuildError.
    """

    def __init__(self, verilog: str, entry_bits: int, traffic: PairTraffic, links: LinkTiming) -> None:
        self._library = _library(verilog, entry_bits)
        probabilities = {
            name: min(int(Fraction(getattr(traffic, name)) * (1 << 64)), (1 << 64) - 1)
            for name in ("write_pause", "read_pause", "long_pause", "rewrite")
        }
        frames = [traffic.local, traffic.transit]
        config = _Traffic(
            seed=traffic.seed,
            frames=(ctypes.c_uint64 * 4)(*frames, *([0, 0] if traffic.one_way else frames)),
            full_frames=traffic.full,
            long_pause_cycles=traffic.long_pause_cycles,
            **probabilities,
        )
        self._pair = self._library.pair_open(config, links.link_config(_PERIODS), _PERIODS.core)

    def __enter__(self) -> LinkPair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free both models."""
        if self._pair is not None:
            self._library.pair_close(self._pair)
            self._pair = None

    @property
    def cycle(self) -> int:
        """The present link cycle."""
        return self._library.pair_now(self._pair)

    def run(self, cycles: int) -> bool:
        """Go on for so many link cycles and say whether all frames are delivered.

        Raises PairError if anything arrives that should not.
        """
        return self._run(cycles, until_finished=False)

    def _run(self, cycles: int, until_finished: bool) -> bool:
        result = self._library.pair_run(self._pair, cycles, until_finished)
        if result < 0:
            raise PairError(f"link cycle {self.cycle}: {self._library.pair_error(self._pair).decode()}")
        return result == 1

    def finish(self, cycles: int) -> None:
        """Run until all frames are delivered. Raises PairError if that takes more than so many link cycles."""
        if not self._run(cycles, until_finished=True):
            raise PairError(f"not all frames were delivered within {cycles} link cycles: {self.statistics()}")

    def hold_readers(self, held: bool) -> None:
        """From now on neither board's core takes frames, or they do again."""
        self._library.pair_hold(self._pair, held)

    def reset_channel(self) -> None:
        """An end is reset: the channel is down for a while at both."""
        self._library.pair_reset_channel(self._pair)

    def cut(self, drops_channel: bool) -> None:
        """Cut the cable; the channel goes down, or stays up and carries nothing."""
        self._library.pair_cut(self._pair, drops_channel)

    def mend(self) -> None:
        """Undo :meth:`cut`."""
        self._library.pair_mend(self._pair)

    def statistics(self) -> tuple[PairStatistics, PairStatistics]:
        """Of board 0 and board 1."""
        first, second = (self._statistics(side) for side in range(2))
        return first, second

    def _statistics(self, side: int) -> PairStatistics:
        out = _Statistics()
        self._library.pair_statistics(self._pair, side, out)
        return PairStatistics(
            (out.pushed[0], out.pushed[1]),
            (out.delivered[0], out.delivered[1]),
            out.payload_bytes,
            out.last_delivery,
            bool(out.up),
            bool(out.dead),
            **dict(zip(COUNTERS, out.counters, strict=True)),
            words_sent=out.words_sent,
        )
