"""Every rule of docs/ring.md, section 3, refuses the program that breaks it, and only that."""

from __future__ import annotations

import dataclasses

import pytest

from hw.board.program import Program
from hw.gpt2.access import derive_access
from hw.gpt2.config import core_config
from hw.gpt2.isa import AccessKind, Commit, Instruction, Op, Operand, Params, Path
from hw.gpt2.legality import check_program
from hw.gpt2.ring_set import check_ring

CORE = core_config("16x4")
REGISTERS = {
    "context_limit": 48,
    "width": 32,
    "vocab": 30,
    "layers": 2,
    "heads": 1,
    "key_words": 1,
    "value_strips": 4,
    "embed_strips": 8,
    "logits_rows": 1,
    "ring_boards": 2,
    "ring_key": 5,
}
EMBED, LATE, LOOP, KEYS = 0, 1, 2, 3
GATHER_A, AV, GATHER_X, PROJECTION, GATHER_M, FEED_IN, GATHER_X2, FEED_OUT, HEAD, NEXT = range(7, 17)


def mm(**fields):
    return Instruction(Op.MM, **{"words": 2, "tail": 16, "strips": 4, "group": 4, **fields})


def gather(dst, board=0, **fields):
    return Instruction(Op.GATHER, **{"dst": dst, "strips": 8, "src": 4 * board, "words": 4, **fields})


def ring_program(board=0):
    """x in words 0-1, attention in 2-3, feed-forward in 4-5, q in word 6; each board has half of every vector."""
    own = 4 * board
    embed = {"words": 1, "tail": 16, "strips": 8, "group": 8}
    return [
        Instruction(Op.EMB, last=0, **embed),
        Instruction(Op.EMB, operand=Operand.TOKEN, first=0, stats=1, **embed),
        Instruction(Op.LOOP, strips=2, words=12),
        mm(params=Params.NORM, dst=CORE.new_key_base, commit=Commit.KEYS),
        mm(params=Params.NORM, dst=24),
        mm(params=Params.NORM, dst=CORE.new_value_base, commit=Commit.VALUES),
        Instruction(Op.SC, src=6, tail=16, heads=1, prob_stride=3),
        gather(8, board),
        Instruction(Op.AV, dst=8 + own, acc=4, heads=1, prob_stride=3, send=1),
        gather(0, board),
        mm(src=2, dst=own, path=Path.RESIDUAL, params=Params.BIAS, stats=1, stats_set=1, send=1),
        gather(16, board),
        mm(params=Params.NORM, norm=1, dst=16 + own, path=Path.GELU, send=1),
        gather(0, board),
        mm(src=4, dst=own, path=Path.RESIDUAL, params=Params.BIAS, stats=1, send=1),
        mm(params=Params.NORM, decode_only=1, path=Path.LOGITS, strips=8, commit=Commit.TOKEN),
        Instruction(Op.NEXT),
    ]


PROGRAM = ring_program()


def changed(index, **fields):
    return [dataclasses.replace(i, **fields) if n == index else i for n, i in enumerate(PROGRAM)]


def inserted(index, *instructions):
    """More instructions before ``index``; the loop grows with them."""
    code = [*PROGRAM[:index], *instructions, *PROGRAM[index:]]
    if LOOP < index <= HEAD:
        code[LOOP] = dataclasses.replace(code[LOOP], words=code[LOOP].words + len(instructions))
    return code


def without(*indices):
    code = [i for n, i in enumerate(PROGRAM) if n not in indices]
    code[LOOP] = dataclasses.replace(code[LOOP], words=code[LOOP].words - len(indices))
    return code


def found(program, **registers):
    return check_program(program, {**REGISTERS, **registers}, CORE)


def local(src, **fields):
    """A product that only this board uses."""
    return mm(src=src, dst=32, acc=16, **fields)


@pytest.mark.parametrize("board", [0, 1])
def test_the_programs_are_legal(board):
    assert found(ring_program(board), ring_board=board) == []


