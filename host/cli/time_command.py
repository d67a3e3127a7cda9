"""``ringfly time``: cycles and milliseconds of a decode step or a prompt of any model, without weights."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from host.cli.cycle_text import board_text, bucket_lines, exposed_lines, step_text
from host.cli.options import (
    BoardsOption,
    ContextOption,
    CoreOption,
    JsonOption,
    MemoryOption,
    RefreshSeedOption,
    RowsOption,
    SizesOption,
    TimedHopOption,
    WeightsOption,
)
from host.cli.output import command_errors, quiet_stdout, write_json
from host.cli.progress import Progress

__all__ = ["time_command"]


@command_errors("time")
def time_command(
    model: SizesOption,
    kv: Annotated[int | None, typer.Option(help="Positions that the step attends to, the newest included.")] = None,
    prompt: Annotated[
        int | None, typer.Option(help="Tokens of a prompt: time its prefill, and the step behind it.")
    ] = None,
    boards: BoardsOption = 1,
    hop_ns: TimedHopOption = None,
    core: CoreOption = "64x16",
    rows: RowsOption = None,
    weights: WeightsOption = None,
    memory: MemoryOption = "u280",
    seed: RefreshSeedOption = 0,
    context: ContextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say how long a decode step or a prompt takes, and name every cycle that was not used.

    The cycles are simulated without data, from the sizes of the model alone. Give --kv or --prompt. With --rows R, --kv
    is one step of R requests, each at so many positions, and --prompt takes R tokens at a time.

    Example: ringfly time --model gpt2-345m --kv 128

    Example: ringfly time --model gpt2-xl --prompt 64 --memory ideal --json

    Example: ringfly time --model gpt2-xl --boards 4 --hop-ns 200 --kv 128

    Example: ringfly time --model gpt2-345m --rows 4 --kv 128
    """
    from host.bench.step_time import time_step
    from host.bench.timed_program import TimedProgram
    from host.errors import BadInput

    if (kv is None) == (prompt is None):
        raise BadInput(
            "give either --kv or --prompt",
            value={"kv": kv, "prompt": prompt},
            expected="one of them",
            hint="--kv 128 times a step that attends to 128 positions, --prompt 64 a prompt of 64 tokens.",
        )
    progress = Progress()
    with quiet_stdout(as_json):
        timed = TimedProgram.of_model(
            model, core, context, memory, seed, boards=boards, hop_ns=hop_ns, rows=rows, weights=weights
        )
        report = time_step(timed, kv, prompt, progress)
    progress.clear()
    if as_json:
        write_json("time", report)
        return 0
    sys.stdout.write("\n".join(_lines(report)) + "\n")
    return 0


def _lines(report: dict) -> list[str]:  # type: ignore[type-arg]
    conditions = report["conditions"]
    clock_mhz, batch = conditions["assumed_clock_mhz"], report["requests"] > 1
    where = f"core {report['core']}, memory {report['memory']}{board_text(report)}"
    lines = [f"{report['model']}, {where}; clocks {conditions['clocks']}"]
    if report["prefill_cycles"] is not None:
        at_once = f", {report['rows']} tokens a step" if report["rows"] > 1 else ""
        lines.append(
            f"prompt of {report['prompt']:,}{at_once}: {report['prefill_cycles']:,} cycles to the first token, "
            f"{report['prefill_ms_at_200mhz']:.3f} ms at an assumed {clock_mhz} MHz"
        )
        lines.append(f"  {conditions['prefill']['method']}")
    lines.append(
        f"{step_text(report)}: {report['cycles']:,} cycles, "
        f"{report['ms_per_token_at_200mhz']:.4f} ms at an assumed {clock_mhz} MHz"
        + (f", {report['tokens_per_second_at_200mhz']:,.0f} tokens a second of all requests" if batch else "")
    )
    lines += [*bucket_lines(report), *exposed_lines(report["exposed_sync"])]
    lines.append(f"Verilog {report['verilog_sha256'][:16]}, cycles by {report['cycles_source']}")
    return lines
