"""Cores with int8 weights on the functional executor, against a second reading of docs/int8.md; and what is illegal."""

from __future__ import annotations

import dataclasses
import pathlib
import random

import numpy as np
import pytest

from hw.board.board_model import BoardError
from hw.gpt2.config import core_config
from hw.gpt2.isa import Instruction, Op, Params
from hw.gpt2.legality import check_program
from sim.functional import FunctionalBoard
from sim.programs import RandomCase, hazard_table, is_sensitive, legal_cells, random_case, run_case
from sim.programs.hazards import impossible_cells
from sim.programs.sensitivity import flip_word
from sim.programs.slow_core import SlowCore

CORE = core_config("16x4i8")
CHEAP = (1, 2, 4)
"""Seeds of programs that are quick on the slow core."""

Result = tuple[tuple[int, ...], str, str]


def _executed(case: RandomCase, folder: pathlib.Path) -> Result:
    board = FunctionalBoard()
    got = run_case(case, board, folder)
    board.close()
    return got.tokens, got.logits, got.keys_values


@pytest.fixture(scope="module")
def wanted() -> dict[int, Result]:
    return {seed: SlowCore(random_case(seed, CORE)).run() for seed in CHEAP}


@pytest.mark.parametrize("seed", CHEAP)
def test_executor_equals_the_slow_core(wanted: dict[int, Result], seed: int, tmp_path: pathlib.Path) -> None:
    assert _executed(random_case(seed, CORE), tmp_path) == wanted[seed]


def test_one_flipped_weight_differs(wanted: dict[int, Result], tmp_path: pathlib.Path) -> None:
    case = random_case(CHEAP[0], CORE)
    flipped = [flip_word(case, random.Random(seed)) for seed in range(3)]
    assert any(_executed(one, tmp_path) != wanted[CHEAP[0]] for one in flipped)


class _NoScale(SlowCore):
    def take_params(self, what: str, row: int, first: int) -> None:
        super().take_params(what, row, first)
        if what == "scale":
            self.param |= {place: 0x3F800000 for place in self.param if place[0] == "scale"}


class _OtherStrip(SlowCore):
    def tile_int8(self, a: np.ndarray, b: np.ndarray, take: np.ndarray) -> int:
        return super().tile_int8(a, b[::-1], take)


@pytest.mark.parametrize("fault", [_NoScale, _OtherStrip])
def test_faults_are_noticed(wanted: dict[int, Result], fault: type[SlowCore]) -> None:
    assert fault(random_case(CHEAP[0], CORE)).run() != wanted[CHEAP[0]]


def test_programs_are_legal_and_hit_every_hazard() -> None:
    cases = [random_case(seed, CORE) for seed in range(200)]
    table = hazard_table((case.instructions, case.program.registers, CORE) for case in cases)
    assert {cell: table[cell] for cell in legal_cells(CORE) if not table[cell]} == {}
    assert {cell: table[cell] for cell in impossible_cells(CORE) if table[cell]} == {}
    assert len(impossible_cells(CORE)) > len(impossible_cells(core_config("16x4")))


def test_programs_are_sensitive(tmp_path: pathlib.Path) -> None:
    assert all(is_sensitive(random_case(seed, CORE), tmp_path) for seed in CHEAP)


def _violations(case: RandomCase, index: int, **fields: int) -> list[str]:
    code = [dataclasses.replace(i, **fields) if n == index else i for n, i in enumerate(case.instructions)]
    return check_program(code, case.program.registers, CORE)


@pytest.mark.parametrize("field", ["strips", "group", "acc", "dst"])
def test_an_odd_field_of_mm_is_illegal(field: str, tmp_path: pathlib.Path) -> None:
    case = random_case(0, CORE)
    places = [n for n, i in enumerate(case.instructions) if i.op == Op.MM and i.first and i.last]
    value = getattr(case.instructions[places[0]], field)
    odd = value + 1 if field != "group" else max(1, value - 1)
    found = _violations(case, places[0], **{field: odd})
    assert any(f"{field} {odd}" in line and "must be even" in line for line in found), found
    assert not check_program(case.instructions, case.program.registers, CORE)
    words = list(case.program.instructions)
    words[places[0]] = dataclasses.replace(case.instructions[places[0]], **{field: odd}).encode()
    wrong = dataclasses.replace(case, program=dataclasses.replace(case.program, instructions=tuple(words)))
    with pytest.raises(BoardError, match=f"{field} {odd}, this core has int8 weights"):
        _executed(wrong, tmp_path)


def test_runs_of_a_product_are_all_mm() -> None:
    case = random_case(0, CORE)
    first = Instruction(Op.EMB, first=1, last=0, words=1, tail=CORE.tile, strips=2, group=2, acc=0)
    last = Instruction(Op.MM, first=0, last=1, words=1, tail=CORE.tile, strips=2, group=2, acc=0, dst=40)
    emb = dataclasses.replace(first, first=0, last=1, dst=40)
    position, token, *rest = case.instructions
    for runs in ([first, last], [dataclasses.replace(last, first=1, last=0), emb]):
        found = check_program([position, token, *runs, *rest], case.program.registers, CORE)
        assert any("are all MM" in line for line in found), found
    found = check_program([position, token, first, emb, *rest], case.program.registers, CORE)
    assert not any("are all MM" in line for line in found)


def test_scales_need_room_without_other_parameters() -> None:
    """Scales of 256 open strips, with padding, go round onto themselves: illegal even with params NONE."""
    small = dataclasses.replace(CORE, name="small", param_depth=128)
    mm = Instruction(Op.MM, params=Params.NONE, words=1, tail=16, strips=300, group=126, acc=2, dst=512)
    for core, wrong in ((small, True), (dataclasses.replace(small, weights="fp16"), False)):
        found = check_program([mm, Instruction(Op.NEXT)], {}, core)
        assert any("strips of parameters in use" in line for line in found) == wrong, found
