"""Spreads independent pieces of one instruction over the processor's cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

__all__ = ["for_ranges"]

_PARALLEL_MACS = 400_000
"""Work below this is done faster by one core than handed to another (a hand-over costs about 50 microseconds)."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), thread_name_prefix="ringfly-functional")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def for_ranges(work: Callable[[tuple[int, int]], None], count: int, macs: int) -> None:
    """Call ``work((start, end))`` for ranges that cover ``range(count)``; ``macs`` is the size of the whole.

    The kernels release the interpreter's lock and touch disjoint data, so the result does not depend on the order.
    """
    pieces = min(_cores(), count)
    if macs < _PARALLEL_MACS or pieces < 2:
        work((0, count))
        return
    ranges = [(count * i // pieces, count * (i + 1) // pieces) for i in range(pieces)]
    tasks = [_pool().submit(work, part) for part in ranges[1:]]
    work(ranges[0])
    for task in tasks:
        task.result()
