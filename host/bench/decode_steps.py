"""What each step towards an always busy matrix unit is worth: a decode step with that step taken back.

Run as ``python -m host.bench.decode_steps [--model gpt2-345m] [--kv 128]``. Each row takes one thing back, alone, in
the timing model or in the core's sizes, and counts the cycles of the same decode step; decision 0011 names them.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from host.bench.timed_program import TimedProgram
from host.compiler import chosen_core, chosen_sizes, fitting_shape, plan_program
from hw.board.program import Program
from hw.gpt2.config import CoreConfig
from hw.gpt2.tags import Stages
from sim.devices.memory_config import DeviceTiming
from sim.timing.attribution import Ledger
from sim.timing.machine import Machine
from sim.timing.overrides import TimingOverrides
from sim.timing.steady_step import DecodeRun

__all__ = ["Step", "decode_steps", "steps"]


@dataclasses.dataclass(frozen=True)
class Step:
    """Something that was done, and how it is taken back: other sizes of the core, or later stages in the timing model
    alone.
    """

    name: str
    sizes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    later: Mapping[str, int] = dataclasses.field(default_factory=dict)


def steps(core: CoreConfig) -> tuple[Step, ...]:
    """What can be taken back, for this core."""
    stages = Stages(core)
    return (
        Step("ports at 225 MHz (back: 200, the core's clock)", {"port_clock_mhz": core.core_clock_mhz}),
        Step("read FIFOs of 512 rows (back: 64)", {"fifo_words": 64}),
        Step(
            "a ring of score rows (back: room for one head of full length)", {"score_rows": core.context // core.lanes}
        ),
        Step(
            "a head is ready when 1/sum will be in time for the drain (back: when it is known)",
            later={"reciprocal_latency": stages.linear - stages.operand},
        ),
        Step(
            "LayerNorm's scalars are ready likewise (back: when they are known)",
            later={"norm_latency": stages.linear - stages.operand},
        ),
        Step("tiles on one accumulator 4 cycles apart (back: 8)", later={"accumulator_latency": 4}),
    )


def _cycles(program: Program, memory: DeviceTiming, kv: int, overrides: TimingOverrides) -> tuple[int, float]:
    """Cycles of a steady decode step, and those of them with a useful tile."""
    run = DecodeRun.steady(kv)
    (result,) = run.time(Machine((program,), memory, overrides=overrides))
    step = Ledger(program, result, run.prompt_end).step(run.last)
    return step.cycles, step.useful_cycles


def decode_steps(model: str, kv: int, core: str = "64x16") -> list[tuple[str, int, float]]:
    """Name, cycles and useful cycles of a decode step as it is and with each step taken back.

    Raises what ``TimedProgram.of_model`` raises, and TimingError.
    """
    timed = TimedProgram.of_model(model, core, None, "u280", 0)
    timed.check_positions("kv", kv)
    config = chosen_core(core)
    rows = [("as it is", *_cycles(timed.program, timed.memory, kv, TimingOverrides()))]
    for step in steps(config):
        program = timed.program
        if step.sizes:
            changed = dataclasses.replace(config, name=f"{config.name}-changed", **step.sizes)
            program = plan_program(fitting_shape(chosen_sizes(model), changed, None))
        rows.append((step.name, *_cycles(program, timed.memory, kv, TimingOverrides(extra_cycles=step.later))))
    return rows


def _main() -> None:
    parser = argparse.ArgumentParser(description="What each step towards an always busy matrix unit is worth.")
    parser.add_argument("--model", default="gpt2-345m")
    parser.add_argument("--kv", type=int, default=128)
    options = parser.parse_args()
    rows = decode_steps(options.model, options.kv)
    now = rows[0][1]
    sys.stdout.write(f"{options.model}, KV {options.kv}, core 64x16, HBM model; cycles counted by timing\n")
    for name, cycles, useful in rows:
        more, share = cycles - now, 100 * useful / cycles
        sys.stdout.write(f"{cycles:10,} {more:+8,} {100 * more / now:+6.2f} % {share:7.2f} % useful  {name}\n")


if __name__ == "__main__":
    _main()
