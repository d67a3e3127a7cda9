"""Cycles of a whole generation, prompt and output, for many lengths of the same model on the same boards.

Every length is made of the same steps: the first position, prompt steps, the step that makes the first new token, and
decode steps. Prompt and decode steps by context are two curves (`sim.timing.interpolation`): simulated where they must
be, interpolated where simulated contexts prove the line. So a table of lengths costs little more than its longest one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from host.bench.timed_program import TimedProgram
from host.errors import BadInput
from sim.timing.interpolation import TOLERANCE, Curve, step_cycles, step_rows
from sim.timing.machine import Machine
from sim.timing.result import TimingResult
from sw.models.weights import Progress, unobserved

__all__ = ["GenerationCycles", "Length", "LengthTimes", "time_lengths"]


@dataclasses.dataclass(frozen=True, order=True)
class Length:
    """Tokens of the prompt and tokens that are generated."""

    prompt: int
    output: int

    @classmethod
    def parse(cls, text: str) -> Length:
        """From ``IN:OUT``. Raises BadInput."""
        parts = text.split(":")
        if len(parts) != 2 or not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise BadInput(
                f"length {text!r} is not IN:OUT",
                kind="bad_length",
                value=text,
                expected="two whole numbers of 1 or more, such as 64:64",
                hint="IN: tokens of the prompt, OUT: tokens that are generated.",
            )
        return cls(*map(int, parts))

    @property
    def positions(self) -> int:
        """Positions that are processed: the last token is only printed."""
        return self.prompt + self.output - 1

    def __str__(self) -> str:
        return f"{self.prompt}:{self.output}"


@dataclasses.dataclass(frozen=True)
class GenerationCycles:
    """Cycles of one length: `first_token` from start to the first new token, `total` to the last one.

    `decode_steps`: steps behind the first new token; they take `total` - `first_token`.
    """

    length: Length
    first_token: int
    total: int

    @property
    def decode_steps(self) -> int:
        """Steps behind the one that made the first token."""
        return self.length.output - 1

    @property
    def decode(self) -> int:
        """Their cycles."""
        return self.total - self.first_token


@dataclasses.dataclass(frozen=True)
class LengthTimes:
    """All lengths of one model on its boards, and how their cycles were found."""

    timed: TimedProgram
    lengths: tuple[GenerationCycles, ...]
    method: dict[str, object]


def time_lengths(timed: TimedProgram, lengths: Sequence[Length], progress: Progress = unobserved) -> LengthTimes:
    """Time every length from an empty cache, in a ring on board 0. Raises BadInput for one that does not fit."""
    for length in lengths:
        timed.check_positions(f"prompt + output - 1 of length {length}", length.positions)
    machine = timed.machine
    prompts = sorted({length.prompt for length in lengths})
    decoding = [length for length in lengths if length.output > 1]
    simulated = 0

    def tell(kind: str) -> Callable[[int, int, int], object]:
        name = f"{timed.label} on {timed.boards}, {kind} steps"
        return lambda attended, done, needed: progress(f"{name}, {attended} attended", done, needed)

    def curve(kind: str, prompt: bool) -> Curve:
        return Curve(
            lambda attended: step_cycles(machine, attended, prompt=prompt),
            lambda attended: max(step_rows(program, attended, prompt=prompt) for program in machine.programs),
            timed.program.core.tile,
            tell(kind),
        )

    prompt_curve, decode_curve = curve("prompt", True), curve("decode", False)
    steps = dict(prompt_curve.steps(2, prompts[-1] - 1))
    starts = {1: 0.0}  # cycles from start to the first tile of the last prompt position, by prompt tokens
    if prompts[-1] > 1:
        starts[2] = _first_tile(machine.run(0, prompts[-1], 1, stop_position=1)[0], 1)
        simulated += 1
    for tokens in range(3, prompts[-1] + 1):
        starts[tokens] = starts[tokens - 1] + steps[tokens - 1]
    firsts = {tokens: starts[tokens] + _last_prompt_step(machine, tokens) for tokens in prompts}
    first = min((length.prompt for length in decoding), default=0) + 1
    last = max((length.positions for length in decoding), default=0)
    decode = dict(decode_curve.steps(first, last))
    found = []
    for length in lengths:
        own = range(length.prompt + 1, length.positions + 1)
        whole = firsts[length.prompt] + sum(decode[attended] for attended in own)
        found.append(GenerationCycles(length, round(firsts[length.prompt]), round(whole)))
    simulated += len(prompts) + len(prompt_curve.samples) + len(decode_curve.samples)
    return LengthTimes(timed, tuple(found), _method(simulated, prompt_curve, decode_curve))


def _last_prompt_step(machine: Machine, tokens: int) -> int:
    """Cycles of the step at the last prompt position, from its first tile to the first new token; with one token in the
    prompt from the run's start."""
    if tokens == 1:
        return machine.run(0, 1, 1)[0].token_cycles[0]
    run = machine.run(tokens - 2, tokens, 1)[0]
    return run.token_cycles[0] - _first_tile(run, tokens - 1)


def _first_tile(run: TimingResult, position: int) -> int:
    """Cycle of the run in which the first tile of `position` was issued."""
    return int(run.spans["first_issue"][run.spans["position"] == position].min())


def _method(simulated: int, prompt_curve: Curve, decode_curve: Curve) -> dict[str, object]:
    return {
        "cycles": "from start, with an empty cache, to the first and to the last new token",
        "method": (
            "steps are simulated at `simulated_contexts`, those between interpolated over the rows that they stream, "
            f"where simulated ones between two others lie on their line within {TOLERANCE:g}"
        ),
        "simulated_contexts": simulated,
        "interpolated_prompt_steps": [dataclasses.asdict(proof) for proof in prompt_curve.proofs],
        "interpolated_decode_steps": [dataclasses.asdict(proof) for proof in decode_curve.proofs],
    }
