"""The simulated steps that generations are made of: of one sequence, or of a batch of equal requests.

On a core with R rows a sequence takes R positions of its prompt in a step; a batch of R requests takes one position of
each. A step is named by its number from 1, of a prompt, or by the positions that it attends to, in decode.
"""

from __future__ import annotations

import dataclasses

from sim.timing.interpolation import step_cycles, step_rows
from sim.timing.machine import Machine
from sim.timing.result import TimingResult

__all__ = ["GenerationSteps"]


@dataclasses.dataclass(frozen=True)
class GenerationSteps:
    """Cycles of steps on `machine`, in a ring on board 0; `requests`: 1 for a sequence, else of a batch."""

    machine: Machine
    requests: int = 1

    @property
    def stride(self) -> int:
        """Positions of a prompt that a step takes of each request."""
        return self.machine.rows if self.requests == 1 else 1

    def prompt_steps(self, tokens: int) -> int:
        """Steps that a prompt takes, the last of which makes the first new token."""
        return -(-tokens // self.stride)

    def prompt_step(self, step: int) -> int:
        """Cycles of a whole prompt step, the second or a later one, from its first tile to that of the next."""
        if self.requests == 1:
            return step_cycles(self.machine, step * self.stride, prompt=True)
        run = self._run(step - 2, step + 1, 1)
        return _first_tile(run, step) - _first_tile(run, step - 1)

    def prompt_step_rows(self, step: int) -> int:
        """Memory rows that it streams on the board that streams the most."""
        attended = step * self.stride
        return self._most_rows(attended, prompt=True, tokens=self.stride)

    def decode_step(self, attended: int) -> int:
        """Cycles from the tokens of the step before to those of the step with so many positions attended."""
        if self.requests == 1:
            return step_cycles(self.machine, attended)
        tokens = self._run(attended - 2, attended - 1, 2).token_cycles
        return tokens[-1] - tokens[self.requests - 1]

    def decode_step_rows(self, attended: int) -> int:
        """Memory rows that it streams on the board that streams the most."""
        return self._most_rows(attended)

    def first_step(self, tokens: int) -> int:
        """Cycles from start to the first tile of the second step of a prompt of so many tokens, which is no later than
        that prompt's last step."""
        second = min(2 * self.stride, tokens) - 1
        return _first_tile(self._run(0, tokens, 1, stop_position=second), second)

    def last_step(self, tokens: int) -> int:
        """Cycles of the last step of a prompt, from its first tile to the first new token of every request; from the
        run's start if it is the only one."""
        steps = self.prompt_steps(tokens)
        if steps == 1:
            return self._run(0, tokens, 1).token_cycles[-1]
        run = self._run((steps - 2) * self.stride, tokens, 1)
        return run.token_cycles[-1] - _first_tile(run, tokens - 1)

    def _most_rows(self, attended: int, *, prompt: bool = False, tokens: int = 1) -> int:
        own = (
            step_rows(program, attended, prompt=prompt, tokens=tokens, requests=self.requests)
            for program in self.machine.programs
        )
        return max(own)

    def _run(self, position: int, prompt_end: int, output: int, *, stop_position: int | None = None) -> TimingResult:
        if self.requests == 1:
            return self.machine.run(position, prompt_end, output, stop_position=stop_position)[0]
        if stop_position is not None:  # a batch has no such end: its prompt ends there instead
            prompt_end = stop_position + 1
        return self.machine.run_batch(self.requests, position, prompt_end, output)[0]


def _first_tile(run: TimingResult, position: int) -> int:
    """Cycle of the run in which the first tile of the step that ends at `position` was issued."""
    return int(run.spans["first_issue"][run.spans["position"] == position].min())
