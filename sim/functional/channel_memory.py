"""Memory of the simulated channels: image files mapped copy-on-write, fp16 NaN behind them, all in one array."""

from __future__ import annotations

import ctypes
import mmap
import os
import pathlib

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BoardError
from hw.board.program import MemoryImage
from hw.numerics.fp_format import FP16_NAN

__all__ = ["ChannelMemory"]

_NAN_BLOCK_BYTES = 4 << 20
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class ChannelMemory:
    """Memory of all channels as one array; a page costs memory only once something is written to it.

    Parameters
    ----------
    image : MemoryImage
        One file a channel, at the start of the channel; the files are never written.

    Attributes
    ----------
    halves : uint16 array (channels, at least channel_bytes / 2)
        Memory in half words. Writing to it copies the page that is written. The memory lives as long as a view of it.
    channel_bytes : int
        Size of a channel; a line of the array may be longer by a part of a page.

    Raises BoardError if a file is shorter than the image or the address space does not suffice.
    """

    def __init__(self, image: MemoryImage) -> None:
        if image.image_bytes > image.channel_bytes or image.channel_bytes <= 0 or image.channel_bytes % 2:
            raise BoardError(f"image of {image.image_bytes} bytes does not fit channels of {image.channel_bytes} bytes")
        page = mmap.PAGESIZE
        self.channel_bytes = image.channel_bytes
        stride = -(-image.channel_bytes // page) * page
        size = stride * len(image.files)
        try:
            room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except OSError as error:
            raise BoardError(f"no address space for {size} bytes of channel memory: {error}") from None
        self.halves: NDArray[np.uint16] = np.frombuffer(room, "<u2").reshape(len(image.files), stride // 2)
        nan_file = _nan_file(min(_NAN_BLOCK_BYTES, stride))
        try:
            whole_pages = image.image_bytes // page * page
            for channel, path in enumerate(image.files):
                start = self.halves.ctypes.data + channel * stride
                _map_file(path, start, whole_pages, image.image_bytes)
                for offset in range(whole_pages, stride, _NAN_BLOCK_BYTES):
                    _map_over(start + offset, min(_NAN_BLOCK_BYTES, stride - offset), nan_file)
                self._copy_rest(path, channel, whole_pages, image.image_bytes)
        finally:
            os.close(nan_file)

    def _copy_rest(self, path: pathlib.Path, channel: int, start: int, end: int) -> None:
        if start < end:
            with path.open("rb") as stream:
                stream.seek(start)
                self.bytes_of(channel, start, end - start)[:] = np.frombuffer(stream.read(end - start), np.uint8)

    def bytes_of(self, channel: int, offset: int, count: int) -> NDArray[np.uint8]:
        """A writable view of ``count`` bytes. Raises BoardError outside the channel."""
        if not 0 <= channel < self.halves.shape[0]:
            raise BoardError(f"channel {channel} does not exist; this board has {self.halves.shape[0]}")
        if offset < 0 or count < 0 or offset + count > self.channel_bytes:
            raise BoardError(
                f"bytes {offset:#x} to {offset + count:#x} lie outside channel {channel}, "
                f"which has {self.channel_bytes:#x} bytes"
            )
        return self.halves[channel].view(np.uint8)[offset : offset + count]


def _map_over(address: int, size: int, file: int) -> None:
    """Replace the pages at ``address`` by private ones of an open file, from its start."""
    flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
    got = _LIBC.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0)
    if got != address:
        raise BoardError(f"cannot map {size} bytes of channel memory: {os.strerror(ctypes.get_errno())}")


def _map_file(path: pathlib.Path, address: int, whole_pages: int, image_bytes: int) -> None:
    with path.open("rb") as stream:
        have = os.fstat(stream.fileno()).st_size
        if have < image_bytes:
            raise BoardError(f"{path} has {have} bytes, the image needs {image_bytes}; run `ringfly compile` again")
        if whole_pages:
            _map_over(address, whole_pages, stream.fileno())


def _nan_file(size: int) -> int:
    """A file in memory, full of fp16 NaN; private maps of it share its pages until they are written."""
    file = os.memfd_create("ringfly-nan")
    os.write(file, np.full(size // 2, FP16_NAN, "<u2").tobytes())
    return file
