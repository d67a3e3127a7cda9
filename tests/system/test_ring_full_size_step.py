"""One decode step of GPT-2 XL on four full-size boards, judged three times.

gpt2-xl is compiled for a ring of four with seeded keys and values of all positions but the last; the Verilated kernels
run the last one with the HBM model behind their ports and 500 ns between them. The functional ring must give the same
logits and, on every board, the same hash of all key and value memory; the timing executor the same cycles; and
`transformers` in fp32, on the same weights and cache, the same arg-max or a near tie.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from host.bench.gateware_step import compile_step, run_step, timed_step
from host.bench.step_time import time_step
from host.bench.timed_program import TimedProgram
from host.compiler.model_choice import chosen_model
from host.runtime.accuracy import logit_errors
from host.runtime.comparison import TIE_ERRORS
from host.runtime.program_folders import Programs
from hw.gpt2.config import core_config
from sim.devices.link_timing import LinkTiming
from sw.models.key_values import SeededKeyValues

MODEL, SEED, BOARDS, POSITIONS, TOKEN, OTHER_TOKEN = "gpt2-xl", 0, 4, 128, 262, 263
CORE, LINKS = core_config("64x16"), LinkTiming(hop_ns=500.0)
MEMORY_LIMIT_BYTES = 16 << 30


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    """In a folder that goes with them: 3.5 GB."""
    weights = chosen_model(MODEL, SEED)
    cache = SeededKeyValues(weights.config, POSITIONS - 1, SEED)
    with tempfile.TemporaryDirectory(prefix="ringfly-xl-") as folder:
        yield compile_step(weights, CORE, Path(folder) / "ring", cache, boards=BOARDS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_step_of_gpt2_xl_on_four_boards(programs: Programs, step_judge: Callable[..., Callable]) -> None:
    weights = chosen_model(MODEL, SEED)
    cache = SeededKeyValues(weights.config, POSITIONS - 1, SEED)
    rtl = run_step("rtl", programs, TOKEN, POSITIONS, links=LINKS)
    functional = run_step("functional", programs, TOKEN, POSITIONS)
    other = run_step("functional", programs, OTHER_TOKEN, POSITIONS)
    timing = timed_step(programs, TOKEN, POSITIONS, LINKS)
    printed = time_step(TimedProgram.of_model(MODEL, CORE.name, None, "u280", 0, boards=BOARDS), POSITIONS, None)
    judge = step_judge(weights, False)
    reference, of_other_token = judge(cache, TOKEN), judge(cache, OTHER_TOKEN)
    del judge
    ours = logit_errors(rtl.logits[None], reference[None])
    fp16 = logit_errors(step_judge(weights, True)(cache, TOKEN)[None], reference[None])
    gap = float(reference.max() - reference[rtl.token])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    gigabytes = {name: round(value / 1e9, 2) for name, value in rtl.memory.items()}
    print(
        f"figure: {rtl.cycles:,} cycles (rtl) in {rtl.seconds:.1f} s ({rtl.processor_seconds:.1f} s of processors), "
        f"boards {rtl.board_cycles}, timing {timing}, `ringfly time` {printed['cycles']:,}; "
        f"memory of the run at most {gigabytes['VmHWM']} GB, at its end {gigabytes['RssAnon']} GB anonymous and "
        f"{gigabytes['RssFile']} GB of mapped files, with the judge at most "
        f"{peak / 1e9:.2f} GB; arg-max {rtl.token}, reference {int(reference.argmax())}, gap {gap:.2e}; RMS error "
        f"{ours['rms_error']:.2e} (PyTorch fp16 {fp16['rms_error']:.2e}), 99.9th percentile {ours['p999_error']:.2e} "
        f"({fp16['p999_error']:.2e}); functional {functional.seconds:.1f} s"
    )
    assert np.array_equal(rtl.logits.view(np.uint32), functional.logits.view(np.uint32))
    assert rtl.kv_hashes == functional.kv_hashes and len(set(rtl.kv_hashes)) == BOARDS
    assert rtl.token == functional.token == int(rtl.logits.argmax())
    assert timing == rtl.board_cycles
    assert abs(int(str(printed["cycles"])) / rtl.cycles - 1) < 0.01  # a steady step, without the run's start and end
    assert gap <= TIE_ERRORS * min(ours["rms_error"], fp16["rms_error"])
    assert all(ours[name] <= fp16[name] for name in ("rms_error", "p999_error")), (ours, fp16)
    assert rtl.memory["VmHWM"] <= MEMORY_LIMIT_BYTES and peak <= MEMORY_LIMIT_BYTES
    # twins: another token is another step for executors and judge; longer cables take other cycles
    assert not np.array_equal(other.logits, rtl.logits)
    assert all(one != two for one, two in zip(other.kv_hashes, rtl.kv_hashes, strict=True))
    assert logit_errors(rtl.logits[None], of_other_token[None])["rms_error"] > 10 * fp16["rms_error"]
    longer = timed_step(programs, TOKEN, POSITIONS, LinkTiming(hop_ns=510.0))
    assert all(one != two for one, two in zip(longer, timing, strict=True))
