"""Measures the executor: ``python -m sim.functional.speed [--core 64x16] [--positions N] [--require X] [--json]``.

The products are those of one GPT-2 345M layer (width 1024) and a small head, on random weights and through the whole
executor (rows from a mapped image, drain unit, registers); attention takes no part.
"""

from __future__ import annotations

import argparse
import json
import os
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

from .board import FunctionalBoard

__all__ = ["measure"]

_WIDTH = 1024
_VOCAB = 2048


def _instructions(config: CoreConfig) -> list[Instruction]:
    tile, lanes = config.tile, config.lanes
    words, strips = _WIDTH // tile, _WIDTH // lanes
    vector = strips  # strips of a vector of the model's width

    def product(src: int, wide_in: int, wide_out: int, dst: int, **fields: int) -> Instruction:
        return Instruction(
            op=Op.MM,
            src=src * words,
            words=wide_in * words,
            tail=tile,
            strips=wide_out * strips,
            group=8,
            dst=dst * vector,
            **fields,
        )

    return [
        Instruction(op=Op.EMB, words=1, tail=tile, strips=strips, group=8),
        product(0, 1, 1, 1),
        product(0, 1, 1, 2),
        product(0, 1, 1, 3),
        product(3, 1, 1, 0, path=Path.RESIDUAL),
        product(0, 1, 4, 1, path=Path.GELU),
        product(1, 4, 1, 0, path=Path.RESIDUAL),
        Instruction(
            op=Op.MM,
            decode_only=1,
            words=words,
            tail=tile,
            strips=_VOCAB // lanes,
            group=8,
            path=Path.LOGITS,
            commit=Commit.TOKEN,
        ),
        Instruction(op=Op.NEXT),
    ]


def _write_image(config: CoreConfig, rows: int, folder: pathlib.Path) -> MemoryImage:
    rng = np.random.default_rng(0)
    files = []
    for channel in range(config.channels):
        values = (rng.standard_normal(rows * config.port_bytes // 2, np.float32) / 32).astype("<f2")
        files.append(folder / f"ch{channel:02d}.bin")
        values.tofile(files[-1])
    size = rows * config.port_bytes
    return MemoryImage(tuple(files), size, size, ("",) * config.channels)


def measure(core: str = "64x16", positions: int = 16) -> dict[str, object]:
    """Run ``positions`` positions; returns MAC/s and its conditions."""
    config = core_config(core)
    instructions = _instructions(config)
    accesses = derive_access(instructions, config)
    macs = sum(i.strips * config.lanes * i.words * config.tile for i in instructions if i.op == Op.MM)
    rows = macs // (config.tile * config.lanes) + _WIDTH // config.lanes
    registers = {
        "context_limit": config.context,
        "width": _WIDTH,
        "vocab": _VOCAB,
        "embed_strips": _WIDTH // config.lanes,
        "position_base": rows - _WIDTH // config.lanes,
    }
    words = tuple(i.encode() for i in instructions), tuple(a.encode() for a in accesses)
    program = Program(config, "", 0, 1, *words, (), registers)
    board = FunctionalBoard()
    table = gpt2_register_map(config)

    def run(count: int) -> float:
        for name, value in (("prompt_end", 1), ("max_new_tokens", count), ("ctrl", 1)):
            board.write_register(table[name].offset, value)
        start = time.perf_counter()
        while not board.read_register(table["ctrl"].offset) & 2:
            board.advance(1)
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory(prefix="ringfly-speed-") as folder:
        board.load(program, _write_image(config, rows, pathlib.Path(folder)))
        run(1)  # compiles the kernels and reads the image once
        seconds = min(run(positions) for _ in range(3))
        board.close()
    return {
        "core": core,
        "positions": positions,
        "macs_per_position": macs,
        "cores": len(os.sched_getaffinity(0)),
        "seconds_best_of_3": round(seconds, 4),
        "mac_per_second": round(macs * positions / seconds),
    }


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code, 1 if the measured rate is below the required one."""
    parser = argparse.ArgumentParser(prog="python -m sim.functional.speed", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--core", default="64x16", help="core configuration, for example 16x4 (default: 64x16)")
    parser.add_argument("--positions", type=int, default=16, help="positions per measurement (default: 16)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--require", type=float, default=0.0, metavar="X", help="exit code 1 below X MAC/s, e.g. 300e6")
    options = parser.parse_args(arguments)
    result = measure(options.core, options.positions)
    rate = int(str(result["mac_per_second"]))
    missed = rate < options.require
    if options.json:
        print(json.dumps(result))
        return int(missed)
    print(", ".join(f"{key} {value}" for key, value in result.items()))
    bar = f", required {options.require / 1e6:,.0f}" if options.require else ""
    print(f"figure: {rate / 1e6:,.0f} million MAC/s on {result['cores']} cores, core {options.core}{bar}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
