"""Runs of the GPT-2 kernel: start a sequence or a batch, read tokens while it runs, wait with a time limit, stop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from host.driver.batch_request import BatchRequest, checked_batch
from host.driver.kernel_registers import KernelRegisters
from host.driver.kernel_run import KernelRun, RunPart
from host.driver.request_caches import BASES, RequestCaches
from host.driver.run_request import RUN_REGISTERS, RingRun, RunRequest, RunResult, run_flags
from host.driver.state_words import error_words, state_words
from host.errors import BadInput, DeviceBusy, HostError, KernelFault, MachineError, StuckKernel, TimeLimit
from hw.board.gpt2_map import ErrorCode, Flags, row_register
from hw.board.program import Program
from hw.gpt2.sampled_token import BoardSampling

__all__ = ["RunControl"]

_START = 1  # bit 0 of ctrl
_CARD_POLL_S = 0.0005  # pause between polls of a real card
_PROGRESS_POLLS = 4  # at least so many polls tell slow from stuck,
_PROGRESS_CYCLES = 20_000  # and so many cycles if the kernel counts them: no unit works that long without a tile


class RunControl(KernelRegisters):
    """Starts, follows and ends runs of the program that is loaded.

    Attributes
    ----------
    program : Program or None
        What is loaded.
    poll_s : float
        Pause between two polls of a run, in seconds.

    A **sequence** (`start`, `follow`, `wait`, `result`) is one text. A **batch** (`start_batch`, `follow_batch`,
    `wait_batch`, `results`) is up to `rows` texts on a core with rows (docs/rows.md). Either way each row's cache keeps
    the keys and values of what ran on it, for later runs of both kinds.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__(description)
        self.program: Program | None = None
        self.poll_s: float = getattr(self.device, "poll_interval_s", _CARD_POLL_S)
        self._caches = RequestCaches(None)
        self._prepared: KernelRun | None = None
        self._run: KernelRun | None = None

    # Start

    def start(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
        write_logits: bool = False,
        position: int | None = None,
        row: int = 0,
        sampling: BoardSampling | None = None,
    ) -> None:
        """Start a sequence and return at once; see :meth:`RunRequest.checked` for the arguments and their limits.

        ``prompt_ids`` is always the whole sequence; with ``position`` = p the keys and values of its first p tokens are
        taken from memory: they must be those of the run before, or lie in the program's image, which says only how
        many they are (tokens of these positions count for nothing). On a core with rows the sequence works on the cache
        of ``row``, so that a batch can go on with it. With ``sampling`` the board draws the tokens (docs/sampling.md;
        alone: on several boards it takes the arg-max). Raises BadInput, DeviceBusy, StuckKernel (the kernel did not
        take the start).
        """
        self.prepare(prompt_ids, max_new_tokens, stop_ids, write_logits, position, row=row, sampling=sampling)
        self.launch()

    def prepare(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
        write_logits: bool = False,
        position: int | None = None,
        ring: RingRun | None = None,
        row: int = 0,
        sampling: BoardSampling | None = None,
    ) -> None:
        """The first half of :meth:`start`: check a run and write its registers and tokens.

        ``ring`` is what it has on several boards. Raises BadInput before anything is written, DeviceBusy.
        """
        program = self._loaded()
        self._require_idle()
        limits = {**program.registers, **({} if ring is None else {"vocab": ring.vocabulary})}
        self._caches.require(row)
        request = RunRequest.checked(prompt_ids, max_new_tokens, stop_ids, write_logits, position, limits, sampling)
        request.require_cached(self._caches.tokens[row])
        of_ring = {} if ring is None else ring.registers()
        self._write(KernelRun((RunPart(request, 0, row),), batch=False), {**self._caches.bases(row), **of_ring})

    def start_batch(self, requests: Sequence[BatchRequest], write_logits: bool = False) -> tuple[int, ...]:
        """Start a batch and return at once: the row of each request.

        Up to as many requests as the core has rows. A step takes one position of each, of prompts too: long prompts are
        read sooner before, several positions a step, by :meth:`start` on the row's cache. Raises BadInput, which names
        the request by its number, before anything is written; DeviceBusy, StuckKernel.
        """
        program = self._loaded()
        self._require_idle()
        run = checked_batch(requests, write_logits, self.core, program.registers, self._caches)
        self._write(run, {"batch_rows": run.rows_mask, **self._caches.bases(0)})
        self.launch()
        return tuple(part.row for part in run.parts)

    def launch(self) -> None:
        """The second half of :meth:`start`: start the run that was prepared. Raises BadInput, StuckKernel."""
        run, self._prepared = self._prepared, None
        if run is None:
            raise BadInput("no run was prepared", kind="not_prepared", hint="Call prepare first, or start.")
        started = self.get("start_count")
        for part in run.parts:
            if part.cache is not None:
                self._caches.begin(part.cache, part.request)
        self.set("ctrl", _START)
        count = self.get("start_count")
        if count == started:
            state = self.state_dump()
            raise StuckKernel(
                f"the kernel did not take the start: {state_words(state)}", value=state, hint="Load the xclbin again."
            )
        self._run = dataclasses.replace(run, start=count)

    def _write(self, run: KernelRun, more: Mapping[str, int]) -> None:
        """Write a run's tokens and registers, `more` among them."""
        values = {"flags": run_flags(run.write_logits, run.batch), **more}
        for part in run.parts:
            request, tokens = part.request, self.map.window(row_register("tokens", part.row))
            data = np.array(request.prompt_ids[request.position :], "<u4").tobytes()
            self.mmio.write(tokens.offset + tokens.stride * request.position, data)
            values |= request.registers(part.row)
        for name, value in values.items():
            self.set(name, value)
        self._prepared = run

    # Follow

    def wait(self, timeout_s: float, on_token: Callable[[int], object] | None = None) -> RunResult:
        """Wait for the end of the sequence and return its tokens; one that has ended is answered at once, also again.

        ``on_token`` is called with each new token as it appears in the token ring. ``timeout_s`` is wall-clock time.
        Raises TimeLimit (still working) or StuckKernel (no progress), both with the kernel's state in words, and
        KernelFault if the run ended with an error code. After TimeLimit the run goes on: wait again or cancel.
        """
        deadline = self.deadline(timeout_s)
        self._awaited(batch=False)
        new: list[int] = []
        self._until(deadline, timeout_s, lambda: self.follow(new, on_token))
        return self.result(new)

    def wait_batch(self, timeout_s: float, on_token: Callable[[int, int], object] | None = None) -> list[RunResult]:
        """Wait for the end of the batch and return what came of each request, in order; errors as of :meth:`wait`.

        ``on_token`` is called with the request's number and each of its tokens. ``cycles`` of every result are those of
        the whole run.
        """
        deadline = self.deadline(timeout_s)
        new: list[list[int]] = [[] for _ in self._awaited(batch=True).parts]
        self._until(deadline, timeout_s, lambda: self.follow_batch(new, on_token))
        return self.results(new)

    def _until(self, deadline: float, timeout_s: float, ended: Callable[[], bool]) -> None:
        while not ended():
            if time.monotonic() >= deadline:
                error = self.expired(timeout_s)
                if self.running():
                    raise error
                continue  # it has ended meanwhile
            if self.poll_s:
                time.sleep(self.poll_s)

    def follow(self, tokens: list[int], on_token: Callable[[int], object] | None = None) -> bool:
        """Look at the sequence once: append the new tokens that ``tokens`` does not hold yet; whether it ended."""
        return self._look(False, [tokens], None if on_token is None else lambda _, token: on_token(token))

    def follow_batch(self, tokens: Sequence[list[int]], on_token: Callable[[int, int], object] | None = None) -> bool:
        """Look at the batch once: append each request's new tokens to its list; whether all have ended."""
        return self._look(True, tokens, on_token)

    def _look(self, batch: bool, tokens: Sequence[list[int]], on_token: Callable[[int, int], object] | None) -> bool:
        ended = not self.running()
        for number, (part, have) in enumerate(zip(self._awaited(batch).parts, tokens, strict=True)):
            first = len(part.request.prompt_ids) + len(have)
            for token in self.ring(first, self.get(row_register("tokens_valid", part.row)), part.row):
                have.append(token)
                if on_token is not None:
                    on_token(number, token)
        return ended

    # End

    def result(self, tokens: Sequence[int]) -> RunResult:
        """What came of the sequence, which has ended with these new tokens. Raises KernelFault."""
        self._awaited(batch=False)
        return self.results([tokens])[0]

    def results(self, tokens: Sequence[Sequence[int]]) -> list[RunResult]:
        """What came of the last run, which has ended with these new tokens of each request. Raises KernelFault.

        In a batch that was cancelled, a request that had ended by itself keeps its reason.
        """
        run = self._requested()
        error, info, cycles = self.get("error"), self.get("error_info"), self.get("cycles")
        if error not in (ErrorCode.NONE, ErrorCode.CANCELLED):
            raise _fault(run, error, info)
        found = []
        for part, of_part in zip(run.parts, tokens, strict=True):
            request, new = part.request, tuple(of_part)
            if error == ErrorCode.NONE and part.cache is not None:
                self._caches.record(part.cache, request, new)
            finished = error == ErrorCode.NONE or (run.batch and request.complete(new, self.get("context_limit")))
            found.append(RunResult(new, request.reason(new) if finished else "cancelled", cycles))
        return found

    def stop(self, limit_s: float) -> bool:
        """End a run that is under way, waiting at most ``limit_s``; returns whether none is under way now.

        Raises nothing of ``host.errors``: a board that failed says False.
        """
        deadline = time.monotonic() + limit_s
        try:
            self.cancel()
            while self.running():
                if time.monotonic() >= deadline:
                    return False
                time.sleep(self.poll_s)
        except HostError:
            return False
        return True

    # Time limits

    @staticmethod
    def deadline(timeout_s: float) -> float:
        """``time.monotonic()`` at the end of a time limit. Raises BadInput unless it is above 0."""
        if not timeout_s > 0:
            raise BadInput(f"timeout_s must be above 0, got {timeout_s!r}", value=timeout_s)
        return time.monotonic() + timeout_s

    def expired(self, timeout_s: float) -> MachineError:
        """TimeLimit if the kernel still works, else StuckKernel.

        It works if tiles, tokens or positions go on; the other state registers may stand still meanwhile.
        """
        before, begin = self._progress(), self.get("cycles")
        polls, passed, counting = 0, 0, True
        while polls < _PROGRESS_POLLS or (counting and passed < _PROGRESS_CYCLES):
            time.sleep(self.poll_s)
            self.running()
            if self._progress() != before:
                state = self.state_dump()
                return TimeLimit(
                    f"the kernel did not end within {timeout_s:g} s; it still works: {state_words(state)}",
                    value=state,
                    hint="Wait longer (a larger time limit), or cancel the run.",
                )
            now = self.get("cycles") - begin
            polls, passed, counting = polls + 1, now, now > passed
        state = self.state_dump()
        watched = f"{passed} cycles" if passed else f"{polls} polls"
        return StuckKernel(
            f"the kernel is stuck: its time limit has passed, and then {watched} without a tile or token: "
            f"{state_words(state)}",
            value=state,
            hint="Cancel the run; if that does not end it, load the xclbin again.",
        )

    def _progress(self) -> tuple[int, ...]:
        tokens = [row_register("tokens_valid", row) for row in range(self.core.rows)]
        return tuple(self.get(name) for name in ("tiles", *tokens, "dump_position", "done_count"))

    # What runs

    def _loaded(self) -> Program:
        if self.program is None:
            raise BadInput("no program is loaded", kind="no_program", hint="Call load(program_dir) first.")
        return self.program

    def _require_idle(self) -> None:
        if self.running():
            raise DeviceBusy(
                f"the kernel is still running: {self.state_text()}",
                value=self.device.tag,
                hint="Call wait(), or cancel() and wait().",
            )

    def _requested(self) -> KernelRun:
        """The last run: the driver's own, or what stands in the registers if user code has started one since."""
        count = self.get("start_count")
        if not count:
            raise BadInput("nothing to wait for: the kernel was never started", kind="not_started")
        if self._run is None or self._run.start != count:
            self._run = self._of_registers(count)
        return self._run

    def _awaited(self, batch: bool) -> KernelRun:
        """The last run. Raises BadInput if it is none of the wanted kind."""
        run = self._requested()
        if run.batch != batch:
            raise BadInput(
                f"the last start was a {'batch' if run.batch else 'sequence'}",
                kind="other_run",
                hint="Wait for it with wait_batch()." if run.batch else "Wait for it with wait().",
            )
        return run

    def _of_registers(self, start: int) -> KernelRun:
        flags = self.get("flags")
        batch = self.core.rows > 1 and bool(flags & Flags.BATCH)
        mask = self.get("batch_rows") if batch else 1
        parts = []
        for row in range(self.core.rows):
            if not mask >> row & 1:
                continue
            values = {name: self.get(row_register(name, row)) for name in RUN_REGISTERS}
            request = RunRequest.of_registers(values, self.ring(0, values["prompt_end"], row), flags)
            cache = self._caches.at({name: self.get(row_register(name, row)) for name in BASES})
            parts.append(RunPart(request, row, cache))
        return KernelRun(tuple(parts), batch, start)


def _fault(run: KernelRun, error: int, info: int) -> KernelFault:
    """The error of a run that ended with an error code."""
    value = {"error": error, "error_info": info}
    words = error_words(error, info)
    if not run.batch:
        return KernelFault(f"the kernel ended the run: {words}", value=value)
    row = info >> 24
    number = run.request_on(row) if error == ErrorCode.NAN_LOGITS else None
    if number is not None:
        value |= {"row": row, "request": number}
        words += f", which has request {number}"
    return KernelFault(f"the kernel ended the batch: {words}", value=value)
