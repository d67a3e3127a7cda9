"""Cycles of the timing model against those of the gateware: random programs, the shipped checkpoint, real models.

``python -m host.bench.timing_table [--seed S] [--programs 100] [--model gpt2-345m ...] [--twins] [--json]``: the table
of ``sim.timing.table`` with a row for the shipped checkpoint (a prompt of 10, 6 tokens) and, for each ``--model``, a
decode step on core 64x16 at KV 128 with seeded keys and values of the positions before. With a model the shipped
checkpoint runs on that core too: it leaves a large core waiting, so that the row has large buckets of lost cycles. On a
core with rows (``--core 16x4r4``) the checkpoint has one more row, a batch of requests of different lengths, and a
model's step is one of a batch. Exit codes as there.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from host.compiler import chosen_core, compile_model
from host.compiler.model_choice import chosen_model
from hw.board.program import Program
from sim.timing.gateware import batch_run, folder_run
from sim.timing.run_start import Request
from sim.timing.table import Row, Table, exit_code, model_row, parsed, random_rows, table_parser
from sim.timing.twins import Twin
from sw.models.key_values import SeededKeyValues

__all__ = ["checkpoint_rows", "main", "step_row"]

_CHECKPOINT = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
_ATTENDED = 128


def checkpoint_rows(core_name: str, seed: int, twins: Sequence[Twin]) -> Iterator[Row]:
    """The shipped checkpoint: prompt and tokens; on a core with rows also a request for each of them."""
    core, weights = chosen_core(core_name), chosen_model(_CHECKPOINT)
    with tempfile.TemporaryDirectory(prefix="ringfly-timing-") as name:
        folder = Path(name) / "gpt2-tiny"
        compile_model(weights, core, folder)
        yield model_row(folder_run(folder, 0, 10, 6, seed), twins, seed=seed)
        if core.rows > 1:
            requests = {row: Request(0, 3 + 2 * row, 6 - row) for row in range(core.rows)}
            run = batch_run("gpt2-tiny", Program.load(folder), requests, seed)
            yield model_row(run, twins, seed=seed)


def step_row(model: str, core_name: str, seed: int, twins: Sequence[Twin]) -> Row:
    """One decode step of a model with 128 positions attended, or what its context has; on a core with rows of a batch.

    ``model``: a named size, whose weights are drawn from ``seed``, or a checkpoint folder.
    """
    core = chosen_core(core_name)
    weights = chosen_model(model, None if Path(model).is_dir() else seed)
    attended = min(_ATTENDED, weights.config.n_positions, core.context)
    with tempfile.TemporaryDirectory(prefix="ringfly-timing-") as name:
        folder = Path(name) / Path(model).name
        compile_model(weights, core, folder, key_values=SeededKeyValues(weights.config, attended - 1, seed))
        if core.rows == 1:
            run = folder_run(folder, attended - 1, attended, 1, seed)
        else:
            requests = {row: Request(attended - 1, attended, 1) for row in range(core.rows)}
            run = batch_run(folder.name, Program.load(folder), requests, seed)
        return model_row(run, twins, seed=seed)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = table_parser("host.bench.timing_table", __doc__ or "")
    parser.add_argument("--model", action="append", default=[], help="named model or checkpoint: a row of its step")
    parser.add_argument("--model-core", default="64x16", help="core of the models' steps (64x16)")
    options, twins = parsed(parser, arguments)

    def models() -> Iterator[Row]:
        cores = [options.core, *([options.model_core] if options.model else [])]
        for core_name in dict.fromkeys(cores):
            yield from checkpoint_rows(core_name, options.seed, twins)
        for model in options.model:
            yield step_row(model, options.model_core, options.seed, twins)

    rows = random_rows(options.core, options.seed, options.programs, twins)
    return exit_code(lambda: Table(twins, options.limit / 100, options.json).held(chain(rows, models())))


if __name__ == "__main__":
    sys.exit(main())
