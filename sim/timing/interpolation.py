"""Cycles of a step as a function of the context, and of a whole prompt, without simulating every position.

A step's cycles follow the rows that it streams. Keys grow by a row for each N positions and values for each T, so
cycles are interpolated over rows, not over positions; and only between two simulated contexts with others between
them that lie on the line within :data:`TOLERANCE`. Where they do not, both halves are simulated closer. A row of keys
may cost more than a row of values (on small cores it does), so two contexts decide: one that fills its last block of T
positions and the next one, between which the shares of keys and values differ most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise

from hw.board.program import Program
from hw.gpt2.isa import Access, AccessKind
from sim.timing.machine import Machine
from sim.timing.result import TimingResult

__all__ = ["TOLERANCE", "Curve", "Prefill", "Proof", "prefill", "step_cycles", "step_rows"]

TOLERANCE = 1e-4
"""Largest relative distance of a deciding context from the line."""

_EXACT_ROWS = 6_000_000
"""A prompt that streams fewer rows is simulated whole: that takes some seconds."""


def step_rows(program: Program, attended: int, *, prompt: bool = False) -> int:
    """Rows that one step streams with ``attended`` positions, its own included; ``prompt``: a prompt step."""
    core, get = program.core, program.registers.__getitem__
    keys = -(-attended // core.lanes) * get("key_words")
    values = -(-attended // core.tile) * get("value_strips")
    accesses = [Access.decode(word) for word in program.descriptors]
    rows, loop_end, repeat = 0, 0, 1
    for index, access in enumerate(accesses):
        if index >= loop_end:
            repeat = 1
        if access.kind == AccessKind.LOOP:
            loop_end, repeat = index + 1 + access.length, access.count
        elif not (prompt and access.decode_only):
            heads = {AccessKind.KEYS: keys, AccessKind.VALUES: values}.get(access.kind)
            rows += repeat * (access.count if heads is None else access.heads * heads)
    return rows


def step_cycles(machine: Machine, attended: int, *, prompt: bool = False) -> int:
    """Cycles of a steady step, the second of two, with ``attended`` positions (2 or more), its own included.

    A decode step counts from the token before to its own token, a prompt step from its first tile to that of the next
    position, in a ring on board 0. Raises ValueError if there is no such pair of steps within the context.
    """
    limit = machine.context
    if not 2 <= attended <= limit - prompt:
        raise ValueError(f"attended must be 2 to {limit - prompt} for two steps in a row, got {attended!r}")
    first = attended - 2
    if prompt:
        run = machine.run(first, attended + 1, 1, stop_position=attended)[0]
        return _begin(run, attended) - _begin(run, attended - 1)
    before, own = machine.run(first, first + 1, 2)[0].token_cycles
    return own - before


def _begin(run: TimingResult, position: int) -> int:
    """Cycle of the run in which the first tile of ``position`` was issued."""
    return int(run.spans["first_issue"][run.spans["position"] == position][0])


@dataclasses.dataclass(frozen=True)
class Proof:
    """Contexts ``first`` to ``last`` are interpolated; ``between`` lie off the line by at most the part ``error``."""

    first: int
    between: tuple[int, ...]
    last: int
    error: float


class Curve:
    """Cycles of steps by context.

    Parameters
    ----------
    cycles : callable
        Simulates the step with so many attended positions.
    rows : callable
        Rows that this step streams.
    block : int
        Positions after which the pattern of keys and values repeats, T.
    progress : callable, optional
        Told before each simulation: the context, how many were simulated, how many are known to be needed.

    Attributes
    ----------
    samples : dict from int to int
        Simulated contexts and their cycles.
    proofs : list of Proof
        The spans that were interpolated.
    """

    def __init__(
        self,
        cycles: Callable[[int], int],
        rows: Callable[[int], int],
        block: int,
        progress: Callable[[int, int, int], object] | None = None,
    ) -> None:
        self._cycles, self._rows, self._block, self._progress = cycles, rows, block, progress
        self._needed: set[int] = set()
        self.samples: dict[int, int] = {}
        self.proofs: list[Proof] = []

    def total(self, first: int, last: int) -> float:
        """Sum of the cycles of the steps with ``first`` to ``last`` attended positions."""
        return sum(cycles for _, cycles in self.steps(first, last))

    def steps(self, first: int, last: int) -> Iterator[tuple[int, float]]:
        """Each context from ``first`` to ``last`` with the cycles of its step."""
        if first <= last:
            self._needed.add(first)
            yield first, self._sample(first)
            yield from self._behind(first, last)

    def _sample(self, attended: int) -> int:
        if attended not in self.samples:
            if self._progress:
                self._progress(attended, len(self.samples), len(self._needed))
            self.samples[attended] = self._cycles(attended)
        return self.samples[attended]

    def _behind(self, first: int, last: int) -> Iterator[tuple[int, float]]:
        """Contexts after ``first``, which is simulated, to ``last``."""
        if last <= first:
            return
        middle = (first + last) // 2
        full = middle // self._block * self._block
        between = [attended for attended in (full, full + 1) if first < attended < last]
        if len(between) < 2:
            between = [middle] if middle > first else []
        self._needed.update((first, *between, last))
        errors = [abs(self._between(first, last, n) / self._sample(n) - 1) for n in between]
        if max(errors, default=0.0) > TOLERANCE:
            yield from self._behind(first, between[0])
            yield from self._behind(between[0], last)
            return
        if between:
            self.proofs.append(Proof(first, tuple(between), last, max(errors)))
        for start, end in pairwise((first, *between, last)):
            for attended in range(start + 1, end + 1):
                yield attended, self._between(start, end, attended)

    def _between(self, first: int, last: int, attended: int) -> float:
        """On the line between two simulated contexts."""
        low, high = self._sample(first), self._sample(last)
        length = self._rows(last) - self._rows(first)
        if not length:
            return low if attended < last else high
        return low + (high - low) * (self._rows(attended) - self._rows(first)) / length


@dataclasses.dataclass(frozen=True)
class Prefill:
    """Cycles from start to the first new token of a prompt.

    ``simulated`` : positions that were simulated, all of them if ``proofs`` is empty.
    """

    cycles: int
    simulated: int
    proofs: tuple[Proof, ...]


def prefill(
    machine: Machine,
    prompt_tokens: int,
    *,
    exact_rows: int = _EXACT_ROWS,
    progress: Callable[[str, int, int], object] | None = None,
) -> Prefill:
    """Cycles of a prompt of ``prompt_tokens`` from an empty cache to its first new token, in a ring on board 0.

    A prompt that streams at most ``exact_rows`` rows is simulated whole, a longer one by its first and its last
    position and steps between, as far as they are needed; ``progress`` is told before each of them what it is, how many
    are done and how many are known to be needed. Raises ValueError if it does not fit the context.
    """
    limit = machine.context
    if not 1 <= prompt_tokens <= limit:
        raise ValueError(f"prompt_tokens must be 1 to {limit}, got {prompt_tokens!r}")

    def run(position: int, stop: int | None = None) -> TimingResult:
        return machine.run(position, prompt_tokens, 1, stop_position=stop)[0]

    every = range(1, prompt_tokens + 1)
    rows = sum(step_rows(program, n, prompt=n < prompt_tokens) for program in machine.programs for n in every)
    if prompt_tokens < 4 or rows <= exact_rows:
        return Prefill(run(0).token_cycles[0], prompt_tokens, ())

    def tell(position: int, done: int, needed: int) -> None:
        if progress:
            progress(f"timing a prompt, position {position} of {prompt_tokens}", done, needed)

    curve = Curve(
        lambda attended: step_cycles(machine, attended, prompt=True),
        lambda attended: max(step_rows(program, attended, prompt=True) for program in machine.programs),
        machine.programs[0].core.tile,
        lambda position, done, needed: tell(position, done, needed + 2),  # the first and the last come behind them
    )
    between = curve.total(2, prompt_tokens - 1)
    count = len(curve.samples)
    tell(1, count, count + 2)
    first = _begin(run(0, stop=1), 1)
    tell(prompt_tokens, count + 1, count + 2)
    last = run(prompt_tokens - 2)
    cycles = first + between + last.token_cycles[0] - _begin(last, prompt_tokens - 1)
    return Prefill(round(cycles), count + 2, tuple(curve.proofs))
