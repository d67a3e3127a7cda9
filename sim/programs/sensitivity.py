"""Whether a case computes anything that can be seen: it must notice one flipped bit of its image."""

from __future__ import annotations

import dataclasses
import pathlib
import random

from sim.functional import FunctionalBoard

from .random_case import CaseResult, RandomCase, run_case

__all__ = ["flip_word", "is_sensitive"]

_HIGH_FRACTION_BIT = 1 << 9
_HIGH_MAGNITUDE_BITS = 1 << 6 | 1 << 14  # of both int8 weights of a half word
_TRIES = 4


def flip_word(case: RandomCase, rng: random.Random) -> RandomCase:
    """The case with one random half word that a random product streams changed: in its highest bit of fraction, or in
    the highest bits of its int8 magnitudes."""
    per_row = case.program.core.port_bytes // 2
    channels = case.channels.copy()
    bits = _HIGH_MAGNITUDE_BITS if case.program.core.has_int8 else _HIGH_FRACTION_BIT
    channel = rng.randrange(channels.shape[0])
    row, rows = rng.choice(case.product_rows)
    channels[channel, (row + rng.randrange(rows)) * per_row + rng.randrange(per_row)] ^= bits
    return dataclasses.replace(case, channels=channels)


def is_sensitive(case: RandomCase, folder: pathlib.Path, result: CaseResult | None = None) -> bool:
    """True if the result changes when one word of the image is flipped, one of a few that the case's seed chooses.

    (A program has dead words by design: what is overwritten before it is read, or masked.) ``result`` saves a run if it
    is known. A case that is not sensitive must not be counted as a test.
    """
    board, rng = FunctionalBoard(), random.Random(case.seed)
    before = run_case(case, board, folder) if result is None else result
    return any(_seen(before, run_case(flip_word(case, rng), board, folder)) for _ in range(_TRIES))


def _seen(before: CaseResult, after: CaseResult) -> bool:
    names = ("tokens", "row_tokens", "logits", "keys_values")
    return any(getattr(after, name) != getattr(before, name) for name in names)
