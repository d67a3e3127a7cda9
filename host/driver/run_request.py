"""One run of the kernel: what is asked for, checked before any register is written, and what came of it."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Literal

from host.errors import BadInput
from hw.board.gpt2_map import Flags, row_register
from hw.gpt2.sampled_token import BoardSampling

__all__ = [
    "MAX_STOP_IDS",
    "RUN_REGISTERS",
    "FinishReason",
    "RingRun",
    "RunRequest",
    "RunResult",
    "held_positions",
    "run_flags",
]

MAX_STOP_IDS = 4  # registers stop_0 to stop_3
RUN_REGISTERS = (
    "position",
    "prompt_end",
    "max_new_tokens",
    "stop_count",
    *(f"stop_{i}" for i in range(MAX_STOP_IDS)),
)
"""What a request has in registers; on a core with rows each row has its own."""

FinishReason = Literal["length", "stop", "context", "cancelled"]


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a run produced.

    Parameters
    ----------
    tokens : tuple of int
        New tokens, in order, the stop token included.
    reason : str
        ``length`` (as many as asked for), ``stop`` (a stop id came), ``context`` (the cache is full), ``cancelled``.
    cycles : int
        Core cycles from start to done (0 from a model without cycles).
    """

    tokens: tuple[int, ...]
    reason: FinishReason
    cycles: int


@dataclasses.dataclass(frozen=True)
class RingRun:
    """What a run on several boards has beside its request, the same on all of them (docs/ring.md section 5).

    Members: `number`: 8 bits, another one each run; `link_limit_cycles`: core cycles to wait for other boards, 0 for
    ever; `vocabulary`: token ids of the whole model, of which each board's program has a part.
    """

    number: int
    link_limit_cycles: int
    vocabulary: int

    def registers(self) -> dict[str, int]:
        """Values of the registers by name."""
        return {"ring_run": self.number, "link_limit": self.link_limit_cycles}


