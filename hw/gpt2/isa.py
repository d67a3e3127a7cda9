"""Instruction set and access descriptors of the GPT-2 core: encodings, assembler, disassembler.

An instruction and an access descriptor are 128-bit words whose fields are listed in :data:`FIELDS` and
:data:`ACCESS_FIELDS`, lowest bit first. docs/core.md says what each one does; the gateware takes its field
positions from here, so the three cannot drift apart.

Assembly is one instruction a line, ``OP field=value ...``; ``#`` starts a comment; unnamed fields are zero.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

__all__ = [
    "ACCESS_FIELDS",
    "FIELDS",
    "WORD_BITS",
    "Access",
    "AccessKind",
    "Commit",
    "Instruction",
    "IsaError",
    "Op",
    "Operand",
    "Params",
    "Path",
    "assemble",
    "disassemble",
]

WORD_BITS = 128


class IsaError(ValueError):
    """A word, field or line of assembly that is not in the instruction set."""


class Op(enum.IntEnum):
    """Operation of an instruction."""

    MM = 1  # product of activation words and streamed weights
    EMB = 2  # product of a one-hot word and a row block of the embedding table
    SC = 3  # scores of the heads, then their exponentials
    AV = 4  # probabilities times values
    LOOP = 5  # repeat the next `length` instructions `count` times, a layer each
    NEXT = 6  # token boundary
    GATHER = 7  # strips of a vector will come from the other boards (docs/ring.md)


class Params(enum.IntEnum):
    """What the parameter rows of a product are."""

    NONE = 0  # accumulator starts at +0
    BIAS = 1  # one row per T/2 strips: accumulator starts at the bias
    NORM = 2  # two rows per T/2 strips: b' and column sum, LayerNorm applied after the product


class Path(enum.IntEnum):
    """Where the results of a product go."""

    PLAIN = 0  # fp16 strip to dst
    GELU = 1  # GELU, then fp16 strip to dst
    RESIDUAL = 2  # added to the strip that stands at dst, fp16, back to dst
    LOGITS = 3  # fp32 to arg-max and, if enabled, to memory; dst is the strip index in the vector


class Commit(enum.IntEnum):
    """What the end of a product starts."""

    NONE = 0
    KEYS = 1  # new keys complete: write them to memory
    VALUES = 2  # new values complete: write them to memory, one more layer instance is committed
    TOKEN = 3  # logits complete: arg-max decides


class Operand(enum.IntEnum):
    """Source of EMB's one-hot word and row block."""

    POSITION = 0
    TOKEN = 1


class AccessKind(enum.IntEnum):
    """Kind of an access descriptor."""

    WEIGHTS = 1  # `count` rows from the running weight pointer
    KEYS = 2  # key rows of heads [head0, head0 + heads)
    VALUES = 3  # value rows of those heads
    EMBED = 4  # `count` rows, from strip `offset`, of the table chosen by `operand`
    LOOP = 5  # repeat the next `length` descriptors `count` times
    NEXT = 6  # token boundary


# name -> width in bits, lowest first. The order is the encoding.
FIELDS: dict[str, int] = {
    "op": 4,
    "decode_only": 1,  # skipped while prompt tokens remain
    "first": 1,  # this run starts the accumulation
    "last": 1,  # this run ends it: results go to the drain unit
    "params": 2,
    "path": 2,
    "norm": 1,  # LayerNorm scalars (set 0 or 1) that NORM applies
    "stats": 1,  # results feed the statistics unit; at the end scalars are written ...
    "stats_set": 1,  # ... to this set
    "commit": 2,
    "operand": 1,
    "src": 12,  # activation word
    "words": 10,  # k words of the run
    "tail": 7,  # valid elements of the run's last word, 1 to T
    "acc": 8,  # first accumulator
    "strips": 16,  # output strips
    "group": 9,  # strips that are open together (all of them: k-outer order)
    "dst": 16,  # strip address (PLAIN, GELU, RESIDUAL, AV) or strip index (LOGITS)
    "prob": 10,  # first probability word (SC, AV)
    "prob_stride": 8,  # probability words per head
    "head0": 7,  # first head (SC, AV)
    "heads": 7,  # number of heads (SC, AV); LOOP, LOGITS: unused
    "send": 1,  # result strips go to the other boards as well (docs/ring.md)
}
# LOOP keeps its count in `strips` and its length in `words`.
# GATHER: `dst`, `strips`: the vector; `src`: its first own strip, from dst; `words`: own strips.

ACCESS_FIELDS: dict[str, int] = {
    "kind": 4,
    "decode_only": 1,
    "operand": 1,
    "count": 32,
    "offset": 16,
    "head0": 7,
    "heads": 7,
    "length": 8,
}

_ENUMS = {"op": Op, "params": Params, "path": Path, "commit": Commit}
_ACCESS_ENUMS = {"kind": AccessKind}

