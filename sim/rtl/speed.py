"""Measures the simulated board: ``python -m sim.rtl.speed [--core 16x4] [--flat] [--cycles N] [--require X] [--json]``.

The program streams random weights through products of width 256 (plain, residual, GELU, arg-max); attention takes no
part.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
import time

import numpy as np

from hw.board.gpt2_map import gpt2_register_map
from hw.board.program import MemoryImage, Program
from hw.gpt2.access import derive_access
from hw.gpt2.config import CoreConfig, core_config
from hw.gpt2.isa import Commit, Instruction, Op, Path
from sim.rtl.board import RtlBoard
from sim.rtl.build import BuiltBoard, build_board

__all__ = ["measure", "stream_program"]

_WIDTH = 256
_VOCAB = 2048


def stream_program(config: CoreConfig, folder: pathlib.Path) -> tuple[Program, MemoryImage]:
    """A program of dense products on random weights (seed 0), with its image in ``folder``."""
    tile = config.tile
    words, strips = _WIDTH // tile, _WIDTH // config.lanes

    def product(src: int, dst: int, path: Path) -> Instruction:
        return Instruction(
            op=Op.MM, src=src * words, words=words, tail=tile, strips=strips, group=8, dst=dst * strips, path=path
        )

    instructions = [
        Instruction(op=Op.EMB, words=1, tail=tile, strips=strips, group=8),
        product(0, 1, Path.PLAIN),
        product(1, 2, Path.GELU),
        product(2, 0, Path.RESIDUAL),
        product(0, 1, Path.GELU),
        product(1, 0, Path.RESIDUAL),
        Instruction(
            op=Op.MM,
            decode_only=1,
            words=words,
            tail=tile,
            strips=_VOCAB // config.lanes,
            group=8,
            path=Path.LOGITS,
            commit=Commit.TOKEN,
        ),
        Instruction(op=Op.NEXT),
    ]
    rows = sum(i.words * i.strips for i in instructions if i.op == Op.MM)
    blocks = config.context // tile  # of the position embedding
    size = (rows + blocks * strips) * config.port_bytes
    random = np.random.default_rng(0)
    files = []
    for channel in range(config.channels):
        files.append(folder / f"ch{channel:02d}.bin")
        (random.standard_normal(size // 2, np.float32) / 16).astype("<f2").tofile(files[-1])
    registers = {
        "context_limit": config.context,
        "width": _WIDTH,
        "vocab": _VOCAB,
        "embed_strips": strips,
        "position_base": rows,
    }
    words_of = tuple(i.encode() for i in instructions), tuple(a.encode() for a in derive_access(instructions, config))
    program = Program(config, "", 0, 1, *words_of, (), registers)
    return program, MemoryImage(tuple(files), size, size, ("",) * config.channels)


def measure(built: BuiltBoard, cycles: int) -> dict[str, object]:
    """Run for about ``cycles`` cycles; returns cycles a second (wall clock and processor time) and conditions."""
    table = gpt2_register_map(built.config)
    with tempfile.TemporaryDirectory(prefix="ringfly-speed-") as folder, RtlBoard(built) as board:
        board.load(*stream_program(built.config, pathlib.Path(folder)))
        for name, value in (("prompt_end", 1), ("max_new_tokens", built.config.context), ("ctrl", 1)):
            board.write_register(table[name].offset, value)
        board.advance(cycles // 10)  # memory and caches are warm then
        wall, processor = time.perf_counter(), time.process_time()
        passed = board.advance(cycles)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        counters = board.counters()
    return {
        "core": built.config.name,
        "cycles": passed,
        "tiles_per_cycle": round(counters["tiles"] / counters["cycles"], 3),
        "wall_s": round(wall, 3),
        "cycles_per_s": round(passed / wall),
        "cycles_per_processor_s": round(passed / processor),
        "verilog_sha256": built.verilog_sha256,
    }


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code, 1 if the measured speed is below the required one."""
    parser = argparse.ArgumentParser(prog="python -m sim.rtl.speed", description=__doc__.partition("\n")[0])
    parser.add_argument("--core", default="16x4", help="core to simulate (default: 16x4)")
    parser.add_argument("--cycles", type=int, default=300_000, help="clock cycles to measure (default: 300000)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--require", type=float, default=0.0, metavar="X", help="exit code 1 below X cycles/s")
    parser.add_argument("--flat", action="store_true", help="compile the kernel as one piece")
    parser.add_argument(
        "--build-limit-s", type=float, default=float("inf"), metavar="S", help="exit code 1 if the build takes longer"
    )
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    built = build_board(core_config(options.core), flat=options.flat)
    build_s = time.perf_counter() - started
    result = {**measure(built, options.cycles), "flat": options.flat, "build_s": round(build_s, 2)}
    rate = int(str(result["cycles_per_s"]))
    missed = rate < options.require or build_s > options.build_limit_s
    if options.json:
        json.dump(result, sys.stdout)
        print()
    else:
        for name, value in result.items():
            print(f"{name:24} {value}")
        bar = f", required {options.require:,.0f}" if options.require else ""
        print(f"figure: {rate:,} cycles/s, core {options.core}{bar}, built or found in {build_s:.1f} s")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
