"""A ring of nodes, compiled by Verilator, with drawn traffic between all boards that is compared where it arrives."""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib
from collections.abc import Sequence
from fractions import Fraction
from types import TracebackType

from hw.board.export import export_verilog
from hw.link.node import RingNode
from sim.devices.link_timing import ClockPeriods, LinkConfig, LinkTiming
from sim.devices.memory_config import device_sources
from sim.rtl.verilator import build_library

__all__ = ["KERNEL_MHZ", "TOP", "NodeRing", "NodeRingError", "NodeStatistics", "NodeTraffic", "node_verilog"]

KERNEL_MHZ = 200
TOP = "ring_node"
_HERE = pathlib.Path(__file__).parent
_PERIODS = ClockPeriods.of(KERNEL_MHZ, KERNEL_MHZ)
_NEVER = (1 << 64) - 1
_COMPILE_FLAGS = ("-std=c++20", "-O1", "-fPIC")


class NodeRingError(RuntimeError):
    """A frame arrived that should not, or not as it was sent; or runs did not end in time."""


@dataclasses.dataclass(frozen=True)
class NodeTraffic:
    """How the cores of all boards behave. Cycles are the kernel's.

    Parameters
    ----------
    send_pause : float
        Share of cycles in which a core that has an entry does not offer it yet.
    accept_longest, pause_longest : int
        A core takes what is delivered for 1 to ``accept_longest`` cycles, then nothing for 1 to ``pause_longest``
        (0: it always takes).
    start_longest : int
        Longest time from a board's last frame of a run to the end of the run there, and from that to the start of its
        next one, on top of 40 cycles and of the core's reset.
    silence_limit : int
        Cycles without anything delivered after which a board gives up its run.
    lost_cable : int, optional
        Cable that the test cuts for good: the boards go on, and frames that would cross it need not arrive.
    spoiled : bool
        The sixth frame of each board is compared with something else (for twins of tests).
    seed : int
    """

    send_pause: float = 0.0
    accept_longest: int = 1
    pause_longest: int = 0
    start_longest: int = 0
    silence_limit: int = 1 << 20
    lost_cable: int | None = None
    spoiled: bool = False
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class NodeStatistics:
    """What one board has seen.

    ``delivered`` frames of other boards; runs that ``ended`` and that ``broke``; ``longest_cycles`` that a frame took
    from its acceptance until a board had it; ``up``, ``dead`` and ``dead_since`` (kernel cycle, None if not dead) by
    port.
    """

    delivered: int
    ended: int
    broke: int
    longest_cycles: int
    up: tuple[bool, bool]
    dead: tuple[bool, bool]
    dead_since: tuple[int | None, int | None]


_TRAFFIC_FIELDS = (
    "seed", "send_pause", "accept_longest", "pause_longest", "start_longest", "silence_limit", "lost_cable", "spoiled",
)  # fmt: skip


class _Traffic(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _TRAFFIC_FIELDS]


class _Run(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("number", "frames", "breaks_after")]


class _Statistics(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("delivered", "ended", "broke", "longest_cycles", "up", "dead")),
        ("dead_since", ctypes.c_uint64 * 2),
    ]


def node_verilog(entry_bits: int) -> str:
    """Verilog of a node alone."""
    return export_verilog(RingNode(entry_bits), {}, TOP).text


def _library(verilog: str, entry_bits: int) -> ctypes.CDLL:
    source = f"#define ENTRY_BITS {entry_bits}\n" + (_HERE / "node_ring.cpp").read_text(encoding="utf-8")
    pins = (_HERE / "link_pins.h").read_text(encoding="utf-8")
    path = build_library(
        f"node ring {entry_bits}",
        verilog=verilog,
        top=TOP,
        prefix=f"V{TOP}",
        sources=device_sources() | {"node_ring.cpp": source, "link_pins.h": pins},
        compile_flags=_COMPILE_FLAGS,
    )
    library = ctypes.CDLL(str(path))
    pointer, wide, number = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint
    library.ring_open.restype = pointer
    library.ring_open.argtypes = [number, ctypes.POINTER(_Traffic), ctypes.POINTER(LinkConfig), wide]
    library.ring_error.restype = library.ring_state.restype = ctypes.c_char_p
    library.ring_cycle.restype = wide
    library.ring_run.argtypes = [pointer, wide, ctypes.c_int]
    library.ring_enqueue.argtypes = [pointer, number, ctypes.POINTER(_Run)]
    library.ring_cut.argtypes = [pointer, number, ctypes.c_int]
    library.ring_statistics.argtypes = [pointer, number, ctypes.POINTER(_Statistics)]
    for name in ("break", "reset_channel", "mend"):
        getattr(library, f"ring_{name}").argtypes = [pointer, number]
    for name in ("close", "error", "state", "cycle"):
        getattr(library, f"ring_{name}").argtypes = [pointer]
    return library


