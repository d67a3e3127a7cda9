"""Cycles and milliseconds of a decode step and of a prompt, with every lost cycle named: what `ringfly time` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from host.bench.exposed_sync import USUAL_HOPS_NS, ExposedSync, TimedStep, steps_by_hop
from host.bench.timed_program import TimedProgram, announce, milliseconds
from sim.rtl.verilog_record import verilog_sha256
from sim.timing.interpolation import TOLERANCE, Prefill, Proof, prefill
from sim.timing.steady_step import DecodeRun

__all__ = ["time_step"]


def time_step(
    timed: TimedProgram,
    attended: int | None,
    prompt: int | None,
    progress: Callable[[str, int, int], object] | None = None,
) -> dict[str, object]:
    """The report on one step.

    Parameters
    ----------
    timed : TimedProgram
        Programs, memory and, between boards, cables.
    attended : int, optional
        K, positions attended by the step, the newest included. On a core with R rows it is a step of a batch of R
        requests, each at K.
    prompt : int, optional
        P, tokens of a prompt; its prefill is timed too, R tokens at a time, and `attended` is P + 1 or, if the prompt
        fills the cache, P. The step is then that of the one sequence.
    progress : callable, optional
        Told what is simulated of a prompt, how many of its parts are done and how many are needed.

    Boards that share the model are also timed with other hops: none, and `USUAL_HOPS_NS`. Cycles lost and used are
    those of all boards together, `cycles` those of the slowest. Raises BadInput for sizes outside the cache,
    TimingError.
    """
    if prompt is not None:
        timed.check_positions("prompt", prompt)
        announce(f"a prompt of {prompt} tokens, the whole or parts of it", timed.prompt_rows(prompt))
        attended = min(prompt + 1, timed.context)
    assert attended is not None
    timed.check_positions("kv", attended)
    run = DecodeRun.steady(attended, timed.rows if prompt is None else 1)
    hops = {timed.links.hop_ns, *((0.0, *USUAL_HOPS_NS) if timed.boards > 1 else ())}
    announce(f"{run.steps} decode steps", len(hops) * run.steps * timed.step_rows(attended, requests=run.requests))
    filled = None if prompt is None else prefill(timed.machine, prompt, progress=progress)
    steps = steps_by_hop(timed, run, hops)
    of_boards, step = steps[timed.links.hop_ns].boards, steps[timed.links.hop_ns].whole
    core = timed.program.core
    return {
        "model": timed.label,
        "core": core.name,
        "memory": timed.memory_name,
        "boards": timed.boards,
        "rows": timed.rows,
        "requests": run.requests,
        "kv": attended,
        "prompt": prompt,
        "ms_per_token_at_200mhz": milliseconds(step.cycles),
        "tokens_per_second_at_200mhz": 1000 * run.requests / milliseconds(step.cycles),
        "cycles": step.cycles,
        "prefill_ms_at_200mhz": None if filled is None else milliseconds(filled.cycles),
        "prefill_cycles": None if filled is None else filled.cycles,
        "useful_cycles": step.useful_cycles,
        "useful_fraction": step.useful_fraction,
        "lost_cycles": step.lost_cycles,
        "board_cycles": [part.cycles for part in of_boards],
        **_exposed(timed, steps),
        "cycles_source": "timing",
        "verilog_sha256": verilog_sha256(core),
        "conditions": {
            **timed.conditions(),
            "positions_attended": attended,
            "step": run.step_meaning,
            "prefill": None if filled is None else _prefill_meaning(filled, prompt or 0, timed.rows),
        },
    }


def _exposed(timed: TimedProgram, steps: Mapping[float, TimedStep]) -> dict[str, object]:
    """Exposed synchronisation at the asked hop, and at all that were timed."""
    if timed.boards == 1:
        return {"hop_ns": None, "exposed_sync_fraction": 0, "exposed_sync": []}
    own, without = timed.links.hop_ns, steps[0.0].whole.cycles
    exposed = {hop: ExposedSync(hop, step.whole.cycles, without) for hop, step in steps.items()}
    return {
        "hop_ns": own,
        "exposed_sync_fraction": exposed[own].fraction,
        "exposed_sync": [one.facts() for hop, one in exposed.items() if hop or not own],
    }


def _prefill_meaning(filled: Prefill, prompt: int, rows: int) -> dict[str, object]:
    """What the prefill's cycles are and how they were found."""
    if filled.simulated >= filled.steps and not filled.proofs:
        method = "simulated whole"
    else:
        what = "positions" if rows == 1 else f"steps of {rows} positions"
        method = (
            f"{filled.simulated} {what} simulated; those between are interpolated over the rows that they stream, "
            f"where simulated ones between two others lie on their line within {TOLERANCE:g}"
        )
    return {
        "cycles": "from start to the first new token, all tokens of the prompt and the first token's logits included",
        "method": method,
        "steps": filled.steps,
        "simulated_steps": filled.simulated,
        "simulated_positions": min(filled.simulated * rows, prompt),
        "interpolated": [_interpolated(proof, rows) for proof in filled.proofs],
    }


def _interpolated(proof: Proof, rows: int) -> dict[str, object]:
    """A proof with positions attended in place of steps of so many."""
    between = [step * rows for step in proof.between]
    return {"first": proof.first * rows, "between": between, "last": proof.last * rows, "error": proof.error}
