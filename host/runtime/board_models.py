"""The simulated boards behind an appliance: one, or several with cables between them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from host.runtime.appliance import LINK_LIMIT_CYCLES
from hw.board.board_model import BoardModel
from hw.gpt2.config import CoreConfig

if TYPE_CHECKING:
    from sim.devices.link_timing import LinkTiming

__all__ = ["BoardModels", "open_boards"]

THREADED_PRODUCTS = 1024  # products a cycle from which a second thread makes simulation faster
STUCK_CYCLES = 20_000  # without any movement; in a ring beyond the time in which a board gives others up by itself


@dataclasses.dataclass(frozen=True)
class BoardModels:
    """Boards in the order of their ring, and the SHA-256 of their Verilog or None."""

    boards: tuple[BoardModel, ...]
    verilog_sha256: str | None


@contextlib.contextmanager
def open_boards(
    name: str,
    core: CoreConfig,
    boards: int = 1,
    *,
    trace: bool = False,
    flat: bool = False,
    memory: str = "u280",
    links: LinkTiming | None = None,
) -> Iterator[BoardModels]:
    """Models of ``boards`` boards of executor ``rtl`` (whose gateware is built if need be) or ``functional``.

    Of ``rtl`` boards ``trace`` asks for some that can write waves, ``flat`` for a kernel compiled as one piece,
    ``memory`` says what stands behind their ports (see `sim.devices.named.named_memory`), and ``links`` what is between
    several of them; fault-free cables of 500 ns if None. All are released at the end. Raises ToolMissingError or
    BuildError of `sim.rtl`.
    """
    if name == "functional":
        yield BoardModels(_functional(core, boards), None)
        return
    from sim.devices.named import named_memory
    from sim.rtl.build import build_board

    built = build_board(core, trace=trace, flat=flat)
    processors = min(2, len(os.sched_getaffinity(0)))
    timing = named_memory(memory)
    if boards == 1:
        from sim.rtl.board import RtlBoard

        threads = processors if core.tile * core.lanes >= THREADED_PRODUCTS else 1
        with RtlBoard(built, timing=timing, no_progress_cycles=STUCK_CYCLES, threads=threads) as board:
            yield BoardModels((board,), built.verilog_sha256)
        return
    from sim.rtl.ring import RtlRing

    stuck_cycles = LINK_LIMIT_CYCLES + STUCK_CYCLES
    with RtlRing(
        built, boards, timing=timing, links=links, threads=processors, no_progress_cycles=stuck_cycles
    ) as ring:
        yield BoardModels(tuple(ring.boards), built.verilog_sha256)


def _functional(core: CoreConfig, boards: int) -> tuple[BoardModel, ...]:
    if boards == 1:
        from sim.functional import FunctionalBoard

        return (FunctionalBoard(),)
    from sim.functional.ring import FunctionalRing

    return tuple(FunctionalRing(boards, core).boards)
