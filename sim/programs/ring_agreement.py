"""Random programs on rings of gateware and of functional boards: ``python -m sim.programs.ring_agreement``.

Each program runs twice on gateware, with random memory delays and over cables that differ widely in length: once over
good ones, once over cables that lose, change and delay words. Compared are tokens, error, logits and all key and value
memory of every board. The exit code is the number of programs that differ (at most 99), each named by its seed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pathlib
import random
import sys
import tempfile
from collections.abc import Sequence

from hw.gpt2.config import CoreConfig, core_config
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.functional.ring import FunctionalRing
from sim.programs.ring_case import random_ring_case, ring_sizes, run_ring_case
from sim.rtl.build import BuiltBoard, build_board
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


def _share(work: tuple[CoreConfig, BuiltBoard, Sequence[int]]) -> list[str]:
    config, built, seeds = work
    return [text for seed in seeds if (text := ring_disagreement(seed, config, built))]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sim.programs.ring_agreement", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--core", default="16x4", help="core (16x4)")
    parser.add_argument("--programs", type=int, default=100, help="number of random programs (100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first one (0)")
    parser.add_argument("--processes", type=int, default=2, help="processes that share them (2)")
    options = parser.parse_args(arguments)
    config = core_config(options.core)
    built = build_board(config)
    seeds = range(options.seed, options.seed + options.programs)
    shares = [(config, built, seeds[start : start + 2]) for start in range(0, len(seeds), 2)]
    found: list[str] = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done, texts in enumerate(pool.imap_unordered(_share, shares), 1):
            found += texts
            for text in texts:
                print(text, flush=True)
            if done % 10 == 0:
                sys.stderr.write(f"{min(2 * done, len(seeds))} of {len(seeds)} programs\n")
    print(
        f"figure: {len(seeds)} random programs on rings of 2 to 8 boards of {config.name}, good and bad cables, "
        f"{len(found)} differences"
    )
    return min(len(found), 99)


if __name__ == "__main__":
    sys.exit(main())
