"""Reads back what our xclbin writer embeds, and refuses files that are damaged, foreign or of another version.

Plain `struct` only, so that the command line can look at a file without importing pynq.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import struct
import uuid

from host.errors import BadXclbin, VersionMismatch
from hw.board.gpt2_map import INTERFACE_VERSION
from hw.gpt2.config import ConfigError, CoreConfig

__all__ = ["MAGIC", "METADATA_FORMAT", "XclbinInfo", "content_uuid", "read_xclbin", "version_text"]

MAGIC = b"xclbin2\0"
METADATA_FORMAT = "ringfly-xclbin/1"

# Fixed part of the container (xclbin.h, struct axlf): little-endian, 456 bytes, then the section headers.
_LENGTH_AT, _PLATFORM_AT, _UUID_AT, _SECTIONS_AT, _HEADERS_AT = 304, 352, 416, 448, 456
_SECTION_HEADER = struct.Struct("<I16s4xQQ")  # kind, name, offset, size
_USER_METADATA = 16


def version_text(version: int) -> str:
    """``major.minor`` of a version word."""
    return f"{version >> 16}.{version & 0xFFFF}"


def content_uuid(data: bytes) -> bytes:
    """The 16 bytes that identify a container: from the SHA-256 of the file with its UUID field set to zero."""
    digest = hashlib.sha256(data[:_UUID_AT] + bytes(16) + data[_UUID_AT + 16 :]).digest()
    return uuid.UUID(bytes=digest[:16], version=5).bytes


@dataclasses.dataclass(frozen=True)
class XclbinInfo:
    """What one of our xclbin files says about itself."""

    path: pathlib.Path
    uuid: str
    platform: str
    interface_version: int
    core: CoreConfig

    @property
    def config_word(self) -> int:
        """The first 8 bytes of the core's digest, as the kernel's register ``config_digest`` shows them."""
        return int(self.core.digest[:16], 16)


def read_xclbin(path: pathlib.Path) -> XclbinInfo:
    """Check an xclbin and return its description.

    Raises BadXclbin for a file that is missing, cut off, damaged or not one of ours, VersionMismatch for one that was
    written for another interface (major) or core format; the message names both versions.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadXclbin(f"cannot read xclbin {path}: {error.strerror}", value=str(path)) from None
    sections = _sections(path, data)
    remake = "Delete it: Ringfly writes a new one."
    if data[_UUID_AT : _UUID_AT + 16] != content_uuid(data):
        raise BadXclbin(
            f"xclbin {path} is damaged or not written by Ringfly: its UUID does not fit its content",
            value=data[_UUID_AT : _UUID_AT + 16].hex(),
            expected=content_uuid(data).hex(),
            hint=remake,
        )
    try:
        metadata = json.loads(sections[_USER_METADATA])
        if not isinstance(metadata, dict) or metadata.get("format") != METADATA_FORMAT:
            raise VersionMismatch(
                f"xclbin {path} holds {metadata.get('format')!r}, this Ringfly reads {METADATA_FORMAT!r}",
                value=metadata.get("format"),
                expected=METADATA_FORMAT,
                hint=remake,
            )
        version = int(metadata["interface_version"])
        _require_interface(path, version)
        core = CoreConfig.from_json(json.dumps(metadata["core"]))
    except ConfigError as error:
        raise VersionMismatch(f"xclbin {path}: {error}", hint=remake) from None
    except (KeyError, json.JSONDecodeError) as error:
        raise BadXclbin(f"xclbin {path} is not one of Ringfly's: metadata: {error!r}", hint=remake) from None
    if core.digest != metadata.get("core_digest"):
        raise VersionMismatch(
            f"xclbin {path}: core digest {metadata.get('core_digest')}, this Ringfly computes {core.digest}",
            value=metadata.get("core_digest"),
            expected=core.digest,
            hint=remake,
        )
    platform = data[_PLATFORM_AT : _PLATFORM_AT + 64].rstrip(b"\0").decode("ascii", "replace")
    return XclbinInfo(path, data[_UUID_AT : _UUID_AT + 16].hex(), platform, version, core)


def _require_interface(path: pathlib.Path, version: int) -> None:
    if version >> 16 != INTERFACE_VERSION >> 16:
        raise VersionMismatch(
            f"xclbin {path} has kernel interface version {version_text(version)}, "
            f"this Ringfly drives {version_text(INTERFACE_VERSION)}",
            value=version_text(version),
            expected=version_text(INTERFACE_VERSION),
            hint="Use the xclbin of this Ringfly (or the Ringfly of this xclbin).",
        )


def _sections(path: pathlib.Path, data: bytes) -> dict[int, bytes]:
    """Content of each section by kind; raises BadXclbin unless every bound lies inside the file."""
    if not data.startswith(MAGIC) or len(data) < _HEADERS_AT:
        raise BadXclbin(
            f"{path} is no xclbin: it has {len(data)} bytes and starts with {data[:8]!r}",
            value=str(path),
            expected="xclbin2",
        )
    (length,) = struct.unpack_from("<Q", data, _LENGTH_AT)
    if length != len(data):
        raise BadXclbin(
            f"xclbin {path} is cut off: {len(data)} bytes of {length}",
            value=len(data),
            expected=length,
            hint="Delete it: Ringfly writes a new one.",
        )
    (count,) = struct.unpack_from("<I", data, _SECTIONS_AT)
    sections = {}
    for index in range(count):
        at = _HEADERS_AT + index * _SECTION_HEADER.size
        if at + _SECTION_HEADER.size > len(data):
            raise BadXclbin(f"xclbin {path} is damaged: {count} section headers do not fit", value=count)
        kind, _, offset, size = _SECTION_HEADER.unpack_from(data, at)
        if offset + size > len(data):
            raise BadXclbin(f"xclbin {path} is damaged: section {kind} ends at {offset + size}", value=len(data))
        sections[kind] = data[offset : offset + size]
    return sections
