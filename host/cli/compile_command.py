"""``ringfly compile``: a checkpoint, or a known size with seeded weights, to a program folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from host.cli.options import ContextOption, CoreOption, JsonOption
from host.cli.output import command_errors, quiet_stdout, write_json
from host.cli.progress import Progress

__all__ = ["compile_command"]


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
    context: ContextOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a known size's weights; default: 0.")] = None,
    seeded_kv: Annotated[
        int,
        typer.Option(
            help="So many leading positions have seeded keys and values in the image: a run starts behind them. 127 "
            "for a step at context length 128."
        ),
    ] = 0,
    kv_seed: Annotated[int, typer.Option(help="Seed of these keys and values.")] = 0,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print the memory map, every instruction, and the ideal cycles of a token."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Turn a GPT-2 into the program and memory image of one board.

    Writes program.json, program.bin and one file for each memory channel (ch00.bin ...). Everything that does not fit
    the core is listed at once, before a byte is written. Run the result with `ringfly sim`.

    Example: ringfly compile --model checkpoints/gpt2-tiny --core 16x4 --out build/gpt2-tiny --explain

    Example: ringfly compile --model gpt2-345m --seed 1 --core 64x16 --seeded-kv 127 --out build/345m
    """
    from host.compiler import chosen_core, chosen_model, compile_model
    from host.compiler import explain as explain_program
    from host.compiler.explain import summary

    progress = Progress()
    with quiet_stdout(as_json):
        weights = chosen_model(model, seed)
        program, image = compile_model(
            weights,
            chosen_core(core),
            out,
            context=context,
            seeded_positions=seeded_kv,
            kv_seed=kv_seed,
            progress=progress,
        )
    progress.clear()
    facts = summary(program)
    if as_json:
        body: dict[str, object] = {
            "out": out,
            "weights": weights.label,
            **facts,
            "cached_positions": seeded_kv,
            "image_bytes_per_channel": image.image_bytes,
            "image_sha256": list(image.sha256),
        }
        if explain:
            body["explanation"] = explain_program(program)
        write_json("compile", body)
        return 0
    if explain:
        sys.stdout.write(explain_program(program))
    total = image.image_bytes * len(image.files)
    sys.stdout.write(
        f"{out}: {len(program.instructions)} instructions, {total:,} bytes of image in {len(image.files)} channels, "
        f"cache of {facts['context']} positions\n"
    )
    return 0
