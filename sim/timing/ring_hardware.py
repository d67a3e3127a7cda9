"""Sizes of the ring's gateware, asked from its own objects, and the C++ header that names them."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from hw.gpt2.config import CoreConfig
from hw.gpt2.outbox import entry_strips, strip_queue
from hw.link.frame import BEAT_BYTES, KEEPALIVE, MAX_BEATS, RETRY, SLOTS, FrameKind
from hw.link.node import READ_AHEAD
from hw.link.transmitter import WORD_AFTER
from sim.devices.link_timing import ClockPeriods

__all__ = ["RingSizes", "ring_header", "ring_size_words", "ring_sizes"]


@dataclasses.dataclass(frozen=True)
class RingSizes:
    """What the timing of a ring depends on besides its boards' cores and its cables."""

    boards: int
    core_period: int
    link_period: int
    # strips and frames
    strip_bytes: int
    beat_bytes: int
    entry_strips: int
    entry_beats: int
    frame_strips: int
    # queues
    send_depth: int
    send_margin: int
    read_ahead: int
    slots: int
    # link cycles
    retry: int
    keepalive: int
    word_after: int
    # core cycles from a run's start until the scoreboard is ready
    clear_cycles: int


def ring_sizes(config: CoreConfig, boards: int) -> RingSizes:
    """Sizes of a ring of so many boards with this core. Raises ValueError for a core without a ring."""
    if not config.has_ring:
        raise ValueError(f"core {config.name!r} has no ring: its words are shorter than a word of the cable")
    periods = ClockPeriods.of(config.core_clock_mhz, config.port_clock_mhz)
    strip_bytes = 2 * config.lanes
    depth, margin = strip_queue(config)
    return RingSizes(
        boards=boards,
        core_period=periods.core,
        link_period=periods.link,
        strip_bytes=strip_bytes,
        beat_bytes=BEAT_BYTES,
        entry_strips=entry_strips(config),
        entry_beats=config.link_entry_bits // (8 * BEAT_BYTES),
        frame_strips=MAX_BEATS * BEAT_BYTES // strip_bytes,
        send_depth=depth,
        send_margin=margin,
        read_ahead=READ_AHEAD,
        slots=SLOTS,
        retry=RETRY,
        keepalive=KEEPALIVE,
        word_after=WORD_AFTER,
        clear_cycles=config.act_words + 1,
    )


def ring_size_words(sizes: RingSizes) -> NDArray[np.uint64]:
    """The C structure of that name."""
    return np.array(dataclasses.astuple(sizes), np.uint64)


def ring_header() -> str:
    """``ring_hardware.h``: layouts and codes that Python and C++ share."""
    codes = ", ".join(f"FRAME_{name} = {kind.value}" for name, kind in FrameKind.__members__.items())
    fields = ", ".join(field.name for field in dataclasses.fields(RingSizes))
    return (
        "#pragma once\n#include <cstdint>\nnamespace timing {\n"
        f"enum : int {{ {codes} }};\nstruct RingSizes {{ uint64_t {fields}; }};\n"
        "}  // namespace timing\n"
    )
