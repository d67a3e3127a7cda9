"""``ringfly generate``: text from a checkpoint and one or several prompts."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from host.cli.generation_text import batch_summary, generation_summary
from host.cli.options import (
    BoardsOption,
    CardOption,
    ContextOption,
    CoreOption,
    FrameErrorOption,
    HopOption,
    LinkSeedOption,
    RowsOption,
    WeightsOption,
    link_timing,
)
from host.cli.output import EXIT_WRONG, command_errors, quiet_stdout, write_json
from host.cli.progress import Progress
from host.cli.prompts import chosen_prompts

__all__ = ["generate_command"]


@command_errors("generate")
def generate_command(
    model: Annotated[
        Path,
        typer.Option(help="HuggingFace checkpoint folder: config.json, model.safetensors, tokenizer.json."),
    ],
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to continue. Given several times: texts that are continued together.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="File of prompts, one a line; empty lines are none.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate; fewer if an end of text comes first.")] = 32,
    executor: Annotated[
        str,
        typer.Option(
            help="rtl: the gateware itself, simulated cycle by cycle. functional: the same bits without cycles, "
            "quickly. torch: PyTorch fp32, for comparison."
        ),
    ] = "rtl",
    core: CoreOption = "16x4",
    rows: RowsOption = None,
    weights: WeightsOption = None,
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
    """Continue one or several prompts with a GPT-2 checkpoint, on simulated gateware by default.

    The text appears on standard output token by token; a summary with cycles per token follows on standard error.
    Every token is checked against PyTorch fp32 run over the same text: the result is `equal`, `near_tie(n)` (n tokens
    where PyTorch's two best were closer together than rounding can tell), or `wrong` (exit code 4).

    A core with rows (--rows) reads so many tokens of a prompt at a time, and continues so many prompts together: more
    are run in groups, and texts that the host draws (--top-k above 64) one after the other. Several texts are printed
    at the end; with --json `results` has one entry for each prompt, `batches` what prompts had in common.

    Example: ringfly generate --model checkpoints/gpt2-tiny --prompt "And it came to pass" --max-new-tokens 20

    Example: ringfly generate --model checkpoints/gpt2-tiny --prompt "And it came to pass" --boards 4 --hop-ns 200

    Example: ringfly generate --model checkpoints/gpt2-tiny --rows 4 --prompt "And it came" --prompt "In the beginning"
    """
    from host.runtime.generate import GenerateOptions, generate_batch

    progress = Progress()
    texts = chosen_prompts(prompt or (), prompts)
    together = len(texts) > 1  # then texts grow side by side, and are printed at the end
    pieces = 0

    def show(number: int, text: str) -> None:
        nonlocal pieces
        pieces += 1
        if as_json or together:
            total = max_new_tokens * len(texts)
            progress("generating", min(pieces, total), total)
            return
        progress.clear()
        sys.stdout.write(text)
        sys.stdout.flush()

    options = GenerateOptions(
        executor=executor,
        core=core,
        rows=rows,
        weights=weights,
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
    )
    try:
        with quiet_stdout(as_json):
            batch = generate_batch(model, texts, max_new_tokens, options, on_text=show, progress=progress)
    finally:
        if pieces and not as_json and not together:  # also before an error line
            sys.stdout.write("\n")
            sys.stdout.flush()
    progress.clear()
    results = batch.results
    if as_json:
        if together:
            write_json("generate", dataclasses.asdict(batch), schema="ringfly-generate-batch/1")
        else:
            write_json("generate", dataclasses.asdict(results[0]))
    else:
        if together:
            sys.stdout.write("".join(f"--- {number}: {one.prompt}\n{one.text}\n" for number, one in enumerate(results)))
            sys.stdout.flush()
        sys.stderr.write(batch_summary(batch) if together else generation_summary(results[0]))
    return EXIT_WRONG if any(one.matches_reference == "wrong" for one in results) else 0
