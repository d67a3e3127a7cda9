"""One whole decode step of a full-size model through full-size gateware, judged three times.

gpt2-345m is compiled with seeded keys and values of all positions but the last; the Verilated kernel runs the last one
with the HBM model behind its ports. The functional executor must give the same logits and the same hash of all key and
value memory, the timing executor the same cycles, and `transformers` in fp32, on the same weights and cache, logits
that differ by no more than those of PyTorch fp16 with SDPA do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from host.bench.gateware_step import compile_step, run_step, timed_step
from host.bench.step_time import time_step
from host.bench.timed_program import TimedProgram
from host.compiler.model_choice import chosen_model
from host.runtime.accuracy import logit_errors
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.timing.overrides import TimingOverrides
from sim.timing.run import run_timing
from sw.models.key_values import SeededKeyValues

MODEL, SEED, POSITIONS, TOKEN = "gpt2-345m", 1, 128, 262


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_step_of_gpt2_345m(tmp_path: Path, step_judge: Callable[..., Callable]) -> None:
    core, weights = core_config("64x16"), chosen_model(MODEL, SEED)
    cache = SeededKeyValues(weights.config, POSITIONS - 1, SEED)
    programs = compile_step(weights, core, tmp_path / "program", cache)
    functional = run_step("functional", programs, TOKEN, POSITIONS)
    rtl = run_step("rtl", programs, TOKEN, POSITIONS)
    (timing,) = timed_step(programs, TOKEN, POSITIONS)
    judge = step_judge(weights, False)
    reference = judge(cache, TOKEN)
    ours = logit_errors(rtl.logits[None], reference[None])
    fp16 = logit_errors(step_judge(weights, True)(cache, TOKEN)[None], reference[None])
    printed = time_step(TimedProgram.of_model(MODEL, core.name, None, "u280", 0), POSITIONS, None)["cycles"]
    print(
        f"figure: {rtl.cycles:,} cycles (rtl) in {rtl.seconds:.1f} s, timing {timing:,}, "
        f"`ringfly time` {printed:,}; RMS error "
        f"{ours['rms_error']:.2e} (PyTorch fp16 {fp16['rms_error']:.2e}); functional {functional.seconds:.1f} s"
    )
    assert np.array_equal(rtl.logits.view(np.uint32), functional.logits.view(np.uint32))
    assert rtl.kv_hashes == functional.kv_hashes and rtl.token == functional.token
    assert timing == rtl.cycles
    assert abs(printed / rtl.cycles - 1) < 0.01  # a steady step, without the run's start and end
    assert all(ours[name] <= fp16[name] for name in ("rms_error", "p999_error")), (ours, fp16)
    # twins: another cache is another step for executors and judge; a FIFO of 128 rows is another memory path
    other_cache = SeededKeyValues(weights.config, POSITIONS - 1, SEED + 1)
    other_programs = compile_step(weights, core, tmp_path / "other", other_cache)
    other = run_step("functional", other_programs, TOKEN, POSITIONS)
    assert other.kv_hashes != rtl.kv_hashes and not np.array_equal(other.logits, rtl.logits)
    judged = logit_errors(rtl.logits[None], judge(other_cache, TOKEN)[None])
    assert judged["rms_error"] > 10 * fp16["rms_error"]
    run = {"position": POSITIONS - 1, "prompt_end": POSITIONS, "max_new_tokens": 1, "flags": 1}
    short = run_timing(programs[0][0], **run, memory=HbmTiming(), overrides=TimingOverrides(fifo_words=128))
    assert abs(short.cycles / rtl.cycles - 1) > 0.01
