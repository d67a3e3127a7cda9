"""``ringfly generate``: text from a checkpoint and a prompt."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from host.cli.link_text import link_summary
from host.cli.options import (
    BoardsOption,
    CardOption,
    ContextOption,
    CoreOption,
    FrameErrorOption,
    HopOption,
    LinkSeedOption,
    link_timing,
)
from host.cli.output import EXIT_WRONG, command_errors, quiet_stdout, write_json
from host.cli.progress import Progress

if TYPE_CHECKING:
    from host.runtime.report import Generation

__all__ = ["generate_command"]


@command_errors("generate")
def generate_command(
    model: Annotated[
        Path,
        typer.Option(help="HuggingFace checkpoint folder: config.json, model.safetensors, tokenizer.json."),
    ],
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate; fewer if an end of text comes first.")] = 32,
    executor: Annotated[
        str,
        typer.Option(
            help="rtl: the gateware itself, simulated cycle by cycle. functional: the same bits without cycles, "
            "quickly. torch: PyTorch fp32, for comparison."
        ),
    ] = "rtl",
    core: CoreOption = "16x4",
    boards: BoardsOption = 1,
    hop_ns: HopOption = None,
    link_seed: LinkSeedOption = None,
    frame_error_rate: FrameErrorOption = None,
    card: CardOption = None,
    temperature: Annotated[
        float, typer.Option(help="0: always the most probable token. Above 0: draw, the flatter the higher.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from the so many most probable tokens only; 0: from all.")] = 0,
    seed: Annotated[
        int, typer.Option(help="Seed of the draws: the same seed gives the same text on every executor.")
    ] = 0,
    context: ContextOption = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Judge each token by PyTorch fp32 (not when drawing).")
    ] = True,
    timeout_s: Annotated[float, typer.Option(help="Give up when the run takes longer, in seconds.")] = 600.0,
    xclbin: Annotated[
        Path | None, typer.Option(help="xclbin of the kernel; default: the one that Ringfly keeps for the core.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with every figure and condition instead of the text.")
    ] = False,
) -> int:
    """Continue a prompt with a GPT-2 checkpoint, on simulated gateware by default.

    The text appears on standard output token by token; a summary with cycles per token follows on standard error.
    Every token is checked against PyTorch fp32 run over the same text: the result is `equal`, `near_tie(n)` (n tokens
    where PyTorch's two best were closer together than rounding can tell), or `wrong` (exit code 4).

    Example: ringfly generate --model checkpoints/gpt2-tiny --prompt "And it came to pass" --max-new-tokens 20

    Example: ringfly generate --model checkpoints/gpt2-tiny --prompt "And it came to pass" --boards 4 --hop-ns 200
    """
    from host.runtime.generate import generate

    progress = Progress()
    pieces: list[str] = []

    def show(text: str) -> None:
        pieces.append(text)
        if as_json:
            progress("generating", min(len(pieces), max_new_tokens), max_new_tokens)
            return
        progress.clear()
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        with quiet_stdout(as_json):
            result = generate(
                model,
                prompt,
                max_new_tokens,
                executor=executor,
                core=core,
                boards=boards,
                links=link_timing(hop_ns, link_seed, frame_error_rate),
                cards=card or (),
                seed=seed,
                temperature=temperature,
                top_k=top_k,
                context=context,
                check=check,
                timeout_s=timeout_s,
                xclbin=xclbin,
                on_text=show,
                progress=progress,
            )
    finally:
        if pieces and not as_json:  # also before an error line
            sys.stdout.write("\n")
            sys.stdout.flush()
    progress.clear()
    if as_json:
        write_json("generate", dataclasses.asdict(result))
    else:
        sys.stderr.write(_summary(result) + "\n")
    return EXIT_WRONG if result.matches_reference == "wrong" else 0


def _summary(result: Generation) -> str:
    parts = [f"{len(result.tokens)} tokens after a prompt of {len(result.prompt_tokens)} ({result.finish_reason})"]
    cores = "" if result.core is None else f", core {result.core}"
    parts.append(f"{result.executor}{cores}" + (f" on {result.boards} boards" if result.boards > 1 else ""))
    if result.decode_cycles_per_token is not None:
        parts.append(
            f"{result.decode_cycles_per_token:,.0f} cycles a token, {result.ms_per_token:.4f} ms at an assumed "
            f"{result.conditions['core_clock_mhz']} MHz; {result.prefill_cycles:,} cycles to the first"
        )
    if result.link_counters:
        parts.append(f"cables: {link_summary(result.link_counters)}")
    if result.matches_reference is not None:
        parts.append(f"compared with PyTorch fp32: {result.matches_reference}")
        check = result.conditions["check"]
        if isinstance(check, dict) and check["suspicion"]:
            parts.append(str(check["suspicion"]))
    for tie in (*result.near_ties, *result.wrong_tokens):
        here = f"position {tie['position']}: token {tie['ours']}, PyTorch {tie['reference']}"
        parts.append(f"{here}, logits apart by {tie['gap']:.2g}")
    parts.append(", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items()))
    return "\n".join(f"  {part}" for part in parts)
