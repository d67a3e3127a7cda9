"""Exceptions of the `host` wing: one tree, each with the facts that the command line prints and an exit code.

Exit codes: 2 = the user can mend it (input, versions, a busy board), 3 = the machine failed (time limit, stuck kernel,
simulator error), 4 = the comparison with the reference came out wrong.
"""

from __future__ import annotations

__all__ = [
    "BadInput",
    "BadPointer",
    "BadXclbin",
    "BankFull",
    "BoardFailed",
    "ComparisonWrong",
    "DeviceBusy",
    "HostError",
    "KernelFault",
    "MachineError",
    "RingFault",
    "StuckKernel",
    "TimeLimit",
    "UserError",
    "VersionMismatch",
]


class HostError(Exception):
    """Root of the tree; raise one of its subclasses.

    Parameters
    ----------
    message : str
        One sentence for a person: what is wrong.
    value, expected : object
        What was got and what would have been right, or None.
    hint : str
        What to do next, or an empty string.
    kind : str
        Stable machine-readable name (``--json`` and tests rely on it); each class has its own default.
    """

    kind = "host"
    exit_code = 3

    def __init__(
        self, message: str, *, value: object = None, expected: object = None, hint: str = "", kind: str | None = None
    ) -> None:
        self.message = message
        self.value = value
        self.expected = expected
        self.hint = hint
        if kind is not None:
            self.kind = kind
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UserError(HostError, ValueError):
    """Something that the user can mend."""

    kind = "user"
    exit_code = 2


class BadInput(UserError):
    """An argument out of range or of the wrong form."""

    kind = "bad_input"


class BadXclbin(UserError):
    """A file that is no xclbin, not one of ours, or damaged."""

    kind = "bad_xclbin"


class VersionMismatch(UserError):
    """Two parts (xclbin, kernel, program, host) of different versions or configurations; the message names both."""

    kind = "version_mismatch"


class DeviceBusy(UserError):
    """The board is running a job that was not waited for, or its card is in use by somebody else."""

    kind = "device_busy"


class BankFull(UserError):
    """A buffer or program does not fit into its memory bank."""

    kind = "bank_full"


class BadPointer(UserError):
    """An address that is in no live buffer, or in a buffer of another bank than the port reaches."""

    kind = "bad_pointer"


class MachineError(HostError, RuntimeError):
    """The machine failed: board, simulator or kernel."""

    kind = "machine"
    exit_code = 3


class BoardFailed(MachineError):
    """The board model or card refused an access or broke down."""

    kind = "board_failed"


class KernelFault(MachineError):
    """The kernel ended a run with an error code; the message says which."""

    kind = "kernel_fault"


class RingFault(MachineError):
    """Boards of a ring did not work together: a cable, a board, their order, or what is loaded on them.

    ``kind`` is the error's name in ``hw.board.gpt2_map.ErrorCode`` in small letters, such as ``link_down``, or
    ``boards_differ``; ``value`` has board, port and the board at the cable's other end where the error has them.
    """

    kind = "ring_fault"


class StuckKernel(MachineError):
    """A run makes no progress; the message says what every unit waits for."""

    kind = "stuck_kernel"


class TimeLimit(MachineError):
    """A run still works but its time limit has passed; the message says how far it is."""

    kind = "time_limit"


class ComparisonWrong(HostError):
    """The result differs from the reference's."""

    kind = "comparison_wrong"
    exit_code = 4
