"""Entry point of ``ringfly``: the commands, and the mapping of everything that goes wrong to an exit code.

Exit codes: 0; 2 what the user can mend; 3 the machine failed; 4 the comparison says ``wrong``; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from host.cli.bench_command import bench_app
from host.cli.compile_command import compile_command
from host.cli.doctor_command import doctor_command
from host.cli.faults_command import faults_command
from host.cli.generate_command import generate_command
from host.cli.output import EXIT_INTERRUPTED, report_error, version
from host.cli.profile_command import profile_command
from host.cli.sim_command import sim_command
from host.cli.synth_command import synth_command
from host.cli.time_command import time_command

__all__ = ["app", "main", "run"]

ABOUT = """Run GPT-2 on simulated Alveo U280 boards.

Ringfly turns a HuggingFace GPT-2 checkpoint into a program and a memory image for a small accelerator, and runs it on
the accelerator's own gateware (Verilog, compiled by Verilator), through the same PYNQ driver that a real card takes.
Start with `ringfly doctor`, then `ringfly generate`.

Exit codes: 0 fine; 2 something that you can mend (input, a missing tool); 3 the machine failed (time limit, stuck
kernel); 4 the result differs from PyTorch's; 130 interrupted.
"""

app = typer.Typer(
    name="ringfly",
    help=ABOUT,
    add_completion=False,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate_command)
app.command("compile")(compile_command)
app.command("sim")(sim_command)
app.command("time")(time_command)
app.command("profile")(profile_command)
app.add_typer(bench_app)
app.command("synth")(synth_command)
app.command("faults")(faults_command)
app.command("doctor")(doctor_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"ringfly {version()}\n")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    del show_version


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    as_json = "--json" in arguments
    name = next((word for word in arguments if not word.startswith("-")), "ringfly")
    try:
        code = app(list(arguments), prog_name="ringfly", standalone_mode=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has gone
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # usage errors of the parser; commands report their own
        return report_error(error, name, as_json)
    return code if isinstance(code, int) else 0


def run() -> NoReturn:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
