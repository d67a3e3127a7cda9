"""Every rule of docs/core.md, section 5, refuses the program that breaks it, and only that."""

from __future__ import annotations

import dataclasses

import pytest

from hw.gpt2.config import core_config
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path
from hw.gpt2.legality import check_program

CORE = core_config("16x4")
KEYS, VALUES = CORE.new_key_base, CORE.new_value_base
REGISTERS = {
    "context_limit": 48,
    "width": 32,
    "vocab": 60,
    "layers": 2,
    "heads": 2,
    "key_words": 1,
    "value_strips": 4,
    "embed_strips": 8,
    "logits_rows": 2,
}


def mm(**fields):
    return Instruction(Op.MM, **{"words": 2, "tail": 16, "strips": 8, "group": 4, **fields})


def emb(**fields):
    return Instruction(Op.EMB, **{"words": 1, "tail": 16, "strips": 8, "group": 8, **fields})


# x in words 0-1, q in words 2-3, attention results in words 4-5
PROGRAM = [
    emb(last=0),  # 0
    emb(operand=Operand.TOKEN, first=0, stats=1),  # 1
    Instruction(Op.LOOP, strips=2, words=7),  # 2
    mm(params=Params.NORM, dst=KEYS, commit=Commit.KEYS),  # 3
    mm(params=Params.NORM, dst=8),  # 4: q
    mm(params=Params.NORM, dst=VALUES, commit=Commit.VALUES),  # 5
    Instruction(Op.SC, src=2, tail=16, heads=2, prob_stride=3),  # 6
    Instruction(Op.AV, dst=16, acc=4, heads=2, prob_stride=3),  # 7
    mm(src=4, path=Path.RESIDUAL, params=Params.BIAS, stats=1, stats_set=1),  # 8
    mm(params=Params.NORM, norm=1, dst=24, path=Path.GELU),  # 9
    mm(src=0, words=8, strips=8, decode_only=1, path=Path.LOGITS),  # 10
    mm(src=6, words=2, strips=8, decode_only=1, path=Path.LOGITS, dst=8, commit=Commit.TOKEN),  # 11
    Instruction(Op.NEXT),  # 12
]


def changed(index, **fields):
    return [dataclasses.replace(i, **fields) if n == index else i for n, i in enumerate(PROGRAM)]


def found(program, **registers):
    return check_program(program, {**REGISTERS, **registers}, CORE)


def test_the_program_is_legal():
    assert found(PROGRAM) == []


