"""A run as a trace for chrome://tracing and https://ui.perfetto.dev: one track for every unit of the core.

Format: "Trace Event Format" in JSON, complete events ``X`` and metadata ``M``; microseconds of the assumed core clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from hw.board.gpt2_map import STALL_CAUSES
from hw.board.program import Program
from hw.gpt2.tags import Stages
from sim.timing.attribution import Ledger
from sim.timing.result import TimingResult

__all__ = ["TRACKS", "Slice", "trace_json", "unit_slices"]

TRACKS: Mapping[str, str] = MappingProxyType(
    {
        "reader": "reader",
        "matrix_unit": "matrix unit",
        "drain_unit": "drain unit",
        "exponential": "softmax: exponential",
        "reciprocal": "softmax: reciprocal",
        "norm_scalars": "LayerNorm scalars",
        "kv_writer": "key/value writer",
        "logits_writer": "logits writer",
    }
)
"""Unit and name of each track of the core, from top to bottom; below them each memory channel has one."""

_CORE, _MEMORY = 1, 2  # processes of the trace


@dataclasses.dataclass(frozen=True)
class Slice:
    """Something that a unit did from cycle ``start`` to before ``end`` of the run; ``facts`` are details."""

    name: str
    start: int
    end: int
    facts: Mapping[str, object] = dataclasses.field(default_factory=dict)


def trace_json(
    program: Program, result: TimingResult, ledger: Ledger, facts: Mapping[str, object]
) -> dict[str, object]:
    """The trace of a run that was timed with events.

    ``facts`` go to ``otherData``: what was timed and under which conditions. A slice ends when its unit can take the
    next thing; how long its pipeline then still works is among the slice's ``args``. A track holds no two slices that
    overlap; a unit that begins one thing before another has ended has as many tracks.
    """
    clock_mhz = program.core.core_clock_mhz
    slices = unit_slices(program, result, ledger)
    channels: dict[int, list[Slice]] = {channel: [] for channel in range(program.core.channels)}
    for event in result.events:
        if event.unit == "refresh":
            channel = int(event.name.removeprefix("channel "))
            channels[channel].append(Slice("late because of a refresh", event.start, event.end))
    written = [_metadata("process_name", _CORE, 0, f"core {program.core.name}")]
    written.append(_metadata("process_name", _MEMORY, 0, "memory channels"))
    thread = 0
    for unit, title in TRACKS.items():
        for number, track in enumerate(_tracks(slices[unit])):
            thread += 1
            written.append(_metadata("thread_name", _CORE, thread, title if not number else f"{title} ({number + 1})"))
            written.append(_metadata("thread_sort_index", _CORE, thread, thread))
            written += [_complete(one, unit, _CORE, thread, clock_mhz) for one in track]
    for channel, held in channels.items():
        written.append(_metadata("thread_name", _MEMORY, channel, f"channel {channel}"))
        written.append(_metadata("thread_sort_index", _MEMORY, channel, channel))
        written += [_complete(one, "refresh", _MEMORY, channel, clock_mhz) for one in held]
    return {"traceEvents": written, "displayTimeUnit": "ns", "otherData": dict(facts)}


def unit_slices(program: Program, result: TimingResult, ledger: Ledger) -> dict[str, list[Slice]]:
    """What each unit of :data:`TRACKS` did in the run, which was timed with events."""
    slices: dict[str, list[Slice]] = {unit: [] for unit in TRACKS}
    slices["matrix_unit"] = list(_matrix_unit(ledger))
    slices["drain_unit"] = list(_drain_unit(ledger, Stages(program.core).drain))
    for event in result.events:
        if event.unit in slices:
            facts = {"pipeline_tail_cycles": event.tail} if event.tail else {}
            slices[event.unit].append(Slice(event.name, event.start, event.end, facts))
    return slices


def _matrix_unit(ledger: Ledger) -> Iterator[Slice]:
    """From the first to the last tile of every instruction."""
    for span in ledger.spans:
        stalls = {cause: int(span[f"stall_{cause}"]) for cause in STALL_CAUSES if span[f"stall_{cause}"]}
        facts = {"position": int(span["position"]), "instruction": int(span["index"]), "layer": int(span["layer"])}
        facts |= {"tiles": int(span["tiles"]), "parameter_rows": int(span["params"])}
        yield Slice(
            ledger.work.names[span["index"]],
            int(span["first_issue"]),
            int(span["last_issue"]) + 1,
            {**facts, "stalls": stalls},
        )


def _drain_unit(ledger: Ledger, stage: int) -> Iterator[Slice]:
    """While results of an instruction enter: from its first tile that ends a sum, if none before it stalled."""
    free = 0
    for span in ledger.spans:
        index, position = int(span["index"]), int(span["position"])
        if not ledger.work.result_strips(index, position):
            continue
        first = int(span["first_issue"]) + ledger.work.tiles_to_first_result(index, position) - 1
        start, end = max(free, first + stage), int(span["last_issue"]) + stage + 1
        yield Slice(ledger.work.names[index], start, end, {"position": position, "layer": int(span["layer"])})
        free = end


def _tracks(slices: Iterable[Slice]) -> list[list[Slice]]:
    """The slices in order, distributed to as few lists as keep any two of a list apart; at least one list."""
    tracks: list[list[Slice]] = [[]]
    for one in sorted(slices, key=lambda one: (one.start, one.end)):
        free = next((track for track in tracks if not track or track[-1].end <= one.start), None)
        if free is None:
            tracks.append([one])
        else:
            free.append(one)
    return tracks


def _complete(one: Slice, unit: str, process: int, thread: int, clock_mhz: int) -> dict[str, object]:
    times = {"ts": one.start / clock_mhz, "dur": (one.end - one.start) / clock_mhz}
    facts = {"first_cycle": one.start, "cycles": one.end - one.start, **one.facts}
    return {"name": one.name, "cat": unit, "ph": "X", **times, "pid": process, "tid": thread, "args": facts}


def _metadata(kind: str, process: int, thread: int, value: str | int) -> dict[str, object]:
    key = "sort_index" if kind.endswith("sort_index") else "name"
    return {"name": kind, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": {key: value}}
