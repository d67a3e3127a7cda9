"""One decode step of a compiled model on simulated boards: through the gateware or the functional executor.

The keys and values of all positions but the newest are seeded and lie in the image, so the step needs no steps before
it. It is a whole run, from start to done; `timed_step` has the cycles of that very run on the timing model.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from host.compiler import compile_model, compile_ring
from host.runtime.appliance import open_appliance
from host.runtime.board_models import open_boards
from host.runtime.program_folders import Programs
from hw.gpt2.config import CoreConfig
from sim.devices.hbm_timing import HbmTiming
from sim.devices.link_timing import LinkTiming
from sim.timing.ring import run_ring_timing
from sim.timing.run import run_timing
from sw.models.key_values import KeyValues
from sw.models.weights import Progress, WeightTensors, unobserved

__all__ = ["StepRun", "compile_step", "run_step", "timed_step"]

_WAIT_S = 1800.0


@dataclasses.dataclass(frozen=True)
class StepRun:
    """What one step left behind.

    Members: `token`; `logits` fp32 [vocabulary]; `kv_hashes`, `board_cycles`: of each board; `cycles`: of board 0;
    `seconds` from start to done, `processor_seconds` of all threads meanwhile; `memory`: bytes by kind while the boards
    are open; `verilog_sha256`: of the gateware, None without.
    """

    token: int
    logits: npt.NDArray[np.float32]
    kv_hashes: list[str]
    cycles: int
    board_cycles: list[int]
    seconds: float
    processor_seconds: float
    memory: dict[str, int]
    verilog_sha256: str | None


def compile_step(
    weights: WeightTensors,
    core: CoreConfig,
    folder: Path,
    cache: KeyValues,
    *,
    boards: int = 1,
    progress: Progress = unobserved,
) -> Programs:
    """Programs and images of `boards` boards in `folder`, with the keys and values of `cache`. Raises CompileError."""
    if boards == 1:
        return [compile_model(weights, core, folder, key_values=cache, progress=progress)]
    return list(compile_ring(weights, core, folder, boards, key_values=cache, progress=progress).boards)


def run_step(
    executor: str, programs: Programs, token: int, attended: int, *, links: LinkTiming | None = None
) -> StepRun:
    """Decode `token` at the last of `attended` positions, whose predecessors' keys and values lie in the images.

    `executor`: ``rtl``, with the HBM model behind the ports and `links` between boards, or ``functional``. Raises what
    `open_boards`, `open_appliance` and `Appliance.wait` raise.
    """
    core, boards = programs[0][0].core, len(programs)
    cables = links if executor == "rtl" and boards > 1 else None
    with (
        open_boards(executor, core, boards, links=cables) as models,
        open_appliance(models.boards, core) as appliance,
    ):
        appliance.load(programs, verify=False)
        started, worked = time.monotonic(), time.process_time()
        appliance.start(_tokens(token, attended), 1, write_logits=True, position=attended - 1)
        result = appliance.wait(_WAIT_S)
        seconds, worked = time.monotonic() - started, time.process_time() - worked
        return StepRun(
            result.tokens[0],
            appliance.read_logits(attended - 1),
            appliance.kv_hashes(),
            result.cycles,
            [kernel.get("cycles") for kernel in appliance.kernels],
            seconds,
            worked,
            _memory(),
            models.verilog_sha256,
        )


def timed_step(programs: Programs, token: int, attended: int, links: LinkTiming | None = None) -> list[int]:
    """Cycles of each board for the run of `run_step` on the timing model. Raises TimingError."""
    alone = [program for program, _ in programs]
    run: dict[str, Any] = {"position": attended - 1, "prompt_end": attended, "max_new_tokens": 1, "flags": 1}
    tokens, memory = _tokens(token, attended), HbmTiming()
    if len(alone) == 1:
        return [run_timing(alone[0], **run, tokens=tokens, memory=memory).cycles]
    cables = links or LinkTiming()
    timed = run_ring_timing(alone, **run, tokens=tokens, memory=memory, links=cables)
    return [board.cycles for board in timed.boards]


def _tokens(token: int, attended: int) -> list[int]:
    return [0] * (attended - 1) + [token]


def _memory() -> dict[str, int]:
    """Resident bytes of this process: anonymous, of mapped files, and the most that it ever had in all."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":") for line in lines if line.startswith(("RssAnon", "RssFile", "VmHWM")))
    return {name: int(text.split()[0]) * 1024 for name, text in found.items()}
