"""Exceptions of the `sw` wing: every one says what was wrong, what was expected, and what to do next.

The command line prints `message`, `expected` and `hint`, and ends with exit code 2.
"""

from __future__ import annotations


class ModelError(ValueError):
    """A model, its configuration or its input cannot be used.

    Parameters
    ----------
    kind: short machine-readable name, for example ``missing_key`` (stable: tests and ``--json`` rely on it).
    message: one sentence for a person.
    value: what was got (a path, a shape, a list of names), or None.
    expected: what would have been right, or None.
    hint: what to do next, or an empty string.
    """

    def __init__(
        self, kind: str, message: str, *, value: object = None, expected: object = None, hint: str = ""
    ) -> None:
        self.kind = kind
        self.message = message
        self.value = value
        self.expected = expected
        self.hint = hint
        super().__init__(kind, message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class CheckpointError(ModelError):
    """A checkpoint directory, or a file in it, cannot be read as the model that it claims to be."""
