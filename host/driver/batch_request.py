"""A batch of requests, one a row of the core: what is asked for, and which row each gets."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence

from host.driver.kernel_run import KernelRun, RunPart
from host.driver.request_caches import RequestCaches
from host.driver.run_request import RunRequest, held_positions
from host.errors import BadInput, HostError
from hw.gpt2.config import CoreConfig
from hw.gpt2.sampled_token import BoardSampling

__all__ = ["BatchRequest", "checked_batch"]


@dataclasses.dataclass(frozen=True)
class BatchRequest:
    """One request of a batch; the members but `row` are the arguments of ``Gpt2Kernel.start``.

    Members: `prompt_ids`: all tokens from position 0 on; `max_new_tokens`; `stop_ids`: at most 4; `position`: first
    position to process, whose predecessors must be in the row's cache; `row`: 0 to rows - 1, None for any; `sampling`:
    how the board draws the tokens, None for the arg-max.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    stop_ids: Sequence[int] = ()
    position: int | None = None
    row: int | None = None
    sampling: BoardSampling | None = None


def checked_batch(
    requests: Sequence[BatchRequest],
    write_logits: bool,
    core: CoreConfig,
    limits: Mapping[str, int],
    caches: RequestCaches,
) -> KernelRun:
    """Check a batch against a program and give every request its row.

    A request without a row gets a free one whose cache holds all before its position, the lowest if there are several.
    ``limits`` are the program's registers. Raises BadInput, which names the request by its number, from 0.
    """
    if core.rows == 1:
        raise BadInput(
            f"core {core.name} has one row: it takes no batch",
            kind="no_rows",
            value=core.rows,
            expected="2 or 4",
            hint="Start the requests one after the other, or use a core with rows, such as 16x4r4.",
        )
    if not requests:
        raise BadInput("the batch is empty", kind="empty_batch", value=0, expected=f"1 to {len(caches)} requests")
    if len(requests) > len(caches):
        raise BadInput(
            f"{len(requests)} requests in a batch, core {core.name} with this program takes {len(caches)}",
            kind="too_many_requests",
            value=len(requests),
            expected=len(caches),
            hint=f"Start batches of {len(caches)}, or use a core with more rows.",
        )
    checked = []
    for number, asked in enumerate(requests):
        with _named(number):
            checked.append(
                RunRequest.checked(
                    asked.prompt_ids,
                    asked.max_new_tokens,
                    asked.stop_ids,
                    write_logits,
                    asked.position,
                    limits,
                    asked.sampling,
                )
            )
    rows = _rows(requests, checked, caches)
    for number, (request, row) in enumerate(zip(checked, rows, strict=True)):
        with _named(number):
            request.require_cached(caches.tokens[row])
    return KernelRun(tuple(RunPart(request, row, row) for request, row in zip(checked, rows, strict=True)), batch=True)


def _rows(requests: Sequence[BatchRequest], checked: Sequence[RunRequest], caches: RequestCaches) -> list[int]:
    """The row of each request."""
    rows: dict[int, int] = {}
    for number, asked in enumerate(requests):
        if asked.row is None:
            continue
        with _named(number):
            try:
                row = operator.index(asked.row)
            except TypeError:
                raise BadInput(f"a row must be a whole number, got {asked.row!r}", value=repr(asked.row)) from None
            caches.require(row)
            if row in rows.values():
                raise BadInput(
                    f"row {row} is given twice", kind="row_taken", value=row, expected="another row for each request"
                )
            rows[number] = row
    free = [row for row in range(len(caches)) if row not in rows.values()]
    left = [number for number in range(len(requests)) if number not in rows]
    for number in sorted(left, key=lambda number: -checked[number].position):  # those that need a certain cache first
        request = checked[number]
        fitting = [row for row in free if held_positions(request.prompt_ids, caches.tokens[row]) >= request.position]
        rows[number] = (fitting or free)[0]
        free.remove(rows[number])
    return [rows[number] for number in range(len(requests))]


@contextlib.contextmanager
def _named(number: int) -> Iterator[None]:
    """Put the request's number in front of its errors."""
    try:
        yield
    except HostError as error:
        error.message = f"request {number}: {error.message}"
        raise
