"""What a run on the timing model leaves: cycles, counters, spans of instructions, events of units."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw.board.gpt2_map import STALL_CAUSES
from hw.board.program import Program
from hw.gpt2.isa import Access
from sim.timing.hardware import EVENT_FIELDS, HEADS, SPAN_FIELDS, TOKEN_FIELDS, UNITS

__all__ = ["SPAN_COLUMNS", "SPAN_TYPE", "Event", "TimingResult", "read_result"]

SPAN_COLUMNS = (*SPAN_FIELDS, *(f"stall_{cause}" for cause in STALL_CAUSES), "refresh")
SPAN_TYPE = np.dtype([(name, np.int64) for name in SPAN_COLUMNS])
"""One record an instruction instance. ``step``: its number in the run; of a sequence whose steps take several positions
``position`` is the last of them. ``rows``: how many rows' results count; ``attended``: positions that these rows attend
to, their own included, together. ``first_issue``, ``last_issue`` and ``last_result`` are cycles since the run's start,
the first being 0; the last result is there when it is written to its memory or, for scores and logits, back from the
lanes. ``tiles``, ``params`` and the stalls (``stall_token`` ...) are numbers of cycles; ``refresh`` is the part of
``stall_stream`` that a refresh of the memory costs."""


class Event(NamedTuple):
    """Something a unit did from cycle ``start`` to before ``end`` of the run, when it could take the next thing.

    ``tail``: cycles behind ``end`` until its pipeline had put out the last result.
    """

    unit: str
    name: str
    start: int
    end: int
    tail: int = 0


@dataclasses.dataclass(frozen=True)
class TimingResult:
    """What a run took.

    ``cycles`` is the register of that name: from start to done. ``counters`` are ``cycles``, ``tiles``, ``stall_*`` as
    in the registers, and ``refresh_stalls``. ``token_cycles`` has for each new token the value that the register
    ``first_token_cycles`` has for the first, ``token_rows`` the row that made it. ``batch``: it was a batch of
    requests. ``spans`` has a record of ``SPAN_TYPE`` for each instruction instance in order; waiting for the token or
    for a decoded instruction belongs to the instruction that follows. ``tail`` has the stalls behind the last
    instruction, by cause: ``cycles`` is the sum of all tiles, params and stalls of ``spans`` and of ``tail``.
    ``events`` is empty unless it was asked for.
    """

    cycles: int
    counters: dict[str, int]
    token_cycles: tuple[int, ...]
    token_rows: tuple[int, ...]
    batch: bool
    spans: NDArray[np.void]
    tail: dict[str, int]
    events: tuple[Event, ...]


def read_result(library: ctypes.CDLL, board: int, program: Program, *, batch: bool = False) -> TimingResult:
    """The result of the board's run; ``batch``: of requests."""
    causes = len(STALL_CAUSES)
    totals = np.zeros(3 + 2 * causes, np.int64)
    library.timing_totals(board, totals.ctypes.data)
    cycles, tiles, refresh, *stalls = (int(total) for total in totals)
    counters = {"cycles": cycles, "tiles": tiles}
    counters |= {f"stall_{cause}": stalls[i] for i, cause in enumerate(STALL_CAUSES)}
    counters["refresh_stalls"] = refresh
    tokens = _copied(library, board, "token", len(TOKEN_FIELDS))
    return TimingResult(
        cycles=cycles,
        counters=counters,
        token_cycles=tuple(tokens[:, 0].tolist()),
        token_rows=tuple(tokens[:, 1].tolist()),
        batch=batch,
        spans=_copied(library, board, "span", len(SPAN_COLUMNS)).view(SPAN_TYPE)[:, 0],
        tail={cause: stalls[causes + i] for i, cause in enumerate(STALL_CAUSES)},
        events=tuple(_event(row, program) for row in _copied(library, board, "event", len(EVENT_FIELDS)).tolist()),
    )


def _copied(library: ctypes.CDLL, board: int, what: str, columns: int) -> NDArray[np.int64]:
    count = getattr(library, f"timing_{what}_count")(board)
    if not count:
        return np.empty((0, columns), np.int64)
    pointer = ctypes.cast(getattr(library, f"timing_{what}s")(board), ctypes.POINTER(ctypes.c_int64))
    return np.ctypeslib.as_array(pointer, (count, columns)).copy()


def _event(record: list[int], program: Program) -> Event:
    """An event of the C++ model in words."""
    unit, first, second, start, end = record
    name = UNITS[unit]
    if name == "reader":
        kind = Access.decode(program.descriptors[first]).kind.name.lower()
        text = f"{kind}, descriptor {first}, position {second}"
    elif name == "kv_writer":
        text = f"{'values' if first else 'keys'} of layer {second}"
    elif name == "logits_writer":
        row, channel = divmod(first, program.core.channels)
        text = f"port word {second} to channel {channel}{_of_row(row, program)}"
    elif name == "refresh":
        text = f"channel {first}"
    elif name == "norm_scalars":
        row, scalars = divmod(first, 2)
        text = f"set {scalars}{_of_row(row, program)}"
    else:
        row, head = divmod(first, HEADS)
        text = f"head {head}{_of_row(row, program)}"
        if name == "exponential":  # `second` strips of scores, then the pipeline empties
            return Event(name, text, start, start + second, end - start - second)
    return Event(name, text, start, end)


def _of_row(row: int, program: Program) -> str:
    return f", row {row}" if program.core.rows > 1 else ""
