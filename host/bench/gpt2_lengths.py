"""Cycles of a whole generation, prompt and output, for many lengths of the same model on the same boards.

Every length is made of the same steps (`host.bench.gpt2_steps`): the first one, prompt steps, the step that makes the
first new token, and decode steps. Prompt and decode steps by context are two curves (`sim.timing.interpolation`):
simulated where they must be, interpolated where simulated contexts prove the line. So a table of lengths costs little
more than its longest one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from host.bench.gpt2_steps import GenerationSteps
from host.bench.timed_program import TimedProgram
from host.errors import BadInput
from sim.timing.interpolation import TOLERANCE, Curve
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
    """All lengths of one model on its boards, and how their cycles were found; `requests`: of a batch, or 1."""

    timed: TimedProgram
    requests: int
    lengths: tuple[GenerationCycles, ...]
    method: dict[str, object]


def time_lengths(
    timed: TimedProgram, lengths: Sequence[Length], *, requests: int = 1, progress: Progress = unobserved
) -> LengthTimes:
    """Time every length from an empty cache, in a ring on board 0.

    With `requests` above 1 it is a batch of so many, each of that length, on a core with as many rows or more. Raises
    BadInput for a length that does not fit, TimingError.
    """
    for length in lengths:
        timed.check_positions(f"prompt + output - 1 of length {length}", length.positions)
    steps = GenerationSteps(timed.machine, requests)
    prompts = sorted({length.prompt for length in lengths})
    decoding = [length for length in lengths if length.output > 1]
    name = f"{timed.label} on {timed.boards}, core {timed.program.core.name}"
    tile = timed.program.core.tile

    def tell(kind: str, stride: int) -> Callable[[int, int, int], object]:
        return lambda step, done, needed: progress(f"{name}, {kind} steps, {step * stride} attended", done, needed)

    in_prompt = Curve(
        steps.prompt_step, steps.prompt_step_rows, max(1, tile // steps.stride), tell("prompt", steps.stride)
    )
    in_decode = Curve(steps.decode_step, steps.decode_step_rows, tile, tell("decode", 1))
    starts, simulated = _starts(steps, in_prompt, prompts[-1])
    firsts = {tokens: starts[steps.prompt_steps(tokens)] + steps.last_step(tokens) for tokens in prompts}
    first = min((length.prompt for length in decoding), default=0) + 1
    last = max((length.positions for length in decoding), default=0)
    decode = dict(in_decode.steps(first, last))
    found = []
    for length in lengths:
        own = range(length.prompt + 1, length.positions + 1)
        whole = firsts[length.prompt] + sum(decode[attended] for attended in own)
        found.append(GenerationCycles(length, round(firsts[length.prompt]), round(whole)))
    simulated += len(prompts) + len(in_prompt.samples) + len(in_decode.samples)
    return LengthTimes(timed, requests, tuple(found), _method(simulated, steps.stride, in_prompt, in_decode))


def _starts(steps: GenerationSteps, curve: Curve, longest: int) -> tuple[dict[int, float], int]:
    """Cycles from start to the first tile of each step of the longest prompt, and how many runs beside `curve` found
    them. A step's start does not depend on how many follow it."""
    count = steps.prompt_steps(longest)
    if count == 1:
        return {1: 0.0}, 0
    whole = dict(curve.steps(2, count - 1))
    starts = {1: 0.0, 2: float(steps.first_step(longest))}
    for step in range(3, count + 1):
        starts[step] = starts[step - 1] + whole[step - 1]
    return starts, 1


def _method(simulated: int, stride: int, in_prompt: Curve, in_decode: Curve) -> dict[str, object]:
    return {
        "cycles": "from start, with an empty cache, to the first and to the last new token",
        "method": (
            "steps are simulated at `simulated_contexts`, those between interpolated over the rows that they stream, "
            f"where simulated ones between two others lie on their line within {TOLERANCE:g}"
        ),
        "simulated_contexts": simulated,
        "prompt_positions_a_step": stride,
        "interpolated_prompt_steps": [dataclasses.asdict(proof) for proof in in_prompt.proofs],
        "interpolated_decode_steps": [dataclasses.asdict(proof) for proof in in_decode.proofs],
    }
