"""Memory of a program: how much it takes in each bank, what it holds, and how it gets there over plain PYNQ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hw.board.program import MemoryImage, Program

__all__ = ["FP16_NAN", "cached_positions", "copy_image", "program_bytes"]

FP16_NAN = 0x7E00  # what memory outside the image holds: a read of anything never written shows


def program_bytes(program: Program, image: MemoryImage) -> int:
    """Bytes of each channel that the program uses: image and regions, rounded up to 4096."""
    used = max([image.image_bytes, *(region.offset + region.bytes for region in program.regions)])
    return -(-used // 4096) * 4096


def cached_positions(program: Program) -> int:
    """Leading positions whose keys and values the program's image holds."""
    positions = program.notes.get("cached_positions", 0)
    return positions if isinstance(positions, int) else 0


def copy_image(image: MemoryImage, nbytes: int, banks: Sequence[Any]) -> list[Any]:
    """Allocate ``nbytes`` in the bank of each channel and fill them: image, then fp16 NaN.

    ``banks`` are PYNQ memory objects in channel order. Returns the buffers (uint8), flushed. Raises what ``allocate``
    raises. Takes host memory of all channels together.
    """
    buffers = []
    for path, bank in zip(image.files, banks, strict=True):
        buffer = bank.allocate((nbytes,), "u1")
        if image.image_bytes:
            buffer[: image.image_bytes] = np.memmap(path, np.uint8, "r", shape=(image.image_bytes,))
        buffer[image.image_bytes :].view("<u2")[:] = FP16_NAN
        buffer.flush()
        buffers.append(buffer)
    return buffers
