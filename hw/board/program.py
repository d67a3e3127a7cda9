"""Program and memory image: what a compiler writes and every executor reads, on disk and in memory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence

from hw.gpt2.config import CoreConfig

__all__ = ["PROGRAM_FORMAT", "MemoryImage", "Program", "ProgramError", "Region"]

PROGRAM_FORMAT = "ringfly-program/1"
_WORD_BYTES = 16


class ProgramError(ValueError):
    """A program folder that is missing, damaged, of another version, or does not match its core."""


@dataclasses.dataclass(frozen=True)
class Region:
    """A named span of one channel: ``kind`` is weights, embedding, keys, values or logits; offset and size in bytes."""

    name: str
    kind: str
    channel: int
    offset: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class MemoryImage:
    """One file a channel; what lies behind its end up to ``channel_bytes`` starts as fp16 NaN.

    ``files`` are read-only inputs: executors map them and never write them.
    """

    files: tuple[pathlib.Path, ...]
    image_bytes: int
    channel_bytes: int
    sha256: tuple[str, ...]

    def verify(self) -> None:
        """Raise ProgramError if a file is missing, has another size or another hash."""
        for path, digest in zip(self.files, self.sha256, strict=True):
            if not path.is_file():
                raise ProgramError(f"memory image file {path} is missing; run `ringfly compile` again")
            if path.stat().st_size != self.image_bytes:
                raise ProgramError(f"memory image file {path} has {path.stat().st_size} bytes, want {self.image_bytes}")
            with path.open("rb") as stream:
                got = hashlib.file_digest(stream, "sha256").hexdigest()
            if got != digest:
                raise ProgramError(f"memory image file {path} is damaged: SHA-256 {got}, program.json says {digest}")


@dataclasses.dataclass(frozen=True)
class Program:
    """All that one board needs to run: instructions, access descriptors, regions, initial registers.

    ``instructions`` and ``descriptors`` are 128-bit words; ``registers`` are initial values by name (section 2 of
    docs/core.md: without position, prompt_end, max_new_tokens, flags, stop ids, which belong to a run).
    """

    core: CoreConfig
    model_digest: str
    board: int
    boards: int
    instructions: tuple[int, ...]
    descriptors: tuple[int, ...]
    regions: tuple[Region, ...]
    registers: Mapping[str, int]
    notes: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def regions_of(self, kind: str) -> list[Region]:
        """Regions of a kind in channel order."""
        return sorted((r for r in self.regions if r.kind == kind), key=lambda r: (r.channel, r.offset))

    def save(self, folder: pathlib.Path, image: MemoryImage) -> None:
        """Write ``program.json`` and ``program.bin``; the image's files must already lie in ``folder``."""
        words = [*self.instructions, *self.descriptors]
        data = b"".join(word.to_bytes(_WORD_BYTES, "little") for word in words)
        (folder / "program.bin").write_bytes(data)
        meta = {
            "format": PROGRAM_FORMAT,
            "core": json.loads(self.core.to_json()),
            "core_digest": self.core.digest,
            "model_digest": self.model_digest,
            "board": self.board,
            "boards": self.boards,
            "instructions": len(self.instructions),
            "descriptors": len(self.descriptors),
            "program_sha256": hashlib.sha256(data).hexdigest(),
            "regions": [dataclasses.asdict(region) for region in self.regions],
            "registers": dict(self.registers),
            "image": {
                "files": [path.name for path in image.files],
                "image_bytes": image.image_bytes,
                "channel_bytes": image.channel_bytes,
                "sha256": list(image.sha256),
            },
            "notes": dict(self.notes),
        }
        (folder / "program.json").write_text(json.dumps(meta, indent=1) + "\n")

    @classmethod
    def load(cls, folder: pathlib.Path) -> tuple[Program, MemoryImage]:
        """Read a program folder. Raises ProgramError for anything missing, damaged or of another version."""
        path = folder / "program.json"
        if not folder.is_dir() or not path.is_file():
            raise ProgramError(f"{folder} is no program folder (no program.json); make one with `ringfly compile`")
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ProgramError(f"{path} is not JSON: {error}") from None
        if meta.get("format") != PROGRAM_FORMAT:
            raise ProgramError(f"{path} has format {meta.get('format')!r}, this Ringfly reads {PROGRAM_FORMAT!r}")
        try:
            core = CoreConfig.from_json(json.dumps(meta["core"]))
            if core.digest != meta["core_digest"]:
                raise ProgramError(f"{path}: core digest {core.digest} does not match {meta['core_digest']}")
            data = (folder / "program.bin").read_bytes()
            if hashlib.sha256(data).hexdigest() != meta["program_sha256"]:
                raise ProgramError(f"{folder / 'program.bin'} is damaged: its SHA-256 differs from program.json")
            words = _words(data)
            count = int(meta["instructions"])
            image = meta["image"]
            program = cls(
                core=core,
                model_digest=meta["model_digest"],
                board=meta["board"],
                boards=meta["boards"],
                instructions=tuple(words[:count]),
                descriptors=tuple(words[count:]),
                regions=tuple(Region(**region) for region in meta["regions"]),
                registers=meta["registers"],
                notes=meta["notes"],
            )
            files = tuple(folder / name for name in image["files"])
            return program, MemoryImage(files, image["image_bytes"], image["channel_bytes"], tuple(image["sha256"]))
        except (KeyError, TypeError, OSError) as error:
            raise ProgramError(f"{path} is incomplete: {type(error).__name__}: {error}") from None


def _words(data: bytes) -> Sequence[int]:
    return [int.from_bytes(data[i : i + _WORD_BYTES], "little") for i in range(0, len(data), _WORD_BYTES)]
