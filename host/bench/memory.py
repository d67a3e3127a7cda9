"""Peak anonymous memory of compiling a model or of running a step of it, against its bound.

``python -m host.bench.memory --model gpt2-xl [--run functional|rtl] [--core 64x16] [--json]``

Compiling may take 0.6 GB and the largest tensor in fp32; a running board 0.6 GB, its keys and values, and a tenth of
the fp16 model: weights are streamed into the image, and boards map the image. The work is the command line's own, in a
fresh process. Exit code 1: a bound was missed; 2: the work failed.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import tempfile
from pathlib import Path

from host.bench.anonymous_memory import MemoryRun, watched_run
from host.compiler import chosen_core, chosen_model
from hw.board.program import Program
from sw.models.weights import WeightTensors, expected_shapes

__all__ = ["compile_bound_bytes", "measure_compile", "measure_step", "run_bound_bytes"]

ALLOWANCE_BYTES = 600_000_000
MODEL_SHARE = 0.1
TIMEOUT_S = 3600.0


class WorkFailedError(RuntimeError):
    """The measured command ended with an error; the message holds its last lines."""


def compile_bound_bytes(weights: WeightTensors) -> int:
    """0.6 GB + the largest tensor in fp32."""
    return ALLOWANCE_BYTES + 4 * max(math.prod(shape) for shape in expected_shapes(weights.config).values())


def run_bound_bytes(weights: WeightTensors, program: Program) -> int:
    """0.6 GB + keys and values of the program's cache + 0.1 x the model in fp16."""
    cache = sum(region.bytes for region in program.regions if region.kind in ("keys", "values"))
    model = 2 * sum(math.prod(shape) for shape in expected_shapes(weights.config).values())
    return ALLOWANCE_BYTES + cache + round(MODEL_SHARE * model)


def measure_compile(model: str, seed: int | None, core: str, kv: int, folder: Path) -> dict[str, object]:
    """Compile into ``folder/program``; `kv` positions are attended in the step that follows."""
    command = ["compile", "--model", model, "--core", core, "--out", str(folder / "program")]
    command += ["--seeded-kv", str(kv - 1)] + ([] if seed is None else ["--seed", str(seed)])
    run = _ringfly(command, folder)
    return _result("compile", command, run, compile_bound_bytes(chosen_model(model, seed)))


def measure_step(model: str, seed: int | None, executor: str, folder: Path) -> dict[str, object]:
    """One decode step of the program in ``folder/program``."""
    program, _ = Program.load(folder / "program")
    if executor == "rtl":
        from sim.rtl.build import build_board

        build_board(program.core)  # a build is no part of a run
    command = ["sim", str(folder / "program"), "--executor", executor, "--tokens", "1"]
    run = _ringfly(command, folder)
    result = _result(executor, command, run, run_bound_bytes(chosen_model(model, seed), program))
    return {**result, "step_seconds": json.loads(run.stdout)["run_seconds"]}


def _ringfly(arguments: list[str], folder: Path) -> MemoryRun:
    run = watched_run([sys.executable, "-m", "host.cli.main", *arguments, "--json"], folder, TIMEOUT_S)
    if run.code:
        raise WorkFailedError(f"ringfly {shlex.join(arguments)} ended with code {run.code}: {run.stdout}{run.stderr}")
    return run


def _result(work: str, arguments: list[str], run: MemoryRun, bound_bytes: int) -> dict[str, object]:
    return {
        "work": work,
        "command": f"ringfly {shlex.join(arguments)}",
        "peak_anonymous_bytes": run.peak_bytes,
        "bound_bytes": bound_bytes,
        "held": run.peak_bytes <= bound_bytes,
        "samples": run.samples,
        "seconds": round(run.seconds, 2),
    }


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host.bench.memory", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="a known size, for example gpt2-xl, or a checkpoint folder")
    parser.add_argument("--seed", type=int, help="seed of a known size's weights (default: 0)")
    parser.add_argument("--core", default="64x16", help="core (default: 64x16)")
    parser.add_argument("--run", choices=("functional", "rtl"), help="also run one decode step on this executor")
    parser.add_argument("--kv", type=int, default=128, help="positions attended in that step (default: 128)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    core = chosen_core(options.core)
    with tempfile.TemporaryDirectory(prefix="ringfly-memory-") as name:
        folder = Path(name)
        try:
            results = [measure_compile(options.model, options.seed, options.core, options.kv, folder)]
            if options.run:
                results.append(measure_step(options.model, options.seed, options.run, folder))
        except (WorkFailedError, TimeoutError) as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
    held = all(result["held"] for result in results)
    if options.json:
        facts = {"schema": "ringfly-memory/1", "model": options.model, "core": core.name, "kv": options.kv}
        sys.stdout.write(json.dumps({**facts, "held": held, "runs": results}, indent=1) + "\n")
    else:
        for result in results:
            peak, bound = (int(str(result[key])) / 1e6 for key in ("peak_anonymous_bytes", "bound_bytes"))
            step = f", step {result['step_seconds']} s" if "step_seconds" in result else ""
            verdict = "held" if result["held"] else "MISSED"
            sys.stdout.write(
                f"figure: {options.model} {result['work']}: {peak:,.0f} MB anonymous at most, bound {bound:,.0f}: "
                f"{verdict} ({result['seconds']} s{step})\n"
            )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
