"""One whole decode step of a full-size model through full-size gateware, judged three times.

gpt2-345m is compiled with seeded keys and values of all positions but the last; the Verilated kernel runs the last one
with the HBM model behind its ports. The functional executor must give the same logits and the same hash of all key and
value memory, the timing executor the same cycles, and `transformers` in fp32, on the same weights and cache, logits
that differ by no more than those of PyTorch fp16 with SDPA do.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from host.bench.step_time import time_step
from host.bench.timed_program import TimedProgram
from host.compiler import compile_model
from host.compiler.model_choice import chosen_model
from host.driver.session import open_kernel
from host.runtime.accuracy import logit_errors
from hw.board.board_model import BoardModel
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.functional import FunctionalBoard
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board
from sim.timing.overrides import TimingOverrides
from sim.timing.run import run_timing
from sw.models.key_values import SeededKeyValues

MODEL, SEED, POSITIONS, TOKEN = "gpt2-345m", 1, 128, 262
WAIT_S = 1800.0
Logits = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Ran:
    """What one step left behind; ``seconds`` from start to done."""

    token: int
    logits: Logits
    kv_hash: str
    cycles: int
    seconds: float


def run_step(board: BoardModel, program: Program, image: MemoryImage, token: int, positions: int) -> Ran:
    """Decode one token at the last of `positions`, whose predecessors' keys and values lie in the image."""
    with open_kernel(board, program.core) as kernel:
        kernel.load((program, image))
        started = time.monotonic()
        kernel.start([0] * (positions - 1) + [token], 1, write_logits=True, position=positions - 1)
        result = kernel.wait(WAIT_S)
        seconds = time.monotonic() - started
        return Ran(result.tokens[0], kernel.read_logits(positions - 1), kernel.kv_hash(), result.cycles, seconds)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_step_of_gpt2_345m(tmp_path: Path, step_judge: Callable[..., Callable]) -> None:
    core, weights = core_config("64x16"), chosen_model(MODEL, SEED)
    cache = SeededKeyValues(weights.config, POSITIONS - 1, SEED)
    built = build_board(core)
    program, image = compile_model(weights, core, tmp_path / "program", key_values=cache)
    functional = run_step(FunctionalBoard(), program, image, TOKEN, POSITIONS)
    board = RtlBoard(built, timing=HbmTiming(), wall_limit_s=WAIT_S, threads=2)
    rtl = run_step(board, program, image, TOKEN, POSITIONS)
    run = {"position": POSITIONS - 1, "prompt_end": POSITIONS, "max_new_tokens": 1, "flags": 1}
    timing = run_timing(program, **run, memory=HbmTiming(), tokens=[0] * (POSITIONS - 1) + [TOKEN])
    judge = step_judge(weights, False)
    reference = judge(cache, TOKEN)
    ours = logit_errors(rtl.logits[None], reference[None])
    fp16 = logit_errors(step_judge(weights, True)(cache, TOKEN)[None], reference[None])
    printed = time_step(TimedProgram.of_model(MODEL, core.name, None, "u280", 0), POSITIONS, None)["cycles"]
    print(
        f"figure: {rtl.cycles:,} cycles (rtl) in {rtl.seconds:.1f} s, timing {timing.cycles:,}, "
        f"`ringfly time` {printed:,}; RMS error "
        f"{ours['rms_error']:.2e} (PyTorch fp16 {fp16['rms_error']:.2e}); functional {functional.seconds:.1f} s"
    )
    assert np.array_equal(rtl.logits.view(np.uint32), functional.logits.view(np.uint32))
    assert rtl.kv_hash == functional.kv_hash and rtl.token == functional.token
    assert timing.cycles == rtl.cycles
    assert abs(printed / rtl.cycles - 1) < 0.01  # a steady step, without the run's start and end
    assert all(ours[name] <= fp16[name] for name in ("rms_error", "p999_error")), (ours, fp16)
    # twins: another cache is another step for executors and judge; a FIFO of 128 rows is another memory path
    other_cache = SeededKeyValues(weights.config, POSITIONS - 1, SEED + 1)
    program, image = compile_model(weights, core, tmp_path / "other", key_values=other_cache)
    other = run_step(FunctionalBoard(), program, image, TOKEN, POSITIONS)
    assert other.kv_hash != rtl.kv_hash and not np.array_equal(other.logits, rtl.logits)
    judged = logit_errors(rtl.logits[None], judge(other_cache, TOKEN)[None])
    assert judged["rms_error"] > 10 * fp16["rms_error"]
    short = run_timing(program, **run, memory=HbmTiming(), overrides=TimingOverrides(fifo_words=128))
    assert abs(short.cycles / rtl.cycles - 1) > 0.01
