"""One model on 1 to 8 boards that work as one: load, start, wait, collect, and release in every way that it can end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from host.driver import gpt2_kernel
from host.driver.batch_request import BatchRequest
from host.driver.gpt2_kernel import Gpt2Kernel
from host.driver.link_counters import LinkCounters
from host.driver.run_request import RingRun, RunResult
from host.driver.session import open_kernel
from host.driver.xclbin_info import version_text
from host.errors import BadInput, HostError, MachineError, RingFault, StuckKernel, TimeLimit, VersionMismatch
from host.runtime.request import check_boards
from host.runtime.ring_diagnosis import RunEnd, diagnose, failed
from host.runtime.ring_programs import check_programs, vocabulary_order
from hw.board.board_model import BoardModel
from hw.board.gpt2_map import MAX_BOARDS, ErrorCode
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import CoreConfig
from hw.gpt2.sampled_token import BoardSampling

__all__ = ["LINK_LIMIT_CYCLES", "POLL_CYCLES", "Appliance", "open_appliance"]

POLL_CYCLES = 4096  # core cycles between two looks at the token ring
LINK_LIMIT_CYCLES = 100_000  # 0.5 ms at 200 MHz; a dead cable shows 10 times sooner, unequal work is much less
Result = TypeVar("Result")
SETTLE_S = 10.0  # after one board failed the others have so long to end by themselves: they say what they saw


class Appliance:
    """Boards that run one model together; with one board, that board, which alone takes batches.

    Parameters
    ----------
    kernels : 1 to 8 kernels, in the order of the ring, which the appliance uses alone but does not own.
    link_limit_cycles : core cycles that a board waits for others before it gives up.

    Attributes
    ----------
    kernels, names : the kernels, and what messages call each board.
    programs : the programs that are loaded, or an empty tuple.

    Raises BadInput for another number of kernels, VersionMismatch for kernels that differ; the message names the boards
    and both versions. Every method may raise what ``Gpt2Kernel``'s does, with the board's name in front if there are
    several. One caller's thread at a time.
    """

    def __init__(self, kernels: Sequence[Gpt2Kernel], *, link_limit_cycles: int = LINK_LIMIT_CYCLES) -> None:
        if not 1 <= len(kernels) <= MAX_BOARDS:
            raise BadInput(
                f"an appliance has 1 to {MAX_BOARDS} boards, got {len(kernels)}",
                value=len(kernels),
                expected=f"1 to {MAX_BOARDS}",
            )
        self.kernels = tuple(kernels)
        self.names = tuple(board_name(place, kernel.device.tag) for place, kernel in enumerate(kernels))
        self.programs: tuple[Program, ...] = ()
        self._link_limit_cycles = link_limit_cycles
        self._links: list[LinkCounters] = []
        self._tokens: list[list[int]] = []
        self._lost = False  # a board did not end its run when it was told to
        self._require_equal_kernels()

    @property
    def boards(self) -> int:
        """Number of boards."""
        return len(self.kernels)

    @property
    def rows(self) -> int:
        """Requests that a batch may have; 1 on a core that takes none."""
        return self.kernels[0].core.rows

    @property
    def vocabulary(self) -> int:
        """Token ids of the model: the logits of all boards."""
        return sum(program.registers["vocab"] for program in self.programs)

    def load(self, programs: Sequence[tuple[Program, MemoryImage]], *, verify: bool = True) -> None:
        """Load each board's program. Raises BadInput if they are not the programs of so many boards of one plan."""
        if len(programs) != self.boards:
            raise BadInput(
                f"{len(programs)} programs for {self.boards} boards",
                kind="bad_program",
                value=len(programs),
                expected=self.boards,
            )
        check_programs([program for program, _ in programs])
        self.programs = ()
        for board, source in enumerate(programs):
            with self._named(board):
                self.kernels[board].load(source, verify=verify)
        self.programs = tuple(program for program, _ in programs)

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
        """Start a run on all boards and return at once; arguments as of ``Gpt2Kernel.start``.

        All boards are prepared before the first is started. If one does not start, the others are stopped. Raises
        BadInput ``sampling_on_ring`` for ``sampling`` with several boards.
        """
        if not self.programs:
            raise BadInput("no program is loaded", kind="no_program", hint="Call load first.")
        if sampling is not None and self.boards > 1:
            raise BadInput(
                f"a board samples alone, these are {self.boards}",
                kind="sampling_on_ring",
                value=self.boards,
                expected=1,
                hint="Start a run for each token with write_logits, and draw from the logits.",
            )
        ring = RingRun(self._next_run(), self._link_limit_cycles, self.vocabulary)
        self._each(
            lambda kernel: kernel.prepare(
                prompt_ids, max_new_tokens, stop_ids, write_logits, position, ring, row, sampling
            )
        )
        self._links = self._each(LinkCounters) if self.boards > 1 else []
        self._tokens = [[] for _ in self.kernels]
        try:
            self._each(lambda kernel: kernel.launch())
        except BaseException:
            self.stop()
            raise

    def start_batch(self, requests: Sequence[BatchRequest], write_logits: bool = False) -> tuple[int, ...]:
        """Start a batch on the one board and return at once the row of each request: ``Gpt2Kernel.start_batch``.

        Raises BadInput ``rows_on_ring`` with several boards.
        """
        if self.boards > 1:
            raise BadInput(
                f"a batch runs on one board, these are {self.boards}",
                kind="rows_on_ring",
                value=self.boards,
                expected=1,
                hint="Run the requests one after the other, or on one board whose core has rows.",
            )
        return self.kernels[0].start_batch(requests, write_logits)

    def wait_batch(self, timeout_s: float, on_token: Callable[[int, int], object] | None = None) -> list[RunResult]:
        """Wait for the end of the batch: ``Gpt2Kernel.wait_batch``."""
        return self.kernels[0].wait_batch(timeout_s, on_token)

    def running(self) -> bool:
        """Whether all boards are still at the run (on simulated boards asking lets them work a little)."""
        at_work = all(self._each(lambda kernel: kernel.running()))
        self._count_frames()
        return at_work

    def progress(self) -> tuple[int, int]:
        """(valid tokens, position being processed) on board 0."""
        with self._named(0):
            return self.kernels[0].get("tokens_valid"), self.kernels[0].get("dump_position")

    def wait(self, timeout_s: float, on_token: Callable[[int], object] | None = None) -> RunResult:
        """Wait for the end of the run on all boards; the tokens are board 0's, and all boards must agree on them.

        ``on_token`` is called with each token as board 0 shows it; ``timeout_s`` is wall-clock time. Raises TimeLimit
        and StuckKernel as ``Gpt2Kernel.wait`` does, KernelFault for a board's own error, RingFault (what boards of a
        ring report of each other, or that they disagree). After TimeLimit the run goes on: wait again or stop it.
        """
        deadline = Gpt2Kernel.deadline(timeout_s)
        while not self._look(on_token):
            if time.monotonic() >= deadline:
                error = self._expired(timeout_s)
                if error is not None:
                    raise error
                continue
            if self.kernels[0].poll_s:
                time.sleep(self.kernels[0].poll_s)
        ends = self._ends()
        if any(end is None or failed(end) for end in ends):
            raise diagnose(ends, self.names, self.programs)
        for board in range(1, self.boards):
            with self._named(board):
                self.kernels[board].follow(self._tokens[board])
        return self._agreed()

    def read_logits(self, position: int, row: int = 0) -> npt.NDArray[np.float32]:
        """fp32 logits of a decode step, shape (vocabulary,): each board's own columns in their order."""
        parts = self._each(lambda kernel: kernel.read_logits(position, row))
        return np.concatenate([parts[board] for board in vocabulary_order(self.programs)])

    def first_token_cycles(self) -> int:
        """Core cycles from the start to board 0's first new token, 0 before it."""
        with self._named(0):
            return self.kernels[0].get("first_token_cycles")

    def counters(self) -> list[dict[str, int]]:
        """Cycles, tiles and stalls of the last run on each board."""
        return self._each(lambda kernel: kernel.counters())

    def link_counters(self) -> list[list[dict[str, int]]]:
        """What each port of each board counted in the last run; empty lists with one board."""
        return [links.ports for links in self._links]

    def kv_hashes(self) -> list[str]:
        """SHA-256 over the keys and values of each board."""
        return self._each(lambda kernel: kernel.kv_hash())

    def state_text(self) -> str:
        """Where each board is and what it waits for."""
        texts = self._each(lambda kernel: kernel.state_text())
        return texts[0] if self.boards == 1 else "; ".join(map(": ".join, zip(self.names, texts, strict=True)))

    def stop(self, limit_s: float | None = None) -> bool:
        """End the run on all boards, waiting at most ``limit_s`` in all; returns whether none runs now.

        Does nothing if none runs. Raises nothing of ``host.errors``.
        """
        deadline = time.monotonic() + (gpt2_kernel.CANCEL_S if limit_s is None else limit_s)
        for kernel in self.kernels:
            with contextlib.suppress(HostError):
                kernel.cancel()  # all of them, before any is waited for: boards wait for one another
        ended = [kernel.stop(max(deadline - time.monotonic(), 0.0)) for kernel in self.kernels]
        self._lost = not all(ended)
        return not self._lost

    def close(self) -> None:
        """End a run and give the programs' buffers back; calling it again does nothing."""
        if self.programs and not self._lost:
            self.stop()
        self.programs = ()
        for kernel in self.kernels:
            kernel.close(limit_s=0.0)

    # Parts of a run

    def _next_run(self) -> int:
        """A run number that no board had last; each comes again only after all others."""
        last = self._registers("ring_run")
        numbers = ((last[0] + step) % 256 for step in range(1, 256))
        return next(number for number in numbers if number not in last)

    def _look(self, on_token: Callable[[int], object] | None) -> bool:
        """Look at all boards once: whether the run has ended on all, or has failed on one."""
        over = True
        for board, kernel in enumerate(self.kernels):
            with self._named(board):
                ended = not kernel.running() if board else kernel.follow(self._tokens[0], on_token)
                if ended and failed(RunEnd.of(kernel)):
                    return True
                over = over and ended
        self._count_frames()
        return over

    def _count_frames(self) -> None:
        for board, links in enumerate(self._links):
            with self._named(board):
                links.update()

    def _ends(self) -> list[RunEnd | None]:
        """How each board ended its run; None for one that did not, not even when it was told to.

        Boards that are still at work when another has failed get time to end by themselves and to say what they saw.
        """
        deadline = time.monotonic() + SETTLE_S
        ends: list[RunEnd | None] = [None] * self.boards
        while None in ends:
            for board, kernel in enumerate(self.kernels):
                try:
                    if ends[board] is None and not kernel.running():
                        ends[board] = RunEnd.of(kernel)
                except HostError:  # the failure that is known already counts
                    deadline = 0.0
            if None in ends and time.monotonic() >= deadline:
                self.stop()
                break
            time.sleep(self.kernels[0].poll_s)
        return ends

    def _agreed(self) -> RunResult:
        """The result of all boards. Raises RingFault, which names two boards that disagree."""
        results = []
        for board, kernel in enumerate(self.kernels):
            with self._named(board):
                results.append(self._result(kernel, board))
        if any(result.reason == "cancelled" for result in results):
            return RunResult(results[0].tokens, "cancelled", results[0].cycles)
        first = results[0]
        for board, result in enumerate(results):
            if (result.tokens, result.reason) == (first.tokens, first.reason):
                continue
            pairs = enumerate(zip(first.tokens, result.tokens, strict=False))
            place = next((i for i, (a, b) in pairs if a != b), min(len(first.tokens), len(result.tokens)))
            raise RingFault(
                f"{self.names[0]} and {self.names[board]} disagree on new token {place}: {_seen(first, place)} and "
                f"{_seen(result, place)}",
                kind="boards_differ",
                value={"board": board, "token": place},
                hint="Load the programs again; if it happens again, the gateware of one board is wrong.",
            )
        return first

    def _result(self, kernel: Gpt2Kernel, board: int) -> RunResult:
        if kernel.get("error") == ErrorCode.PEER_FAILED:  # of a run that another board's host cancelled
            return RunResult(tuple(self._tokens[board]), "cancelled", kernel.get("cycles"))
        return kernel.result(self._tokens[board])

    def _expired(self, timeout_s: float) -> MachineError | None:
        """TimeLimit if any board still works, StuckKernel with the state of all if one does not end its run, None if
        all have ended it meanwhile."""
        unended = False
        for board, kernel in enumerate(self.kernels):
            with self._named(board):
                if not kernel.running():
                    continue
                error = kernel.expired(timeout_s)
                if not kernel.running():
                    continue
            unended = True
            if isinstance(error, TimeLimit) or self.boards == 1:
                self._put_name(error, board)
                return error
        if not unended:
            return None
        return StuckKernel(
            f"the ring is stuck: its time limit has passed, and no board issues a tile or token: {self.state_text()}",
            value=self._each(lambda kernel: kernel.state_dump()),
            hint="Cancel the run; if that does not end it, load the xclbins again.",
        )

    # Names

    def _require_equal_kernels(self) -> None:
        for register, what, text in (
            ("interface_version", "interface version", version_text),
            ("config_digest", "the core with digest", "{:016x}".format),
        ):
            found = [text(value) for value in self._registers(register)]
            for board, value in enumerate(found):
                if value != found[0]:
                    raise VersionMismatch(
                        f"the boards of a ring must have the same kernel: {self.names[0]} has {what} {found[0]}, "
                        f"{self.names[board]} has {value}",
                        value=value,
                        expected=found[0],
                        hint="Load the same xclbin on all boards.",
                    )

    def _each(self, act: Callable[[Gpt2Kernel], Result]) -> list[Result]:
        """What `act` gives for each board's kernel, in order."""
        found = []
        for board, kernel in enumerate(self.kernels):
            with self._named(board):
                found.append(act(kernel))
        return found

    def _registers(self, name: str) -> list[int]:
        return self._each(lambda kernel: kernel.get(name))

    @contextlib.contextmanager
    def _named(self, board: int) -> Iterator[None]:
        """Put the board's name in front of the errors of one of several boards."""
        try:
            yield
        except HostError as error:
            self._put_name(error, board)
            raise

    def _put_name(self, error: HostError, board: int) -> None:
        if self.boards > 1:
            error.message = f"{self.names[board]}: {error.message}"


