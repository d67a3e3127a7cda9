"""Random programs: legal, long enough, sensitive to their data, and together they cover every legal dependency."""

from __future__ import annotations

import dataclasses
import pathlib
from collections import Counter

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.isa import Instruction, Op, Params, Path
from hw.gpt2.legality import check_program
from sim.programs import (
    COMMITTED_SEEDS,
    RandomCase,
    hazard_table,
    is_sensitive,
    legal_cells,
    program_cells,
    random_case,
    table_text,
)
from sim.programs.hazards import IMPOSSIBLE, Cell

CORE = core_config("16x4")


@pytest.fixture(scope="module")
def cases() -> list[RandomCase]:
    return [random_case(seed, CORE) for seed in COMMITTED_SEEDS]


def _table(cases: list[RandomCase]) -> Counter[Cell]:
    return hazard_table((case.instructions, case.program.registers, CORE) for case in cases)


def test_there_are_200_legal_programs_of_20_instructions(cases: list[RandomCase]) -> None:
    assert len(cases) == len(set(COMMITTED_SEEDS)) == 200
    for case in cases:
        assert len(case.instructions) >= 20
        assert check_program(case.instructions, case.program.registers, CORE) == []
        assert [Instruction.decode(word) for word in case.program.instructions] == list(case.instructions)


def test_every_legal_cell_has_three_programs(cases: list[RandomCase]) -> None:
    table = _table(cases)
    print(table_text(table))
    assert {cell: table[cell] for cell in legal_cells(CORE) if table[cell] < 3} == {}
    assert {cell: table[cell] for cell in IMPOSSIBLE if table[cell]} == {}
    assert all(IMPOSSIBLE.values())


def test_every_feature_is_used(cases: list[RandomCase]) -> None:
    code = [i for case in cases for i in case.instructions]
    products = [i for i in code if i.op == Op.MM]
    assert {i.op for i in code} == set(Op) - {Op.GATHER}
    assert {(i.path, i.params) for i in products} >= {
        (path, params) for path in Path for params in Params if not (path == Path.RESIDUAL and params == Params.NORM)
    }
    assert {i.strips for i in code if i.op == Op.LOOP} == {1, 2, 3}
    assert {i.heads for i in code if i.op == Op.SC} == {i.heads for i in code if i.op == Op.AV} == {1, 2, 3, 4}
    assert {case.program.registers["key_words"] for case in cases} == {1, 2}
    assert any(i.group == 1 < i.strips for i in products) and any(i.group == i.strips > 1 for i in products)
    assert any(i.strips > CORE.param_strips and i.params and i.group % CORE.param_strips for i in products)
    assert {(i.first, i.last) for i in products} == {(1, 1), (1, 0), (0, 1), (0, 0)}
    assert {i.tail for i in products} == set(range(1, CORE.tile + 1))
    assert any(i.decode_only for i in code if i.op == Op.EMB) and any(i.decode_only for i in products)
    assert {i.operand for i in code if i.op == Op.EMB} == {0, 1}
    lengths = {case.run_registers["position"] for case in cases}
    assert 0 in lengths and max(lengths) > 30


def test_a_seed_is_one_case(cases: list[RandomCase]) -> None:
    again = random_case(COMMITTED_SEEDS[17], CORE)
    assert again.program == cases[17].program and np.array_equal(again.channels, cases[17].channels)
    assert again.program != cases[18].program


def test_every_case_notices_a_flipped_word(cases: list[RandomCase], tmp_path: pathlib.Path) -> None:
    assert [case.seed for case in cases if not is_sensitive(case, tmp_path)] == []


def test_twin_a_case_without_data_is_not_sensitive(cases: list[RandomCase], tmp_path: pathlib.Path) -> None:
    """All weights and parameters subnormal: the flipped bits are there, but nothing of them reaches the result."""
    case = cases[0]
    rows = sum(case.product_rows[-1]) * CORE.port_bytes // 2
    channels = case.channels.copy()
    channels[:, :rows] = 0
    only_head = dataclasses.replace(case, channels=channels, product_rows=case.product_rows[:1])
    assert not is_sensitive(only_head, tmp_path)


def test_twin_without_in_place_residuals_cells_are_missing(cases: list[RandomCase]) -> None:
    """The table notices when the generator loses a feature."""
    plain = [
        [dataclasses.replace(i, path=Path.PLAIN) if i.path == Path.RESIDUAL else i for i in case.instructions]
        for case in cases
    ]
    table = hazard_table((code, case.program.registers, CORE) for code, case in zip(plain, cases, strict=True))
    assert any(table[cell] < 3 for cell in legal_cells(CORE))


def _products(*fields: dict[str, int]) -> list[Instruction]:
    return [Instruction(Op.MM, words=1, tail=16, strips=4, group=4, **f) for f in fields]


def test_the_tracer_by_hand() -> None:
    registers = {"heads": 1, "key_words": 1, "value_strips": 4, "context_limit": 16}
    code = _products(
        {"src": 0, "dst": 16, "acc": 0},
        {"src": 4, "dst": 32, "acc": 8},
        {"src": 8, "dst": 16, "acc": 0, "path": Path.GELU},
        {"src": 4, "dst": 48, "acc": 16},
    )
    assert program_cells(code, registers, CORE) == {
        Cell("strip raw", "MM plain", "MM source", "1"),
        Cell("strip raw", "MM gelu", "MM source", "1"),
        Cell("strip war", "MM source", "MM", "1"),
        Cell("strip waw", "MM", "MM", "2"),
        Cell("accumulator reuse", "MM", "MM", "2"),
    }


@pytest.mark.parametrize("seed", range(5))
def test_the_large_core_has_random_programs_too(seed: int, tmp_path: pathlib.Path) -> None:
    config = core_config("64x16")
    case = random_case(seed, config)
    assert check_program(case.instructions, case.program.registers, config) == []
    assert is_sensitive(case, tmp_path)
