"""``ringfly profile``: where the cycles of a decode step went, as a table, a trace and a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from host.cli.cycle_text import gateware_lines, profile_lines
from host.cli.options import SIZES_HELP, JsonOption, MemoryOption, RefreshSeedOption, RowsOption, TimedHopOption
from host.cli.output import command_errors, quiet_stdout, write_json
from host.cli.output_file import check_output_file

if TYPE_CHECKING:
    from host.bench.profile import StepProfile

__all__ = ["profile_command"]

DEFAULT_CORE = "64x16"


@command_errors("profile")
def profile_command(
    program_dir: Annotated[
        Path | None, typer.Argument(help="Folder that `ringfly compile` wrote; or give --model.")
    ] = None,
    model: Annotated[str | None, typer.Option(help=SIZES_HELP)] = None,
    kv: Annotated[
        int | None,
        typer.Option(
            help="Positions that the last step attends to, the newest included; default: 128, or just behind "
            "the seeded keys and values of a folder."
        ),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of the run; its last step is profiled. Default: 2, a steady step.")
    ] = None,
    core: Annotated[
        str | None,
        typer.Option(help="With --model: a core, such as 16x4, 64x16, 64x16i8, or a JSON file; default: 64x16."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="With --model: positions of the key/value cache; default: as many as fit.")
    ] = None,
    rows: RowsOption = None,
    boards: Annotated[int | None, typer.Option(help="With --model: boards that share the model, 1 to 8.")] = None,
    hop_ns: TimedHopOption = None,
    board: Annotated[
        int, typer.Option(help="Of several boards: the one whose layers, instructions and units are shown.")
    ] = 0,
    memory: MemoryOption = "u280",
    seed: RefreshSeedOption = 0,
    executor: Annotated[
        str,
        typer.Option(
            help="timing: cycles without data, split by layer, instruction and unit. rtl: the counters of the "
            "gateware itself for a program folder, beside timing's."
        ),
    ] = "timing",
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for chrome://tracing or ui.perfetto.dev to this file (JSON).")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Write a picture of the lost cycles and of one layer to this file.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Name what every cycle of a decode step was used for.

    docs/profile.md says what each bucket holds.

    Example: ringfly profile --model gpt2-345m --kv 128 --trace step.json --png step.png

    Example: ringfly profile build/gpt2-tiny --executor rtl

    Example: ringfly profile --model gpt2-xl --boards 4 --board 3
    """
    from host.errors import BadInput
    from host.runtime.request import check_executor

    check_executor(executor, ("timing", "rtl"))
    if (program_dir is None) == (model is None):
        raise BadInput(
            "give either a program folder or --model", expected="one of them", hint="See `ringfly profile -h`."
        )
    for name, value in (("--core", core), ("--context", context), ("--boards", boards), ("--rows", rows)):
        if program_dir is not None and value is not None:
            raise BadInput(
                f"a program folder has its own core, rows, cache and boards: no {name} beside it",
                value=value,
                expected="--model, or a folder alone",
                hint=f"Leave {name} out, or compile the model anew: `ringfly compile {name} {value} ...`.",
            )
    if executor == "rtl" and (program_dir is None or trace is not None or png is not None):
        raise BadInput(
            "gateware has counters only, and runs a program folder: no --model, --trace or --png with --executor rtl",
            value=executor,
            expected="timing",
            hint="Leave --executor rtl out, or compile the model and give its folder.",
        )
    for path, what, example in ((trace, "trace data", "step.json"), (png, "pictures", "step.png")):
        if path is not None:
            check_output_file(path, what, example)
    from host.bench.profile import chosen_run, profile_gateware, profile_step
    from host.bench.timed_program import TimedProgram

    with quiet_stdout(as_json):
        if program_dir is not None:
            timed = TimedProgram.of_folder(program_dir, memory, seed, hop_ns=hop_ns)
        else:
            timed = TimedProgram.of_model(
                str(model),
                core or DEFAULT_CORE,
                context,
                memory,
                seed,
                boards=1 if boards is None else boards,
                hop_ns=hop_ns,
                rows=rows,
            )
        run = chosen_run(timed, kv, tokens, on_gateware=executor == "rtl")
        if program_dir is not None and executor == "rtl":
            facts = profile_gateware(timed, run, program_dir, seed).facts()
        else:
            profile = profile_step(timed, run, board)
            facts = {**profile.facts(), "trace": trace, "png": png}
            _write_files(profile, trace, png)
    if as_json:
        write_json("profile", facts)
    else:
        lines = gateware_lines(facts) if executor == "rtl" else profile_lines(facts)
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _write_files(profile: StepProfile, trace: Path | None, png: Path | None) -> None:
    if trace is not None:
        trace.write_text(json.dumps(profile.trace(), separators=(",", ":")) + "\n", encoding="utf-8")
    if png is not None:
        from host.bench.profile_figure import write_figure

        write_figure(profile, png)
