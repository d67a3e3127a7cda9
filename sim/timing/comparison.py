"""One program on gateware and on the timing model: both sides' counters and buckets, and what is not equal."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from hw.board.gpt2_map import SAMPLING_REGISTERS, STALL_CAUSES, Flags, row_register
from hw.gpt2.sampled_token import BoardSampling
from sim.devices.memory_config import DeviceTiming
from sim.rtl.board import RtlBoard
from sim.rtl.build import BuiltBoard
from sim.timing.attribution import AttributionError, Ledger, counter_attribution
from sim.timing.gateware import Run, run_gateware
from sim.timing.overrides import TimingOverrides
from sim.timing.result import TimingResult
from sim.timing.run import run_batch_timing, run_timing
from sim.timing.run_start import Request

__all__ = [
    "Comparison",
    "GatewareRun",
    "compare",
    "compared",
    "gateware_run",
    "run_model",
]

_LARGE_SHARE, _LARGE_LIMIT = 0.005, 0.1  # of the run; of the counter
_THREADED_PRODUCTS = 1024  # products a cycle from which a board is faster with two threads


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One run on both sides.

    ``rtl``, ``timing``: counters of the gateware and of the timing model by name: registers, ``first_token_cycles``,
    ``refresh_stalls``. ``buckets``: lost cycles by bucket (``sim.timing.attribution``), those of the gateware and those
    of the timing model, each made of its own counters. ``unattributed``: why there are none.
    """

    run: str
    memory: str
    rtl: Mapping[str, int]
    timing: Mapping[str, int]
    buckets: Mapping[str, tuple[float, float]]
    unattributed: str = ""

    @property
    def difference(self) -> float:
        """Cycles of the timing model above those of the gateware, as a part of the latter."""
        return self.timing["cycles"] / self.rtl["cycles"] - 1

    def large_buckets(self) -> dict[str, float]:
        """Buckets of more than 0.5 % of the run on either side, and the relative difference of each."""
        return self._large(self.buckets)

    def large_causes(self) -> dict[str, float]:
        """As :meth:`large_buckets`, of the stall counters."""
        names = [*(f"stall_{cause}" for cause in STALL_CAUSES), "refresh_stalls"]
        return self._large({name: (self.rtl[name], self.timing[name]) for name in names})

    def unequal(self) -> dict[str, tuple[int, int]]:
        """Counters that differ at all, gateware and timing model."""
        return {name: (self.rtl[name], value) for name, value in self.timing.items() if self.rtl[name] != value}

    def misses(self, limit: float = 0.0) -> list[str]:
        """What is out of bounds.

        Any counter that differs, unless ``limit`` is more than 0: then cycles that differ by more than that part. Large
        buckets and causes that differ by more than 10 %, and counters that cannot be attributed, always.
        """
        if limit:
            found = [f"cycles differ by {100 * self.difference:+.3f} %"] if abs(self.difference) > limit else []
        else:
            found = [f"{name}: gateware {rtl}, timing {timing}" for name, (rtl, timing) in self.unequal().items()]
        large = {f"bucket {name}": part for name, part in self.large_buckets().items()} | self.large_causes()
        found += [f"{name} differs by {100 * part:+.1f} %" for name, part in large.items() if abs(part) > _LARGE_LIMIT]
        return found + ([self.unattributed] if self.unattributed else [])

    def _large(self, pairs: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        share = _LARGE_SHARE * self.rtl["cycles"]
        return {
            name: (timing - rtl) / max(rtl, 1.0) for name, (rtl, timing) in pairs.items() if max(rtl, timing) > share
        }


@dataclasses.dataclass(frozen=True)
class GatewareRun:
    """What the gateware did: its counters as in ``Comparison``, and all tokens that it left in each row."""

    run: Run
    memory_name: str
    memory: DeviceTiming
    counters: Mapping[str, int]
    tokens: Sequence[Sequence[int]]

    def compared(self, *, memory: DeviceTiming | None = None, overrides: TimingOverrides | None = None) -> Comparison:
        """Run the timing model, with the tokens that the gateware generated.

        ``memory`` and ``overrides`` make it differ on purpose. Raises TimingError.
        """
        result = _timed(self.run, self.tokens, memory or self.memory, overrides)
        return compared(self.run, self.memory_name, self.counters, result)


def compared(run: Run, memory_name: str, counters: Mapping[str, int], result: TimingResult) -> Comparison:
    """What the gateware counted beside the result of the timing model."""
    timing = _counters(result)
    buckets, why = {}, ""
    try:
        ledger = Ledger(run.program, result, run.registers.get("prompt_end", 0))
        rtl, own = (counter_attribution(side, ledger).lost_cycles for side in (counters, timing))
        buckets = {name: (rtl[name], own[name]) for name in rtl}
    except AttributionError as error:
        why = str(error)
    return Comparison(run.name, memory_name, counters, timing, buckets, why)


def gateware_run(
    run: Run, built: BuiltBoard, memory: DeviceTiming, name: str, *, max_cycles: int = 1 << 32
) -> GatewareRun:
    """Run ``run`` on the gateware with ``memory``, which is called ``name``. Raises BoardError."""
    products = built.config.tile * built.config.lanes
    threads = min(2, len(os.sched_getaffinity(0))) if products >= _THREADED_PRODUCTS else 1
    with RtlBoard(built, timing=memory, threads=threads) as board:
        counters, tokens = run_gateware(run, board, max_cycles=max_cycles)
    return GatewareRun(run, name, memory, counters, tokens)


def compare(
    run: Run,
    built: BuiltBoard,
    memory: DeviceTiming,
    *,
    name: str,
    overrides: TimingOverrides | None = None,
    max_cycles: int = 1 << 32,
) -> Comparison:
    """Run ``run`` on the gateware and on the timing model. Raises BoardError, TimingError."""
    return gateware_run(run, built, memory, name, max_cycles=max_cycles).compared(overrides=overrides)


def run_model(
    run: Run, tokens: Sequence[Sequence[int]], memory: DeviceTiming, overrides: TimingOverrides | None = None
) -> dict[str, int]:
    """Counters of the timing model, as in ``Comparison``; ``tokens`` of each row with those that the gateware
    generated."""
    return _counters(_timed(run, tokens, memory, overrides))


def _timed(
    run: Run, tokens: Sequence[Sequence[int]], memory: DeviceTiming, overrides: TimingOverrides | None
) -> TimingResult:
    registers = run.registers
    flags, rows = registers["flags"], run.program.core.rows
    own = {name: value for name, value in registers.items() if "_base" in name}  # a run may have its cache elsewhere
    if rows > 1 and flags & Flags.BATCH:
        requests = {row: _request(run, row, tokens[row]) for row in range(rows) if registers["batch_rows"] >> row & 1}
        return run_batch_timing(run.program, requests, flags=flags, memory=memory, registers=own, overrides=overrides)
    first = _request(run, 0, tokens[0])
    return run_timing(
        run.program,
        position=first.position,
        prompt_end=first.prompt_end,
        max_new_tokens=first.max_new_tokens,
        flags=flags,
        stop_ids=first.stop_ids,
        tokens=first.tokens,
        sampling=first.sampling,
        memory=memory,
        registers=own,
        overrides=overrides,
    )


def _request(run: Run, row: int, tokens: Sequence[int]) -> Request:
    def of_row(name: str) -> int:
        return run.registers[row_register(name, row)]

    stops = tuple(of_row(f"stop_{i}") for i in range(of_row("stop_count")))
    seed, drawn = (run.registers.get(row_register(name, row), 0) for name in SAMPLING_REGISTERS)
    sampling = BoardSampling.of_registers(seed, drawn)
    return Request(of_row("position"), of_row("prompt_end"), of_row("max_new_tokens"), stops, tuple(tokens), sampling)


def _counters(result: TimingResult) -> dict[str, int]:
    return {**result.counters, "first_token_cycles": result.token_cycles[0]}
