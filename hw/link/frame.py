"""Frames between boards: their layout for the gateware, and their bytes in Python as the golden model."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Sequence

from amaranth.lib import data, enum

__all__ = [
    "BEAT_BYTES",
    "KEEPALIVE",
    "MAX_BEATS",
    "RETRY",
    "SILENCE",
    "SLOTS",
    "TRAILER_KEEP",
    "Frame",
    "FrameError",
    "FrameKind",
    "Word",
    "header_layout",
    "trailer_layout",
]

BEAT_BYTES = 32  # payload of one word of an Aurora core with four lanes
MAX_BEATS = 16  # payload beats of a frame
SLOTS = 64  # frames that each memory of a port holds: local, transit, received
RETRY = 2048  # link cycles without any acknowledgement after which the sender goes back
KEEPALIVE = 512  # link cycles within which every port sends a frame
SILENCE = 16384  # link cycles without a good frame after which a port is dead
TRAILER_KEEP = 0xFFFF  # the trailer is half a beat

_PAYLOAD_KEEP = (1 << BEAT_BYTES) - 1
_TRAILER_BYTES = 16
_CRC_BYTES = 4
_PADDING = bytes(BEAT_BYTES - _TRAILER_BYTES)  # the CRC takes the trailer as a whole beat


class FrameKind(enum.Enum, shape=3):
    """What a frame carries (docs/ring.md section 4). All but ACK have a sequence number."""

    ACK = 0
    STRIPS = 1
    SUMS = 2
    BEST = 3
    HELLO = 4
    ABORT = 5


def header_layout() -> data.StructLayout:
    """What describes a frame to its maker and its receiver, apart from the link."""
    return data.StructLayout(
        {"kind": FrameKind, "beats": 5, "hops": 3, "origin": 3, "run": 8, "address": 16, "strips": 8}
    )


def trailer_layout() -> data.StructLayout:
    """The last beat of a frame, 128 bits."""
    return data.StructLayout(
        {
            "crc": 32,
            "kind": FrameKind,
            "beats": 5,
            "hops": 3,
            "origin": 3,
            "nak": 1,
            "zero": 1,
            "run": 8,
            "seq": 8,
            "ack": 8,
            "freed": 8,
            "address": 16,
            "strips": 8,
            "zeros": 24,
        }
    )


class FrameError(ValueError):
    """Words that are no frame; the message says what is wrong with them."""


@dataclasses.dataclass(frozen=True)
class Word:
    """One word on the cable: ``data`` (256 bits), ``keep`` (bit per byte), ``last``."""

    data: int
    keep: int
    last: bool


@dataclasses.dataclass(frozen=True)
class Frame:
    """A frame as it is on the cable: fields of the trailer, and ``payload`` of whole beats.

    Raises ValueError for a field that does not fit the trailer or a payload that is not 0 to 16 beats.
    """

    kind: FrameKind
    payload: bytes = b""
    hops: int = 0
    origin: int = 0
    nak: int = 0
    run: int = 0
    seq: int = 0
    ack: int = 0
    freed: int = 0
    address: int = 0
    strips: int = 0

    def __post_init__(self) -> None:
        if len(self.payload) % BEAT_BYTES or len(self.payload) > MAX_BEATS * BEAT_BYTES:
            raise ValueError(
                f"payload must be 0 to {MAX_BEATS} beats of {BEAT_BYTES} bytes, got {len(self.payload)} bytes"
            )
        layout = trailer_layout()
        for name in ("hops", "origin", "nak", "run", "seq", "ack", "freed", "address", "strips"):
            value = getattr(self, name)
            if not 0 <= value < 1 << layout[name].width:
                raise ValueError(f"{name} must have {layout[name].width} bits, got {value!r}")

    @property
    def beats(self) -> int:
        """Payload beats."""
        return len(self.payload) // BEAT_BYTES

    def _trailer(self, crc: int) -> bytes:
        value = 0
        for name, field in trailer_layout():
            if name == "crc":
                part = crc
            elif name == "kind":
                part = FrameKind(self.kind).value
            else:
                part = getattr(self, name, 0)
            value |= part << field.offset
        return value.to_bytes(_TRAILER_BYTES, "little")

    def to_bytes(self) -> bytes:
        """Payload and trailer with its CRC, as they follow each other on the cable."""
        return self.payload + self._trailer(zlib.crc32(self.payload + self._trailer(0) + _PADDING))

    def pack(self) -> list[Word]:
        """The words of the frame in order, the trailer last."""
        content = self.to_bytes()
        beats = [content[at : at + BEAT_BYTES] for at in range(0, len(content), BEAT_BYTES)]
        return [
            Word(int.from_bytes(beat, "little"), (1 << len(beat)) - 1, number == self.beats)
            for number, beat in enumerate(beats)
        ]

    @classmethod
    def from_bytes(cls, content: bytes) -> Frame:
        """The frame that these bytes are. Raises FrameError if they are none."""
        if len(content) % BEAT_BYTES != _TRAILER_BYTES:
            raise FrameError(f"a frame is beats of {BEAT_BYTES} bytes and a trailer of 16, got {len(content)} bytes")
        payload, trailer = content[:-_TRAILER_BYTES], content[-_TRAILER_BYTES:]
        found = int.from_bytes(trailer[:_CRC_BYTES], "little")
        crc = zlib.crc32(payload + bytes(_CRC_BYTES) + trailer[_CRC_BYTES:] + _PADDING)
        if crc != found:
            raise FrameError(f"CRC is {crc:#010x}, the trailer says {found:#010x}")
        value = int.from_bytes(trailer, "little")
        fields = {
            name: value >> field.offset & ((1 << field.width) - 1)
            for name, field in trailer_layout()
            if name not in ("crc", "zero", "zeros")
        }
        kind, beats = fields.pop("kind"), fields.pop("beats")
        if beats * BEAT_BYTES != len(payload):
            raise FrameError(f"the trailer says {beats} payload beats, {len(payload) // BEAT_BYTES} came")
        if len(payload) > MAX_BEATS * BEAT_BYTES:
            raise FrameError(f"a frame has at most {MAX_BEATS} payload beats, got {beats}")
        if kind not in {known.value for known in FrameKind}:
            raise FrameError(f"there is no kind {kind}")
        return cls(FrameKind(kind), payload, **fields)

    @classmethod
    def parse(cls, words: Sequence[Word]) -> Frame:
        """The frame that these words are. Raises FrameError if they are none."""
        if not words or not words[-1].last or any(word.last for word in words[:-1]):
            raise FrameError(f"the last of a frame's words, and no other, has tlast; got {len(words)} words")
        if words[-1].keep != TRAILER_KEEP or any(word.keep != _PAYLOAD_KEEP for word in words[:-1]):
            raise FrameError(f"tkeep must be {_PAYLOAD_KEEP:#x}, of the trailer {TRAILER_KEEP:#x}")
        content = b"".join(word.data.to_bytes(BEAT_BYTES, "little") for word in words)
        return cls.from_bytes(content[: _TRAILER_BYTES - BEAT_BYTES])

    @classmethod
    def parse_all(cls, words: Iterable[Word]) -> list[Frame]:
        """All frames of a stream of words. Raises FrameError if one is none, or if the last one is not complete."""
        frames, pending = [], []
        for word in words:
            pending.append(word)
            if word.last:
                frames.append(cls.parse(pending))
                pending = []
        if pending:
            raise FrameError(f"{len(pending)} words after the last frame")
        return frames
