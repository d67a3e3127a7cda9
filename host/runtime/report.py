"""What a generation reports: the result with every condition under which it was measured."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from host.runtime.comparison import Comparison
from host.runtime.job import RunOutcome
from host.runtime.sampling import Sampler

if TYPE_CHECKING:
    from sim.devices.link_timing import LinkTiming

__all__ = [
    "Generation",
    "check_conditions",
    "decode_cycles_per_token",
    "link_conditions",
    "milliseconds",
    "run_conditions",
]


@dataclasses.dataclass(frozen=True)
class Generation:
    """Everything that `ringfly generate --json` reports; None where an executor has no such figure.

    `tokens` are the new ids, `text` is their text. `prefill_cycles` run to the first new token;
    `decode_cycles_per_token` is the mean over the others, `ms_per_token` its time at the core's clock and
    `ms_per_token_at_200mhz` that at 200 MHz whatever the core's clock. `matches_reference` is ``equal``,
    ``near_tie(n)`` or ``wrong``, and None with sampling or without the check. `counters` are board 0's; of several
    boards `board_counters` has those of each, and `link_counters` what each port (0 left, 1 right) of each counted.
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


def run_conditions(
    executor: str,
    sampler: Sampler,
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
        "batch": 1,
        "starts": outcome.starts,
        "logits_written": keep_logits or not sampler.greedy,
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
    """Mean cycles of a token behind the first; None without cycles or with a single token."""
    behind_first = len(outcome.tokens) - 1
    if outcome.decode_cycles is None or behind_first < 1:
        return None
    return outcome.decode_cycles / behind_first


def milliseconds(cycles: float | None, clock_mhz: int) -> float | None:
    """Time of so many cycles; None of None."""
    return None if cycles is None else cycles / (clock_mhz * 1e3)
