"""Outbox: frames out of strips, sums, arg-max, HELLO and ABORT, against a model that packs lists."""

import random

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.outbox import Outbox, entry_strips, strip_queue
from hw.link.frame import BEAT_BYTES, MAX_BEATS, FrameKind
from hw.link.node import sending_layout
from sim.rtl.unit import VerilatedUnit

SEED = 23
CORES = ("16x4", "64x16")
IDLE = 300


@pytest.fixture(scope="module", params=CORES)
def config(request):
    return core_config(request.param)


@pytest.fixture(scope="module")
def unit(config):
    return VerilatedUnit(Outbox(config))


def groups(config, rng, count):
    """Runs of strips that follow each other; the last of each has flush. (strip, data, flush)."""
    for _ in range(count):
        first, length = rng.randrange(200), rng.choice((1, 2, 3, 8, 8, 25, 70, 130))
        for i in range(length):
            yield first + i, rng.getrandbits(16 * config.lanes), i == length - 1


def packed(config, strips):
    """Model: frames as (address, [data of each strip])."""
    frames, frame = [], []
    per_frame = MAX_BEATS * BEAT_BYTES // (2 * config.lanes)
    for strip, data, flush in strips:
        frame.append((strip, data))
        aligned = frame[0][0] // entry_strips(config) * entry_strips(config)
        if flush or strip - aligned == per_frame - 1:
            frames.append((frame[0][0], [value for _, value in frame]))
            frame = []
    assert not frame
    return frames


def words(values, bits):
    count = -(-bits // 32)
    return np.array([[value >> 32 * i & 0xFFFFFFFF for i in range(count)] for value in values], np.uint32)


def number(row):
    return sum(int(word) << 32 * i for i, word in enumerate(np.atleast_1d(row)))


def fields(config, row):
    """Fields of one ``send``."""
    value, layout = number(row), sending_layout(config.link_entry_bits)
    return {name: value >> field.offset & (1 << field.width) - 1 for name, field in layout}


def frames_of(config, out, taken):
    """Frames that left, in order: (kind, address, strips, [entries], beats)."""
    frames, entries = [], []
    for cycle in np.flatnonzero(taken):
        send = fields(config, out["send"][cycle])
        entries.append(send["data"])
        if send["last"]:
            frames.append((FrameKind(send["kind"]), send["address"], send["strips"], entries, send["beats"]))
            entries = []
    assert not entries
    return frames


def strips_of(config, frame):
    """Data of each strip of a frame, taken from where docs/ring.md says that it lies."""
    _, address, strips, entries, beats = frame
    per_entry, bits = entry_strips(config), 16 * config.lanes
    place = address % per_entry
    payload = sum(entry << i * config.link_entry_bits for i, entry in enumerate(entries))
    assert beats == -(-(place + strips) * bits // (8 * BEAT_BYTES))
    return [payload >> (place + i) * bits & (1 << bits) - 1 for i in range(strips)]


def play(unit, config, strips, ready, extra=None):
    """Push strips whenever there is room (as the issue unit would), pause where ``ready`` is 0; returns outputs."""
    cycles = len(ready)
    columns = {
        "strip_valid": np.zeros(cycles, np.uint64),
        "strip": np.zeros(cycles, np.uint64),
        "strip_flush": np.zeros(cycles, np.uint64),
        "strip_data": words([0] * cycles, 16 * config.lanes),
        "send_ready": ready.astype(np.uint64),
    }
    for cycle, (strip, data, flush) in strips:
        columns["strip_valid"][cycle], columns["strip"][cycle], columns["strip_flush"][cycle] = 1, strip, flush
        columns["strip_data"][cycle] = words([data], 16 * config.lanes)[0]
    return unit.run(columns | (extra or {}))


@pytest.mark.parametrize("pauses", [0.0, 0.3])
def test_strips_keep_their_place_in_frames(unit, config, pauses):
    rng = random.Random(SEED)
    items = list(groups(config, rng, 60))
    cycle, timed = 0, []
    for item in items:
        cycle += 1 if rng.random() < 0.3 else 4
        timed.append((cycle, item))
    ready = np.random.default_rng(SEED).random(cycle + IDLE) >= pauses
    ready[-IDLE:] = True
    out = play(unit, config, timed, ready)
    frames = frames_of(config, out, (out["send_valid"] == 1) & ready)
    got = [(address, strips_of(config, frame)) for frame in frames for address in [frame[1]]]
    want = packed(config, items)
    assert all(frame[0] == FrameKind.STRIPS for frame in frames)
    assert got == want
    assert got != packed(config, [(s, d ^ (s == items[40][0]), f) for s, d, f in items]), "twin"
    assert out["idle"][-1] == 1 and (out["idle"] == 0).any()


def test_room_leaves_place_for_what_is_under_way(unit, config):
    depth, margin = strip_queue(config)
    ready = np.zeros(depth + IDLE, bool)
    ready[depth:] = True
    items = [(cycle, (cycle, cycle, cycle == depth - 1)) for cycle in range(depth)]
    out = play(unit, config, items, ready)
    full = int(out["room"].argmin())
    packed_strips = entry_strips(config) + 1  # have left the queue by then; one more cycle until the level shows
    assert full <= depth - margin + packed_strips and out["room"][full : depth - 1].max() == 0
    frames = frames_of(config, out, (out["send_valid"] == 1) & ready)
    assert sum(frame[2] for frame in frames) == depth, "nothing is lost when it is filled to the brim"


def test_short_frames_wait_for_the_end_of_a_frame(unit, config):
    strips = MAX_BEATS * BEAT_BYTES // (2 * config.lanes)
    ready = np.ones(strips + IDLE, bool)
    zeros = np.zeros(len(ready), np.uint64)
    extra = {name: zeros.copy() for name in ("sums", "best", "hello", "aborts", "abort_code")}
    extra["sums"][entry_strips(config) + 4], extra["best"][entry_strips(config) + 5] = 1, 1
    extra["sums_data"], extra["best_data"] = words([7] * len(ready), 256), words([9] * len(ready), 256)
    extra["hello"][strips + 60 : strips + 62], extra["hello_data"] = 0b10, words([5] * len(ready), 256)
    items = [(cycle, (cycle, cycle, cycle == strips - 1)) for cycle in range(strips)]
    out = play(unit, config, items, ready, extra)
    frames = frames_of(config, out, out["send_valid"] == 1)
    assert [frame[0] for frame in frames] == [FrameKind.STRIPS, FrameKind.SUMS, FrameKind.BEST, FrameKind.HELLO]
    assert [frame[3][0] for frame in frames[1:]] == [7, 9, 5]
    hello = fields(config, out["send"][np.flatnonzero(out["hello_taken"])[0]])
    assert hello["port"] == 1 and out["hello_taken"].max() == 0b10


def test_abort_goes_before_everything(unit, config):
    ready = np.ones(IDLE, bool)
    zeros = np.zeros(IDLE, np.uint64)
    extra = {name: zeros.copy() for name in ("aborts", "abort_code")}
    extra["aborts"][39:41], extra["abort_code"][:] = 1, 3
    out = play(unit, config, [(cycle, (cycle, cycle, 0)) for cycle in range(39)], ready, extra)
    last = fields(config, out["send"][40])
    assert FrameKind(last["kind"]) == FrameKind.ABORT and last["address"] == 3 and last["beats"] == 0 and last["last"]
    assert out["abort_taken"].sum() == 1