def board_name(place: int, tag: str) -> str:
    """What messages call a board."""
    return f"board {place} ({tag})"


def _seen(result: RunResult, place: int) -> str:
    return str(result.tokens[place]) if place < len(result.tokens) else f"none ({result.reason})"


@contextlib.contextmanager
def open_appliance(
    boards: Sequence[BoardModel],
    core: CoreConfig,
    *,
    xclbin: Path | None = None,
    poll_cycles: int = POLL_CYCLES,
    cards: Sequence[str] = (),
    link_limit_cycles: int = LINK_LIMIT_CYCLES,
) -> Iterator[Appliance]:
    """The kernels of ``boards`` as one appliance, ready to load programs.

    ``cards`` are names under which the boards are locked, one each, or none. However this ends, also while the boards
    are being opened, runs are cancelled and all boards are closed. Raises what ``open_kernel`` and Appliance raise; of
    several boards the message names the one.
    """
    with contextlib.ExitStack() as stack:
        for board in boards:
            stack.callback(board.close)
        check_boards("functional", len(boards), cards=cards, rows=core.rows)
        kernels = []
        for place, board in enumerate(boards):
            card = cards[place] if cards else None
            tag = card or ("sim-u280" if len(boards) == 1 else f"sim-u280-{place}")
            try:
                opened = open_kernel(board, core, xclbin=xclbin, poll_cycles=poll_cycles, tag=tag, card=card)
                kernels.append(stack.enter_context(opened))
            except HostError as error:
                if len(boards) > 1:
                    error.message = f"{board_name(place, tag)}: {error.message}"
                raise
        appliance = Appliance(kernels, link_limit_cycles=link_limit_cycles)
        stack.callback(appliance.close)
        yield appliance
