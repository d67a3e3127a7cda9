"""What a random case asks of a board: start registers and tokens, of each row if the core has several."""

from __future__ import annotations

import dataclasses
import random

from hw.board.gpt2_map import Flags, row_register
from hw.gpt2.config import CoreConfig

from .program_builder import Shape

__all__ = ["RandomRun", "random_run"]

_NAN_CASES = 0.12
"""Share of runs on several rows in which one token's embedding is not a number."""


@dataclasses.dataclass(frozen=True)
class RandomRun:
    """A run, without what depends on where its data lie.

    Attributes
    ----------
    registers : dict
        Start registers by name, but for bases.
    tokens : tuple of tuple of int
        For each row what fills its token window from 0 on.
    past : tuple of bool
        For each row's cache whether it must hold keys and values of the positions before.
    cache : int
        Row whose cache a sequence works on.
    nan_token : int or None
        A token whose embedding must have a NaN.
    """

    registers: dict[str, int]
    tokens: tuple[tuple[int, ...], ...]
    past: tuple[bool, ...]
    cache: int = 0
    nan_token: int | None = None


def random_run(shape: Shape, vocab: int, config: CoreConfig, rng: random.Random) -> RandomRun:
    """A run of two or more positions; some start with a past, some end with the cache full, few at a stop id.

    On a core with several rows it is a sequence with a longer prompt, or a batch of requests that differ in all they
    can, for some of the rows.
    """
    if config.rows == 1:
        registers = _sequence(shape, vocab, rng, 4)
        tokens = _tokens(vocab, registers["prompt_end"], rng)
        return RandomRun(registers, (tokens,), (registers["position"] > 0,))
    return (_batch_run if rng.random() < 0.5 else _sequence_run)(shape, vocab, config.rows, rng)


def _tokens(vocab: int, count: int, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(vocab) for _ in range(count))


def _sequence(shape: Shape, vocab: int, rng: random.Random, longest: int) -> dict[str, int]:
    """Registers of one sequence whose prompt goes on for up to ``longest`` tokens."""
    limit = shape.context_limit
    position = rng.randint(1, limit - 3) if rng.random() < 0.4 else 0
    prompt_end = rng.randint(position + 1, min(position + longest, limit - 1))
    steps = limit if rng.random() < 0.1 else rng.randint(2, 6)
    stops = {f"stop_{i}": rng.randrange(vocab) for i in range(4)}
    return {
        "position": position,
        "prompt_end": prompt_end,
        "max_new_tokens": steps,
        "flags": int(Flags.WRITE_LOGITS),
        "stop_count": rng.choice([0, 0, 0, 0, 1, 4]),
        **stops,
    }


def _sequence_run(shape: Shape, vocab: int, rows: int, rng: random.Random) -> RandomRun:
    """A sequence on any of the caches. The other rows' registers say what a batch would refuse: nobody may look."""
    registers = _sequence(shape, vocab, rng, 3 * rows)
    tokens = [_tokens(vocab, registers["prompt_end"], rng)]
    for row in range(1, rows):
        end = rng.randint(0, shape.context_limit)
        wrong = {"position": end, "prompt_end": end, "max_new_tokens": 0, "stop_count": 4}
        registers |= {row_register(name, row): value for name, value in wrong.items()}
        tokens.append(_tokens(vocab, end, rng))
    registers["batch_rows"] = rng.randrange(1 << rows)
    cache = rng.randrange(rows)
    past = tuple(row == cache and registers["position"] > 0 for row in range(rows))
    long = registers["prompt_end"] - registers["position"] > 1  # so that something comes before the NaN
    nan = tokens[0][-1] if long and rng.random() < _NAN_CASES else None
    return RandomRun(registers, tuple(tokens), past, cache, nan)


def _batch_run(shape: Shape, vocab: int, rows: int, rng: random.Random) -> RandomRun:
    """Requests of some rows: some decide while others still have prompt, and they end at different steps."""
    mask = (1 << rows) - 1 if rng.random() < 0.5 else rng.randrange(1, 1 << rows)
    registers = {"flags": int(Flags.WRITE_LOGITS | Flags.BATCH), "batch_rows": mask}
    tokens, past, prompts = [], [], []
    for row in range(rows):
        own = _sequence(shape, vocab, rng, 6) | {"stop_count": rng.choice([0, 0, 1, 4])}
        own["max_new_tokens"] = min(own["max_new_tokens"], rng.randint(1, shape.context_limit))
        del own["flags"]
        registers |= {row_register(name, row): value for name, value in own.items()}
        tokens.append(_tokens(vocab, own["prompt_end"], rng))
        past.append(own["position"] > 0)
        if mask >> row & 1:
            prompts.append(tokens[-1][own["position"] :])
    several = len(prompts) > 1  # so that others work on
    nan = rng.choice(rng.choice(prompts)) if several and rng.random() < _NAN_CASES else None
    return RandomRun(registers, tuple(tokens), tuple(past), nan_token=nan)
