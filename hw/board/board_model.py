"""What stands behind the PYNQ device: the protocol that RTL and functional executors implement."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hw.board.program import MemoryImage, Program

__all__ = ["BANK_BYTES", "BoardError", "BoardModel", "BoardStuckError"]

BANK_BYTES = 1 << 28
"""Size of an HBM pseudo-channel of the U280 in bytes: channel c begins at global address ``c * BANK_BYTES``."""


class BoardError(RuntimeError):
    """The board model failed: bad access, memory out of range, simulator error."""


class BoardStuckError(BoardError):
    """A run made no progress within its limits; the message says what every unit waits for."""


@runtime_checkable
class BoardModel(Protocol):
    """One simulated board.

    Channel addresses count from row 0 of the channel (the simulated board places row 0 at byte 0 of the channel's
    memory). Register offsets and values are those of ``hw.board.gpt2_map``.
    """

    def load(self, program: Program, image: MemoryImage) -> None:
        """Fill memory (image, then fp16 NaN) and write instructions, descriptors and initial registers."""

    def read_register(self, offset: int, bytes: int = 4) -> int:
        """Read ``bytes`` (a multiple of 4) at ``offset``; low word first."""

    def write_register(self, offset: int, value: int, bytes: int = 4) -> None:
        """Write ``bytes`` at ``offset``, low word first."""

    def read_memory(self, channel: int, offset: int, bytes: int) -> bytes:
        """Read channel memory."""

    def write_memory(self, channel: int, offset: int, data: bytes) -> None:
        """Write channel memory (the image's files stay as they are)."""

    def advance(self, max_cycles: int) -> int:
        """Let the board work for at most ``max_cycles``; returns cycles passed (functional: one step, 0)."""

    def counters(self) -> dict[str, int]:
        """Cycles, tiles and stalls of the last run by register name, and the harness's own tick count."""

    def state_dump(self) -> dict[str, int]:
        """What every unit waits for, by register name."""

    def kv_hash(self) -> str:
        """SHA-256 over all key and value regions, whole, in channel order."""

    def close(self) -> None:
        """Release the model; calling it again does nothing."""