assert sum(FIELDS.values()) <= WORD_BITS and sum(ACCESS_FIELDS.values()) <= WORD_BITS


def _pack(values: dict[str, int], fields: dict[str, int], what: str) -> int:
    word, shift = 0, 0
    for name, width in fields.items():
        value = int(values[name])
        if not 0 <= value < 1 << width:
            raise IsaError(f"{what}: field {name} must fit {width} bits, got {value!r}")
        word |= value << shift
        shift += width
    return word


def _unpack(word: int, fields: dict[str, int], what: str) -> dict[str, int]:
    if not 0 <= word < 1 << WORD_BITS:
        raise IsaError(f"{what}: not a {WORD_BITS}-bit word: {word!r}")
    values = {}
    for name, width in fields.items():
        values[name] = word & ((1 << width) - 1)
        word >>= width
    if word:
        raise IsaError(f"{what}: reserved bits are set: {word:#x} above the last field")
    return values


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction; the fields are those of :data:`FIELDS`."""

    op: Op
    decode_only: int = 0
    first: int = 1
    last: int = 1
    params: int = Params.NONE
    path: int = Path.PLAIN
    norm: int = 0
    stats: int = 0
    stats_set: int = 0
    commit: int = Commit.NONE
    operand: int = Operand.POSITION
    src: int = 0
    words: int = 0
    tail: int = 0
    acc: int = 0
    strips: int = 0
    group: int = 0
    dst: int = 0
    prob: int = 0
    prob_stride: int = 0
    head0: int = 0
    heads: int = 0
    send: int = 0

    def encode(self) -> int:
        """The 128-bit word. Raises IsaError if a field does not fit."""
        return _pack(dataclasses.asdict(self), FIELDS, self.op.name)

    @classmethod
    def decode(cls, word: int) -> Instruction:
        """The instruction of a 128-bit word. Raises IsaError for an unknown operation."""
        values = _unpack(word, FIELDS, "instruction")
        for name, kind in _ENUMS.items():
            try:
                values[name] = kind(values[name])
            except ValueError:
                raise IsaError(f"instruction: unknown {name} {values[name]}") from None
        return cls(**values)

    def text(self) -> str:
        """One line of assembly."""
        return _line(self.op.name, dataclasses.asdict(self), {"op": 0}, FIELDS, _ENUMS)


@dataclasses.dataclass(frozen=True)
class Access:
    """One access descriptor; the fields are those of :data:`ACCESS_FIELDS`."""

    kind: AccessKind
    decode_only: int = 0
    operand: int = Operand.POSITION
    count: int = 0
    offset: int = 0
    head0: int = 0
    heads: int = 0
    length: int = 0

    def encode(self) -> int:
        """The 128-bit word. Raises IsaError if a field does not fit."""
        return _pack(dataclasses.asdict(self), ACCESS_FIELDS, self.kind.name)

    @classmethod
    def decode(cls, word: int) -> Access:
        """The descriptor of a 128-bit word. Raises IsaError for an unknown kind."""
        values = _unpack(word, ACCESS_FIELDS, "descriptor")
        try:
            values["kind"] = AccessKind(values["kind"])
        except ValueError:
            raise IsaError(f"descriptor: unknown kind {values['kind']}") from None
        return cls(**values)

    def text(self) -> str:
        """One line for people."""
        return _line(self.kind.name, dataclasses.asdict(self), {"kind": 0}, ACCESS_FIELDS, _ACCESS_ENUMS)


def _line(head: str, values: dict[str, int], skip: dict[str, int], fields: dict[str, int], enums: dict) -> str:
    parts = [head]
    for name in fields:
        if name in skip or not values[name]:
            continue
        value = values[name]
        parts.append(f"{name}={enums[name](value).name.lower() if name in enums else value}")
    return " ".join(parts)


def disassemble(words: Iterable[int]) -> str:
    """Assembly text of instruction words, one a line. ``assemble`` is its inverse."""
    return "\n".join(Instruction.decode(word).text() for word in words) + "\n"


def assemble(text: str) -> list[int]:
    """Instruction words of assembly text. Raises IsaError with the line number and the line."""
    words = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].split()
        if not line:
            continue
        try:
            values: dict[str, int] = {"first": 0, "last": 0}
            for part in line[1:]:
                name, _, value = part.partition("=")
                if name not in FIELDS or name == "op":
                    raise IsaError(f"unknown field {name!r}")
                if name in _ENUMS and not value.isdigit():
                    values[name] = _ENUMS[name][value.upper()]
                else:
                    values[name] = int(value, 0)
            words.append(Instruction(op=Op[line[0].upper()], **values).encode())
        except (KeyError, ValueError) as error:
            raise IsaError(f"line {number}: {raw.strip()!r}: {error}") from None
    return words
