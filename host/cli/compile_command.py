"""``ringfly compile``: a checkpoint, or a known size with seeded weights, to the programs of one board or of a ring."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from host.cli.options import ContextOption, CoreOption, JsonOption, RowsOption, WeightsOption
from host.cli.output import command_errors, quiet_stdout, write_json
from host.cli.progress import Progress

if TYPE_CHECKING:
    from host.compiler import PartitionCost
    from hw.gpt2.config import CoreConfig
    from sw.models.weights import WeightTensors

__all__ = ["compile_command"]

PLANNERS = ("rows", "timing")


@command_errors("compile")
def compile_command(
    model: Annotated[
        str,
        typer.Option(
            help="Checkpoint folder in HuggingFace format: config.json, model.safetensors. Or a known size with seeded "
            "weights: gpt2-124m, gpt2-345m, gpt2-774m, gpt2-xl, gpt2-1.5b-dfx."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to make. An earlier program there is replaced, anything else refused.")
    ],
    core: CoreOption = "16x4",
    rows: RowsOption = None,
    weights: WeightsOption = None,
    context: ContextOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a known size's weights; default: 0.")] = None,
    seeded_kv: Annotated[
        int,
        typer.Option(
            help="So many leading positions have seeded keys and values in the image: a run starts behind them. 127 "
            "for a step at context length 128."
        ),
    ] = 0,
    kv_seed: Annotated[
        int, typer.Option(help="Seed of these keys and values; on a core with rows request r has this seed + r.")
    ] = 0,
    boards: Annotated[
        int, typer.Option(help="Split the model over a ring of so many boards, up to 8: a plan and a program for each.")
    ] = 1,
    planner: Annotated[
        str,
        typer.Option(
            help="What the slices of the boards are chosen by. rows: memory rows of the busiest board. timing: cycles "
            "of decode steps on the timing model, which takes up to a minute or two."
        ),
    ] = "rows",
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print each board's memory map, every instruction, and the ideal cycles of a token."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Turn a GPT-2 into the program and memory image of one board, or of every board of a ring.

    Writes program.json, program.bin and one file for each memory channel (ch00.bin ...); for several boards, plan.json
    and such a folder for each (board0, board1, ...). Everything that does not fit the core is listed at once, before a
    byte is written. Run the result with `ringfly sim`.

    Example: ringfly compile --model checkpoints/gpt2-tiny --core 16x4 --out build/gpt2-tiny --explain

    Example: ringfly compile --model gpt2-345m --seed 1 --core 64x16 --seeded-kv 127 --out build/345m

    Example: ringfly compile --model gpt2-xl --core 64x16 --boards 4 --out build/xl

    Example: ringfly compile --model gpt2-345m --core 64x16 --rows 4 --seeded-kv 127 --out build/345m-batch
    """
    from host.compiler import chosen_core, chosen_model, compile_model, compile_ring
    from host.compiler import explain as explain_program
    from host.compiler.explain import ring_summary, summary
    from host.errors import BadInput

    if planner not in PLANNERS:
        raise BadInput(f"planner must be rows or timing, got {planner!r}", value=planner, expected=list(PLANNERS))
    progress = Progress()
    plan = None
    with quiet_stdout(as_json):
        tensors, config = chosen_model(model, seed), chosen_core(core, rows, weights)
        options: dict[str, Any] = {"context": context, "seeded_positions": seeded_kv, "kv_seed": kv_seed}
        if boards == 1:
            compiled = [compile_model(tensors, config, out, progress=progress, **options)]
        else:
            cost = _cost(planner, tensors, config, context)
            ring = compile_ring(tensors, config, out, boards, cost=cost, progress=progress, **options)
            plan, compiled = ring.plan, list(ring.boards)
    progress.clear()
    if as_json:
        facts = [
            {
                **summary(program),
                "image_bytes_per_channel": image.image_bytes,
                "image_sha256": list(image.sha256),
                **({"explanation": explain_program(program)} if explain else {}),
            }
            for program, image in compiled
        ]
        whole = facts[0] if plan is None else {**ring_summary(plan), "board": facts}
        write_json("compile", {"out": out, "weights": tensors.label, "cached_positions": seeded_kv, **whole})
        return 0
    for program, image in compiled:
        if explain:
            sys.stdout.write(explain_program(program))
        total, caches = image.image_bytes * len(image.files), _caches(program.core.rows)
        sys.stdout.write(
            f"{image.files[0].parent}: {len(program.instructions)} instructions, {total:,} bytes of image in "
            f"{len(image.files)} channels, {caches} of {program.registers['context_limit']} positions\n"
        )
    if plan is not None:
        step = plan.estimate
        sys.stdout.write(
            f"{out}: {boards} boards; a decode step with {step.positions} positions attended takes {step.cycles:,} "
            f"cycles ({step.source})\n"
        )
    return 0


def _caches(rows: int) -> str:
    return "cache" if rows == 1 else f"{rows} caches"


def _cost(planner: str, weights: WeightTensors, core: CoreConfig, context: int | None) -> PartitionCost | None:
    """What the slices are chosen by; None for the compiler's own choice."""
    if planner == "rows":
        return None
    from host.compiler import chosen_shape
    from host.compiler.timed_cost import TimedCost

    return TimedCost(weights.config, core, chosen_shape(weights, core, context).context)
