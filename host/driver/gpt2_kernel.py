"""PYNQ driver of the GPT-2 kernel: load a program, start a run, read tokens while it runs, wait with a time limit."""

from __future__ import annotations

import hashlib
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from host.driver.kernel_registers import KernelRegisters
from host.driver.program_memory import cached_positions, copy_image, program_bytes
from host.driver.run_request import RUN_REGISTERS, RingRun, RunRequest, RunResult
from host.driver.state_words import error_words, state_words
from host.driver.u280_platform import KERNEL_VLNV
from host.errors import (
    BadInput,
    DeviceBusy,
    HostError,
    KernelFault,
    MachineError,
    StuckKernel,
    TimeLimit,
    VersionMismatch,
)
from hw.board.gpt2_map import ErrorCode
from hw.board.program import MemoryImage, Program, ProgramError

__all__ = ["CANCEL_S", "Gpt2Kernel"]

CANCEL_S = 10.0  # close() waits that long for a cancelled run
_START = 1  # bit 0 of ctrl
_CARD_POLL_S = 0.0005  # pause between polls of a real card
_PROGRESS_POLLS = 4  # at least so many polls tell slow from stuck,
_PROGRESS_CYCLES = 20_000  # and so many cycles if the kernel counts them: no unit works that long without a tile


