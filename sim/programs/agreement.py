"""Random programs on gateware and functional executor: ``python -m sim.programs.agreement --core 64x16``.

Each program runs with random memory delays of its own seed; on a core with rows it is a sequence or a batch; with odd
seeds its requests sample their tokens. Compared are the tokens of every row, error and its information, tiles, logits
and all key and value memory. The exit code is the number of programs that differ (at most 99), each named by its seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence

from hw.gpt2.config import CoreConfig, core_config
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.programs.random_case import CaseResult, run_case
from sim.programs.sampled_case import mixed_case
from sim.rtl.board import RtlBoard
from sim.rtl.build import BuiltBoard, build_board

__all__ = ["Check", "compare_programs", "disagreement", "main"]

MAX_CYCLES = 300_000


def disagreement(seed: int, config: CoreConfig, built: BuiltBoard) -> str:
    """What differs in the random program ``seed``, or an empty text."""
    case = mixed_case(seed, config)
    with tempfile.TemporaryDirectory(prefix="ringfly-agreement-") as name:
        folder = pathlib.Path(name)
        functional = FunctionalBoard()
        want = run_case(case, functional, folder)
        functional.close()
        with RtlBoard(built, timing=MemoryTiming.random(seed)) as gateware:
            got = run_case(case, gateware, folder, MAX_CYCLES)
            counters = gateware.counters()
    if got != want:
        names = [f.name for f in dataclasses.fields(CaseResult) if getattr(got, f.name) != getattr(want, f.name)]
        return f"seed {seed}: gateware and functional executor differ in {', '.join(names)}"
    if counters["cycles"] != counters["ticks"]:
        return f"seed {seed}: the counter says {counters['cycles']} cycles, the simulator {counters['ticks']}"
    return ""


Check = Callable[[int, CoreConfig, BuiltBoard], str]
"""What differs in the random program of a seed, or an empty text; a function of a module."""


def _share(work: tuple[Check, CoreConfig, BuiltBoard, Sequence[int]]) -> list[str]:
    check, config, built, seeds = work
    return [text for seed in seeds if (text := check(seed, config, built))]


def compare_programs(
    check: Check, description: str, core: str, programs: int, where: str, arguments: Sequence[str] | None
) -> int:
    """The command line of a comparison; returns the exit code: the number of programs that differ, at most 99.

    ``description`` of the command; ``core``, ``programs``: its defaults; ``where``: what the figure says of the runs.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {check.__module__}", description=description.partition("\n")[0])
    parser.add_argument("--core", default=core, help=f"core ({core})")
    parser.add_argument("--programs", type=int, default=programs, help=f"number of random programs ({programs})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first one (0)")
    parser.add_argument("--processes", type=int, default=2, help="processes that share them (2)")
    options = parser.parse_args(arguments)
    config = core_config(options.core)
    built = build_board(config)
    seeds = range(options.seed, options.seed + options.programs)
    shares = [(check, config, built, seeds[start : start + 2]) for start in range(0, len(seeds), 2)]
    found: list[str] = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done, texts in enumerate(pool.imap_unordered(_share, shares), 1):
            found += texts
            for text in texts:
                print(text, flush=True)
            if done % 25 == 0:
                sys.stderr.write(f"{min(2 * done, len(seeds))} of {len(seeds)} programs\n")
    print(f"figure: {len(seeds)} random programs on {config.name}, {where}, {len(found)} differences")
    return min(len(found), 99)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    return compare_programs(disagreement, __doc__ or "", "64x16", 500, "random memory delays", arguments)


if __name__ == "__main__":
    from sim.programs import agreement  # so that other processes find what this one calls by its module's name

    sys.exit(agreement.main())
