"""Runs one random program on gateware and functional executor and says what differs.

``python -m sim.programs.replay SEED [--core 16x4] [--sampled] [--waves FILE --from-cycle A --cycles B]``; memory
latency follows the seed as in the regression. Waves come with ``FILE.names.json``, which maps Amaranth's signals to
those of the waves. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import tempfile

import numpy as np

from hw.board.board_model import BoardError, BoardModel
from hw.gpt2.config import core_config
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.programs.random_case import CaseResult, RandomCase, random_case, run_case
from sim.programs.sampled_case import sampled_case
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board
from sim.rtl.verilator import COMPILE_FLAGS, QUICK_COMPILE_FLAGS

__all__ = ["differences", "main", "replay_command"]

_MAX_CYCLES = 1_000_000


def replay_command(seed: int, core: str, sampled: bool = False) -> str:
    """Command line that runs a seed again and writes the waves of its first 20,000 cycles."""
    window = f"{'--sampled ' if sampled else ''}--waves seed-{seed}.fst --from-cycle 0 --cycles 20000"
    return f".venv/bin/python -m sim.programs.replay {seed} --core {core} {window}"


def differences(
    case: RandomCase, got: CaseResult, want: CaseResult, gateware: BoardModel, functional: BoardModel
) -> list[str]:
    """One line for each member of the results, and each memory region, in which two boards differ after a run."""
    lines = []
    for field in dataclasses.fields(CaseResult):
        one, other = getattr(got, field.name), getattr(want, field.name)
        if one != other and field.name not in ("logits", "keys_values"):
            lines.append(f"{field.name}: gateware {one}, functional {other}")
    for region in case.program.regions:
        place = region.channel, region.offset, region.bytes
        one, other = (np.frombuffer(board.read_memory(*place), "<u2") for board in (gateware, functional))
        wrong = np.flatnonzero(one != other)
        if wrong.size:
            first = int(wrong[0])
            row, element = divmod(first, case.program.core.port_bytes // 2)
            lines.append(
                f"{region.name}, channel {region.channel}: {wrong.size} of {one.size} half words differ, first half "
                f"word {element} of the region's row {row}: gateware {one[first]:#06x}, functional {other[first]:#06x}"
            )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    text = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m sim.programs.replay", description=text)
    parser.add_argument("seed", type=int, help="seed of the program, its data and the memory latency")
    parser.add_argument("--core", default="16x4", help="core configuration (default: 16x4)")
    parser.add_argument("--sampled", action="store_true", help="requests sample their tokens, as the seed draws it")
    parser.add_argument("--waves", type=pathlib.Path, metavar="FILE", help="write FST waves of the gateware")
    parser.add_argument("--from-cycle", type=int, default=0, help="first cycle of the waves (default: 0)")
    parser.add_argument("--cycles", type=int, default=20_000, help="cycles in the waves (default: 20000)")
    options = parser.parse_args(arguments)
    config = core_config(options.core)
    case = random_case(options.seed, config)
    if options.sampled:
        case = sampled_case(case)
    print(f"random program of seed {case.seed} for core {config.name}: {len(case.instructions)} instructions")
    for number, instruction in enumerate(case.instructions):
        print(f"  {number:3} {instruction.text()}")
    waves = options.waves is not None
    flags = QUICK_COMPILE_FLAGS if waves else COMPILE_FLAGS  # a model with waves is hardly used again
    built = build_board(config, trace=waves, compile_flags=flags)
    functional = FunctionalBoard(config)
    timing = MemoryTiming.random(case.seed)
    with tempfile.TemporaryDirectory(prefix="ringfly-replay-") as name, RtlBoard(built, timing=timing) as gateware:
        folders = [pathlib.Path(name) / kind for kind in ("functional", "gateware")]  # a board keeps its files mapped
        for folder in folders:
            folder.mkdir()
        want = run_case(case, functional, folders[0])
        if waves:
            gateware.trace(options.waves, options.from_cycle, options.cycles)
        try:
            got = run_case(case, gateware, folders[1], _MAX_CYCLES)
            lines = differences(case, got, want, gateware, functional)
        except BoardError as error:
            lines = [f"{type(error).__name__}: {error}"]
        print(f"gateware: {gateware.counters()['cycles']} cycles")
    functional.close()
    if waves:
        names = options.waves.with_name(options.waves.name + ".names.json")
        names.write_text(built.names_json)
        print(f"waves in {options.waves}, names of signals in {names}")
    print("\n".join(lines) if lines else "gateware and functional executor agree")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
