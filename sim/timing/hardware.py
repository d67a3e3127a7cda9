"""Sizes and latencies of a core, asked from the hardware's own objects, and the C++ header that names them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from typing import Any

import numpy as np
from amaranth.hdl import Elaboratable
from amaranth.utils import ceil_log2, exact_log2
from numpy.typing import NDArray

from hw.board.channel_port import BURST_BEATS, COMMANDS, ChannelPort
from hw.board.control import DRAIN_CYCLES, RESET_CYCLES
from hw.board.gpt2_map import ROW_REGISTERS, STALL_CAUSES, Flags
from hw.board.memory_ports import JOIN_CHANNELS, pop_stages
from hw.gpt2.config import ROWS, CoreConfig
from hw.gpt2.core import QUIET_CYCLES
from hw.gpt2.isa import ACCESS_FIELDS, FIELDS, AccessKind, Commit, Op, Operand, Params, Path
from hw.gpt2.issue import ACCUMULATOR_LATENCY
from hw.gpt2.reader import RUNS
from hw.gpt2.result_queue import RESULT_QUEUE
from hw.gpt2.row import logits_strips
from hw.gpt2.sampler import HOLD_CYCLES
from hw.gpt2.sampler_way import SamplerWay
from hw.gpt2.tags import Stages
from hw.numerics.fixed_sum import Fp16FixedSum
from hw.numerics.fp32_max import MaxTree
from hw.numerics.norm_scalars import NormScalars
from hw.numerics.reciprocal import Reciprocal

__all__ = [
    "EVENT_FIELDS",
    "HEADS",
    "MAX_ROWS",
    "REGISTERS",
    "ROW_FIELDS",
    "SPAN_FIELDS",
    "STOP_IDS",
    "TOKEN_FIELDS",
    "UNITS",
    "Sizes",
    "core_sizes",
    "hardware_header",
    "size_words",
]

STOP_IDS = 4
MAX_ROWS = max(ROWS)
HEADS = 128
"""Heads whose softmax a row tells apart."""

REGISTERS = (
    "flags",
    "batch_rows",
    "context_limit",
    "layers",
    "heads",
    "key_words",
    "value_strips",
    "vocab",
    "weight_base",
    "position_base",
    "token_base",
    "embed_strips",
    "key_layer_rows",
    "key_head_rows",
    "value_layer_rows",
    "value_head_rows",
    "logits_rows",
)
"""Start registers on which the timing depends, but for those that each row has; they follow."""

ROW_FIELDS = (*(name for name in ROW_REGISTERS if not name.startswith("stop_")), "stop_count", "sampling")
"""Registers of each row; its stop ids follow them."""

UNITS = (
    "reader",
    "exponential",
    "reciprocal",
    "norm_scalars",
    "kv_writer",
    "logits_writer",
    "refresh",
)
"""Units that report events, in the order of their numbers."""

SPAN_FIELDS = (
    *("position", "index", "layer", "step", "rows", "attended"),
    *("first_issue", "last_issue", "last_result", "tiles", "params"),
)
TOKEN_FIELDS = ("cycle", "row")
EVENT_FIELDS = ("unit", "first", "second", "start", "end")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the timing of a core depends on: its sizes, stages (cycles after issue) and latencies in cycles."""

    tile: int
    lanes: int
    rows: int
    channels: int
    channels_per_lane: int
    port_bytes: int
    context: int
    acc_depth: int
    param_strips: int
    strips_per_word: int
    new_key_base: int
    new_value_base: int
    strip_addresses: int
    score_rows: int
    strips_per_row: int  # of an MM's weights
    result_queue: int  # entries, 0: none
    # stages
    total: int
    drain: int
    report: int
    write: int
    written: int
    exponential: int
    # latencies
    accumulator_latency: int
    max_latency: int
    head_sum_latency: int
    vector_sum_latency: int
    norm_latency: int
    reciprocal_latency: int
    # sampler: tokens a cycle; from a step's first strip, and from any other, until it is taken apart; from there to the
    # token; from a step's last strip to the token with `top_k`, less that
    sampler_ways: int
    sampler_first: int
    sampler_strip: int
    sampler_score: int
    sampler_hold: int
    # memory side
    fifo_words: int
    burst_beats: int
    reader_runs: int
    commands: int
    bursts: int
    writes: int
    pop_stages: int
    join_channels: int
    logits_depth: int
    logits_margin: int
    # clocks and run control
    core_period: int
    port_period: int
    start_cycle: int
    quiet_cycles: int
    drain_cycles: int
    reset_cycles: int


_SAMPLER_STRIP = 3  # cycles: memory and register of the queue, strip at work
_START_CYCLE = 2
"""First cycle of a run, counted from the common edge of the clocks at which the host's write to ``ctrl`` begins: one
cycle in which the register slave takes address and data, one in which it strobes."""


def _asked(component: Any) -> Any:
    """A component that only tells its sizes: Amaranth shall not complain that nobody elaborates it or its parts."""
    for part in (component, *vars(component).values()):
        if isinstance(part, Elaboratable):
            part._MustUse__silence = True
    return component


