"""The programs of a ring on gateware and on the timing model, board by board."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from sim.devices.link_timing import LinkTiming
from sim.devices.memory_config import DeviceTiming
from sim.rtl.build import BuiltBoard
from sim.rtl.ring import RtlRing
from sim.timing.comparison import Comparison, compared
from sim.timing.gateware import Run, run_ring_gateware
from sim.timing.overrides import TimingOverrides
from sim.timing.ring import run_ring_timing

__all__ = ["RingGatewareRun", "ring_gateware_run"]


@dataclasses.dataclass(frozen=True)
class RingGatewareRun:
    """What the gateware of a ring did: counters of each board as in ``Comparison``, and the tokens that it left."""

    runs: Sequence[Run]
    memory_name: str
    memory: DeviceTiming
    links: LinkTiming
    counters: Sequence[Mapping[str, int]]
    tokens: Sequence[Sequence[int]]

    def compared(
        self, *, links: LinkTiming | None = None, overrides: TimingOverrides | None = None
    ) -> tuple[Comparison, ...]:
        """Run the timing model, with the tokens that the gateware generated; a comparison a board.

        ``links`` and ``overrides`` make it differ on purpose. Raises TimingError.
        """
        registers = self.runs[0].registers
        result = run_ring_timing(
            [run.program for run in self.runs],
            position=registers["position"],
            prompt_end=registers["prompt_end"],
            max_new_tokens=registers["max_new_tokens"],
            flags=registers["flags"],
            stop_ids=[registers[f"stop_{i}"] for i in range(registers["stop_count"])],
            tokens=self.tokens[0],
            memory=self.memory,
            links=links or self.links,
            overrides=overrides,
        )
        sides = zip(self.runs, self.counters, result.boards, strict=True)
        return tuple(compared(run, self.memory_name, counters, board) for run, counters, board in sides)


def ring_gateware_run(
    runs: Sequence[Run],
    built: BuiltBoard,
    memory: DeviceTiming,
    name: str,
    links: LinkTiming,
    *,
    max_cycles: int = 1 << 32,
) -> RingGatewareRun:
    """Run one of ``runs`` on each board with ``memory``, which is called ``name``. Raises BoardError."""
    threads = min(2, len(os.sched_getaffinity(0)))
    with RtlRing(built, len(runs), timing=memory, links=links, threads=threads) as ring:
        counters, tokens = run_ring_gateware(runs, ring.boards, max_cycles=max_cycles)
    return RingGatewareRun(tuple(runs), name, memory, links, tuple(counters), tokens)