class NodeRing:
    """Boards in a ring, each a node and a model of its core; cable b leads from board b to board b + 1.

    Parameters
    ----------
    verilog : str
        Of the node (:func:`node_verilog`), or of a faulty one.
    entry_bits : int
        The one of the node.
    boards : int
        2 to 8.
    traffic : NodeTraffic
    links : LinkTiming
        All cables.

    Every board works off its queue of runs by itself. Cycles are the kernel's. Raises ToolMissingError or BuildError.
    """

    def __init__(self, verilog: str, entry_bits: int, boards: int, traffic: NodeTraffic, links: LinkTiming) -> None:
        self.boards = boards
        self._library = _library(verilog, entry_bits)
        fields = dataclasses.asdict(traffic)
        fields["send_pause"] = min(int(Fraction(traffic.send_pause) * (1 << 64)), _NEVER)
        fields["lost_cable"] = _NEVER if traffic.lost_cable is None else traffic.lost_cable
        self._ring = self._library.ring_open(boards, _Traffic(**fields), links.link_config(_PERIODS), _PERIODS.core)

    def __enter__(self) -> NodeRing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free all models."""
        if self._ring is not None:
            self._library.ring_close(self._ring)
            self._ring = None

    @property
    def cycle(self) -> int:
        """The present kernel cycle."""
        return self._library.ring_cycle(self._ring)

    def enqueue(self, number: int, frames: int, breaks_after: Sequence[int] = ()) -> None:
        """One more run for every board, in which it sends so many frames.

        ``breaks_after`` : for each board, cycles from its joining until it gives the run up; 0, or none named: never.
        """
        for board in range(self.boards):
            breaks = breaks_after[board] if breaks_after else 0
            self._library.ring_enqueue(self._ring, board, _Run(number, frames, breaks))

    def run(self, cycles: int) -> bool:
        """Go on until no board has a run left, and say whether that was so within ``cycles``.

        Raises NodeRingError if anything arrives that should not.
        """
        return self._run(cycles, True)

    def wait(self, cycles: int) -> None:
        """Go on for so many cycles, whatever the boards do. Raises NodeRingError as :meth:`run`."""
        self._run(cycles, False)

    def finish(self, cycles: int) -> None:
        """Go on until no board has a run left. Raises NodeRingError if that takes more than so many cycles."""
        if not self.run(cycles):
            state = self._library.ring_state(self._ring).decode()
            raise NodeRingError(f"runs have not ended within {cycles} cycles: {state}")

    def _run(self, cycles: int, until_idle: bool) -> bool:
        result = self._library.ring_run(self._ring, cycles, until_idle)
        if result < 0:
            raise NodeRingError(f"cycle {self.cycle}: {self._library.ring_error(self._ring).decode()}")
        return result == 1

    def break_run(self, board: int) -> None:
        """The board gives up the run that lasts, if one does."""
        self._library.ring_break(self._ring, board)

    def reset_channel(self, cable: int) -> None:
        """An end is reset: the channel is down for a while at both."""
        self._library.ring_reset_channel(self._ring, cable)

    def cut(self, cable: int, drops_channel: bool) -> None:
        """Cut a cable; the channel goes down, or stays up and carries nothing."""
        self._library.ring_cut(self._ring, cable, drops_channel)

    def mend(self, cable: int) -> None:
        """Undo :meth:`cut`."""
        self._library.ring_mend(self._ring, cable)

    def statistics(self) -> list[NodeStatistics]:
        """Of every board."""
        return [self._statistics(board) for board in range(self.boards)]

    def _statistics(self, board: int) -> NodeStatistics:
        out = _Statistics()
        self._library.ring_statistics(self._ring, board, out)
        up, dead = ((bool(bits & 1), bool(bits & 2)) for bits in (out.up, out.dead))
        left, right = (None if cycle == _NEVER else cycle for cycle in out.dead_since)
        return NodeStatistics(out.delivered, out.ended, out.broke, out.longest_cycles, up, dead, (left, right))