def test_a_gather_asks_for_no_rows():
    assert derive_access(PROGRAM, CORE) == derive_access(without(GATHER_A, GATHER_X, GATHER_M, GATHER_X2), CORE)
    assert AccessKind.WEIGHTS in {a.kind for a in derive_access(PROGRAM, CORE)}


ALLOWED = [
    inserted(GATHER_X2, local(4)),  # the new vector is read by another product too
    inserted(FEED_IN, local(0)),  # x is read until the next own slice is sent, also behind its GATHER
    inserted(GATHER_M, local(0)),
    inserted(PROJECTION + 1, Instruction(Op.EMB, words=1, tail=16, strips=4, group=4, dst=40)),
    changed(PROJECTION, path=Path.PLAIN),
]


def test_what_nobody_read_is_settled_before_the_next_gather():
    """In prompt steps nothing reads the last layer's x; here the next step neither reads it nor writes it anew."""
    elsewhere = {"dst": 40}
    program = [dataclasses.replace(i, **elsewhere) if i.op == Op.EMB else i for i in PROGRAM]
    program = [dataclasses.replace(i, src=10) if n in range(KEYS, KEYS + 3) else i for n, i in enumerate(program)]
    for index in (PROJECTION, FEED_OUT):
        program[index] = dataclasses.replace(program[index], path=Path.PLAIN)
    assert any("rule 10" in line and "may still be coming" in line for line in found(program))
    reading = [*program[:LOOP], local(0), *program[LOOP:]]  # the twin: read in the next step, which awaits it
    assert not any("may still be coming" in line for line in found(reading))


@pytest.mark.parametrize("program", ALLOWED)
def test_it_may(program):
    assert found(program) == []


BROKEN = [
    # rule 8: the announcement
    (changed(GATHER_M, words=0), "rule 8: own strips 0 to -1 must be within 0 to 7"),
    (changed(GATHER_M, src=5), "rule 8: own strips 5 to 8 must be within 0 to 7, not all of them"),
    (changed(GATHER_M, words=8), "rule 8: own strips 0 to 7 must be within 0 to 7, not all of them"),
    (changed(GATHER_M, dst=17), "rule 8: strips 17 to 24 must begin at a whole word"),
    (changed(GATHER_M, dst=2044), "rule 8: strips 2044 to 2051 must begin at a whole word and end before 2048"),
    (changed(GATHER_M, decode_only=1), "must run in prompt steps too"),
    (inserted(GATHER_M, gather(16)), "rule 8: needs an MM, EMB, SC or AV behind it in the same loop"),
    (changed(LOOP, words=5), "instruction 7 (GATHER): rule 8: needs an MM"),
    (changed(FEED_IN, decode_only=1), "instruction 11 (GATHER): rule 8: needs an MM, EMB, SC or AV behind it"),
    (inserted(HEAD, gather(64)), "instruction 15 (GATHER): rule 8: needs an MM"),
    # rule 8: between gathers
    (without(PROJECTION), "instruction 10 (GATHER): rule 8: own strips 0 to 3 of the gather before were not sent"),
    (changed(FEED_IN, strips=3), "rule 8: own strips 19 to 19 of the gather before were not sent"),
    (inserted(FEED_IN, local(4)), "instruction 12 (MM): rule 8: reads strips 20 to 23 of other boards before the own"),
    (inserted(GATHER_M, mm(src=2, dst=4)), "instruction 11 (MM): rule 8: writes strips 4 to 7 of a gathered vector"),
    (changed(GATHER_X2, src=4), "rule 8: overlaps the vector of strips 0 to 7, own 0 to 3"),
    # rule 9
    (changed(FEED_IN, dst=20), "rule 9: sends strips 20 to 23; own strips of the latest gather that come next: 16"),
    (changed(FEED_IN, send=0), "rule 8: writes strips 16 to 19 of a gathered vector without send"),
    (without(GATHER_M), "rule 9: sends strips 16 to 19; own strips of the latest gather that come next: none"),
    (changed(HEAD, send=1), "rule 9: send belongs to AV or to an MM with last"),
    (changed(KEYS, send=1), "instruction 3 (MM): rule 9: send belongs to AV or to an MM with last"),
    (changed(LATE, send=1), "instruction 1 (EMB): rule 9: send belongs to AV"),
    (changed(EMBED, send=1), "instruction 0 (EMB): rule 9: send belongs to AV"),
    (changed(FEED_OUT, path=Path.GELU), "rule 9: stats with send need path RESIDUAL or PLAIN, not GELU"),
    (
        [
            *changed(FEED_OUT, strips=2)[: FEED_OUT + 1],
            *inserted(HEAD, mm(src=4, dst=2, strips=2, stats=1, send=1))[FEED_OUT + 1 :],
        ],
        "rule 9: stats with send need the whole own slice (4 strips)",
    ),
    # rule 10
    (without(GATHER_M, FEED_IN), "instruction 11 (GATHER): rule 10: strips 0 and on were also those of the gather"),
    (inserted(GATHER_X2, local(0)), "rule 10: strips 4 to 7 of other boards were used after the own slice"),
    (
        changed(FEED_OUT, words=1),
        "rule 10: sends strips 0 to 3 before it has read strips 20 to 23 of the gather before",
    ),
    (changed(FEED_OUT, src=2), "instruction 14 (MM): rule 10: sends strips 0 to 3 before it has read strips 20 to 23"),
    (changed(FEED_IN, norm=0), "rule 10: nothing has used scalar set 1, whose sums the gather before exchanged"),
]


