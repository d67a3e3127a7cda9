"""Rows of the executor against docs/rows.md read a second time: each position by itself, on ``sim.programs.slow_rows``.

Tiles are counted here once more, by the table of section 3. The twins plant faults into the executor.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import pytest

import sim.functional.memory_writer as memory_writer
import sim.functional.row_core as row_core
from hw.board.gpt2_map import ErrorCode, Flags
from hw.gpt2.access import weight_rows
from hw.gpt2.config import core_config
from hw.gpt2.isa import Instruction, Op, Operand
from sim.functional import FunctionalBoard
from sim.functional.requests import Request, RowWork
from sim.programs import RandomCase, random_case, run_case
from sim.programs.hazards import executed
from sim.programs.slow_rows import SlowRows, Step

SEQUENCES = {"16x4r2": [0, 2, 4], "16x4r4": [1, 4, 5]}
BATCHES = {"16x4r2": [3, 6], "16x4r4": [3, 6]}
SEEDS = [(core, seed) for seeds in (SEQUENCES, BATCHES) for core in seeds for seed in seeds[core]]


def _tiles(case: RandomCase, steps: Sequence[Step]) -> int:
    """Tiles and parameter rows of a run's steps."""
    c, r = case.program.core, case.program.registers
    batch = case.run_registers["flags"] & Flags.BATCH

    def of(i: Instruction, step: Step) -> int:
        positions = [p for _, p in step.rows]
        if i.op == Op.MM:
            return weight_rows(i, c)
        if i.op == Op.EMB:
            return i.strips * (len(positions) if batch or i.operand == Operand.TOKEN else 1)
        size, per_row = (c.lanes, r["key_words"]) if i.op == Op.SC else (c.tile, r["value_strips"])
        return sum(i.heads * (p // size + 1) * per_row for p in (positions if batch else positions[-1:]))

    code = list(executed(case.instructions))
    return sum(of(i, step) for step in steps for i in code if not (i.decode_only and step.prompt))


def _short(core: str, seed: int) -> RandomCase:
    """The case of a seed with no more than three new tokens a request."""
    case = random_case(seed, core_config(core))
    most = {name: min(value, 3) for name, value in case.run_registers.items() if name.startswith("max_new_tokens")}
    return dataclasses.replace(case, run_registers=case.run_registers | most)


def _same(case: RandomCase, folder: pathlib.Path) -> bool:
    slow = SlowRows(case)
    tokens, logits, keys_values = slow.run()
    got = run_case(case, FunctionalBoard(), folder)
    error, info = (ErrorCode.NONE, 0) if slow.failure is None else (ErrorCode.NAN_LOGITS, slow.failure)
    want = (tokens[0], logits, keys_values, error, _tiles(case, slow.steps), info, tokens[1:])
    return dataclasses.astuple(got) == want


@pytest.mark.parametrize(("core", "seed"), SEEDS)
def test_same_bits(core: str, seed: int, tmp_path: pathlib.Path) -> None:
    case = _short(core, seed)
    assert bool(case.run_registers["flags"] & Flags.BATCH) == (seed in BATCHES[core])
    assert _same(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["16x4r2", "16x4r4"])
@pytest.mark.parametrize("first", range(100, 140, 10))
def test_same_bits_of_many(core: str, first: int, tmp_path: pathlib.Path) -> None:
    wrong = [seed for seed in range(first, first + 10) if not _same(_short(core, seed), tmp_path)]
    assert wrong == []


@pytest.mark.parametrize("seed", range(3))
def test_same_bits_64x16r4(seed: int, tmp_path: pathlib.Path) -> None:
    assert _same(_short("64x16r4", seed), tmp_path)


def _lost_rotation(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Fault: keys or values are written to slots that are rotated by the head, not by R for each."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        write = getattr(memory_writer, name)
        patch.setattr(memory_writer, name, lambda *arguments: write(*arguments[:-1], 1))

    return plant


def _position_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """Fault: row 1 works on the position before its own."""
    begin = row_core.RowCore.begin

    def wrong(self: row_core.RowCore, work: RowWork) -> None:
        begin(self, dataclasses.replace(work, position=work.position - (work.row == 1 and work.position > 0)))

    patch.setattr(row_core.RowCore, "begin", wrong)


def _row_goes_on(patch: pytest.MonkeyPatch) -> None:
    """Fault: a request takes one token more than it asked for."""
    append = Request.append
    patch.setattr(Request, "append", lambda self, *arguments: append(self, *arguments) and self._made > 3)


FAULTS = {
    "keys rotated by h": (_lost_rotation("_write_keys"), SEQUENCES),
    "values rotated by h": (_lost_rotation("_write_values"), BATCHES),
    "position off by one, sequence": (_position_off_by_one, SEQUENCES),
    "position off by one, batch": (_position_off_by_one, BATCHES),
    "a row goes on": (_row_goes_on, BATCHES),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_twin_a_fault_is_seen(fault: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, seeds = FAULTS[fault]
    plant(monkeypatch)
    cases = [_short(core, seed) for core in seeds for seed in seeds[core]]
    assert not all(_same(case, tmp_path) for case in cases)
