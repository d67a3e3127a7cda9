"""What a generation reports: the result with every condition under which it was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from host.runtime.comparison import Comparison
from host.runtime.job import RunOutcome, SharedRun
from host.runtime.sampling import Sampler
from hw.gpt2.config import CoreConfig

if TYPE_CHECKING:
    from sim.devices.link_timing import LinkTiming

__all__ = [
    "ExecutedOn",
    "Generation",
    "GenerationBatch",
    "check_conditions",
    "decode_cycles_per_token",
    "link_conditions",
    "milliseconds",
    "reported_generation",
    "run_conditions",
    "shared_runs",
]


@dataclasses.dataclass(frozen=True)
class Generation:
    """Everything that `ringfly generate --json` reports; None where an executor has no such figure.

    `tokens` are the new ids, `text` is their text. `prefill_cycles` run to the first new token;
    `decode_cycles_per_token` is the mean over the others, in a batch over its steps, which several requests share;
    `ms_per_token` is its time at the core's clock and `ms_per_token_at_200mhz` that at 200 MHz whatever the core's
    clock. `matches_reference` is ``equal``, ``near_tie(n)`` or ``wrong``, and None with sampling or without the check.
    `counters` are board 0's; of several boards `board_counters` has those of each, and `link_counters` what each port
    (0 left, 1 right) of each counted; those of a run that several requests share are not among them.
    `seconds` are those of the whole call.
    """

    text: str
    tokens: list[int]
    prompt: str
    prompt_tokens: list[int]
    finish_reason: str
    executor: str
    boards: int
    core: str | None
    decode_cycles_per_token: float | None
    prefill_cycles: int | None
    ms_per_token: float | None
    ms_per_token_at_200mhz: float | None
    cycles_source: str | None
    verilog_sha256: str | None
    counters: dict[str, int] | None
    board_counters: list[dict[str, int]] | None
    link_counters: list[list[dict[str, int]]] | None
    matches_reference: str | None
    near_ties: list[dict[str, object]]
    wrong_tokens: list[dict[str, object]]
    seconds: dict[str, float]
    conditions: dict[str, object]


@dataclasses.dataclass(frozen=True)
class GenerationBatch:
    """What several prompts of one call came to.

    Members: `results`: one a prompt, in order; `batches`: the runs that several of them shared (`shared_runs`);
    `rows` of the core, None without one; `seconds` of the whole call.
    """

    results: list[Generation]
    batches: list[dict[str, object]]
    rows: int | None
    seconds: dict[str, float]


@dataclasses.dataclass(frozen=True)
class ExecutedOn:
    """What made the tokens: executor, its number of boards, their core and Verilog; None where it has none."""

    executor: str
    boards: int
    core: CoreConfig | None
    verilog_sha256: str | None


def reported_generation(
    prompt: str,
    prompt_ids: list[int],
    text: str,
    outcome: RunOutcome,
    where: ExecutedOn,
    comparison: Comparison | None,
    seconds: dict[str, float],
    conditions: dict[str, object],
) -> Generation:
    """What one prompt came to: `text` of the tokens of `outcome`, judged by `comparison`."""
    cycles_per_token, core = decode_cycles_per_token(outcome), where.core
    return Generation(
        text=text,
        tokens=outcome.tokens,
        prompt=prompt,
        prompt_tokens=prompt_ids,
        finish_reason=outcome.finish_reason,
        executor=where.executor,
        boards=where.boards,
        core=None if core is None else core.name,
        decode_cycles_per_token=cycles_per_token,
        prefill_cycles=outcome.prefill_cycles,
        ms_per_token=None if core is None else milliseconds(cycles_per_token, core.core_clock_mhz),
        ms_per_token_at_200mhz=milliseconds(cycles_per_token, 200),
        cycles_source="rtl" if outcome.prefill_cycles is not None else None,
        verilog_sha256=where.verilog_sha256,
        counters=outcome.counters[0] if outcome.counters else None,
        board_counters=outcome.counters if where.boards > 1 and outcome.counters else None,
        link_counters=outcome.link_counters or None,
        matches_reference=comparison.verdict if comparison else None,
        near_ties=[dataclasses.asdict(tie) for tie in comparison.near_ties] if comparison else [],
        wrong_tokens=[dataclasses.asdict(tie) for tie in comparison.wrong] if comparison else [],
        seconds=seconds,
        conditions=conditions,
    )


def shared_runs(outcomes: Sequence[RunOutcome], core_clock_mhz: int) -> list[dict[str, object]]:
    """The batch runs of some outcomes for ``--json``: requests, steps, tokens, and cycles where there is a clock."""
    runs = {outcome.shared.jobs: outcome.shared for outcome in outcomes if outcome.shared is not None}
    return [_shared_run(run, core_clock_mhz) for run in runs.values()]


def _shared_run(run: SharedRun, core_clock_mhz: int) -> dict[str, object]:
    cycles_per_step = None if run.cycles is None or not run.steps else run.cycles / run.steps
    return {
        "requests": list(run.jobs),
        "steps": run.steps,
        "tokens": run.tokens,
        "cycles": run.cycles,
        "cycles_per_step": cycles_per_step,
        "ms_per_step": milliseconds(cycles_per_step, core_clock_mhz),
        "cycles_per_token": None if run.cycles is None or not run.tokens else run.cycles / run.tokens,
        "counters": run.counters or None,
    }


def run_conditions(
    executor: str,
    outcome: RunOutcome,
    keep_logits: bool,
    core_clock_mhz: int,
    boards: int,
    links: LinkTiming | None,
) -> dict[str, object]:
    """How the run was made: starts, models of memory and cables, clock of the gateware, or versions of PyTorch."""
    if executor == "torch":
        import torch

        return {"torch": torch.__version__, "dtype": "float32", "batch": 1}
    found: dict[str, object] = {
        "batch": 1 if outcome.shared is None else len(outcome.shared.jobs),
        "starts": outcome.starts,
        "sampled_by": outcome.sampled_by,
        "logits_written": keep_logits or outcome.sampled_by == "host",
    }
    if executor == "rtl":
        from sim.devices.named import named_memory

        found["memory_model"] = {"name": "u280", **dataclasses.asdict(named_memory("u280"))}
        if boards > 1:
            found["link_model"] = link_conditions(links)
        found["clock"] = f"assumed {core_clock_mhz} MHz; nothing was placed and routed"
    return found


def link_conditions(links: LinkTiming | None) -> dict[str, object]:
    """Every parameter of the cables between simulated boards; None stands for the default ones."""
    from sim.devices.link_timing import LinkTiming

    return dataclasses.asdict(links or LinkTiming())


def check_conditions(check: bool, sampler: Sampler, comparison: Comparison | None) -> dict[str, object]:
    """By what the tokens were judged, or why they were not."""
    if comparison is None:
        return {"done": False, "why": "sampling" if check and not sampler.greedy else "--no-check"}
    return {
        "done": True,
        "reference": "PyTorch fp32 (sw.models.gpt2), one pass over prompt + generated tokens",
        "tokens": comparison.tokens,
        "rms_error": comparison.rms_error,
        "rms_error_source": comparison.rms_source,
        "near_tie_threshold": comparison.threshold,
        "suspicion": comparison.suspicion,
    }


def decode_cycles_per_token(outcome: RunOutcome) -> float | None:
    """Mean cycles of a token behind the first, in a batch of a step; None without cycles or with a single token."""
    if outcome.shared is not None and outcome.shared.cycles is not None:
        return outcome.shared.cycles / outcome.shared.steps
    behind_first = len(outcome.tokens) - 1
    if outcome.decode_cycles is None or behind_first < 1:
        return None
    return outcome.decode_cycles / behind_first


def milliseconds(cycles: float | None, clock_mhz: int) -> float | None:
    """Time of so many cycles; None of None."""
    return None if cycles is None else cycles / (clock_mhz * 1e3)
