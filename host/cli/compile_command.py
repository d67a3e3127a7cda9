"""``ringfly compile``: a checkpoint to a program folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from host.cli.output import command_errors, quiet_stdout, write_json
from host.cli.progress import Progress

__all__ = ["compile_command"]


@command_errors("compile")
def compile_command(
    model: Annotated[
        Path, typer.Option(help="Checkpoint folder in HuggingFace format: config.json, model.safetensors.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to make. An earlier program there is replaced, anything else refused.")
    ],
    core: Annotated[
        str, typer.Option(help="The accelerator core: 16x4, 64x16 (products per lane x lanes), or a JSON file.")
    ] = "16x4",
    context: Annotated[
        int | None, typer.Option(help="Positions of the key/value cache; default: as many as model and core allow.")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print the memory map, every instruction, and the ideal cycles of a token."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> int:
    """Turn a GPT-2 checkpoint into the program and memory image of one board.

    Writes program.json, program.bin and one file for each memory channel (ch00.bin ...). Everything that does not fit
    the core is listed at once, before a byte is written. Run the result with `ringfly sim`.

    Example: ringfly compile --model checkpoints/gpt2-tiny --core 16x4 --out build/gpt2-tiny --explain
    """
    from host.compiler import chosen_core, compile_model
    from host.compiler import explain as explain_program
    from host.compiler.explain import summary

    progress = Progress()
    with quiet_stdout(as_json):
        program, image = compile_model(model, chosen_core(core), out, context=context, progress=progress)
    progress.clear()
    facts = summary(program)
    if as_json:
        body: dict[str, object] = {
            "out": out,
            **facts,
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
