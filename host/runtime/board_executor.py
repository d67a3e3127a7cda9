"""The executors `rtl` and `functional`: one simulated board behind the PYNQ device, driven as a card would be."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from host.driver.gpt2_kernel import Gpt2Kernel
from host.driver.run_request import RunResult
from host.driver.session import open_kernel
from host.errors import TimeLimit
from host.runtime.job import Job, RunOutcome
from hw.board.board_model import BoardModel
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import CoreConfig

__all__ = ["BoardExecutor", "open_board", "open_executor"]

POLL_CYCLES = 4096  # core cycles between two looks at the token ring
THREADED_PRODUCTS = 1024  # products a cycle from which a second thread makes simulation faster
MIN_WAIT_S = 1e-3
PROMPT_PERIOD_S = 0.5  # between two reports while the prompt is read


class BoardExecutor:
    """Runs prompts on a kernel that has a program loaded.

    Parameters: `name`: ``rtl`` or ``functional``; `kernel`; `verilog_sha256` of the gateware, or None.
    """

    boards = 1

    def __init__(self, name: str, kernel: Gpt2Kernel, program: Program, verilog_sha256: str | None) -> None:
        self.name = name
        self.kernel = kernel
        self.verilog_sha256 = verilog_sha256
        self.model_digest: str | None = program.model_digest
        self.context = int(program.registers["context_limit"])

    @property
    def counts_cycles(self) -> bool:
        """Whether the board has a clock."""
        return self.verilog_sha256 is not None

    def run(self, job: Job) -> RunOutcome:
        """Generate.

        A greedy sampler is one start for all tokens: the board decides. Any other is one start a token: the board
        writes its logits to memory and the host draws from them. Raises BadInput, StuckKernel, TimeLimit, KernelFault.
        """
        deadline = time.monotonic() + job.timeout_s
        return self._greedy(job, deadline) if job.sampler.greedy else self._sampled(job, deadline)

    def _greedy(self, job: Job, deadline: float) -> RunOutcome:
        kernel = self.kernel
        kernel.start(job.prompt, job.max_new_tokens, job.stop_ids, write_logits=job.keep_logits)
        self._read_prompt(job, deadline)
        result = self._wait(job, deadline, job.on_token)
        outcome = RunOutcome(list(result.tokens), result.reason, starts=1)
        if job.keep_logits and result.tokens:
            first = len(job.prompt) - 1
            outcome.logits = np.stack([kernel.read_logits(first + step) for step in range(len(result.tokens))])
        if self.counts_cycles:
            outcome.prefill_cycles = kernel.get("first_token_cycles") if len(result.tokens) > 1 else result.cycles
            outcome.decode_cycles = result.cycles - outcome.prefill_cycles
            outcome.counters = kernel.counters()
        return outcome

    def _sampled(self, job: Job, deadline: float) -> RunOutcome:
        kernel = self.kernel
        ids = list(job.prompt)
        outcome = RunOutcome([], "")
        kept, cycles = [], []
        while (reason := job.reason(outcome.tokens, self.context)) is None:
            if time.monotonic() >= deadline:
                raise job.expired(len(outcome.tokens))
            kernel.start(ids, 1, write_logits=True, position=len(ids) - 1 if outcome.tokens else 0)
            if not outcome.tokens:
                self._read_prompt(job, deadline)
            cycles.append(self._wait(job, deadline).cycles)
            logits = kernel.read_logits(len(ids) - 1)
            token = job.sampler.choose(logits, len(ids))
            kept.append(logits)
            _add(outcome.counters, kernel.counters() if self.counts_cycles else {})
            outcome.tokens.append(token)
            ids.append(token)
            job.on_token(token)
        outcome.finish_reason, outcome.starts = reason, len(outcome.tokens)
        if job.keep_logits:
            outcome.logits = np.stack(kept)
        if self.counts_cycles:
            outcome.prefill_cycles, outcome.decode_cycles = cycles[0], sum(cycles[1:])
        return outcome

    def _read_prompt(self, job: Job, deadline: float) -> None:
        """Let the board work until the first new token, and say now and then how far in the prompt it is."""
        kernel, length = self.kernel, len(job.prompt)
        next_report = time.monotonic() + PROMPT_PERIOD_S
        while kernel.running() and kernel.get("tokens_valid") <= length and time.monotonic() < deadline:
            if time.monotonic() >= next_report:
                next_report += PROMPT_PERIOD_S
                job.progress("reading the prompt", kernel.get("dump_position"), length)

    def _wait(self, job: Job, deadline: float, on_token: Callable[[int], object] | None = None) -> RunResult:
        """The end of the run; TimeLimit names the job's own limit, of which a part may have passed before."""
        try:
            return self.kernel.wait(max(deadline - time.monotonic(), MIN_WAIT_S), on_token)
        except TimeLimit as error:
            raise TimeLimit(
                f"the run takes longer than its time limit: no end within {job.timeout_s:g} s: "
                f"{self.kernel.state_text()}",
                value=error.value,
                hint=error.hint,
            ) from error


def _add(total: dict[str, int], counters: dict[str, int]) -> None:
    for name, value in counters.items():
        total[name] = total.get(name, 0) + value


def open_board(
    name: str, core: CoreConfig, *, trace: bool = False, flat: bool = False, memory: str = "u280"
) -> tuple[BoardModel, str | None]:
    """(board model of ``rtl`` or ``functional``, SHA-256 of its Verilog or None); ``rtl`` is built if need be.

    Of an ``rtl`` board ``trace`` asks for one that can write waves, ``flat`` for a kernel compiled as one piece, and
    ``memory`` says what stands behind its ports (see `sim.devices.named.named_memory`). Raises ToolMissingError or
    BuildError of `sim.rtl`.
    """
    if name == "functional":
        from sim.functional import FunctionalBoard

        return FunctionalBoard(), None
    from sim.devices.named import named_memory
    from sim.rtl.board import RtlBoard
    from sim.rtl.build import build_board

    built = build_board(core, trace=trace, flat=flat)
    threads = min(2, len(os.sched_getaffinity(0))) if core.tile * core.lanes >= THREADED_PRODUCTS else 1
    return RtlBoard(built, timing=named_memory(memory), threads=threads), built.verilog_sha256


@contextlib.contextmanager
def open_executor(
    name: str, program: Program, image: MemoryImage, *, xclbin: Path | None = None
) -> Iterator[BoardExecutor]:
    """A board with `program` loaded; at the end, whatever happened, the run is cancelled and the board released."""
    board, verilog_sha256 = open_board(name, program.core)
    with open_kernel(board, program.core, xclbin=xclbin, poll_cycles=POLL_CYCLES) as kernel:
        kernel.load((program, image), verify=False)
        yield BoardExecutor(name, kernel, program, verilog_sha256)