@dataclasses.dataclass(frozen=True)
class RunRequest:
    """Registers of one run; make it with :meth:`checked`.

    ``sampling`` says how the board draws the tokens; None: the arg-max.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    write_logits: bool
    position: int
    sampling: BoardSampling | None = None

    @classmethod
    def checked(
        cls,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        stop_ids: Sequence[int],
        write_logits: bool,
        position: int | None,
        limits: Mapping[str, int],
        sampling: BoardSampling | None = None,
    ) -> RunRequest:
        """Check a request against a program, but for what the cache holds (see `require_cached`).

        Parameters
        ----------
        prompt_ids : all tokens from position 0 on, those in the cache included.
        max_new_tokens : tokens to generate, at least 1.
        stop_ids : at most 4 token ids that end the run.
        write_logits : also write each decode step's logits to memory.
        position : first position to process, None for 0; the positions before it must be in the cache.
        limits : the program's registers, of which ``context_limit`` and ``vocab`` are used.
        sampling : how the board draws the tokens; None: the arg-max.

        Raises BadInput, with what was got and what is allowed.
        """
        prompt = _ids("prompt", prompt_ids, limits["vocab"])
        stops = _ids("stop", stop_ids, limits["vocab"])
        context = limits["context_limit"]
        if not prompt:
            raise BadInput("the prompt is empty", kind="empty_prompt", value=0, expected="at least one token")
        if len(prompt) > context:
            raise BadInput(
                f"the prompt has {len(prompt)} tokens, the cache of this program holds {context}",
                kind="prompt_too_long",
                value=len(prompt),
                expected=context,
                hint="Shorten the prompt, or compile with a longer context.",
            )
        if not isinstance(max_new_tokens, int) or not 1 <= max_new_tokens < 1 << 32:
            raise BadInput(
                f"max_new_tokens must be a number from 1, got {max_new_tokens!r}", value=max_new_tokens, expected=">= 1"
            )
        if len(stops) > MAX_STOP_IDS:
            raise BadInput(
                f"{len(stops)} stop ids, the kernel compares {MAX_STOP_IDS}", value=len(stops), expected=MAX_STOP_IDS
            )
        first = 0 if position is None else operator.index(position)
        if not 0 <= first < len(prompt):
            raise BadInput(
                f"position must lie in the prompt of {len(prompt)} tokens, got {first}",
                value=first,
                expected=f"0 to {len(prompt) - 1}",
            )
        return cls(prompt, max_new_tokens, stops, bool(write_logits), first, sampling)

    def require_cached(self, cached_ids: Sequence[int | None]) -> None:
        """Raise BadInput unless the cache holds what stands before `position`.

        ``cached_ids`` are the tokens whose keys and values it has; None where any token will do.
        """
        same, length = held_positions(self.prompt_ids, cached_ids), len(self.prompt_ids)
        if self.position > same:
            raise BadInput(
                f"position {self.position} needs the keys and values of the first {self.position} prompt tokens; "
                f"the cache holds those of {min(same, length)}",
                kind="not_cached",
                value=self.position,
                expected=min(same, length - 1),
                hint="Start from a smaller position.",
            )

    @classmethod
    def of_registers(cls, registers: Mapping[str, int], tokens: Sequence[int], flags: int) -> RunRequest:
        """The request that stands in the kernel's registers, for a run that user code started by itself.

        What it samples by is not looked at.
        """
        return cls(
            tuple(tokens),
            registers["max_new_tokens"],
            tuple(registers[f"stop_{i}"] for i in range(registers["stop_count"])),
            bool(flags & Flags.WRITE_LOGITS),
            registers["position"],
        )

    def registers(self, row: int = 0) -> dict[str, int]:
        """Values of the request's registers by name, as those of a row; of a greedy one too, so that none stays."""
        drawn = self.sampling
        values = {
            "position": self.position,
            "prompt_end": len(self.prompt_ids),
            "max_new_tokens": self.max_new_tokens,
            "stop_count": len(self.stop_ids),
            **{f"stop_{i}": token for i, token in enumerate(self.stop_ids)},
            "seed": 0 if drawn is None else drawn.seed,
            "sampling": 0 if drawn is None else drawn.register,
        }
        return {row_register(name, row): value for name, value in values.items()}

    def reason(self, tokens: Sequence[int]) -> FinishReason:
        """Why a run without error ended with these new tokens."""
        if tokens and tokens[-1] in self.stop_ids:
            return "stop"
        return "length" if len(tokens) >= self.max_new_tokens else "context"

    def complete(self, tokens: Sequence[int], context_limit: int) -> bool:
        """Whether a run ends with these new tokens by itself."""
        stopped = bool(tokens) and tokens[-1] in self.stop_ids
        full = len(self.prompt_ids) + len(tokens) > context_limit
        return stopped or full or len(tokens) >= self.max_new_tokens


def run_flags(write_logits: bool, batch: bool = False) -> int:
    """Value of the register ``flags``."""
    return int((Flags.WRITE_LOGITS if write_logits else Flags(0)) | (Flags.BATCH if batch else Flags(0)))


def held_positions(prompt_ids: Sequence[int], cached_ids: Sequence[int | None]) -> int:
    """Leading tokens of a cache that are those of a prompt; all of them if the prompt is shorter and the same."""
    pairs = enumerate(zip(prompt_ids, cached_ids, strict=False))
    return next((place for place, (asked, held) in pairs if held not in (None, asked)), len(cached_ids))


def _ids(what: str, ids: Sequence[int], vocab: int) -> tuple[int, ...]:
    try:
        plain = tuple(operator.index(token) for token in ids)
    except TypeError:
        raise BadInput(f"{what} ids must be whole numbers, got {ids!r}", value=repr(ids)) from None
    for place, token in enumerate(plain):
        if not 0 <= token < vocab:
            raise BadInput(
                f"{what} id {token} (number {place}) is not in the vocabulary of {vocab}",
                value=token,
                expected=f"0 to {vocab - 1}",
                hint="Use the tokenizer that belongs to the model.",
            )
    return plain
