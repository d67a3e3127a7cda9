"""``ringfly faults``: seeded faults of the gateware, and whether the checks notice them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from host.cli.options import CoreOption, JsonOption
from host.cli.output import EXIT_WRONG, command_errors, quiet_stdout, write_json

if TYPE_CHECKING:
    from host.bench.fault_hunt import Hunted
    from sim.rtl.fault_patch import Fault

__all__ = ["faults_command"]


@command_errors("faults")
def faults_command(
    list_all: Annotated[bool, typer.Option("--list", help="List every fault with what it breaks.")] = False,
    draw: Annotated[int, typer.Option(help="Draw so many faults, build each and run the checks on it.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    name: Annotated[
        list[str] | None, typer.Option(help="Build and check this fault; may be given several times.")
    ] = None,
    core: CoreOption = "16x4",
    as_json: JsonOption = False,
) -> int:
    """List the known faults, or build gateware with some of them and see whether the checks catch each.

    A fault is a small change of the gateware's source that is made while it is elaborated; the shipped Verilog never
    has one. Some entries are controls: changes that do the same in another way, which must not be reported. Exit code
    4 if a fault goes unnoticed or a control is reported.

    Example: ringfly faults --draw 5 --seed 1
    """
    from host.errors import BadInput
    from sim.rtl.faults import draw_faults, find_fault, list_faults

    if list_all:
        _show_list(list_faults(), as_json)
        return 0
    if not draw and not name:
        raise BadInput("nothing to do", expected="--list, --draw N or --name NAME", hint="See `ringfly faults --help`.")
    chosen = [find_fault(one) for one in name or ()]
    if draw:
        chosen += draw_faults(draw, seed)
    from host.bench.fault_hunt import hunt
    from host.compiler import chosen_core

    found: list[Hunted] = []
    with quiet_stdout(as_json):
        for hunted in hunt(chosen, chosen_core(core), lambda line: sys.stderr.write(line + "\n")):
            found.append(hunted)
            if not as_json:
                sys.stdout.write(_line(hunted))
                sys.stdout.flush()
    fine = all(hunted.as_wanted for hunted in found)
    if as_json:
        write_json("faults", {"seed": seed, "as_wanted": fine, "faults": [_facts(hunted) for hunted in found]})
    else:
        caught = sum(hunted.check is not None for hunted in found)
        sys.stdout.write(f"{caught} of {len(found)} noticed: {'as wanted' if fine else 'NOT as wanted'}\n")
    return 0 if fine else EXIT_WRONG


def _show_list(faults: Sequence[Fault], as_json: bool) -> None:
    if as_json:
        write_json("faults", {"faults": [_entry(fault) for fault in faults]})
        return
    for fault in faults:
        kind = "control" if fault.equivalent else fault.caught_by
        sys.stdout.write(f"{fault.name:<36} {kind:<9} {fault.description}\n")
    real = sum(not fault.equivalent for fault in faults)
    sys.stdout.write(f"{real} faults, {len(faults) - real} controls\n")


def _entry(fault: Fault) -> dict[str, object]:
    return {
        "name": fault.name,
        "module": fault.module,
        "description": fault.description,
        "caught_by": None if fault.equivalent else fault.caught_by,
        "control": fault.equivalent,
    }


def _facts(hunted: Hunted) -> dict[str, object]:
    return {
        **_entry(hunted.fault),
        "noticed": hunted.check is not None,
        "check": hunted.check,
        "detail": hunted.detail,
        "as_wanted": hunted.as_wanted,
        "seconds": hunted.seconds,
    }


def _line(hunted: Hunted) -> str:
    what = "noticed" if hunted.check else "unnoticed"
    if hunted.fault.equivalent:
        what = "control, " + what
    seen = f": {hunted.check}: {hunted.detail}" if hunted.check else ""
    return f"{hunted.fault.name} ({hunted.seconds:.0f} s) {what}{seen}\n"
