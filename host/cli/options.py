"""Options that several commands have, with one wording."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "SIZES_HELP",
    "ContextOption",
    "CoreOption",
    "JsonOption",
    "MemoryOption",
    "RefreshSeedOption",
    "SizesOption",
]

CoreOption = Annotated[
    str, typer.Option(help="The accelerator core: 16x4, 64x16 (products per lane x lanes), or a JSON file.")
]
ContextOption = Annotated[
    int | None, typer.Option(help="Positions of the key/value cache; default: as many as model and core allow.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
SIZES_HELP = (
    "A known size: gpt2-124m, gpt2-345m, gpt2-774m, gpt2-xl, gpt2-1.5b-dfx; or a checkpoint folder, of which only "
    "config.json is read."
)
SizesOption = Annotated[str, typer.Option(help=SIZES_HELP)]
MemoryOption = Annotated[
    str,
    typer.Option(help="u280: its HBM as measured. ideal: a fixed delay, no refresh, every port at its full rate."),
]
RefreshSeedOption = Annotated[int, typer.Option(help="Seed of the phases of the memory's refreshes.")]