class Gpt2Kernel(KernelRegisters):
    """``overlay.gpt2_0``. One caller's thread at a time.

    Attributes
    ----------
    core : CoreConfig
        The core that the xclbin describes (see KernelRegisters for access by register name).
    program : Program or None
        What is loaded.
    buffers : list
        The program's buffer (uint8, all that it uses of a channel) in each channel's bank.
    poll_s : float
        Pause between two polls of a run, in seconds.

    Raises VersionMismatch on creation if the kernel is not the one of its xclbin.
    """

    bindto: ClassVar[list[str]] = [KERNEL_VLNV]

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__(description)
        self.program: Program | None = None
        self.buffers: list[Any] = []
        self._ports = {name: entry["memory"] for name, entry in description["registers"].items() if "memory" in entry}
        self.poll_s: float = getattr(self.device, "poll_interval_s", _CARD_POLL_S)
        self._prepared: RunRequest | None = None
        self._request: RunRequest | None = None
        self._cached: tuple[int | None, ...] = ()  # tokens whose keys and values are in memory; None: of any token
        self._logit_positions = range(0)

    # Program

    def load(self, source: pathlib.Path | str | tuple[Program, MemoryImage], *, verify: bool = True) -> Program:
        """Load a program folder (or a program and its image) into board memory and registers.

        ``verify`` checks the image files against the hashes in ``program.json``. Raises BadInput for a folder that
        cannot be used, VersionMismatch for a program of another core, DeviceBusy during a run, BankFull.
        """
        self._require_idle()
        try:
            program, image = source if isinstance(source, tuple) else Program.load(pathlib.Path(source))
            if verify:
                image.verify()
        except ProgramError as error:
            folder = None if isinstance(source, tuple) else str(source)
            raise BadInput(str(error), kind="bad_program", value=folder) from None
        self._check_core(program, image)
        self.program, self.buffers, self._cached, self._logit_positions = None, [], (), range(0)
        hook = getattr(self.device, "load_program", None)
        if hook is not None:
            buffers = hook(program, image)
        else:
            banks = [self.device.get_memory_by_name(self._ports[f"hbm{c}"]) for c in range(self.core.channels)]
            buffers = copy_image(image, program_bytes(program, image), banks)
            for name, words in (("instructions", program.instructions), ("descriptors", program.descriptors)):
                if words:
                    data = b"".join(word.to_bytes(16, "little") for word in words)
                    self.mmio.write(self.map.window(name).offset, data)
            for name, value in program.registers.items():
                self.set(name, value)
        for channel, buffer in enumerate(buffers):
            self.set(f"hbm{channel}", buffer.device_address)
        self.program, self.buffers = program, buffers
        self._cached = (None,) * cached_positions(program)
        return program

    # Runs

    def start(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
        write_logits: bool = False,
        position: int | None = None,
    ) -> None:
        """Start a run and return at once; see :meth:`RunRequest.checked` for the arguments and their limits.

        ``prompt_ids`` is always the whole sequence; with ``position`` = p the keys and values of its first p tokens are
        taken from memory: they must be those of the run before, or lie in the program's image, which says only how
        many they are (tokens of these positions count for nothing). Raises BadInput, DeviceBusy, StuckKernel (the
        kernel did not take the start).
        """
        self.prepare(prompt_ids, max_new_tokens, stop_ids, write_logits, position)
        self.launch()

    def prepare(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
        write_logits: bool = False,
        position: int | None = None,
        ring: RingRun | None = None,
    ) -> None:
        """The first half of :meth:`start`: check a run and write its registers and tokens.

        ``ring`` is what it has on several boards. Raises BadInput before anything is written, DeviceBusy.
        """
        program = self._loaded()
        self._require_idle()
        limits = {**program.registers, **({} if ring is None else {"vocab": ring.vocabulary})}
        request = RunRequest.checked(prompt_ids, max_new_tokens, stop_ids, write_logits, position, limits, self._cached)
        tokens = self.map.window("tokens")
        data = np.array(request.prompt_ids[request.position :], "<u4").tobytes()
        self.mmio.write(tokens.offset + tokens.stride * request.position, data)
        for name, value in {**request.registers(), **({} if ring is None else ring.registers())}.items():
            self.set(name, value)
        self._prepared = request

    def launch(self) -> None:
        """The second half of :meth:`start`: start the run that was prepared. Raises BadInput, StuckKernel."""
        request, self._prepared = self._prepared, None
        if request is None:
            raise BadInput("no run was prepared", kind="not_prepared", hint="Call prepare first, or start.")
        started = self.get("start_count")
        self._cached, self._logit_positions = self._cached[: request.position], range(0)
        self.set("ctrl", _START)
        if self.get("start_count") == started:
            state = self.state_dump()
            raise StuckKernel(
                f"the kernel did not take the start: {state_words(state)}", value=state, hint="Load the xclbin again."
            )
        self._request = request

    def wait(self, timeout_s: float, on_token: Callable[[int], object] | None = None) -> RunResult:
        """Wait for the end of the run and return its tokens; a run that has ended is answered at once, also again.

        ``on_token`` is called with each new token as it appears in the token ring. ``timeout_s`` is wall-clock time.
        Raises TimeLimit (still working) or StuckKernel (no progress), both with the kernel's state in words, and
        KernelFault if the run ended with an error code. After TimeLimit the run goes on: wait again or cancel.
        """
        deadline = self.deadline(timeout_s)
        if not self.get("start_count"):
            raise BadInput("nothing to wait for: the kernel was never started", kind="not_started")
        if self._request is None:
            values = {name: self.get(name) for name in RUN_REGISTERS}
            self._request = RunRequest.of_registers(values, self.ring(0, values["prompt_end"]))
        new: list[int] = []
        while not self.follow(new, on_token):
            if time.monotonic() >= deadline:
                raise self.expired(timeout_s)
            if self.poll_s:
                time.sleep(self.poll_s)
        return self.result(new)

    @staticmethod
    def deadline(timeout_s: float) -> float:
        """``time.monotonic()`` at the end of a time limit. Raises BadInput unless it is above 0."""
        if not timeout_s > 0:
            raise BadInput(f"timeout_s must be above 0, got {timeout_s!r}", value=timeout_s)
        return time.monotonic() + timeout_s

    def follow(self, tokens: list[int], on_token: Callable[[int], object] | None = None) -> bool:
        """Look at the run once: append the new tokens that ``tokens`` does not hold yet; returns whether it ended."""
        ended = not self.running()
        first = len(self._requested().prompt_ids)
        for token in self.ring(first + len(tokens), self.get("tokens_valid")):
            tokens.append(token)
            if on_token is not None:
                on_token(token)
        return ended

    def result(self, tokens: Sequence[int]) -> RunResult:
        """What came of the run, which has ended with these new tokens. Raises KernelFault."""
        request, new = self._requested(), tuple(tokens)
        self._request = None
        error, info, cycles = self.get("error"), self.get("error_info"), self.get("cycles")
        if error == ErrorCode.CANCELLED:
            return RunResult(new, "cancelled", cycles)
        if error != ErrorCode.NONE:
            raise KernelFault(
                f"the kernel ended the run: {error_words(error, info)}", value={"error": error, "error_info": info}
            )
        steps = len(request.prompt_ids) - 1
        kept = self._cached[: request.position]  # a run writes from its first position on
        self._cached = (*kept, *request.prompt_ids[len(kept) :], *new[:-1])
        self._logit_positions = range(steps, steps + len(new)) if request.write_logits else range(0)
        return RunResult(new, request.reason(new), cycles)

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

    # Results

    def read_logits(self, position: int) -> npt.NDArray[np.float32]:
        """fp32 logits of a decode step, shape (vocab,), of the last run, which must have had ``write_logits``."""
        program = self._loaded()
        if position not in self._logit_positions:
            have = self._logit_positions
            raise BadInput(
                f"no logits of position {position}",
                value=position,
                expected=f"{have.start} to {have.stop - 1}" if len(have) else "none",
                hint="Start with write_logits=True; logits exist for decode steps of the last run.",
            )
        registers, port_bytes = program.registers, self.core.port_bytes
        first = (registers["logits_base"] + position * registers["logits_rows"]) * port_bytes
        size = registers["logits_rows"] * port_bytes
        channels = [self._channel(c, first, size).reshape(-1, port_bytes) for c in range(self.core.channels)]
        words = np.stack(channels, axis=1)  # port word j lies on channel j % C, row j / C
        return words.reshape(-1).view("<f4")[: registers["vocab"]].astype(np.float32)

    def kv_hash(self) -> str:
        """SHA-256 over all key and value regions, whole, in channel order (within a channel in order of offset)."""
        regions = [region for region in self._loaded().regions if region.kind in ("keys", "values")]
        digest = hashlib.sha256()
        for region in sorted(regions, key=lambda item: (item.channel, item.offset)):
            digest.update(self._channel(region.channel, region.offset, region.bytes).data)
        return digest.hexdigest()

    def close(self, limit_s: float | None = None) -> None:
        """End a run that is under way (see :meth:`stop`) and give the program's buffers back; may be called again."""
        if self.buffers:
            self.stop(CANCEL_S if limit_s is None else limit_s)
        for buffer in self.buffers:
            buffer.freebuffer()
        self.program, self.buffers, self._request = None, [], None

    def __enter__(self) -> Gpt2Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _loaded(self) -> Program:
        if self.program is None:
            raise BadInput("no program is loaded", kind="no_program", hint="Call load(program_dir) first.")
        return self.program

    def _requested(self) -> RunRequest:
        if self._request is None:
            raise BadInput("no run was started", kind="not_started")
        return self._request

    def _require_idle(self) -> None:
        if self.running():
            raise DeviceBusy(
                f"the kernel is still running: {self.state_text()}",
                value=self.device.tag,
                hint="Call wait(), or cancel() and wait().",
            )

    def _check_core(self, program: Program, image: MemoryImage) -> None:
        if program.core.digest != self.core.digest:
            raise VersionMismatch(
                f"the program is for core {program.core.name} (digest {program.core.digest[:16]}), "
                f"the kernel is core {self.core.name} (digest {self.core.digest[:16]})",
                value=program.core.digest,
                expected=self.core.digest,
                hint="Compile the model for this core, or load the program's xclbin.",
            )
        for what, have, fits in (
            ("instructions", len(program.instructions), self.core.instructions),
            ("access descriptors", len(program.descriptors), self.core.descriptors),
        ):
            if have > fits:
                raise BadInput(f"the program has {have} {what}, the core holds {fits}", value=have, expected=fits)
        if len(image.files) != self.core.channels:
            raise BadInput(
                f"the image has {len(image.files)} channel files, the core has {self.core.channels} memory ports",
                value=len(image.files),
                expected=self.core.channels,
            )

    def _channel(self, channel: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        part = self.buffers[channel][offset : offset + size]
        part.invalidate()
        return np.array(part, np.uint8)  # a plain array, not a buffer

    def _progress(self) -> tuple[int, ...]:
        return tuple(self.get(name) for name in ("tiles", "tokens_valid", "dump_position", "done_count"))
