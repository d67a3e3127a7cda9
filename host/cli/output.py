"""What the command line writes: one JSON object or text on standard output, errors as one clear line or as JSON."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import typer

__all__ = [
    "EXIT_INTERRUPTED",
    "EXIT_MACHINE",
    "EXIT_USER",
    "EXIT_WRONG",
    "command_errors",
    "report_error",
    "version",
    "write_json",
]

EXIT_USER, EXIT_MACHINE, EXIT_WRONG, EXIT_INTERRUPTED = 2, 3, 4, 130
TRACEBACK = "RINGFLY_TRACEBACK"  # set it to see where an error came from

# Exceptions of the lower wings, by name so that their modules need not be imported: exit code, kind, hint.
_LOWER: dict[str, tuple[int, str, str]] = {
    "ModelError": (EXIT_USER, "model", ""),
    "ConfigError": (EXIT_USER, "bad_core", "See `ringfly compile --help` for the known cores."),
    "RegisterMapError": (EXIT_USER, "bad_core", "The kernel's registers have no room for a core of these sizes."),
    "FaultError": (EXIT_USER, "bad_fault", "See `ringfly faults --list`."),
    "ProgramError": (EXIT_USER, "bad_program", "Make the folder again with `ringfly compile`."),
    "ToolMissingError": (EXIT_USER, "missing_tool", "See `ringfly doctor`; `--executor functional` needs no tools."),
    "BuildError": (EXIT_MACHINE, "build_failed", "See `ringfly doctor` for the versions that are known to work."),
    "BoardStuckError": (EXIT_MACHINE, "stuck_kernel", "Write waves with `ringfly sim --waves` to see why."),
    "BoardError": (EXIT_MACHINE, "board_failed", ""),
    "TimingError": (EXIT_MACHINE, "timing_failed", "Run it on gateware to see why: `ringfly sim`."),
}


def version() -> str:
    """Version of the installed distribution."""
    try:
        return importlib.metadata.version("ringfly")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def write_json(command: str, body: dict[str, Any], schema: str = "") -> None:
    """Write the one JSON object of a command to standard output."""
    head = {"schema": schema or f"ringfly-{command}/1", "ringfly_version": version(), "command": command}
    sys.stdout.write(json.dumps(_plain({**head, **body}), indent=1) + "\n")
    sys.stdout.flush()


def report_error(error: BaseException, command: str, as_json: bool) -> int:
    """Write one error (JSON to standard output, a line to standard error) and return its exit code."""
    code, kind, message, value, expected, hint = _facts(error)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    if as_json:
        facts = {"kind": kind, "message": message, "value": value, "expected": expected, "hint": hint}
        write_json(command, {"error": facts}, schema="ringfly-error/1")
    else:
        sys.stderr.write(f"error: {message}\n" + (f"hint: {hint}\n" if hint else ""))
    return code


def command_errors(command: str) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Decorate a command that returns its exit code: whatever it raises becomes one clear error and its exit code."""

    def decorate(function: Callable[..., int]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> None:
            try:
                code = function(*args, **options)
            except (Exception, KeyboardInterrupt) as error:
                if isinstance(error, BrokenPipeError):
                    raise
                code = report_error(error, command, bool(options.get("as_json")))
            raise typer.Exit(code)

        return run

    return decorate


@contextlib.contextmanager
def quiet_stdout(as_json: bool) -> Iterator[None]:
    """While a command works, what libraries print goes to standard error, so JSON stays alone on standard output."""
    if not as_json:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _facts(error: BaseException) -> tuple[int, str, str, object, object, str]:
    """(exit code, kind, message, value, expected, hint) of any exception."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED, "interrupted", "interrupted; boards are released", None, None, ""
    if hasattr(error, "exit_code") and hasattr(error, "message") and hasattr(error, "hint"):  # host.errors
        return error.exit_code, error.kind, error.message, error.value, error.expected, error.hint  # type: ignore[attr-defined]
    for base in type(error).__mro__:
        if base.__name__ not in _LOWER or base.__module__.partition(".")[0] not in ("hw", "sw", "sim"):
            continue
        code, kind, hint = _LOWER[base.__name__]
        message = str(getattr(error, "message", error))
        return (
            code,
            getattr(error, "kind", kind),
            message,
            getattr(error, "value", None),
            getattr(error, "expected", None),
            getattr(error, "hint", hint),
        )
    if callable(getattr(error, "format_message", None)):  # click's usage errors
        return EXIT_USER, "usage", error.format_message(), None, None, "See `ringfly --help`."  # type: ignore[attr-defined]
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return EXIT_USER, "os_error", f"{where}{error.strerror or error}", None, None, "Check the path and the disk."
    message = f"{type(error).__name__}: {error}"
    hint = f"This is a defect of Ringfly; run again with {TRACEBACK}=1 and report what it prints."
    return EXIT_MACHINE, "internal", message, None, None, hint


def _plain(value: Any) -> Any:
    """`value` in types that JSON has: no NaN, no tuples, no paths."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return _valid_text(value) if isinstance(value, str) else value
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def _valid_text(text: str) -> str:
    """`text` without lone surrogates (what Python makes of bytes that are no UTF-8)."""
    return text.encode("utf-8", "replace").decode("utf-8")
