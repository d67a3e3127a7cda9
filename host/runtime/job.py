"""What an executor is asked to do, and what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from host.errors import TimeLimit
from host.runtime.sampling import Sampler

__all__ = ["Job", "RunOutcome", "SharedRun"]


@dataclasses.dataclass(frozen=True)
class Job:
    """One generation.

    Members: `prompt`: token ids; `max_new_tokens`; `sampler`; `stop_ids`: ids that end the text; `timeout_s`: limit in
    wall-clock time; `keep_logits`: return the logits of every new token; `on_token`: called with each token as it
    appears; `progress`: called with (what, done, total) while the prompt is read.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampler: Sampler
    stop_ids: Sequence[int] = ()
    timeout_s: float = 600.0
    keep_logits: bool = False
    on_token: Callable[[int], object] = lambda token: None
    progress: Callable[[str, int, int], object] = lambda what, done, total: None

    def expired(self, done: int) -> TimeLimit:
        """The error to raise when the time limit passes after `done` tokens."""
        return TimeLimit(
            f"{done} of {self.max_new_tokens} tokens in {self.timeout_s:g} s, the time limit",
            value=done,
            expected=self.max_new_tokens,
            hint="Give a larger --timeout-s, or ask for fewer tokens.",
        )

    def reason(self, tokens: Sequence[int], context: int) -> str | None:
        """Why the text ends behind `tokens`: ``stop``, ``length``, ``context`` (the cache is full), or None: go on."""
        if tokens and tokens[-1] in self.stop_ids:
            return "stop"
        if len(tokens) >= self.max_new_tokens:
            return "length"
        return "context" if len(self.prompt) + len(tokens) > context else None


@dataclasses.dataclass(frozen=True)
class SharedRun:
    """A batch run that made tokens of several jobs.

    Members: `jobs`: their numbers; `steps`: steps of the run, each of which made a token of every job that had not
    ended; `tokens` of all jobs; `cycles`: core cycles, None without a clock; `counters` of the board, empty likewise.
    """

    jobs: tuple[int, ...]
    steps: int
    tokens: int
    cycles: int | None
    counters: dict[str, int]


@dataclasses.dataclass
class RunOutcome:
    """Tokens and measurements of one generation.

    Members: `tokens`: new token ids, a stop token included; `finish_reason`: ``length``, ``stop`` or ``context``;
    `logits`: fp32 [tokens, vocab], or None if they were not asked for; `starts`: starts of the kernel; `sampled_by`:
    ``board`` (it drew the tokens, as many as it made, by itself) or ``host`` (one start a token), None if greedy;
    `prefill_cycles`: core cycles until the first new token; `decode_cycles`: cycles of the other tokens; `counters`:
    each board's counters, summed over its starts; `link_counters`: likewise those of both ports of each of several
    boards. Cycles are None, and counters empty, where the executor has none.

    `shared`: the batch run in which the tokens behind the first were made together with those of other jobs, or None.
    Its cycles and counters are no part of the others, and `decode_cycles` is None.
    """

    tokens: list[int]
    finish_reason: str
    logits: npt.NDArray[np.float32] | None = None
    starts: int = 0
    sampled_by: Literal["board", "host"] | None = None
    prefill_cycles: int | None = None
    decode_cycles: int | None = None
    counters: list[dict[str, int]] = dataclasses.field(default_factory=list)
    link_counters: list[list[dict[str, int]]] = dataclasses.field(default_factory=list)
    shared: SharedRun | None = None
