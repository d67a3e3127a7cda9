"""The access program says in rows what the instructions say in products."""

from __future__ import annotations

import dataclasses

import pytest

from hw.gpt2.access import derive_access, param_rows, weight_rows
from hw.gpt2.config import core_config
from hw.gpt2.isa import Access, AccessKind, Instruction, IsaError, Op, Operand, Params

CORE = core_config("16x4")


def mm(**fields):
    return Instruction(Op.MM, **{"words": 2, "tail": 16, "strips": 4, "group": 4, **fields})


def weights(count, **fields):
    return Access(AccessKind.WEIGHTS, count=count, **fields)


NEXT = Instruction(Op.NEXT)
END = Access(AccessKind.NEXT)


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({}, 0),
        ({"params": Params.BIAS}, 1),
        ({"params": Params.NORM}, 2),
        ({"params": Params.BIAS, "strips": 8}, 1),
        ({"params": Params.BIAS, "strips": 9}, 2),
        ({"params": Params.NORM, "strips": 17, "group": 3}, 6),
        ({"params": Params.NORM, "first": 0}, 0),
        ({"params": Params.NORM, "last": 0}, 2),
    ],
)
def test_rows_of_a_product(fields, params):
    product = mm(**fields)
    assert param_rows(product, CORE) == params
    assert weight_rows(product, CORE) == params + 2 * product.strips
    assert derive_access([product, NEXT], CORE) == [weights(params + 2 * product.strips), END]


def test_neighbours_merge_only_with_equal_decode_only():
    code = [mm(), mm(strips=1), mm(decode_only=1), mm(decode_only=1), NEXT]
    assert derive_access(code, CORE) == [weights(10), weights(16, decode_only=1), END]


def test_other_kinds_and_their_fields():
    code = [
        Instruction(Op.EMB, first=1, last=0, words=1, strips=3, group=3, src=5),
        Instruction(Op.EMB, operand=Operand.TOKEN, first=0, last=1, words=1, strips=3, group=3, src=5, decode_only=1),
        Instruction(Op.SC, head0=1, heads=2),
        mm(),
        Instruction(Op.AV, head0=2, heads=1),
        NEXT,
    ]
    assert derive_access(code, CORE) == [
        Access(AccessKind.EMBED, count=3, offset=5),
        Access(AccessKind.EMBED, operand=Operand.TOKEN, count=3, offset=5, decode_only=1),
        Access(AccessKind.KEYS, head0=1, heads=2),
        weights(8),
        Access(AccessKind.VALUES, head0=2, heads=1),
        END,
    ]


def test_loops_keep_their_edges():
    code = [
        mm(),
        Instruction(Op.LOOP, strips=3, words=3),
        mm(),
        mm(),
        Instruction(Op.SC, heads=1),
        mm(),
        Instruction(Op.LOOP, strips=2, words=1),
        mm(),
        mm(),
        mm(),
        NEXT,
    ]
    assert derive_access(code, CORE) == [
        weights(8),
        Access(AccessKind.LOOP, count=3, length=2),
        weights(16),
        Access(AccessKind.KEYS, heads=1),
        weights(8),
        Access(AccessKind.LOOP, count=2, length=1),
        weights(8),
        weights(16),
        END,
    ]


def test_a_loop_behind_a_loop():
    loop = Instruction(Op.LOOP, strips=2, words=1)
    ends = Access(AccessKind.LOOP, count=2, length=1)
    assert derive_access([loop, mm(), loop, mm(), NEXT], CORE) == [ends, weights(8), ends, weights(8), END]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ([Instruction(Op.LOOP, strips=2, words=2), mm(), Instruction(Op.LOOP, strips=1, words=1), mm()], "LOOP stands"),
        ([Instruction(Op.LOOP, strips=2, words=2), mm(), NEXT], "NEXT stands"),
        ([mm(), Instruction(Op.LOOP, strips=2, words=3), mm(), NEXT], "only 2 follow"),
    ],
)
def test_loops_that_cannot_be_said_in_rows(code, message):
    with pytest.raises(IsaError, match=message):
        derive_access(code, CORE)


def test_twin_a_changed_count_is_noticed():
    right = derive_access([mm(), NEXT], CORE)
    assert right != derive_access([mm(strips=5), NEXT], CORE)
    assert right != [dataclasses.replace(right[0], count=right[0].count + 1), END]
