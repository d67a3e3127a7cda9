"""The prompts of `ringfly generate`: given one by one, or as the lines of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["chosen_prompts"]


def chosen_prompts(given: Sequence[str], file: Path | None) -> list[str]:
    """The texts to continue: those `given`, or the lines of `file` that are not empty.

    Raises BadInput unless there is one of the two, and for a file that cannot be read, is no UTF-8 or has no prompt.
    """
    from host.errors import BadInput

    if bool(given) == (file is not None):
        raise BadInput(
            "give either --prompt or --prompts",
            kind="no_prompt" if not given else "bad_input",
            value={"prompt": list(given), "prompts": None if file is None else str(file)},
            expected="one of them",
            hint="--prompt TEXT, once or several times, or --prompts FILE with one a line.",
        )
    if file is None:
        return list(given)
    try:
        text = file.read_bytes().decode("utf-8")
    except OSError as error:
        raise BadInput(
            f"prompts {file} cannot be read: {error.strerror or error}", value=str(file), hint="Check the path."
        ) from None
    except UnicodeDecodeError as error:
        raise BadInput(
            f"prompts {file} are not UTF-8: byte {error.start} is {file.read_bytes()[error.start]:#04x}",
            kind="bad_text",
            value=str(file),
            expected="UTF-8 text, one prompt a line",
        ) from None
    lines = [line for line in text.splitlines() if line]
    if not lines:
        raise BadInput(f"{file} has no prompt", kind="no_prompt", value=str(file), expected="one prompt a line")
    return lines
