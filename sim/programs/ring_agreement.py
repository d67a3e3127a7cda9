"""Random programs on rings of gateware and of functional boards: ``python -m sim.programs.ring_agreement``.

Each program runs twice on gateware, with random memory delays and over cables that differ widely in length: once over
good ones, once over cables that lose, change and delay words. Compared are tokens, error, logits and all key and value
memory of every board. The exit code is the number of programs that differ (at most 99), each named by its seed.
"""

from __future__ import annotations

import pathlib
import random
import sys
import tempfile
from collections.abc import Sequence

from hw.gpt2.config import CoreConfig
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.functional.ring import FunctionalRing
from sim.programs.agreement import compare_programs
from sim.programs.ring_case import random_ring_case, ring_sizes, run_ring_case
from sim.rtl.build import BuiltBoard
from sim.rtl.ring import RtlRing

__all__ = ["bad_cables", "good_cables", "main", "ring_disagreement"]

MAX_CYCLES = 1_000_000
_HOPS_NS = (20.0, 100.0, 500.0, 2_000.0, 4_000.0)


def good_cables(seed: int, boards: int) -> list[LinkTiming]:
    """Cables of different lengths, up to 800 m: a round trip then takes longer than RETRY, so frames are sent twice."""
    rng = random.Random(f"cables {seed}")
    return [LinkTiming(hop_ns=rng.choice(_HOPS_NS), seed=seed) for _ in range(boards)]


def bad_cables(seed: int, boards: int) -> list[LinkTiming]:
    """The same with 1 % of frames in error, words lost and late ones."""
    rng = random.Random(f"faults {seed}")
    return [
        LinkTiming(
            hop_ns=cable.hop_ns,
            jitter_ns=rng.choice((0.0, 100.0, 5_000.0)),
            frame_error_rate=0.01,
            word_drop_rate=rng.choice((0.0, 0.002)),
            seed=seed,
        )
        for cable in good_cables(seed, boards)
    ]


def ring_disagreement(seed: int, config: CoreConfig, built: BuiltBoard, boards: int | None = None) -> str:
    """What differs in the random program ``seed``, or an empty text; ``boards`` None: as many as the seed says."""
    count = ring_sizes(seed) if boards is None else boards
    case = random_ring_case(seed, config, count)
    with tempfile.TemporaryDirectory(prefix="ringfly-agreement-") as name:
        folder = pathlib.Path(name)
        want = run_ring_case(case, FunctionalRing(count).boards, folder)
        for what, cables in (("good", good_cables(seed, count)), ("bad", bad_cables(seed, count))):
            memory = MemoryTiming.random(seed)
            with RtlRing(built, count, timing=memory, links=cables, no_progress_cycles=100_000) as ring:
                got = run_ring_case(case, ring.boards, folder, MAX_CYCLES)
                counters = [board.counters() for board in ring.boards]
            if got != want:
                wrong = [board for board in range(count) if got[board] != want[board]]
                return f"seed {seed}, {count} boards, {what} cables: gateware and functional executor differ on {wrong}"
            for board, values in enumerate(counters):
                if values["cycles"] != values["ticks"]:
                    return (
                        f"seed {seed}, board {board}: the counter says {values['cycles']} cycles, the simulator "
                        f"{values['ticks']}"
                    )
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    where = "rings of 2 to 8 boards, good and bad cables"
    return compare_programs(ring_disagreement, __doc__ or "", "16x4", 100, where, arguments)


if __name__ == "__main__":
    from sim.programs import ring_agreement  # so that other processes find what this one calls by its module's name

    sys.exit(ring_agreement.main())
