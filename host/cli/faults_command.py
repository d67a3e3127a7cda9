"""``ringfly faults``: seeded faults of the gateware, and whether the checks notice them."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from host.cli.output import EXIT_WRONG, command_errors, quiet_stdout, write_json
from host.errors import BadInput

if TYPE_CHECKING:
    from sim.rtl.detection import ModelRun
    from sim.rtl.fault_patch import Fault

__all__ = ["faults_command"]

CORE = "16x4"
CHECKPOINT = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
PROMPT, NEW_TOKENS = (5, 77, 300, 12, 9), 4


@command_errors("faults")
def faults_command(
    list_all: Annotated[bool, typer.Option("--list", help="List every fault with what it breaks.")] = False,
    draw: Annotated[int, typer.Option(help="Draw so many faults, build each and run the checks on it.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    name: Annotated[list[str] | None, typer.Option(help="Build and check this fault; may be given again.")] = None,
    model: Annotated[
        Path, typer.Option(help="Checkpoint of the whole-model check; if there is none, that check is left out.")
    ] = CHECKPOINT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> int:
    """List the known faults, or build gateware with some of them and see whether the checks catch each.

    A fault is a small change of the gateware that is made while it is elaborated; the shipped Verilog never has one.
    Changes that change nothing (controls) are in the list, too: a check that reports one of them is wrong itself.
    Exit code 4 if a drawn fault goes unnoticed or a control is reported.

    Example: ringfly faults --draw 5 --seed 1
    """
    from sim.rtl.faults import draw_faults, find_fault, list_faults

    if list_all and (draw or name):
        raise BadInput("--list shows the faults, --draw and --name run some: give one of them", value="--list")
    if list_all:
        return _list(list_faults(), as_json)
    chosen = [find_fault(one) for one in name or ()]
    if draw:
        chosen += draw_faults(draw, seed)
    if not chosen:
        raise BadInput("nothing to do", hint="Give --list, --draw N or --name NAME.")
    with quiet_stdout(as_json), tempfile.TemporaryDirectory(prefix="ringfly-") as folder:
        run = _compiled(model, Path(folder)) if model != CHECKPOINT or model.is_dir() else None
        results = [_checked(fault, run, as_json) for fault in chosen]
    failed = [result for result in results if not result["as_it_should"]]
    if as_json:
        write_json("faults", {"core": CORE, "seed": seed if draw else None, "faults": results})
    else:
        sound = len(results) - len(failed)
        sys.stdout.write(f"figure: {sound} of {len(results)} as it should be (a fault caught, a control not)\n")
    return EXIT_WRONG if failed else 0


def _list(faults: tuple[Fault, ...], as_json: bool) -> int:
    if as_json:
        rows = [{"name": f.name, "module": f.module, "what": f.description, "control": f.equivalent} for f in faults]
        write_json("faults", {"core": CORE, "faults": rows})
        return 0
    for fault in faults:
        kind = "control" if fault.equivalent else "fault"
        sys.stdout.write(f"{kind:8} {fault.name:32} {fault.module}: {fault.description}\n")
    count = sum(not fault.equivalent for fault in faults)
    sys.stdout.write(f"figure: {count} faults, {len(faults) - count} controls\n")
    return 0


def _compiled(model: Path, folder: Path) -> ModelRun:
    from host.compiler import compile_model
    from hw.gpt2.config import core_config
    from sim.rtl.detection import ModelRun

    program, image = compile_model(model, core_config(CORE), folder / "program")
    return ModelRun(program, image, PROMPT, NEW_TOKENS)


def _checked(fault: Fault, run: ModelRun | None, as_json: bool) -> dict[str, object]:
    """Build one faulty kernel and inspect it; a line of text at once unless JSON is wanted."""
    from hw.gpt2.config import core_config
    from sim.rtl.build import compile_board
    from sim.rtl.detection import inspect
    from sim.rtl.faults import export_with_fault
    from sim.rtl.verilator import QUICK_COMPILE_FLAGS

    start = time.monotonic()
    config = core_config(CORE)
    built = compile_board(config, export_with_fault(fault, config), compile_flags=QUICK_COMPILE_FLAGS)
    finding = inspect(built, run)
    result: dict[str, object] = {
        "name": fault.name,
        "module": fault.module,
        "control": fault.equivalent,
        "caught_by": finding.check if finding else None,
        "detail": finding.detail if finding else None,
        "as_it_should": (finding is None) == fault.equivalent,
        "seconds": round(time.monotonic() - start, 1),
    }
    if not as_json:
        word = f"caught by {finding.check}: {finding.detail}" if finding else "not caught"
        sys.stdout.write(f"{fault.name:32} {result['seconds']:6} s  {word}\n")
        sys.stdout.flush()
    return result
