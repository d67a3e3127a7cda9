"""What a model or core that does not fit looks like: every problem, listed at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from host.errors import UserError

__all__ = ["CompileError", "Problem"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """One reason why a model cannot run on a core.

    Parameters
    ----------
    what : str
        The quantity, in the field's words, for example ``head size``.
    value : object
        What the model needs.
    expected : str
        What the core offers.
    hint : str
        What the user can change.
    """

    what: str
    value: object
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.what} is {self.value}, must be {self.expected}" + (f" ({self.hint})" if self.hint else "")


class CompileError(UserError):
    """A model does not fit a core or holds values that fp16 cannot; ``problems`` lists everything found.

    ``kind`` is ``does_not_fit`` (sizes), ``fp16_range`` (values) or ``output`` (the output folder).
    """

    kind = "does_not_fit"

    def __init__(
        self, message: str, problems: Sequence[Problem] = (), *, value: object = None, hint: str = "", kind: str = ""
    ) -> None:
        self.problems = tuple(problems)
        super().__init__(
            message + "".join(f"\n  - {problem}" for problem in self.problems),
            value=[f"{problem.what}: {problem.value}" for problem in self.problems] or value,
            expected=[f"{problem.what}: {problem.expected}" for problem in self.problems] or None,
            hint=hint,
            kind=kind or None,
        )
