"""The executors `rtl` and `functional`: simulated boards behind PYNQ devices, driven as cards would be."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from host.driver.run_request import RunResult
from host.errors import TimeLimit
from host.runtime.appliance import Appliance, open_appliance
from host.runtime.board_models import open_boards
from host.runtime.job import Job, RunOutcome
from hw.board.program import MemoryImage, Program

if TYPE_CHECKING:
    from sim.devices.link_timing import LinkTiming

__all__ = ["BoardExecutor", "open_executor"]

MIN_WAIT_S = 1e-3
PROMPT_PERIOD_S = 0.5  # between two reports while the prompt is read


class BoardExecutor:
    """Runs prompts on the boards of an appliance that has its programs loaded.

    Parameters: `name`: ``rtl`` or ``functional``; `appliance`; `verilog_sha256` of the gateware, or None.
    """

    def __init__(self, name: str, appliance: Appliance, verilog_sha256: str | None) -> None:
        self.name = name
        self.appliance = appliance
        self.verilog_sha256 = verilog_sha256
        program = appliance.programs[0]
        self.boards = appliance.boards
        self.model_digest: str | None = program.model_digest
        self.context = int(program.registers["context_limit"])

    @property
    def counts_cycles(self) -> bool:
        """Whether the boards have a clock."""
        return self.verilog_sha256 is not None

    def run(self, job: Job) -> RunOutcome:
        """Generate.

        A greedy sampler is one start for all tokens: the boards decide. Any other is one start a token: the boards
        write their logits to memory and the host draws from them. Raises BadInput, StuckKernel, TimeLimit, KernelFault,
        RingFault. After any exception no board is at work any more, so that the next job can run.
        """
        deadline = time.monotonic() + job.timeout_s
        try:
            return self._greedy(job, deadline) if job.sampler.greedy else self._sampled(job, deadline)
        except BaseException:
            self.appliance.stop()
            raise

    def _greedy(self, job: Job, deadline: float) -> RunOutcome:
        boards = self.appliance
        boards.start(job.prompt, job.max_new_tokens, job.stop_ids, write_logits=job.keep_logits)
        self._read_prompt(job, deadline)
        result = self._wait(job, deadline, job.on_token)
        outcome = RunOutcome(list(result.tokens), result.reason, starts=1)
        if job.keep_logits and result.tokens:
            first = len(job.prompt) - 1
            outcome.logits = np.stack([boards.read_logits(first + step) for step in range(len(result.tokens))])
        if self.counts_cycles:
            outcome.prefill_cycles = boards.first_token_cycles() if len(result.tokens) > 1 else result.cycles
            outcome.decode_cycles = result.cycles - outcome.prefill_cycles
            self._count(outcome)
        return outcome

    def _sampled(self, job: Job, deadline: float) -> RunOutcome:
        boards = self.appliance
        ids = list(job.prompt)
        outcome = RunOutcome([], "")
        kept, cycles = [], []
        while (reason := job.reason(outcome.tokens, self.context)) is None:
            if time.monotonic() >= deadline:
                raise job.expired(len(outcome.tokens))
            boards.start(ids, 1, write_logits=True, position=len(ids) - 1 if outcome.tokens else 0)
            if not outcome.tokens:
                self._read_prompt(job, deadline)
            cycles.append(self._wait(job, deadline).cycles)
            logits = boards.read_logits(len(ids) - 1)
            token = job.sampler.choose(logits, len(ids))
            kept.append(logits)
            self._count(outcome)
            outcome.tokens.append(token)
            ids.append(token)
            job.on_token(token)
        outcome.finish_reason, outcome.starts = reason, len(outcome.tokens)
        if job.keep_logits:
            outcome.logits = np.stack(kept)
        if self.counts_cycles:
            outcome.prefill_cycles, outcome.decode_cycles = cycles[0], sum(cycles[1:])
        return outcome

    def _count(self, outcome: RunOutcome) -> None:
        """Add the last run's counters of every board and port."""
        if not self.counts_cycles:
            return
        if not outcome.counters:
            outcome.counters = [{} for _ in range(self.boards)]
            outcome.link_counters = [[{}, {}] for _ in range(self.boards)] if self.boards > 1 else []
        for total, counters in zip(outcome.counters, self.appliance.counters(), strict=True):
            _add(total, counters)
        for totals, ports in zip(outcome.link_counters, self.appliance.link_counters(), strict=True):
            for total, counters in zip(totals, ports, strict=True):
                _add(total, counters)

    def _read_prompt(self, job: Job, deadline: float) -> None:
        """Let the boards work until the first new token, and say now and then how far in the prompt they are."""
        boards, length = self.appliance, len(job.prompt)
        next_report = time.monotonic() + PROMPT_PERIOD_S
        while boards.running() and time.monotonic() < deadline:
            tokens_valid, position = boards.progress()
            if tokens_valid > length:
                return
            if time.monotonic() >= next_report:
                next_report += PROMPT_PERIOD_S
                job.progress("reading the prompt", position, length)

    def _wait(self, job: Job, deadline: float, on_token: Callable[[int], object] | None = None) -> RunResult:
        """The end of the run; TimeLimit names the job's own limit, of which a part may have passed before."""
        try:
            return self.appliance.wait(max(deadline - time.monotonic(), MIN_WAIT_S), on_token)
        except TimeLimit as error:
            raise TimeLimit(
                f"the run takes longer than its time limit: no end within {job.timeout_s:g} s: "
                f"{self.appliance.state_text()}",
                value=error.value,
                hint=error.hint,
            ) from error


def _add(total: dict[str, int], counters: dict[str, int]) -> None:
    for name, value in counters.items():
        total[name] = total.get(name, 0) + value


@contextlib.contextmanager
def open_executor(
    name: str,
    programs: Sequence[tuple[Program, MemoryImage]],
    *,
    xclbin: Path | None = None,
    links: LinkTiming | None = None,
    cards: Sequence[str] = (),
) -> Iterator[BoardExecutor]:
    """Boards with their programs loaded, one each; at the end, whatever happened, runs are cancelled and all released.

    ``links`` are the cables between several boards (see `open_boards`), ``cards`` names under which they are locked.
    """
    core = programs[0][0].core
    with (
        open_boards(name, core, len(programs), links=links) as models,
        open_appliance(models.boards, core, xclbin=xclbin, cards=cards) as appliance,
    ):
        appliance.load(programs, verify=False)
        yield BoardExecutor(name, appliance, models.verilog_sha256)
