"""Channel memory: image files are shared, everything else reads as NaN and costs nothing until it is written."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from hw.board.board_model import BoardError
from hw.board.program import MemoryImage
from sim.functional.channel_memory import ChannelMemory


def _image(folder: pathlib.Path, channels: int, image_bytes: int, channel_bytes: int) -> MemoryImage:
    files = []
    for channel in range(channels):
        files.append(folder / f"ch{channel:02d}.bin")
        values = np.random.default_rng(channel).integers(0, 1 << 16, image_bytes // 2).astype("<u2")
        values.tofile(files[-1])
    return MemoryImage(tuple(files), image_bytes, channel_bytes, ("",) * channels)


def _anonymous_bytes() -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")


@pytest.mark.parametrize("image_bytes", [0, 2, 4094, 4096, 4098, 8192, 12_300])
@pytest.mark.parametrize("channel_bytes", [12_300, 16_384, 1 << 23])
def test_image_then_nan(image_bytes: int, channel_bytes: int, tmp_path: pathlib.Path) -> None:
    image = _image(tmp_path, 2, image_bytes, channel_bytes)
    memory = ChannelMemory(image)
    for channel, path in enumerate(image.files):
        content = memory.halves[channel, : channel_bytes // 2]
        assert content[: image_bytes // 2].tobytes() == path.read_bytes()
        assert (content[image_bytes // 2 :] == 0x7E00).all()


def test_writes_stay_in_the_channel_and_off_the_file(tmp_path: pathlib.Path) -> None:
    image = _image(tmp_path, 3, 8192, 1 << 23)
    before = [path.read_bytes() for path in image.files]
    memory = ChannelMemory(image)
    memory.bytes_of(1, 100, 4)[:] = 7
    memory.bytes_of(1, 5 << 20, 4)[:] = 9  # another map of the same file of NaN
    assert (memory.halves[1, 50:52] == 0x0707).all() and memory.halves[1, (5 << 20) // 2] == 0x0909
    assert memory.halves[1, (1 << 20) // 2] == memory.halves[0, (5 << 20) // 2] == 0x7E00
    assert [path.read_bytes() for path in image.files] == before
    assert ChannelMemory(image).halves[1].tobytes()[:8192] == before[1]


def test_a_whole_board_costs_next_to_nothing(tmp_path: pathlib.Path) -> None:
    image = _image(tmp_path, 32, 1 << 20, 256 << 20)
    before = _anonymous_bytes()
    memory = ChannelMemory(image)
    assert int(memory.halves[:, :: 1 << 18].sum(dtype=np.int64)) > 0  # touches every part of 8 GiB
    grown = _anonymous_bytes() - before
    assert grown < 32 << 20, f"{grown >> 20} MiB of private memory for an unwritten board"


def test_bad_images(tmp_path: pathlib.Path) -> None:
    image = _image(tmp_path, 1, 4096, 8192)
    with pytest.raises(BoardError, match="does not fit"):
        ChannelMemory(MemoryImage(image.files, 4096, 2048, ("",)))
    with pytest.raises(BoardError, match="the image needs 5000"):
        ChannelMemory(MemoryImage(image.files, 5000, 8192, ("",)))
    with pytest.raises(BoardError, match="no address space"):
        ChannelMemory(MemoryImage(image.files, 4096, 1 << 60, ("",)))
    memory = ChannelMemory(image)
    for channel, offset, count in ((1, 0, 1), (-1, 0, 1), (0, 8192, 1), (0, -1, 2), (0, 0, -1)):
        with pytest.raises(BoardError):
            memory.bytes_of(channel, offset, count)
