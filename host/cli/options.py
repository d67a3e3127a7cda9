"""Options that several commands have, with one wording."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.devices.link_timing import LinkTiming

__all__ = [
    "SIZES_HELP",
    "BoardsOption",
    "CardOption",
    "ContextOption",
    "CoreOption",
    "FrameErrorOption",
    "HopOption",
    "JsonOption",
    "LinkSeedOption",
    "MemoryOption",
    "RefreshSeedOption",
    "RowsOption",
    "SizesOption",
    "TimedHopOption",
    "WeightsOption",
    "link_timing",
]

CoreOption = Annotated[
    str,
    typer.Option(
        help="The accelerator core: 16x4, 64x16 (products per lane x lanes), with r2 or r4 behind it for rows and i8 "
        "for int8 weights (64x16r4, 64x16i8, 64x16r4i8), or a JSON file."
    ),
]
RowsOption = Annotated[
    int | None,
    typer.Option(
        help="Rows of the core, 1, 2 or 4: so many tokens of a prompt, or requests, share one pass over the weights. "
        "--core 16x4 --rows 4 is --core 16x4r4."
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        help="Weights of the core, fp16 or int8: half the memory and two strips a cycle; keys, values, embeddings and "
        "activations stay fp16. --core 16x4 --weights int8 is --core 16x4i8."
    ),
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
HopOption = Annotated[
    float | None,
    typer.Option(help="Between boards of rtl: time from board to board, one way, in nanoseconds; default: 500."),
]
BoardsOption = Annotated[int, typer.Option(help="Boards that share the model, 1 to 8.")]
TimedHopOption = Annotated[
    float | None,
    typer.Option(help="Between boards: time from board to board, one way, in nanoseconds; default: 500."),
]
LinkSeedOption = Annotated[
    int | None,
    typer.Option(
        help="Between boards of rtl: seed of the cables' draws; with it each word takes up to a fifth of a hop longer."
    ),
]
FrameErrorOption = Annotated[
    float | None,
    typer.Option(help="Between boards of rtl: probability that a frame is damaged under way; default: 0."),
]
CardOption = Annotated[
    list[str] | None,
    typer.Option("--card", help="Name of a card, once a board: it is locked, so that no other process takes it too."),
]

JITTER_SHARE = 0.2  # of a hop's time


def link_timing(hop_ns: float | None, link_seed: int | None, frame_error_rate: float | None) -> LinkTiming | None:
    """The cables that the options describe, or None if none of them is given. Raises BadInput."""
    from host.errors import BadInput
    from sim.devices.link_timing import LinkTiming

    if hop_ns is None and link_seed is None and frame_error_rate is None:
        return None
    try:
        links = LinkTiming() if hop_ns is None else LinkTiming(hop_ns=hop_ns)
        return dataclasses.replace(
            links,
            jitter_ns=0.0 if link_seed is None else JITTER_SHARE * links.hop_ns,
            frame_error_rate=frame_error_rate or 0.0,
            seed=link_seed or 0,
        )
    except ValueError as error:
        value = {"hop_ns": hop_ns, "link_seed": link_seed, "frame_error_rate": frame_error_rate}
        raise BadInput(str(error), value=value, hint="Give other cables.") from None
