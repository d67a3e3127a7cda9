"""Hash of the key and value memory: the one definition that all executors share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from hw.board.program import Program

__all__ = ["hash_keys_and_values"]


def hash_keys_and_values(program: Program, memory: Callable[[int, int, int], Any]) -> str:
    """SHA-256 over all key and value regions of a program, whole, in order of channel and offset.

    ``memory(channel, offset, bytes)`` gives the bytes of a channel's memory as a contiguous buffer; what it raises is
    passed on.
    """
    digest = hashlib.sha256()
    regions = [*program.regions_of("keys"), *program.regions_of("values")]
    for region in sorted(regions, key=lambda r: (r.channel, r.offset)):
        digest.update(memory(region.channel, region.offset, region.bytes))
    return digest.hexdigest()
