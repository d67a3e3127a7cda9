"""The executors `rtl` and `functional`: simulated boards behind PYNQ devices, driven as cards would be."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from host.driver.batch_request import BatchRequest
from host.driver.run_request import RunResult
from host.errors import TimeLimit
from host.runtime.appliance import Appliance, open_appliance
from host.runtime.board_models import open_boards
from host.runtime.job import Job, RunOutcome, SharedRun
from hw.board.program import MemoryImage, Program
from hw.gpt2.sampled_token import BoardSampling

if TYPE_CHECKING:
    from sim.devices.link_timing import LinkTiming

__all__ = ["BoardExecutor", "open_executor"]

Result = TypeVar("Result")
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

        One start for all tokens where the boards decide: greedy samplers, and on one board those that it knows
        (docs/sampling.md). Any other is one start a token: the boards write their logits to memory and the host draws
        from them. Raises BadInput, StuckKernel, TimeLimit, KernelFault,
        RingFault. After any exception no board is at work any more, so that the next job can run.
        """
        deadline = time.monotonic() + job.timeout_s
        try:
            if self._decides(job):
                return self._sequence(job, deadline, job.max_new_tokens)
            return self._sampled(job, deadline)
        except BaseException:
            self.appliance.stop()
            raise

    def run_batch(self, jobs: Sequence[Job]) -> list[RunOutcome]:
        """Generate all jobs; the outcomes are in their order. Errors as of `run`.

        On a core with rows the jobs whose tokens the board decides, greedy or drawn, go in waves of so many, in order:
        each prompt is a sequence on a row's cache up to its first token, then all rows go on as one batch. The next
        wave begins when all jobs of one have ended. Jobs that the host draws for run one after the other behind them,
        as do all jobs on other cores. A wave's time limit is the smallest of its jobs', from its own begin.
        """
        rows = self.appliance.rows
        shared = [number for number, job in enumerate(jobs) if self._decides(job) and rows > 1]
        outcomes: dict[int, RunOutcome] = {}
        for first in range(0, len(shared), rows):
            numbers = shared[first : first + rows]
            if len(numbers) > 1:
                outcomes |= self._wave({number: jobs[number] for number in numbers})
        for number, job in enumerate(jobs):
            if number not in outcomes:
                outcomes[number] = self.run(job)
        return [outcomes[number] for number in range(len(jobs))]

    def _sampling(self, job: Job) -> BoardSampling | None:
        """How the board draws the job's tokens; None if it is greedy, or if the host draws."""
        sampler = job.sampler
        if sampler.greedy or self.boards > 1:
            return None
        return BoardSampling.of(sampler.temperature, sampler.top_k, sampler.seed, self.appliance.vocabulary)

    def _decides(self, job: Job) -> bool:
        """Whether the boards decide on the job's tokens by themselves."""
        return job.sampler.greedy or self._sampling(job) is not None

    def _wave(self, jobs: dict[int, Job]) -> dict[int, RunOutcome]:
        """Jobs by number, one a row: each to its first token, then together."""
        limit_s = min(job.timeout_s for job in jobs.values())
        deadline = time.monotonic() + limit_s
        jobs = {number: dataclasses.replace(job, timeout_s=limit_s) for number, job in jobs.items()}
        try:
            outcomes, rows = {}, {}
            for row, (number, job) in enumerate(jobs.items()):
                outcomes[number] = self._sequence(job, deadline, 1, row)
                reason = job.reason(outcomes[number].tokens, self.context)
                if reason is None:
                    rows[number] = row
                else:
                    outcomes[number].finish_reason = reason
            if rows:
                self._together(jobs, outcomes, rows, deadline)
        except BaseException:
            self.appliance.stop()
            raise
        return outcomes

    def _together(
        self, jobs: dict[int, Job], outcomes: dict[int, RunOutcome], rows: dict[int, int], deadline: float
    ) -> None:
        """Go on with the jobs in `rows`, by number, which have their first token, as one batch."""
        boards, going = self.appliance, {number: jobs[number] for number in rows}
        requests = [
            BatchRequest(
                [*job.prompt, *outcomes[number].tokens],
                job.max_new_tokens - 1,
                job.stop_ids,
                position=len(job.prompt),
                row=rows[number],
                sampling=self._sampling(job),
            )
            for number, job in going.items()
        ]
        in_order = list(going.values())
        boards.start_batch(requests, write_logits=any(job.keep_logits for job in in_order))
        results = self._limited(
            in_order[0],
            lambda left_s: boards.wait_batch(left_s, lambda request, token: in_order[request].on_token(token)),
            deadline,
        )
        shared = SharedRun(
            jobs=tuple(going),
            steps=max(len(result.tokens) for result in results),
            tokens=sum(len(result.tokens) for result in results),
            cycles=results[0].cycles if self.counts_cycles else None,
            counters=boards.counters()[0] if self.counts_cycles else {},
        )
        for (number, job), result in zip(going.items(), results, strict=True):
            outcome = outcomes[number]
            outcome.tokens += result.tokens
            outcome.finish_reason, outcome.starts, outcome.shared = result.reason, 2, shared
            outcome.decode_cycles = None
            if job.keep_logits:
                more = [boards.read_logits(len(job.prompt) + step, rows[number]) for step in range(len(result.tokens))]
                outcome.logits = np.concatenate([outcome.logits, np.stack(more)]) if more else outcome.logits

    def _sequence(self, job: Job, deadline: float, max_new_tokens: int, row: int = 0) -> RunOutcome:
        """One start for so many of the job's tokens, on a row's cache."""
        boards, sampling = self.appliance, self._sampling(job)
        boards.start(job.prompt, max_new_tokens, job.stop_ids, write_logits=job.keep_logits, row=row, sampling=sampling)
        self._read_prompt(job, deadline)
        result = self._wait(job, deadline, job.on_token)
        outcome = RunOutcome(list(result.tokens), result.reason, starts=1)
        if sampling is not None:
            outcome.sampled_by = "board"
        if job.keep_logits and result.tokens:
            first = len(job.prompt) - 1
            outcome.logits = np.stack([boards.read_logits(first + step, row) for step in range(len(result.tokens))])
        if self.counts_cycles:
            outcome.prefill_cycles = boards.first_token_cycles() if len(result.tokens) > 1 else result.cycles
            outcome.decode_cycles = result.cycles - outcome.prefill_cycles
            self._count(outcome)
        return outcome

    def _sampled(self, job: Job, deadline: float) -> RunOutcome:
        boards = self.appliance
        ids = list(job.prompt)
        outcome = RunOutcome([], "", sampled_by="host")
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
        return self._limited(job, lambda left_s: self.appliance.wait(left_s, on_token), deadline)

    def _limited(self, job: Job, wait: Callable[[float], Result], deadline: float) -> Result:
        """What `wait` gives of the time that is left; TimeLimit names the job's limit, of which a part may be over."""
        try:
            return wait(max(deadline - time.monotonic(), MIN_WAIT_S))
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
