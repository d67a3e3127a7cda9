"""``ringfly synth``: area of a core on the card and levels of logic between its registers, estimated by yosys."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from host.cli.options import CoreOption, JsonOption, RowsOption
from host.cli.output import EXIT_WRONG, command_errors, quiet_stdout, write_json
from host.cli.progress import Progress

__all__ = ["synth_command"]

_KINDS = ("lut", "ff", "dsp", "bram", "uram")


@command_errors("synth")
def synth_command(
    which: Annotated[str, typer.Argument(metavar="CORE", help="What to synthesise: gpt2.")],
    core: CoreOption = "64x16",
    rows: RowsOption = None,
    paths: Annotated[int, typer.Option(help="So many of the longest paths are printed.")] = 10,
    update: Annotated[bool, typer.Option("--update", help="Keep these figures as the new baseline.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Modules synthesised at a time; default: one a processor.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Estimate what a core takes of an Alveo U280 and how deep its logic is, module by module.

    The figures are yosys's, without placement. They are compared with the committed baseline and with the bars of the
    core; exit code 4 if something grew beyond the tolerance or a bar is not held.

    Example: ringfly synth gpt2

    Example: ringfly synth gpt2 --rows 4 --json
    """
    from host.errors import BadInput

    if which != "gpt2":
        raise BadInput(f"unknown core {which!r}", value=which, expected="gpt2", hint="See `ringfly synth --help`.")
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs must be at least 1, got {jobs}", value=jobs, expected=">= 1")
    if paths < 0:
        raise BadInput(f"--paths must not be negative, got {paths}", value=paths, expected=">= 0")
    from host.bench.area import judged_area

    progress = Progress()
    with quiet_stdout(as_json):
        report = judged_area(which, core, rows, update, jobs or os.cpu_count() or 1, progress)
    progress.clear()
    if as_json:
        write_json("synth", report)
    else:
        sys.stdout.write("\n".join(_lines(report, paths)) + "\n")
    return 0 if report["as_wanted"] else EXIT_WRONG


def _lines(report: dict[str, Any], count: int) -> list[str]:
    totals = report["totals"]
    lines = [f"{report['core']}, core {report['config']}, rows {report['rows']}: {report['area_source']}", ""]
    lines.append(f"{'module':<20} {'times':>5} {'LUT':>9} {'FF':>9} {'DSP':>6} {'BRAM':>6} {'URAM':>5}  levels, joined")
    for name, module in sorted(report["modules"].items(), key=lambda entry: -entry[1]["lut"] * entry[1]["instances"]):
        amounts = [module[kind] * module["instances"] for kind in _KINDS]
        lines.append(
            f"{name:<20} {module['instances']:>5} {_amounts(amounts)}  {module['levels']}, {module['levels_joined']}"
        )
    lines.append(f"{'total':<20} {'':>5} {_amounts([totals[kind] for kind in _KINDS])}  {totals['levels']}")
    lines.append(f"{'% of the part':<26} {_amounts([totals[f'{kind}_pct'] for kind in _KINDS])}")
    for slr, shares in totals["slr"].items():
        lines.append(f"{f'% of {slr}':<26} {_amounts([shares[f'{kind}_pct'] for kind in _KINDS])}")
    fits = (
        "fits a card with the shell"
        if report["fits_card"]
        else "does not fit a card with the shell: "
        + ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in report["beyond_card_share"].items())
    )
    lines += ["", fits, f"levels: {report['conditions']['method']}", ""]
    lines += [_path_line(path) for path in _longest(report)[:count]]
    lines += ["", *(f"{word}: {line}" for word in ("exceeded", "grown") for line in report[word])]
    lines += [f"baseline: {report['baseline']}"]
    return lines


def _longest(report: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [{"module": name, **path} for name, module in report["modules"].items() for path in module["paths"]]
    return sorted(inner + report["joined_paths"], key=lambda path: -path["levels"])


def _path_line(path: dict[str, Any]) -> str:
    ends = [
        f"{path[end]}" + (f" ({path[f'{end}_source']})" if path[f"{end}_source"] else "") for end in ("start", "end")
    ]
    through = path.get("crossings") or path["through"]
    return f"{path['levels']:>3} levels, {path['module']}: {' -> '.join(ends)}" + (
        f"\n           through {', '.join(through)}" if through else ""
    )


def _amounts(amounts: list[float]) -> str:
    return " ".join(f"{amount:>{width},}" for amount, width in zip(amounts, (9, 9, 6, 6, 5), strict=True))
