"""A file that a command will write, checked before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["check_output_file"]


def check_output_file(path: Path, what: str, example: str) -> None:
    """Raise BadInput unless the file `path` can be made or replaced.

    `what` is what it will hold, in the plural, for messages; `example` is a file name for the hint.
    """
    from host.errors import BadInput

    folder = path.parent
    if not folder.is_dir():
        raise BadInput(f"folder {folder} for the {what} does not exist", value=str(path), hint="Make it first.")
    if path.is_dir():
        hint = f"For example {path / example}."
        raise BadInput(f"{path} is a folder; the {what} need a file", value=str(path), hint=hint)
    try:
        _open_once(path)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error.strerror or error}", value=str(path), hint="Choose another file."
        ) from error


def _open_once(path: Path) -> None:
    """Open for writing and close: permissions alone do not tell (root, /proc). A file stays as it is, a new one goes.

    Without waiting: a pipe that nobody reads is an error.
    """
    new = not path.exists()
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666))
    if new:
        path.resolve().unlink()  # a link to a file that is not there stays