@pytest.mark.parametrize(("program", "line"), BROKEN)
def test_a_broken_rule_is_named(program, line):
    lines = found(program)
    assert any(line in text for text in lines), lines


def test_sums_in_gathers_that_follow_each_other():
    code = changed(FEED_IN, path=Path.PLAIN, stats=1, stats_set=0)
    assert any("rule 10: the gather before exchanges sums too" in line for line in found(code))


def test_a_step_meets_all_boards_before_it_decides():
    """One gather that is read only behind the arg-max does not keep the boards in step."""
    code = [PROGRAM[EMBED], PROGRAM[LATE], gather(16), PROGRAM[FEED_IN], PROGRAM[HEAD], PROGRAM[NEXT]]
    code[3] = dataclasses.replace(code[3], norm=0)
    lines = check_program(code, {**REGISTERS, "layers": 0, "heads": 0, "key_words": 0}, CORE)
    assert any("instruction 4 (MM): rule 10: commit TOKEN before every strip" in line for line in lines), lines


@pytest.mark.parametrize(
    ("registers", "line"),
    [
        ({"ring_boards": 1}, "instruction 7 (GATHER): rule 7: needs other boards, register ring_boards is 1"),
        ({"ring_boards": 0}, "instruction 8 (AV): rule 7: needs other boards, register ring_boards is 0"),
        ({"ring_boards": 9}, "program: rule 7: board 0 of 9: a ring has up to 8 boards"),
        ({"ring_board": 2}, "program: rule 7: board 2 of 2"),
        ({"width": 31}, "rule 9: stats with send need the whole own slice (4 strips) in one product and a vector of"),
    ],
)
def test_registers(registers, line):
    lines = found(PROGRAM, **registers)
    assert any(line in text for text in lines), lines


def test_a_core_with_rows_has_no_ring():
    lines = check_program(PROGRAM, REGISTERS, core_config("16x4r2"))
    assert [line for line in lines if "rule 7" in line] == [
        "program: rule 7: register ring_boards is 2, core 16x4r2 has no ring"
    ]
    assert not [line for line in found(PROGRAM) if "rule 7" in line]  # twin: the same on one row


# Split products (docs/ring.md, section 2)


