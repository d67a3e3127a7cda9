"""Random programs whose requests sample their tokens on the board (docs/sampling.md)."""

from __future__ import annotations

import dataclasses
import random

from hw.board.gpt2_map import row_register
from hw.gpt2.config import CoreConfig
from hw.gpt2.sampled_token import TOP_K_LIMIT, BoardSampling

from .random_case import RandomCase, random_case

__all__ = ["mixed_case", "sampled_case", "samples"]

_GREEDY = 0.25
"""Share of the requests of a batch that stay greedy beside the others."""


def samples(seed: int) -> bool:
    """Whether the requests of :func:`mixed_case` sample: those of odd seeds do."""
    return seed % 2 == 1


def mixed_case(seed: int, config: CoreConfig) -> RandomCase:
    """The random case of a seed, greedy or sampled, as regressions and checks of faults run it."""
    case = random_case(seed, config)
    return sampled_case(case) if samples(seed) else case


def sampled_case(case: RandomCase, seed: int | None = None) -> RandomCase:
    """The case with registers that make its requests sample, at any temperature, ``top_k`` and seed that a board knows.

    On a core with several rows some requests stay greedy, but not row 0's, which a sequence has. A greedy one has a
    seed, too, at which nobody may look. The draws are those of ``seed``, the case's own if None.
    """
    rng = random.Random(f"sampling {case.seed if seed is None else seed}")
    vocab = case.program.registers["vocab"]
    registers = {}
    for row in range(case.program.core.rows):
        drawn = _sampling(vocab, rng)
        greedy = row > 0 and rng.random() < _GREEDY
        registers[row_register("seed", row)] = drawn.seed
        registers[row_register("sampling", row)] = 0 if greedy else drawn.register
    return dataclasses.replace(case, run_registers=case.run_registers | registers)


def _sampling(vocab: int, rng: random.Random) -> BoardSampling:
    seed = rng.choice([0, 2**64 - 1, rng.getrandbits(64), rng.getrandbits(64)])
    temperature = rng.choice([2.0**-16, 2.0**16, *(2 ** rng.uniform(-3, 3) for _ in range(6))])
    top_k = rng.choice([0, 0, 1, rng.randint(1, TOP_K_LIMIT), TOP_K_LIMIT])
    drawn = BoardSampling.of(temperature, top_k, seed, vocab)
    assert drawn is not None, f"temperature {temperature}, top_k {top_k}"
    if top_k and rng.random() < 0.5:  # the register may also say more than there are
        return dataclasses.replace(drawn, top_k=top_k)
    return drawn
