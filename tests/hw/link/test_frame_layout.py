"""Frames as bytes: the golden model against docs/ring.md written out by hand, and what it refuses."""

import dataclasses
import random
import struct
import zlib

import pytest

from hw.link.frame import BEAT_BYTES, MAX_BEATS, Frame, FrameError, FrameKind, Word, header_layout, trailer_layout


def random_frame(rng):
    return Frame(
        FrameKind(rng.randrange(6)),
        rng.randbytes(BEAT_BYTES * rng.randint(0, MAX_BEATS)),
        hops=rng.randrange(8),
        origin=rng.randrange(8),
        nak=rng.randrange(2),
        run=rng.randrange(256),
        seq=rng.randrange(256),
        ack=rng.randrange(256),
        freed=rng.randrange(256),
        address=rng.randrange(1 << 16),
        strips=rng.randrange(256),
    )


def by_hand(frame):
    """Bytes of the table of docs/ring.md section 4."""
    flags = frame.kind.value | frame.beats << 3 | frame.hops << 8 | frame.origin << 11 | frame.nak << 14
    rest = struct.pack("<HBBBBHB3x", flags, frame.run, frame.seq, frame.ack, frame.freed, frame.address, frame.strips)
    return frame.payload + struct.pack("<I", zlib.crc32(frame.payload + bytes(4) + rest + bytes(16))) + rest


def test_bytes_are_those_of_the_table():
    rng = random.Random(1)
    for _ in range(200):
        frame = random_frame(rng)
        assert frame.to_bytes() == by_hand(frame)
        assert Frame.from_bytes(frame.to_bytes()) == frame


def test_words_and_back():
    rng = random.Random(2)
    frames = [random_frame(rng) for _ in range(50)]
    words = [word for frame in frames for word in frame.pack()]
    assert len(words) == sum(frame.beats + 1 for frame in frames)
    assert Frame.parse_all(words) == frames
    with pytest.raises(FrameError, match="words after the last frame"):
        Frame.parse_all(words[:-1] if frames[-1].beats else words[:-2])


def test_layouts_have_their_sizes():
    assert trailer_layout().size == 128
    assert {name for name, _ in header_layout()} < {name for name, _ in trailer_layout()}


@pytest.mark.parametrize("byte", [0, 31, 32, 63, 64, 68, 70, 79])
def test_any_changed_byte_is_noticed(byte):
    content = bytearray(Frame(FrameKind.STRIPS, bytes(range(64)), seq=7).to_bytes())
    content[byte] ^= 0x10
    with pytest.raises(FrameError, match="CRC"):
        Frame.from_bytes(bytes(content))


def with_crc(content):
    """The same bytes with a CRC that is right."""
    crc = zlib.crc32(content[:-16] + bytes(4) + content[-12:] + bytes(16))
    return content[:-16] + struct.pack("<I", crc) + content[-12:]


def test_a_frame_with_a_right_crc_may_still_be_none():
    content = Frame(FrameKind.SUMS, bytes(64)).to_bytes()
    assert with_crc(content) == content
    with pytest.raises(FrameError, match="the trailer says 2 payload beats, 3 came"):
        Frame.from_bytes(with_crc(bytes(32) + content))
    unknown = content[:-12] + bytes([content[-12] | 7]) + content[-11:]
    with pytest.raises(FrameError, match="there is no kind 7"):
        Frame.from_bytes(with_crc(unknown))
    with pytest.raises(FrameError, match="got 63 bytes"):
        Frame.from_bytes(content[17:])
    long = content[-16:-12] + struct.pack("<H", FrameKind.SUMS.value | 17 << 3) + content[-10:]
    with pytest.raises(FrameError, match="at most 16 payload beats, got 17"):
        Frame.from_bytes(with_crc(bytes(17 * 32) + long))


def test_words_that_are_no_frame():
    words = Frame(FrameKind.BEST, bytes(64)).pack()
    for wrong, message in (
        ([], "0 words"),
        (words[:-1], "tlast"),
        ([words[-1], *words], "tlast"),
        ([dataclasses.replace(words[0], keep=1), *words[1:]], "tkeep"),
        ([*words[:-1], Word(words[-1].data, 0xFFFFFFFF, True)], "tkeep"),
    ):
        with pytest.raises(FrameError, match=message):
            Frame.parse(wrong)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"payload": bytes(33)}, "got 33 bytes"),
        ({"payload": bytes(17 * 32)}, "got 544 bytes"),
        ({"hops": 8}, "hops must have 3 bits, got 8"),
        ({"seq": -1}, "seq must have 8 bits, got -1"),
        ({"address": 1 << 16}, "address must have 16 bits"),
    ],
)
def test_fields_that_do_not_fit(fields, message):
    with pytest.raises(ValueError, match=message):
        Frame(FrameKind.STRIPS, **fields)