BROKEN = [
    # sizes
    (changed(4, acc=126), "instruction 4 (MM): rule 1: acc 126 + group 4 > acc_depth 128"),
    (changed(4, tail=17), "rule 1: tail 17 must be 1 to 16"),
    (changed(4, src=511), "rule 1: src 511 + words 2 > act_words 512"),
    (changed(4, group=0), "instruction 4 (MM): rule 1: strips 8, words 2 and group 0"),
    (changed(4, strips=1 << 16), "rule 1: MM: field strips must fit 16 bits"),
    (changed(1, src=1), "rule 1: src 1 + strips 8 > embed_strips 8"),
    (changed(6, heads=3), "rule 1: head0 0 + heads 3 must be within heads 2"),
    (changed(6, prob=510), "rule 1: prob 510 with stride 3"),
    (changed(6, prob_stride=2), "stride must be >= 3"),
    (changed(6, acc=128), "rule 1: acc 128 + 1 > acc_depth 128"),
    (changed(7, acc=125), "rule 1: acc 125 + 4 > acc_depth 128"),
    (changed(6, src=511), "rule 1: q words end at 513 > act_words 512"),
    (changed(8, dst=250), "rule 1: RESIDUAL strips end at 258 > residual_strips 256"),
    (changed(1, strips=7), "rule 3: first=0, but no run left 7 strips open at acc 0"),
    # destinations
    (changed(4, dst=4), "rule 2: dst strips 4 to 11 overlap its source strips 0 to 7"),
    (changed(4, dst=KEYS - 4), "rule 2: dst 2044 to 2051 is not inside one of the buffers"),
    (changed(4, dst=KEYS), "rule 2: dst 2048 needs commit KEYS, got NONE"),
    (changed(3, commit=Commit.NONE), "needs commit KEYS, got NONE"),
    (changed(3, dst=KEYS + 8), "section 3: commit KEYS needs dst 2048 and strips 8 (all heads), got 2056 and 8"),
    (changed(7, dst=KEYS - 7), "rule 2: dst strips end at 2049, activation memory at 2048"),
    # what an instruction may not say
    (changed(8, params=Params.NORM), "section 3: RESIDUAL takes params NONE or BIAS"),
    (changed(0, params=Params.BIAS), "section 3: EMB has one word, no params"),
    (changed(0, group=4), "section 3: a run before the last needs group 4 >= strips 8"),
    (changed(0, stats=1), "section 3: stats and commit belong to the run with last"),
    (changed(8, strips=4), "section 3: stats need all of width 32: 16 fp16 results"),
    (changed(3, decode_only=1), "section 2: must run in prompt steps too"),
    (changed(6, decode_only=1), "instruction 6 (SC): section 2"),
    # written before
    (changed(4, src=2, dst=64), "instruction 4 (MM): rule 3: reads activation strips 8 to 15"),
    (changed(8, dst=100), "rule 3: RESIDUAL reads strips 100 to 107"),
    (changed(1, stats=0), "instruction 3 (MM): rule 3: LayerNorm scalars 0 were not computed"),
    (changed(9, norm=0), None),
    (
        changed(4, decode_only=1),
        "instruction 6 (SC): rule 3: reads activation strips 8 to 11, not all written before in this step (in prompt",
    ),
    (changed(0, last=1, dst=400), "instruction 1 (EMB): rule 3: first=0, but no run left 8 strips open at acc 0"),
    # attention
    (changed(2, strips=3), "instruction 2 (LOOP): rule 4: repeats 3 times, register layers is 2"),
    ([*PROGRAM[:3], PROGRAM[5], PROGRAM[4], PROGRAM[3], *PROGRAM[6:]], "commits are VALUES, KEYS"),
    ([*PROGRAM[:3], PROGRAM[4], PROGRAM[6], PROGRAM[3], PROGRAM[5], *PROGRAM[7:]], "rule 4: SC before the keys"),
    ([*PROGRAM[:5], PROGRAM[6], PROGRAM[7], PROGRAM[5], *PROGRAM[8:]], "rule 4: AV before the values"),
    (changed(7, prob=1), "rule 4: probability words 1 and on do not hold those of head 0"),
    (changed(7, head0=1, heads=1), "rule 4: probability words 0 and on do not hold those of head 1"),
    (changed(2, words=4), "instruction 7 (AV): rule 4: stands outside a loop"),
    ([*PROGRAM[:2], PROGRAM[3], *PROGRAM[2:]], "instruction 2 (MM): rule 4: stands outside a loop"),
    # logits
    (changed(11, commit=Commit.NONE), "rule 5: exactly the last LOGITS product has commit TOKEN"),
    (changed(10, commit=Commit.TOKEN), "instruction 10 (MM): rule 5: exactly the last LOGITS"),
    ([*PROGRAM[:12], PROGRAM[9], *PROGRAM[12:]], "instruction 11 (MM): rule 5: nothing but NEXT may follow"),
    (changed(4, commit=Commit.TOKEN), "rule 5: commit TOKEN needs path LOGITS"),
    (changed(10, decode_only=0), "rule 5: LOGITS must be decode_only"),
    (changed(11, dst=9), "section 6: strips of the logits go on at 8, dst is 9"),
    (changed(2, words=8), "rule 5: LOGITS in a loop"),
    (PROGRAM[:10] + PROGRAM[12:], "rule 5: no product has path LOGITS"),
    # split products
    (changed(1, last=0), "program: rule 6: the product at acc 0 has no run with last"),
    ([*PROGRAM[:1], mm(src=0, dst=64, acc=6), *PROGRAM[1:]], "rule 6: accumulators 6 to 9 belong to the open product"),
    (changed(1, params=Params.BIAS), "section 3: params BIAS, the first run took NONE"),
    # shape of the program
    (PROGRAM[:-1], "section 2: the last instruction is not NEXT"),
    ([PROGRAM[-1], *PROGRAM], "instruction 0 (NEXT): section 2: NEXT is not the last of 14"),
    (changed(2, words=0), "section 5: count 2 and length 0"),
    (changed(2, words=20), "no access program"),
    (changed(4, op=Op.LOOP, strips=1, words=1), "instruction 4 (LOOP): section 5: stands in the loop of instruction 2"),
    ([*PROGRAM[:2], *[mm(dst=64)] * 250, *PROGRAM[2:]], "rule 1: 263 instructions, the core holds 1 to 256"),
    ([*PROGRAM[:2], *[emb(dst=64)] * 60, *PROGRAM[2:]], "access descriptors, the core holds 64"),
]


@pytest.mark.parametrize(("program", "line"), BROKEN)
def test_a_broken_rule_is_named(program, line):
    lines = found(program)
    if line is None:  # looks odd, but is allowed
        assert lines == []
    else:
        assert any(line in text for text in lines), lines


@pytest.mark.parametrize(
    ("registers", "line"),
    [
        ({"context_limit": 0}, "rule 1: context_limit is 0, must be 1 to 1024"),
        ({"context_limit": 1025}, "context_limit is 1025"),
        ({"width": 33}, "stats need all of width 33"),
        ({"vocab": 65}, "section 6: vocab 65 must be 1 to 64"),
        ({"vocab": 0}, "section 6: vocab 0"),
        ({"logits_rows": 1}, "section 6: 64 logits do not fit logits_rows: room for 32"),
        ({"heads": 100}, "rule 1: heads x key_words is 100, must be 0 to 64"),
        ({"key_words": 0, "value_strips": 0}, "rule 1: key_words and value_strips must be 1 or more"),
        ({"layers": 1}, "repeats 2 times, register layers is 1"),
    ],
)
def test_registers(registers, line):
    lines = found(PROGRAM, **registers)
    assert any(line in text for text in lines), lines


def test_all_violations_come_at_once():
    program = changed(4, acc=126, tail=0)
    program[8] = dataclasses.replace(program[8], params=Params.NORM)
    lines = found(program, vocab=65)
    assert len(lines) == 4 and len(set(lines)) == 4, lines


def test_parameters_must_fit_while_they_are_in_use():
    wide = mm(src=0, words=2, strips=300, group=100, params=Params.BIAS, dst=64)
    assert found([*PROGRAM[:2], wide, *PROGRAM[2:]]) == []
    small = dataclasses.replace(CORE, name="small", param_depth=128)
    tight = dataclasses.replace(wide, group=127)
    lines = check_program([*PROGRAM[:2], tight, *PROGRAM[2:]], REGISTERS, small)
    assert any("strips of parameters in use > param_depth 128" in line for line in lines), lines


def test_an_empty_program():
    assert found([]) == [
        "program: rule 1: 0 instructions, the core holds 1 to 256",
        "program: section 2: the last instruction is not NEXT",
        "program: rule 5: no product has path LOGITS, so no step decides on a token",
    ]
