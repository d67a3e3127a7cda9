"""Requests of a batch do not see each other, and each ends by its own registers."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from hw.board.gpt2_map import ROW_REGISTERS, ErrorCode, Flags, row_register
from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard
from sim.programs import CaseResult, RandomCase, random_case, run_case

SEEDS = {"16x4r2": [3, 6, 10, 17], "16x4r4": [3, 6, 13, 18]}
CASES = [(core, seed) for core, seeds in SEEDS.items() for seed in seeds]

Left = tuple[tuple[int, ...], bytes]
"""Tokens of a request, and its keys, values and logits."""


def _batch(core: str, seed: int, *run: dict[str, int]) -> RandomCase:
    """The case of a seed with other registers."""
    case = random_case(seed, core_config(core))
    assert case.run_registers["flags"] & Flags.BATCH
    registers = dict(case.run_registers)
    for changed in run:
        registers |= changed
    return dataclasses.replace(case, run_registers=registers)


def _rows(case: RandomCase) -> list[int]:
    return [row for row in range(case.program.core.rows) if case.run_registers["batch_rows"] >> row & 1]


def _left(case: RandomCase, board: FunctionalBoard, row: int, tokens: tuple[int, ...]) -> Left:
    names = {row_register(kind, row) for kind in ("keys", "values", "logits")}
    regions = [region for region in case.program.regions if region.name in names]
    assert len(regions) == 3 * case.program.core.channels
    return tokens, b"".join(board.read_memory(r.channel, r.offset, r.bytes) for r in regions)


def _together(case: RandomCase, folder: pathlib.Path) -> tuple[CaseResult, list[Left]]:
    board = FunctionalBoard()
    result = run_case(case, board, folder)
    tokens = (result.tokens, *result.row_tokens)
    return result, [_left(case, board, row, tokens[row]) for row in range(case.program.core.rows)]


def _alone(case: RandomCase, row: int, folder: pathlib.Path) -> Left:
    """The request as a sequence: row 0's registers are those of the request."""
    registers = {**case.program.registers, **case.run_registers}
    own = {name: registers[row_register(name, row)] for name in ROW_REGISTERS}
    tokens = (case.tokens, *case.row_tokens)[row]
    run = case.run_registers | own | {"flags": int(Flags.WRITE_LOGITS)}
    board = FunctionalBoard()
    result = run_case(dataclasses.replace(case, tokens=tokens, run_registers=run), board, folder)
    assert result.error == 0
    return _left(case, board, row, result.tokens)


@pytest.mark.parametrize(("core", "seed"), CASES)
def test_each_request_is_its_own_sequence(core: str, seed: int, tmp_path: pathlib.Path) -> None:
    case = _batch(core, seed)
    result, together = _together(case, tmp_path)
    assert result.error == 0
    for row in _rows(case):
        assert together[row] == _alone(case, row, tmp_path)


@pytest.mark.parametrize(("core", "seed"), [("16x4r2", 3), ("16x4r4", 3)])
def test_four_lengths_and_ends(core: str, seed: int, tmp_path: pathlib.Path) -> None:
    """Prompts of 1, 3, 5, 7 tokens, 6, 2, 5, 1 new ones: rows decide while others have prompt, and leave one by one."""
    rows = core_config(core).rows
    run = {"batch_rows": (1 << rows) - 1}
    for row in range(rows):
        own = {"position": 0, "prompt_end": 1 + 2 * row, "max_new_tokens": (6, 2, 5, 1)[row], "stop_count": 0}
        run |= {row_register(name, row): value for name, value in own.items()}
    case = _batch(core, seed, run)
    tokens = [tuple((7 * row + 3 * i) % 20 for i in range(1 + 2 * row)) for row in range(rows)]
    case = dataclasses.replace(case, tokens=tokens[0], row_tokens=tuple(tokens[1:]))
    result, together = _together(case, tmp_path)
    lengths = [len(row) for row in (result.tokens, *result.row_tokens)]
    assert lengths == [7, 5, 10, 8][:rows]
    assert together == [_alone(case, row, tmp_path) for row in range(rows)]


@pytest.mark.parametrize(("core", "seed"), CASES)
def test_what_one_request_asks_is_nothing_to_the_others(core: str, seed: int, tmp_path: pathlib.Path) -> None:
    case = _batch(core, seed)
    changed = _rows(case)[-1]
    name = row_register("position", changed)
    tokens = [list(row) for row in (case.tokens, *case.row_tokens)]
    tokens[changed][case.run_registers[name]] ^= 1
    other = dataclasses.replace(case, tokens=tuple(tokens[0]), row_tokens=tuple(map(tuple, tokens[1:])))
    (_, before), (_, after) = _together(case, tmp_path), _together(other, tmp_path)
    assert [row for row, (one, two) in enumerate(zip(before, after, strict=True)) if one != two] == [changed]


def test_a_stop_id_ends_one_request(tmp_path: pathlib.Path) -> None:
    free = {row_register("stop_count", row): 0 for row in range(4)}
    most = {row_register("max_new_tokens", row): 4 for row in range(4)}
    case = _batch("16x4r4", 3, free, most)
    result, _ = _together(case, tmp_path)
    ends = [case.run_registers[row_register("prompt_end", row)] for row in range(4)]
    tokens = [row[end:] for row, end in zip((result.tokens, *result.row_tokens), ends, strict=True)]
    assert [len(row) for row in tokens] == [4, 4, 4, 4]
    row = next(r for r in range(4) if tokens[r][1] != tokens[r][0])
    stop = {row_register("stop_count", row): 2, row_register("stop_1", row): tokens[row][1]}
    stopped, _ = _together(_batch("16x4r4", 3, free, most, stop), tmp_path)
    got = [new[end:] for new, end in zip((stopped.tokens, *stopped.row_tokens), ends, strict=True)]
    assert got == [new[:2] if r == row else new for r, new in enumerate(tokens)]
    unused = {row_register("stop_count", row): 0}  # twin: the id is not in use
    assert _together(_batch("16x4r4", 3, free, most, stop, unused), tmp_path)[0] == result


def test_a_batch_on_a_core_with_one_row_is_a_sequence(tmp_path: pathlib.Path) -> None:
    case = random_case(4, core_config("16x4"))
    batch = dataclasses.replace(
        case, run_registers=case.run_registers | {"flags": int(Flags.WRITE_LOGITS | Flags.BATCH)}
    )
    want = run_case(case, FunctionalBoard(), tmp_path)
    assert want.error == ErrorCode.NONE and run_case(batch, FunctionalBoard(), tmp_path) == want
