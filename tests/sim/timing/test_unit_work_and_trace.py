"""Work of the units, and the trace for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable
from types import MappingProxyType

import pytest

import sim.timing.units as units
from host.compiler.compile import plan_program
from host.compiler.shape import Shape
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.timing.attribution import AttributionError, Ledger
from sim.timing.machine import Machine
from sim.timing.result import Event, TimingResult
from sim.timing.steady_step import DecodeRun
from sim.timing.trace import TRACKS, trace_json, unit_slices
from sim.timing.units import UNIT_LOSSES, UNIT_MEANINGS, unit_losses, unit_work
from sw.models.gpt2_config import GPT2Config

MODEL = GPT2Config(n_layer=3, n_head=4, n_embd=256, n_positions=192, vocab_size=1000)
CORE = core_config("64x16")
PROGRAM = plan_program(Shape(MODEL, CORE, 192))
RUN = DecodeRun.steady(100)
RESULT = RUN.time(Machine((PROGRAM,), HbmTiming()), events=True)[0]
LEDGER = Ledger(PROGRAM, RESULT, RUN.prompt_end)


def problems(trace: dict) -> list[str]:
    """What breaks the trace event format, or the order of slices on a track; empty for a good trace."""
    found, tracks, named = [], {}, set()
    if not isinstance(trace.get("traceEvents"), list) or trace.get("displayTimeUnit") not in ("ms", "ns"):
        return ["no traceEvents, or no unit"]
    for event in trace["traceEvents"]:
        ids = isinstance(event.get("pid"), int) and isinstance(event.get("tid"), int)
        if not ids or not isinstance(event.get("name"), str) or not isinstance(event.get("args"), dict):
            found.append(f"incomplete: {event}")
        elif event.get("ph") == "M":
            kind = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}[event["name"]]
            named |= {(event["pid"], event["tid"])} if event["name"] == "thread_name" and event["args"][kind] else set()
        elif event.get("ph") == "X" and event.get("ts", -1) >= 0 and event.get("dur", 0) > 0 and event.get("cat"):
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        else:
            found.append(f"no complete event: {event}")
    found += [f"track {track} has no name" for track in tracks if track not in named]
    for track, times in tracks.items():
        times.sort()
        if any(end > start + 1e-9 for (_, end), (start, _) in itertools.pairwise(times)):
            found.append(f"slices of track {track} overlap")
    return found


def complete(trace: dict, category: str) -> list[dict]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == category]


def covered(events: Iterable[Event], start: int, end: int) -> int:
    """Cycles covered, the slow way."""
    return len(
        {cycle for event in events for cycle in range(max(event.start, start), min(event.end + event.tail, end))}
    )


def test_unit_work_is_what_spans_and_events_say() -> None:
    works = {work.unit: work for work in unit_work(LEDGER, RESULT, RUN.last)}
    step, (start, end) = LEDGER.step(RUN.last), LEDGER.window(RUN.last)
    assert list(works) == list(UNIT_LOSSES) and set(UNIT_MEANINGS) <= set(works)
    assert all(work.cycles == step.cycles == end - start for work in works.values())
    for unit, work in works.items():
        assert (work.share is None) == (work.worked is None) == (unit not in UNIT_MEANINGS)
        assert work.share is None or 0 <= work.share <= 1
    lost = step.lost_cycles
    waiting = sum(lost[name] for name in lost if name not in ("parameters", "embedding", "padding", "idle_rows"))
    assert works["matrix_unit"].worked == step.cycles - waiting
    # Strips of results: x; K, Q, V, projection, feed-forward in and out; scores and averages of 4 heads; logits.
    layer = 4 * 16 + 64 + 16 + 4 * 7 + 4 * 4
    assert works["drain_unit"].worked == 16 + 3 * layer + 63
    own = {unit: (unit,) for unit in ("reader", "kv_writer")}
    for unit, names in {
        **own,
        "softmax": ("exponential", "reciprocal"),
        "layernorm_scalars": ("norm_scalars",),
    }.items():
        assert works[unit].worked == covered((e for e in RESULT.events if e.unit in names), start, end) > 0
    assert works["logits_writer"].worked == 0


def test_lost_cycles_of_all_units_are_those_of_the_part() -> None:
    parts = [LEDGER.run(), LEDGER.step(RUN.last), *(part for _, part in LEDGER.layers(RUN.last))]
    for part in parts:
        by_unit = unit_losses(part)
        assert sum(sum(causes.values()) for causes in by_unit.values()) == part.cycles - part.useful_cycles
    work = {work.unit: work.lost_cycles for work in unit_work(LEDGER, RESULT, RUN.last)}
    assert work == unit_losses(LEDGER.step(RUN.last))
    lost = LEDGER.step(RUN.last).lost_cycles
    assert work["softmax"] == {"softmax": lost["softmax"]} and lost["softmax"] > 0
    assert work["reader"] == {"memory": lost["memory"], "refresh": lost["refresh"]}


@pytest.mark.parametrize(("unit", "causes"), [("drain_unit", ()), ("link", ("link", "drain")), ("fetch", ("other",))])
def test_a_cause_without_a_unit_or_with_two_is_noticed(
    unit: str, causes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "UNIT_LOSSES", MappingProxyType({**UNIT_LOSSES, unit: causes}))
    with pytest.raises(AttributionError, match="instruction, other" if unit == "fetch" else "drain"):
        unit_losses(LEDGER.step(RUN.last))


def test_overlapping_events_count_once() -> None:
    start, end = LEDGER.window(RUN.last)
    own = [Event("exponential", "a", start - 5, start + 10), Event("exponential", "b", start + 4, start + 20, 4)]
    result = dataclasses.replace(RESULT, events=(*own, Event("exponential", "c", end - 3, end + 9)))
    worked = {work.unit: work.worked for work in unit_work(LEDGER, result, RUN.last)}
    assert worked["softmax"] == 20 + 4 + 3 and worked["kv_writer"] == 0


def test_trace_is_complete_and_in_microseconds() -> None:
    trace = json.loads(json.dumps(trace_json(PROGRAM, RESULT, LEDGER, {"model": "three layers"})))
    assert not problems(trace)
    assert trace["otherData"] == {"model": "three layers"}
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert set(TRACKS.values()) <= set(names)
    assert {f"channel {channel}" for channel in range(CORE.channels)} <= set(names)
    matrix = complete(trace, "matrix_unit")
    assert len(matrix) == len(RESULT.spans)
    for event, span in zip(matrix, RESULT.spans, strict=True):
        assert event["ts"] == span["first_issue"] / 200
        assert event["ts"] + event["dur"] == pytest.approx((span["last_issue"] + 1) / 200, rel=1e-12)
        assert event["args"]["tiles"] == span["tiles"] and event["args"]["layer"] == span["layer"]
    assert {event["name"] for event in matrix} == {LEDGER.work.names[index] for index in RESULT.spans["index"]}
    for unit in TRACKS:
        assert bool(complete(trace, unit)) == (unit != "logits_writer"), unit
    assert complete(trace, "refresh")


def test_a_unit_that_does_one_thing_at_a_time_has_one_track() -> None:
    def tracks(result: TimingResult) -> list[str]:
        trace = trace_json(PROGRAM, result, LEDGER, {})
        return [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"][
            : -CORE.channels
        ]

    assert tracks(RESULT) == list(TRACKS.values())
    heads = complete(trace_json(PROGRAM, RESULT, LEDGER, {}), "exponential")
    assert len(heads) == RUN.steps * MODEL.n_layer * MODEL.n_head
    strips = {-(-attended // CORE.lanes) for attended in range(RUN.attended - RUN.steps + 1, RUN.attended + 1)}
    assert {head["args"]["cycles"] for head in heads} == strips
    tails = {head["args"]["pipeline_tail_cycles"] for head in heads}
    assert len(tails) == 1 and tails.pop() > 0
    inside = [event._replace(end=event.end + event.tail, tail=0) for event in RESULT.events]  # twin
    assert len(tracks(dataclasses.replace(RESULT, events=tuple(inside)))) > len(TRACKS)


def test_a_drain_slice_lies_behind_its_tiles() -> None:
    slices = unit_slices(PROGRAM, RESULT, LEDGER)
    results = [span for span in RESULT.spans if LEDGER.work.result_strips(int(span["index"]), int(span["position"]))]
    assert len(slices["drain_unit"]) == len(results) < len(RESULT.spans)  # V's first half has no results
    for one, span in zip(slices["drain_unit"], results, strict=True):
        assert span["first_issue"] < one.start < one.end and span["last_issue"] < one.end <= span["last_result"]


def test_a_broken_trace_is_noticed() -> None:
    def broken(**changes: object) -> list[str]:
        trace = json.loads(json.dumps(trace_json(PROGRAM, RESULT, LEDGER, {})))
        complete(trace, "matrix_unit")[4].update(changes)
        return problems(trace)

    assert not broken()
    assert "overlap" in broken(dur=1000.0)[0]
    assert "has no name" in broken(tid=99)[0]
    assert "no complete event" in broken(ph="B")[0]
    assert "no complete event" in broken(ts=-1)[0]
    assert "incomplete" in broken(args=None)[0]
