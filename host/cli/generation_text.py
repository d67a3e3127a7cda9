"""What `ringfly generate` says of a run on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from host.cli.link_text import link_summary

if TYPE_CHECKING:
    from host.runtime.report import Generation, GenerationBatch

__all__ = ["batch_summary", "generation_summary"]


def generation_summary(result: Generation) -> str:
    """Lines on one text: its length, where it was made, cycles, cables, verdict, times."""
    parts = [_length(result), _where(result)]
    if result.decode_cycles_per_token is not None:
        parts.append(
            f"{result.decode_cycles_per_token:,.0f} cycles a token, {result.ms_per_token:.4f} ms at an assumed "
            f"{result.conditions['core_clock_mhz']} MHz; {result.prefill_cycles:,} cycles to the first"
        )
    if result.link_counters:
        parts.append(f"cables: {link_summary(result.link_counters)}")
    return _indented([*parts, *_verdict(result), _times(result.seconds)])


def batch_summary(batch: GenerationBatch) -> str:
    """Lines on several texts and on the runs that they shared."""
    results = batch.results
    parts = [f"{len(results)} prompts, {_where(results[0])}"]
    for number, result in enumerate(results):
        prefill = "" if result.prefill_cycles is None else f"; {result.prefill_cycles:,} cycles to the first"
        parts.append(f"{number}: {_length(result)}{prefill}")
        parts += [f"   {line}" for line in _verdict(result)]
    for run in batch.batches:
        parts.append(_shared_run(run, results[0].conditions["core_clock_mhz"]))
    return _indented([*parts, _times(batch.seconds)])


def _shared_run(run: dict[str, Any], clock_mhz: object) -> str:
    requests = ", ".join(map(str, run["requests"]))
    text = f"prompts {requests} together: {run['tokens']} tokens in {run['steps']} steps"
    if run["cycles"] is None:
        return text
    return (
        f"{text}; {run['cycles_per_step']:,.0f} cycles a step, {run['ms_per_step']:.4f} ms at an assumed {clock_mhz} "
        f"MHz; {run['cycles_per_token']:,.0f} cycles a token"
    )


def _length(result: Generation) -> str:
    return f"{len(result.tokens)} tokens after a prompt of {len(result.prompt_tokens)} ({result.finish_reason})"


def _where(result: Generation) -> str:
    cores = "" if result.core is None else f", core {result.core}"
    return f"{result.executor}{cores}" + (f" on {result.boards} boards" if result.boards > 1 else "")


def _verdict(result: Generation) -> list[str]:
    parts = []
    if result.matches_reference is not None:
        parts.append(f"compared with PyTorch fp32: {result.matches_reference}")
        check = result.conditions["check"]
        if isinstance(check, dict) and check["suspicion"]:
            parts.append(str(check["suspicion"]))
    for tie in (*result.near_ties, *result.wrong_tokens):
        here = f"position {tie['position']}: token {tie['ours']}, PyTorch {tie['reference']}"
        parts.append(f"{here}, logits apart by {tie['gap']:.2g}")
    return parts


def _times(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())


def _indented(parts: list[str]) -> str:
    return "".join(f"  {part}\n" for part in parts)
