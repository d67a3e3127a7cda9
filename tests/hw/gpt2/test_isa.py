"""Encodings round-trip, assembly reads what disassembly writes, and nonsense is refused with what and where."""

from __future__ import annotations

import dataclasses
import random

import pytest

from hw.gpt2.isa import (
    ACCESS_FIELDS,
    FIELDS,
    WORD_BITS,
    Access,
    AccessKind,
    Commit,
    Instruction,
    IsaError,
    Op,
    Params,
    Path,
    assemble,
    disassemble,
)

SEED = 77
ENUMS = {"op": Op, "params": Params, "path": Path, "commit": Commit}


def random_instruction(rng):
    values = {name: rng.choice([0, 1, (1 << width) - 1, rng.randrange(1 << width)]) for name, width in FIELDS.items()}
    values = {name: min(value, (1 << FIELDS[name]) - 1) for name, value in values.items()}
    for name, kind in ENUMS.items():
        values[name] = rng.choice(list(kind))
    return Instruction(**values)


def random_access(rng):
    values = {name: rng.randrange(1 << width) for name, width in ACCESS_FIELDS.items()}
    return Access(**{**values, "kind": rng.choice(list(AccessKind))})


def instructions(count):
    rng = random.Random(SEED)
    return [random_instruction(rng) for _ in range(count)]


def test_instructions_round_trip():
    for instruction in instructions(2000):
        word = instruction.encode()
        assert 0 <= word < 1 << WORD_BITS
        assert Instruction.decode(word) == instruction


def test_access_descriptors_round_trip():
    rng = random.Random(SEED)
    for _ in range(2000):
        access = random_access(rng)
        assert Access.decode(access.encode()) == access
        assert access.kind.name in access.text()


def test_every_field_has_bits_of_its_own():
    zero = Instruction(Op.MM, first=0, last=0).encode()
    seen = 0
    for name, width in FIELDS.items():
        if name in ENUMS:
            continue
        bits = dataclasses.replace(Instruction(Op.MM, first=0, last=0), **{name: (1 << width) - 1}).encode() ^ zero
        assert bits.bit_count() == width and not bits & seen
        seen |= bits


def test_assembly_round_trips():
    words = [instruction.encode() for instruction in instructions(500)]
    assert assemble(disassemble(words)) == words


def test_twin_a_flipped_bit_is_noticed():
    words = [instruction.encode() for instruction in instructions(50)]
    text = disassemble(words)
    for position in range(4, sum(FIELDS.values()), 7):
        changed = [words[0] ^ (1 << position), *words[1:]]
        try:
            assert disassemble(changed) != text
        except IsaError:
            continue


def test_assembly_for_people():
    text = """
    # one layer
    MM first=1 last=1 params=norm path=gelu words=4 tail=16 strips=0x10 group=8 dst=64  # FFN
    LOOP strips=12 words=9
    next
    """
    decoded = [Instruction.decode(word) for word in assemble(text)]
    assert decoded[0] == Instruction(
        Op.MM, params=Params.NORM, path=Path.GELU, words=4, tail=16, strips=16, group=8, dst=64
    )
    assert (decoded[1].op, decoded[1].strips, decoded[1].words, decoded[1].first) == (Op.LOOP, 12, 9, 0)
    assert decoded[2].op == Op.NEXT


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("MUL words=1", "line 2.*MUL"),
        ("MM wrds=1", "unknown field 'wrds'"),
        ("MM op=1", "unknown field 'op'"),
        ("MM words=1024", "words must fit 10 bits, got 1024"),
        ("MM path=sideways", "SIDEWAYS"),
        ("MM words=many", "line 2"),
    ],
)
def test_bad_assembly(line, message):
    with pytest.raises(IsaError, match=message):
        assemble(f"NEXT\n{line}\n")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (0, "unknown op 0"),
        (15, "unknown op 15"),
        (1 | 3 << 7, "unknown params 3"),
        (1 << 128, "not a 128-bit word"),
        (-1, "not a 128-bit word"),
    ],
)
def test_words_that_are_no_instruction(word, message):
    with pytest.raises(IsaError, match=message):
        Instruction.decode(word)


def test_descriptors_and_fields_out_of_range():
    with pytest.raises(IsaError, match="unknown kind 0"):
        Access.decode(0)
    with pytest.raises(IsaError, match="count must fit 32 bits"):
        Access(AccessKind.WEIGHTS, count=1 << 32).encode()
    with pytest.raises(IsaError, match="dst must fit 16 bits, got -1"):
        Instruction(Op.MM, dst=-1).encode()
