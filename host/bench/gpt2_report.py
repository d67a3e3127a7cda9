"""Latency and throughput of every model and number of boards over lengths, beside published figures: `bench gpt2`.

Fairness is a matter of definitions: a published figure stands only beside our figure of the same definition (prompt
included or not), with its precision, devices and conditions; a ratio is made of nothing else. Ours are simulated cycles
at an assumed clock, never measured on a card.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from host.bench.gpt2_lengths import GenerationCycles, Length, LengthTimes, time_lengths
from host.bench.published import Published, Quantity
from host.bench.published_figures import PUBLISHED
from host.bench.streamed_work import HALF_BITS, token_bytes
from host.bench.timed_program import TimedProgram, milliseconds
from host.compiler import chosen_sizes
from host.errors import BadInput
from sim.rtl.verilog_record import verilog_sha256
from sw.models.named_sizes import NAMED_SIZES
from sw.models.weights import Progress, unobserved

__all__ = [
    "BOARDS",
    "DFX_LENGTHS",
    "HBM_PEAK_GB_S",
    "LENGTHS",
    "MODELS",
    "compared",
    "gpt2_report",
    "length_row",
]

MODELS = tuple(NAMED_SIZES)
BOARDS = (1, 2, 4, 8)
LENGTHS = tuple(Length(n, n) for n in (32, 64, 128, 256))
DFX_LENGTHS = tuple(Length(prompt, output) for prompt in (32, 64, 128) for output in (1, 4, 16, 64, 256))
"""Prompts of 32 to 128 and outputs of 1 to 256, the range of DFX's figures."""
HBM_PEAK_GB_S = 460.0
"""Theoretical bandwidth of a U280's HBM, the figure that DFX and FlightLLM relate to."""
_FP16, _INT8 = "fp16", "int8 weights, fp16 activations"
_WITHOUT_LENGTH = Length(64, 64)  # rows that published figures without lengths stand beside

_OWN = {
    Quantity.TOTAL_MS: "total_ms",
    Quantity.FIRST_TOKEN_MS: "first_token_ms",
    Quantity.STEP_MS: "decode_ms_per_token",
    Quantity.DECODE_RATE: "decode_tokens_per_s",
    Quantity.RATE_WITH_PROMPT: "tokens_per_s_with_prompt",
}
_RATES = (Quantity.DECODE_RATE, Quantity.RATE_WITH_PROMPT)
DEFINITIONS = {
    "first_token_ms": "from start to the first new token, the whole prompt included",
    "total_ms": "from start to the last new token, prompt included",
    "decode_ms_per_token": "(total - first token) / (output tokens - 1): the prompt's time left out",
    "decode_tokens_per_s": "its inverse, steady decode",
    "tokens_per_s_with_prompt": "output tokens / total time, prompt included: DFX's definition of throughput",
    "bytes_per_token": "parameters that a decode step reads x precision, and K/V of the attended positions, mean",
    "bandwidth_fraction": f"bytes per token / decode time per token / (boards x {HBM_PEAK_GB_S:g} GB/s, theoretical)",
    "speedup": "how many times faster than the published figure of the same definition; simulated against published",
    "energy_and_cost": "none of ours: nothing was run on a card; published ones are listed with their sources",
}
"""What each figure of a row is."""


def gpt2_report(
    models: Sequence[str],
    boards: Sequence[int] | None,
    lengths: Sequence[Length],
    *,
    core: str = "64x16",
    memory: str = "u280",
    seed: int = 0,
    hop_ns: float | None = None,
    progress: Progress = unobserved,
) -> dict[str, Any]:
    """The report for `--json`: `rows`, the `machines` that they ran on, all `published` figures.

    Parameters: `models`: named sizes or checkpoint folders; `boards`: None for those of `BOARDS` that no model has too
    few heads for; `lengths`; the others as of `TimedProgram.of_model`, `hop_ns` between boards. Raises BadInput,
    CheckpointError, CompileError, TimingError.
    """
    machines = []
    for model in models:
        heads = chosen_sizes(model).config.n_head
        for count in [count for count in BOARDS if count <= heads] if boards is None else boards:
            cables = None if count == 1 and list(boards or ()) != [1] else hop_ns  # one board alone refuses cables
            machines.append(TimedProgram.of_model(model, core, None, memory, seed, boards=count, hop_ns=cables))
    for timed in machines:  # before anything long begins
        if timed.program.core.rows > 1:
            raise BadInput(
                f"core {timed.program.core.name} takes several tokens of a prompt in a step",
                value=timed.program.core.name,
                expected="a core with one row",
                hint="Its prompts: `ringfly time --prompt`.",
            )
        for length in lengths:
            timed.check_positions(f"prompt + output - 1 of length {length}", length.positions)
    if not machines:
        raise BadInput("no model to time", expected="at least one", hint="Give --model, or leave it out for all.")
    done: list[str] = []

    def run(timed: TimedProgram) -> LengthTimes:
        found = time_lengths(timed, lengths, lambda what, *_: progress(what, len(done), len(machines)))
        done.append(timed.label)
        return found

    with ThreadPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as pool:  # the model runs outside Python's lock
        # the longest first: curves of large rings need the most contexts
        order = sorted(range(len(machines)), key=lambda n: (-machines[n].boards, -machines[n].step_rows(1)))
        found = dict(zip(order, pool.map(run, [machines[n] for n in order]), strict=True))
    times = [found[n] for n in range(len(machines))]
    return {
        "rows": [length_row(one, cycles, lengths) for one in times for cycles in one.lengths],
        "machines": [_machine(one) for one in times],
        "published": [one.facts() for one in PUBLISHED],
        "definitions": DEFINITIONS,
    }


