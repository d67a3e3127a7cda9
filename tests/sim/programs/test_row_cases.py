"""Random cases for cores with rows: legal, sensitive to their data, and of every kind of run, step and end."""

from __future__ import annotations

import pathlib
from collections import Counter

import numpy as np
import pytest

from hw.board.gpt2_map import ErrorCode, Flags, row_register
from hw.gpt2.config import core_config
from hw.gpt2.legality import check_program
from sim.functional import FunctionalBoard
from sim.programs import CaseResult, RandomCase, is_sensitive, random_case, run_case

CORES = ("16x4r2", "16x4r4")
SEEDS = range(60)
Run = tuple[RandomCase, CaseResult]


@pytest.fixture(scope="module", params=CORES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("cases")
    cases = [random_case(seed, core_config(request.param)) for seed in SEEDS]
    return [(case, run_case(case, FunctionalBoard(), folder)) for case in cases]


def _is_batch(case: RandomCase) -> bool:
    return bool(case.run_registers["flags"] & Flags.BATCH)


def _of_row(case: RandomCase, name: str, row: int) -> int:
    return case.run_registers[row_register(name, row)]


def _active(case: RandomCase) -> list[int]:
    rows = range(case.program.core.rows)
    return [row for row in rows if case.run_registers["batch_rows"] >> row & 1] if _is_batch(case) else [0]


def test_they_are_legal_and_always_the_same(runs: list[Run]) -> None:
    for case, _ in runs[:30]:
        core = case.program.core
        assert check_program(case.instructions, case.program.registers, core) == []
        again = random_case(case.seed, core)
        assert again.program == case.program and again.run_registers == case.run_registers
        assert np.array_equal(again.channels, case.channels) and again.row_tokens == case.row_tokens
        assert len(case.row_tokens) == core.rows - 1
        bases = [case.program.registers[row_register("key_base", row)] for row in range(core.rows)]
        assert len(set(bases)) == core.rows


def test_both_kinds_of_run_and_all_ends(runs: list[Run]) -> None:
    rows = runs[0][0].program.core.rows
    kinds: Counter[str] = Counter()
    for case, result in runs:
        batch, active = _is_batch(case), _active(case)
        kinds["batch" if batch else "sequence"] += 1
        if result.error == ErrorCode.NAN_LOGITS:
            kinds["NaN in a batch" if batch else "NaN in a sequence"] += 1
        if batch:
            prompts = {_of_row(case, "prompt_end", row) - _of_row(case, "position", row) for row in active}
            kinds["other lengths"] += len(prompts) > 1
            kinds["a hole"] += bool(set(range(max(active))) - set(active))
            kinds["not all rows"] += len(active) < rows
            kinds["a past and none"] += len({_of_row(case, "position", row) > 0 for row in active}) == 2
        else:
            first, end = case.run_registers["position"], case.run_registers["prompt_end"]
            kinds["begins inside a group"] += first % rows > 0
            kinds["decides with several rows"] += (end - 1) % rows > 0 and end - 1 > first
            kinds["several prompt steps"] += end - first > 2 * rows
            kinds["another cache"] += "key_base" in case.run_registers
        if result.error == ErrorCode.NONE:
            made = _made(case, result)
            kinds["ends at different steps"] += batch and len({steps for steps, _ in made}) > 1
            kinds["a stop id"] += any(stopped for _, stopped in made)
            kinds["a full cache"] += any(
                len(tokens) == case.program.registers["context_limit"] + 1 for tokens in _tokens(result)
            )
    wanted = {
        *("batch", "sequence", "NaN in a batch", "other lengths", "not all rows", "a past and none"),
        *("begins inside a group", "decides with several rows", "several prompt steps", "another cache"),
        *("ends at different steps", "a stop id", "a full cache"),
    }
    print(kinds)
    assert {kind for kind in wanted if kinds[kind] < 2} == set()
    assert kinds["a hole"] >= 2 and kinds["NaN in a sequence"] >= 1


def _tokens(result: CaseResult) -> list[tuple[int, ...]]:
    return [result.tokens, *result.row_tokens]


def _made(case: RandomCase, result: CaseResult) -> list[tuple[int, bool]]:
    """For each row at work: steps that it took part in, and whether it ended at a stop id."""
    made = []
    for row in _active(case):
        tokens = _tokens(result)[row]
        stops = [_of_row(case, f"stop_{i}", row) for i in range(_of_row(case, "stop_count", row))]
        count = len(tokens) - _of_row(case, "prompt_end", row)
        early = count < _of_row(case, "max_new_tokens", row) and tokens[-1] in stops
        made.append((len(tokens) - 1 - _of_row(case, "position", row), early))
    return made


def test_every_case_notices_a_flipped_word(runs: list[Run], tmp_path: pathlib.Path) -> None:
    """But for few that a NaN ends at the first token: they show only the prompt's keys and values."""
    blunt = [(case, result) for case, result in runs[:45] if not is_sensitive(case, tmp_path, result)]
    assert all(result.error == ErrorCode.NAN_LOGITS for _, result in blunt) and len(blunt) <= 2


def test_rows_that_take_no_part_leave_their_memory_alone(runs: list[Run], tmp_path: pathlib.Path) -> None:
    """Regions of the other rows are as the image has them; those of the rows at work are not (twin)."""
    for case, _ in runs[:20]:
        board = FunctionalBoard()
        run_case(case, board, tmp_path)
        registers = {**case.program.registers, **case.run_registers}
        bases = [case.program.registers[row_register("key_base", row)] for row in range(case.program.core.rows)]
        at_work = _active(case) if _is_batch(case) else [bases.index(registers["key_base"])]
        for row in range(case.program.core.rows):
            names = [row_register(kind, row) for kind in ("keys", "values", "logits")]
            regions = [region for region in case.program.regions if region.name in names]
            changed = any(
                board.read_memory(r.channel, r.offset, r.bytes) != _before(case, r.channel, r.offset, r.bytes)
                for r in regions
            )
            assert changed == (row in at_work), f"seed {case.seed}, row {row}"
        board.close()


def _before(case: RandomCase, channel: int, offset: int, count: int) -> bytes:
    given = case.channels[channel].astype("<u2").tobytes()[offset : offset + count]
    return given + b"\x00\x7e" * ((count - len(given)) // 2)
