"""Cycles of a step as a function of the context, and of a whole prompt, without simulating every position.

A step's cycles follow the rows that it streams. Keys grow by a row for each N positions and values for each T, so
cycles are interpolated over rows, not over positions; and only between two simulated contexts with others between
them that lie on the line within :data:`TOLERANCE`. Where they do not, both halves are simulated closer. A row of keys
may cost more than a row of values (on small cores it does), so two contexts decide: one that fills its last block of T
positions and the next one, between which the shares of keys and values differ most.

A core with R rows takes R positions of a prompt in a step; its curve is one of steps, so between them nothing is
interpolated that it does not do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise

from hw.board.program import Program
from hw.gpt2.isa import Access, AccessKind, Operand
from sim.timing.machine import Machine
from sim.timing.result import TimingResult

__all__ = ["TOLERANCE", "Curve", "Prefill", "Proof", "prefill", "prompt_rows", "step_cycles", "step_rows"]

TOLERANCE = 1e-4
"""Largest relative distance of a deciding context from the line."""

_EXACT_ROWS = 6_000_000
"""A prompt that streams fewer rows is simulated whole: that takes some seconds."""


def step_rows(program: Program, attended: int, *, prompt: bool = False, tokens: int = 1, requests: int = 1) -> int:
    """Rows that one step streams with ``attended`` positions, its own included; ``prompt``: a prompt step.

    ``tokens`` : positions of a sequence that the step takes, the last of which attends to so many. ``requests`` : of a
    batch, each at that position.
    """
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
            times = 1 if access.kind == AccessKind.WEIGHTS else requests
            if access.kind == AccessKind.EMBED and access.operand == Operand.TOKEN:
                times = tokens * requests
            rows += repeat * times * (access.count if heads is None else access.heads * heads)
    return rows


def step_cycles(machine: Machine, attended: int, *, prompt: bool = False) -> int:
    """Cycles of a steady step, the second of two, with ``attended`` positions (2 or more), its own included.

    A decode step counts from the token before to its own token, a prompt step from its first tile to that of the next
    step, in a ring on board 0. Prompt steps take as many positions as the core has rows. Raises ValueError if there is
    no such pair of steps within the context.
    """
    limit, rows = machine.context, machine.rows if prompt else 1
    most = limit - rows if prompt else limit
    if not 2 * rows <= attended <= most or attended % rows:
        whole = f", a multiple of {rows}," if rows > 1 else ""
        raise ValueError(f"attended must be {2 * rows} to {most}{whole} for two steps in a row, got {attended!r}")
    first = attended - 2 * rows
    if prompt:
        end = attended + rows
        run = machine.run(first, end, 1, stop_position=end - 1)[0]
        return _begin(run, end - 1) - _begin(run, attended - 1)
    before, own = machine.run(first, first + 1, 2)[0].token_cycles
    return own - before


def _begin(run: TimingResult, position: int) -> int:
    """Cycle of the run in which the first tile of the step that ends at ``position`` was issued."""
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

    ``steps`` : that it takes, a position each or, on a core with rows, up to so many. ``simulated`` : steps that were
    simulated, all of them if ``proofs`` is empty; the contexts of ``proofs`` count steps.
    """

    cycles: int
    steps: int
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

    A prompt that streams at most ``exact_rows`` rows is simulated whole, a longer one by its first and its last step
    and steps between, as far as they are needed; ``progress`` is told before each of them what it is, how many are done
    and how many are known to be needed. Raises ValueError if it does not fit the context.
    """
    limit, rows = machine.context, machine.rows
    if not 1 <= prompt_tokens <= limit:
        raise ValueError(f"prompt_tokens must be 1 to {limit}, got {prompt_tokens!r}")

    def run(position: int, stop: int | None = None) -> TimingResult:
        return machine.run(position, prompt_tokens, 1, stop_position=stop)[0]

    steps = -(-prompt_tokens // rows)
    if steps < 4 or prompt_rows(machine, prompt_tokens) <= exact_rows:
        return Prefill(run(0).token_cycles[0], steps, steps, ())

    def tell(step: int, done: int, needed: int) -> None:
        if progress:
            position = min(step * rows, prompt_tokens)
            progress(f"timing a prompt, position {position} of {prompt_tokens}", done, needed)

    def streamed(step: int) -> int:
        return max(step_rows(program, step * rows, prompt=True, tokens=rows) for program in machine.programs)

    curve = Curve(
        lambda step: step_cycles(machine, step * rows, prompt=True),
        streamed,
        machine.programs[0].core.tile // rows,
        lambda step, done, needed: tell(step, done, needed + 2),  # the first and the last come behind them
    )
    between = curve.total(2, steps - 1)
    count = len(curve.samples)
    tell(1, count, count + 2)
    first = _begin(run(0, stop=2 * rows - 1), 2 * rows - 1)
    tell(steps, count + 1, count + 2)
    last = run((steps - 2) * rows)
    cycles = first + between + last.token_cycles[0] - _begin(last, prompt_tokens - 1)
    return Prefill(round(cycles), steps, count + 2, tuple(curve.proofs))


def prompt_rows(machine: Machine, prompt_tokens: int) -> int:
    """Rows that a prompt of so many tokens streams on all boards together: about the cycles of its simulation."""
    rows, total = machine.rows, 0
    for first in range(0, prompt_tokens, rows):
        end = min(first + rows, prompt_tokens)
        for program in machine.programs:
            total += step_rows(program, end, prompt=end < prompt_tokens, tokens=end - first)
    return total