def test_a_grouped_last_run_and_accumulators_of_all_strips():
    split = [mm(words=1, strips=8, group=8, last=0, dst=32), mm(words=1, src=1, strips=8, group=2, first=0, dst=32)]
    assert found(inserted(GATHER_A, *split)) == []
    both = [dataclasses.replace(i, acc=122) for i in split]
    lines = found(inserted(GATHER_A, *both))
    assert any("rule 1: acc 122 + strips 8 > acc_depth 128 in a split product" in line for line in lines), lines
    early = [dataclasses.replace(split[0], group=4), split[1]]
    assert any("a run before the last needs group 4 >= strips 8" in line for line in found(inserted(GATHER_A, *early)))


def test_padding_of_parameter_rows_may_be_overwritten_but_overwrites_nothing_in_use():
    def run(acc, **fields):
        return mm(words=1, strips=4, acc=acc, params=Params.BIAS, dst=32, **fields)

    def two(low, high):
        first = [run(low, last=0), run(high, last=0)]
        return [*first, run(low, src=1, first=0), run(high, src=1, first=0)]

    assert found(inserted(GATHER_A, *two(0, 4))) == []  # the second row overwrites slots 4 to 7 of the first: padding
    lines = found(inserted(GATHER_A, *two(4, 0)))  # the second row's padding overwrites slots 4 to 7, which are in use
    assert any("rule 6: parameters overwrite those of the open product at acc 4" in line for line in lines), lines


# Programs together


def programs(*codes, **registers):
    return [
        Program(
            core=CORE,
            model_digest="",
            board=board,
            boards=len(codes),
            instructions=tuple(i.encode() for i in code),
            descriptors=(),
            regions=(),
            registers={**REGISTERS, "ring_board": board, "token_offset": 30 * board, **registers},
        )
        for board, code in enumerate(codes)
    ]


def pair():
    return programs(ring_program(0), ring_program(1))


def with_registers(which, **registers):
    boards = pair()
    boards[which] = dataclasses.replace(boards[which], registers={**boards[which].registers, **registers})
    return boards


def test_programs_that_belong_together():
    assert check_ring(pair()) == []
    assert check_ring([]) == ["ring: no programs"]


@pytest.mark.parametrize(
    ("boards", "line"),
    [
        (pair()[::-1], "board 0: must be board 0 of 2, the program says 1 of 2, its registers 1 of 2"),
        (with_registers(1, ring_board=0), "board 1: must be board 1 of 2, the program says 1 of 2, its registers 0"),
        (with_registers(1, ring_key=6), "board 1: register ring_key is 0x6, board 0 has 0x5"),
        (with_registers(1, width=16), "board 1: register width is 0x10, board 0 has 0x20"),
        (with_registers(1, token_offset=31), "vocabulary: the boards have 0 to 29, 31 to 60; they must cover 0 to 59"),
        (with_registers(0, vocab=20), "vocabulary: the boards have 0 to 19, 30 to 59; they must cover 0 to 49 once"),
        (
            programs(ring_program(0), ring_program(0)),
            "GATHER 0 of strips 8 to 15: the boards have 0 to 3, 0 to 3; they must cover 0 to 7 once",
        ),
        (
            programs(PROGRAM, without(GATHER_M, FEED_IN)),
            "board 1: synchronisation 4 is GATHER of strips 0 to 7, board 0 has GATHER of strips 16 to 23",
        ),
        (
            programs(PROGRAM, changed(PROJECTION, stats=0)),
            "board 1: synchronisation 3 is GATHER of strips 16 to 23, board 0 has sums",
        ),
        (programs(PROGRAM, changed(LOOP, strips=3)), "synchronisation 0 is LOOP of 3, board 0 has LOOP of 2"),
        (programs(PROGRAM, changed(HEAD, commit=Commit.NONE)), "board 1: 8 synchronisations, board 0 has 9"),
    ],
)
def test_programs_that_do_not(boards, line):
    lines = check_ring(boards)
    assert any(line in text for text in lines), lines