@functools.cache
def core_sizes(config: CoreConfig) -> Sizes:
    """Sizes and latencies of a core as its gateware would be elaborated."""
    stages = Stages(config)
    port = _asked(ChannelPort(config.port_bits, config.fifo_words))
    depth, margin = logits_strips(config)
    ways = config.mm_strips
    scored = SamplerWay.latency + exact_log2(ways)
    unit = math.gcd(config.core_clock_mhz, config.port_clock_mhz)
    return Sizes(
        tile=config.tile,
        lanes=config.lanes,
        rows=config.rows,
        channels=config.channels,
        channels_per_lane=config.channels_per_lane,
        port_bytes=config.port_bytes,
        context=config.context,
        acc_depth=config.acc_depth,
        param_strips=config.param_strips,
        strips_per_word=config.strips_per_word,
        new_key_base=config.new_key_base,
        new_value_base=config.new_value_base,
        strip_addresses=config.strip_addresses,
        score_rows=config.score_rows,
        strips_per_row=config.mm_strips,
        result_queue=RESULT_QUEUE if config.has_int8 else 0,
        total=stages.total,
        drain=stages.drain,
        report=stages.report,
        write=stages.write,
        written=stages.written,
        exponential=stages.exponential,
        accumulator_latency=ACCUMULATOR_LATENCY,
        max_latency=MaxTree.latency,
        head_sum_latency=_asked(Fp16FixedSum(config.lanes, squares=False)).latency,
        vector_sum_latency=_asked(Fp16FixedSum(config.lanes, squares=True)).latency,
        norm_latency=NormScalars.latency,
        reciprocal_latency=_asked(Reciprocal()).latency,
        sampler_ways=ways,
        sampler_first=_SAMPLER_STRIP + 2 * (SamplerWay.word_latency + 1),  # words of seed and position
        sampler_strip=_SAMPLER_STRIP,
        sampler_score=2 + scored,
        sampler_hold=HOLD_CYCLES + 3 + scored,
        fifo_words=port.fifo_words,
        burst_beats=BURST_BEATS,
        reader_runs=RUNS,
        commands=1 << ceil_log2(COMMANDS),
        bursts=port.bursts,
        writes=port.writes,
        pop_stages=pop_stages(config),
        join_channels=JOIN_CHANNELS,
        logits_depth=depth,
        logits_margin=margin,
        core_period=config.port_clock_mhz // unit,
        port_period=config.core_clock_mhz // unit,
        start_cycle=_START_CYCLE,
        quiet_cycles=QUIET_CYCLES,
        drain_cycles=DRAIN_CYCLES,
        reset_cycles=RESET_CYCLES,
    )


def size_words(sizes: Sizes) -> NDArray[np.uint32]:
    """The C structure of that name."""
    return np.array(dataclasses.astuple(sizes), np.uint32)


def hardware_header() -> str:
    """``hardware.h``: layouts and codes that Python and C++ share."""
    enums: tuple[tuple[str, type[enum.IntEnum]], ...] = (
        ("OP", Op),
        ("PARAMS", Params),
        ("PATH", Path),
        ("COMMIT", Commit),
        ("OPERAND", Operand),
        ("KIND", AccessKind),
    )
    codes = [f"{prefix}_{member.name} = {int(member)}" for prefix, kind in enums for member in kind]
    codes += [f"STALL_{cause.upper()} = {index}" for index, cause in enumerate(STALL_CAUSES)]
    codes += [f"UNIT_{unit.upper()} = {index}" for index, unit in enumerate(UNITS)]
    codes += [f"STALLS = {len(STALL_CAUSES)}", f"STOP_IDS = {STOP_IDS}", f"MAX_ROWS = {MAX_ROWS}", f"HEADS = {HEADS}"]
    codes += [f"FLAG_{flag.name} = {int(flag)}" for flag in Flags]

    def struct(name: str, kind: str, fields: object) -> str:
        return f"struct {name} {{ {kind} {', '.join(str(field) for field in fields)}; }};\n"  # type: ignore[attr-defined]

    return (
        "#pragma once\n#include <cstdint>\nnamespace timing {\n"
        f"enum : int {{ {', '.join(codes)} }};\n"
        + struct("Sizes", "uint32_t", [field.name for field in dataclasses.fields(Sizes)])
        + struct("RowRegisters", "int64_t", [*ROW_FIELDS, f"stop[{STOP_IDS}]"])
        + f"struct Registers {{ int64_t {', '.join(REGISTERS)}; RowRegisters row[MAX_ROWS]; }};\n"
        + struct("Instruction", "int32_t", FIELDS)
        + struct("Access", "int64_t", ACCESS_FIELDS)
        + struct("Span", "int64_t", [*SPAN_FIELDS, "stalls[STALLS]", "refresh"])
        + struct("Event", "int64_t", EVENT_FIELDS)
        + struct("Token", "int64_t", TOKEN_FIELDS)
        + "}  // namespace timing\n"
    )
