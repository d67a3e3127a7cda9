"""Latency and throughput of every model, core and number of boards over lengths, beside published: `bench gpt2`.

Fairness is a matter of definitions: a published figure stands only beside our figure of the same definition (prompt
included or not), with its precision, devices and conditions; a ratio is made of nothing else. Published figures are of
one request at a time, so none stands beside a batch. Ours are simulated cycles at an assumed clock, never measured on a
card.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from host.bench.gpt2_lengths import GenerationCycles, Length, LengthTimes, time_lengths
from host.bench.published import Published, Quantity
from host.bench.published_figures import PUBLISHED
from host.bench.streamed_work import HALF_BITS, key_value_bytes, token_bytes
from host.bench.timed_program import TimedProgram, milliseconds
from host.compiler import chosen_core, chosen_sizes
from host.errors import BadInput
from sim.rtl.verilog_record import verilog_sha256
from sw.models.named_sizes import NAMED_SIZES
from sw.models.weights import Progress, unobserved

__all__ = [
    "BOARDS",
    "CORES",
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
CORES = ("64x16", "64x16i8", "64x16r4")
"""By default: fp16 on all of `BOARDS`; int8 weights, and 4 rows of multipliers, on one board."""
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
    "decode_ms_per_token": "(total - first token) / (output tokens - 1) of a request: the prompt's time left out",
    "decode_tokens_per_s": "its inverse, steady decode; of a batch all requests' tokens",
    "tokens_per_s_with_prompt": "output tokens (of a batch all requests') / total time, prompt included: DFX's "
    "definition of throughput",
    "bytes_per_token": "parameters that a decode step reads x precision, shared by the requests of a batch, and K/V of "
    "the attended positions, mean",
    "bandwidth_fraction": f"bytes of a step / its time / (boards x {HBM_PEAK_GB_S:g} GB/s, theoretical)",
    "requests": "1: one request alone; more: a batch of so many equal ones that share each pass over the weights",
    "speedup": "how many times faster than the published figure of the same definition; simulated against published",
    "energy_and_cost": "none of ours: nothing was run on a card; published ones are listed with their sources",
}
"""What each figure of a row is."""


def gpt2_report(
    models: Sequence[str],
    boards: Sequence[int] | None,
    lengths: Sequence[Length],
    *,
    cores: Sequence[str] | None = None,
    memory: str = "u280",
    seed: int = 0,
    hop_ns: float | None = None,
    progress: Progress = unobserved,
) -> dict[str, Any]:
    """The report for `--json`: `rows`, the `machines` that they ran on, all `published` figures.

    Parameters: `models`: named sizes or checkpoint folders; `boards`: None for those of `BOARDS` that no model has too
    few heads for and that the core can be on; `lengths`; `cores`: None for `CORES`; the others as of
    `TimedProgram.of_model`, `hop_ns` between boards. A core with rows has the lengths of one request and of a batch of
    as many as it has rows. Raises BadInput, CheckpointError, ConfigError, CompileError, TimingError.
    """
    machines = []
    for model in models:
        heads = chosen_sizes(model).config.n_head
        for core, count in _cores_and_boards(cores, boards, heads):
            cables = None if count == 1 and list(boards or ()) != [1] else hop_ns  # one board alone refuses cables
            machines.append(TimedProgram.of_model(model, core, None, memory, seed, boards=count, hop_ns=cables))
    if not machines:
        raise BadInput("no model to time", expected="at least one", hint="Give --model, or leave it out for all.")
    for timed in machines:  # before anything long begins
        for length in lengths:
            timed.check_positions(f"prompt + output - 1 of length {length}", length.positions)
    uses = [(timed, requests) for timed in machines for requests in sorted({1, timed.rows})]
    done: list[str] = []

    def run(use: tuple[TimedProgram, int]) -> LengthTimes:
        timed, requests = use
        found = time_lengths(
            timed, lengths, requests=requests, progress=lambda what, *_: progress(what, len(done), len(uses))
        )
        done.append(timed.label)
        return found

    with ThreadPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as pool:  # the model runs outside Python's lock
        # the longest first: curves of large rings need the most contexts
        order = sorted(range(len(uses)), key=lambda n: (-uses[n][0].boards, -uses[n][0].step_rows(1)))
        found = dict(zip(order, pool.map(run, [uses[n] for n in order]), strict=True))
    times = [found[n] for n in range(len(uses))]
    hashes = {core: verilog_sha256(core) for core in {timed.program.core for timed in machines}}
    return {
        "rows": [length_row(one, cycles, lengths) for one in times for cycles in one.lengths],
        "machines": [_machine(one, hashes[one.timed.program.core]) for one in times],
        "published": [one.facts() for one in PUBLISHED],
        "definitions": DEFINITIONS,
    }


def _cores_and_boards(
    cores: Sequence[str] | None, boards: Sequence[int] | None, heads: int
) -> Iterator[tuple[str, int]]:
    """Which cores on how many boards each; by default the first of `CORES` on all, the others on one."""
    for core in cores or CORES:
        alone = not chosen_core(core).has_ring if cores else core != CORES[0]
        if boards is None:
            yield from ((core, count) for count in BOARDS if count <= heads and (count == 1 or not alone))
        else:
            yield from ((core, count) for count in boards if cores or count == 1 or not alone)


def length_row(times: LengthTimes, cycles: GenerationCycles, lengths: Sequence[Length]) -> dict[str, Any]:
    """The row of one length; `lengths` are all of the table."""
    timed, length, steps = times.timed, cycles.length, cycles.decode_steps
    config = chosen_sizes(timed.label).config
    total_ms = milliseconds(cycles.total)
    step_ms = milliseconds(cycles.decode) / steps if steps else None
    attended = length.prompt + length.output / 2  # mean over the decode steps
    int8 = timed.program.core.has_int8
    requests = times.requests
    read = requests * key_value_bytes(config, attended) + token_bytes(config, 0, weight_bits=8 if int8 else HALF_BITS)
    rate = None if step_ms is None else read / (step_ms * 1e6)
    row = {
        "model": timed.label,
        "boards": timed.boards,
        "core": timed.program.core.name,
        "rows": timed.rows,
        "requests": requests,
        "in": length.prompt,
        "out": length.output,
        "first_token_ms": milliseconds(cycles.first_token),
        "total_ms": total_ms,
        "decode_ms_per_token": step_ms,
        "decode_tokens_per_s": None if step_ms is None else 1000 * requests / step_ms,
        "tokens_per_s_with_prompt": 1000 * requests * length.output / total_ms,
        "first_token_cycles": cycles.first_token,
        "total_cycles": cycles.total,
        "bytes_per_token": None if step_ms is None else read / requests,
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
    published = compared(row, with_lengthless=length == beside) if requests == 1 else []
    return row | {"published": published}


def compared(row: dict[str, Any], *, with_lengthless: bool) -> list[dict[str, Any]]:
    """The published figures of the row's model, boards and length, each with our figure of the same definition.

    `with_lengthless`: also those that no length is known of.
    """
    found = []
    for one in PUBLISHED:
        if one.model != row["model"] or one.boards != row["boards"] or one.quantity not in _OWN:
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


def _machine(times: LengthTimes, verilog: str) -> dict[str, Any]:
    timed = times.timed
    return {
        "model": timed.label,
        "boards": timed.boards,
        "requests": times.requests,
        "verilog_sha256": verilog,
        "conditions": {**timed.conditions(), **times.method, "bandwidth_peak_gb_s": HBM_PEAK_GB_S * timed.boards},
    }