def length_row(times: LengthTimes, cycles: GenerationCycles, lengths: Sequence[Length]) -> dict[str, Any]:
    """The row of one length; `lengths` are all of the table."""
    timed, length, steps = times.timed, cycles.length, cycles.decode_steps
    config = chosen_sizes(timed.label).config
    total_ms = milliseconds(cycles.total)
    step_ms = milliseconds(cycles.decode) / steps if steps else None
    attended = length.prompt + length.output / 2  # mean over the decode steps
    int8 = timed.program.core.has_int8
    read = token_bytes(config, attended, weight_bits=8 if int8 else HALF_BITS)
    rate = None if step_ms is None else read / (step_ms * 1e6)
    row = {
        "model": timed.label,
        "boards": timed.boards,
        "in": length.prompt,
        "out": length.output,
        "first_token_ms": milliseconds(cycles.first_token),
        "total_ms": total_ms,
        "decode_ms_per_token": step_ms,
        "decode_tokens_per_s": None if step_ms is None else 1000 / step_ms,
        "tokens_per_s_with_prompt": 1000 * length.output / total_ms,
        "first_token_cycles": cycles.first_token,
        "total_cycles": cycles.total,
        "bytes_per_token": None if step_ms is None else read,
        "bandwidth_gb_s": rate,
        "bandwidth_fraction": None if rate is None else rate / (HBM_PEAK_GB_S * timed.boards),
        "bandwidth_mark": "simulated",
        "precision": _INT8 if int8 else _FP16,
        "cycles_source": "timing",
        "conditions": {
            "method": times.method["method"],
            "prompt_included": "in total_ms, first_token_ms and tokens_per_s_with_prompt; not in decode figures",
        },
    }
    beside = _WITHOUT_LENGTH if _WITHOUT_LENGTH in lengths else lengths[0]
    return row | {"published": compared(row, with_lengthless=length == beside)}


def compared(row: dict[str, Any], *, with_lengthless: bool) -> list[dict[str, Any]]:
    """The published figures of the row's model, boards and length, each with our figure of the same definition.

    `with_lengthless`: also those that no length is known of.
    """
    found = []
    for one in PUBLISHED:
        if one.model != row["model"] or one.devices != row["boards"] or one.quantity not in _OWN:
            continue
        if one.length != (row["in"], row["out"]) and not (one.length is None and with_lengthless):
            continue
        own = row[_OWN[one.quantity]]
        if own is not None:
            found.append(_beside(one, own, row["precision"]))
    return found


def _beside(one: Published, own: float, precision: str) -> dict[str, Any]:
    return {
        "label": one.label,
        "quantity": one.quantity.value,
        "published": one.value,
        "ours": own,
        "speedup": own / one.value if one.quantity in _RATES else one.value / own,
        "same_precision": one.precision == precision,
        "precision": one.precision,
        "basis": one.basis.value,
        "conditions": one.conditions,
        "citation": one.citation,
        "read_from": one.read_from,
    }


def _machine(times: LengthTimes) -> dict[str, Any]:
    timed = times.timed
    return {
        "model": timed.label,
        "boards": timed.boards,
        "verilog_sha256": verilog_sha256(timed.program.core),
        "conditions": {**timed.conditions(), **times.method, "bandwidth_peak_gb_s": HBM_PEAK_GB_S * timed.boards},
    }
