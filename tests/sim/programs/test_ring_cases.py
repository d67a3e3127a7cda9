"""Random programs of rings: legal, rich in what they do, and on B boards what the same model is on one board."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib

import numpy as np
import pytest

from hw.gpt2.config import CoreConfig, core_config
from hw.gpt2.isa import Instruction, Op, Params, Path
from hw.gpt2.legality import check_program
from sim.functional import FunctionalRing
from sim.programs import random_case
from sim.programs.random_case import CaseResult
from sim.programs.ring_case import (
    RingCase,
    board_logits,
    on_one_board,
    random_ring_case,
    ring_sizes,
    run_ring_case,
)
from sim.programs.ring_program import even_slices, word_runs

CORE, INT8_CORE = core_config("16x4"), core_config("16x4i8")
SMALL_CORES = [
    CoreConfig(name="16x2", tile=16, lanes=2, channels=2, port_bits=256, context=64),
    CoreConfig(name="16x8", tile=16, lanes=8, channels=8, port_bits=256),
    CoreConfig(name="32x4", tile=32, lanes=4, channels=8, port_bits=256, acc_depth=64),
]
SEEDS = range(20)


@pytest.fixture(scope="module")
def cases() -> list[RingCase]:
    return [random_ring_case(seed, CORE, ring_sizes(seed)) for seed in SEEDS]


def _outcome(case: RingCase, folder: pathlib.Path) -> tuple[CaseResult, list[np.ndarray]]:
    """Result of board 0, and the logits of all columns for each decode step."""
    folder.mkdir()
    boards = FunctionalRing(len(case.boards)).boards
    results = run_ring_case(case, boards, folder)
    assert {result.tokens for result in results} == {results[0].tokens}
    steps = range(case.boards[0].run_registers["prompt_end"] - 1, len(results[0].tokens) - 1)
    pairs = list(zip(case.boards, boards, strict=True))
    return results[0], [np.concatenate([board_logits(one, b, p) for one, b in pairs]) for p in steps]


def _same(case: RingCase, folder: pathlib.Path) -> bool:
    """Whether the boards compute the tokens and logits that one board computes."""
    ring, ring_logits = _outcome(case, folder / f"ring{case.seed}")
    one, one_logits = _outcome(on_one_board(case), folder / f"one{case.seed}")
    assert ring.error == one.error == 0
    return ring.tokens == one.tokens and np.array_equal(ring_logits, one_logits)


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(s, marks=pytest.mark.slow) for s in range(20, 120))])
def test_boards_compute_what_one_board_computes(seed: int, tmp_path: pathlib.Path) -> None:
    assert _same(random_ring_case(seed, CORE, ring_sizes(seed), exact=True), tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_boards_with_int8_weights_compute_what_one_board_computes(seed: int, tmp_path: pathlib.Path) -> None:
    case = random_ring_case(seed, INT8_CORE, ring_sizes(seed), exact=True)
    assert all(len(own) % 2 == 0 for name in ("x", "inner0", "inner1") for own in case.slices.vectors[name])
    assert _same(case, tmp_path)


def test_twin_another_int8_weight_is_seen(tmp_path: pathlib.Path) -> None:
    case = random_ring_case(1, INT8_CORE, 3, exact=True)
    channels = case.boards[2].channels.copy()
    channels[channels == 0x007F] = 0x0060  # 127 of an even strip, beside a zero
    changed = dataclasses.replace(case.boards[2], channels=channels)
    other = dataclasses.replace(case, boards=(*case.boards[:2], changed))
    right = run_ring_case(case, FunctionalRing(3).boards, tmp_path)
    assert run_ring_case(other, FunctionalRing(3).boards, tmp_path) != right


def test_twin_sums_that_round_depend_on_the_number_of_boards(tmp_path: pathlib.Path) -> None:
    position_0 = [
        seed for seed in range(20) if random_ring_case(seed, CORE, 2).boards[0].run_registers["position"] == 0
    ]
    assert not all(_same(random_ring_case(seed, CORE, 2), tmp_path) for seed in position_0[:3])


def test_twin_another_weight_on_one_board_is_seen(tmp_path: pathlib.Path) -> None:
    case = random_ring_case(1, CORE, 3, exact=True)
    assert _same(case, tmp_path)
    channels = case.boards[2].channels.copy()
    channels[channels == 0x3C00] = 0x3E00  # 1.0 becomes 1.5
    changed = dataclasses.replace(case.boards[2], channels=channels)
    again = tmp_path / "again"
    again.mkdir()
    assert not _same(dataclasses.replace(case, boards=(*case.boards[:2], changed)), again)


@pytest.mark.parametrize("core", SMALL_CORES, ids=lambda core: core.name)
@pytest.mark.parametrize("seed", range(5))
def test_other_cores(core: CoreConfig, seed: int, tmp_path: pathlib.Path) -> None:
    assert _same(random_ring_case(seed, core, ring_sizes(seed + 2), exact=True), tmp_path)


def test_features(cases: list[RingCase]) -> None:
    assert {len(case.boards) for case in cases} == {2, 3, 4, 5, 8}
    slices = [(case, name, own) for case in cases for name, own in case.slices.vectors.items()]
    assert any(len({len(one) for one in own}) > 1 for _, _, own in slices), "uneven slices"
    assert any(one.start % CORE.strips_per_word for _, _, own in slices for one in own), "straddling words"
    programs = [board.instructions for case in cases for board in case.boards]
    code = [i for program in programs for i in program]
    products = [i for i in code if i.op == Op.MM]
    sent = [i for i in code if i.send]
    assert {i.op for i in code} == set(Op)
    assert {i.path for i in sent if i.op == Op.MM} == {Path.PLAIN, Path.GELU, Path.RESIDUAL}
    assert {i.params for i in sent if i.op == Op.MM} == set(Params)
    assert any(i.op == Op.AV for i in sent) and any(i.stats for i in sent)
    assert any(i.stats and not i.send for i in code)
    last = [i for i in products if i.last and not i.first]
    assert any(i.group < i.strips for i in last) and any(i.group == i.strips > 1 for i in last)
    assert {i.path for i in last} == set(Path)
    assert any(_opened_together(program) for program in programs)
    assert {case.boards[0].run_registers["position"] > 0 for case in cases} == {True, False}


def _opened_together(program: tuple[Instruction, ...]) -> bool:
    """Whether two products are open at the same time."""
    open_now: set[int] = set()
    for i in program:
        if i.op == Op.MM and i.first and not i.last:
            open_now.add(i.acc)
            if len(open_now) > 1:
                return True
        elif i.op == Op.MM and i.last and not i.first:
            open_now.discard(i.acc)
    return False


def test_ties_between_boards_are_decided(tmp_path: pathlib.Path) -> None:
    """The largest logit stands on two boards in some step, and the lower token id won."""
    tied = 0
    for seed in range(12):
        case = random_ring_case(seed, CORE, 4, exact=True)
        if not case.model.ties:
            continue
        result, steps = _outcome(case, tmp_path / str(seed))
        tokens = result.tokens[-len(steps) :]
        for token, logits in zip(tokens, steps, strict=True):
            values = logits.view(np.float32)
            best = np.flatnonzero(values == values.max())
            assert token == best[0]
            owners = {next(b for b, own in enumerate(case.slices.vocab) if column in own) for column in best}
            tied += len(owners) > 1
    assert tied >= 5


def test_a_seed_is_one_case() -> None:
    first, again, other = (random_ring_case(seed, CORE, 3) for seed in (7, 7, 8))
    assert [b.program for b in first.boards] == [b.program for b in again.boards]
    assert np.array_equal(first.boards[1].channels, again.boards[1].channels)
    assert first.boards[0].program != other.boards[0].program


def test_the_generator_for_one_board_is_what_it_was() -> None:
    digest = hashlib.sha256()
    for seed in range(10):
        case = random_case(seed, CORE)
        for word in (*case.program.instructions, *case.program.descriptors):
            digest.update(word.to_bytes(16, "little"))
        digest.update(case.channels.tobytes())
    assert digest.hexdigest() == "f4345a84c63e949ac4cca7a16034b4da65ca3792c5500d6d9e01738e6eaa409c"


def test_order_of_arrival() -> None:
    case = random_ring_case(0, CORE, 2)
    vector = dataclasses.replace(case.model.vectors["x"], strips=20)
    slices = even_slices(20, 4)
    assert slices == (range(5), range(5, 10), range(10, 15), range(15, 20))
    # owners of the words of 4 strips: 0 | 0 1 | 1 2 | 2 3 | 3; order for board 0: 0 3 1 2, for board 2: 2 1 3 0
    assert word_runs(vector, slices, 0, CORE) == [range(0, 1), range(4, 5), range(1, 2), range(2, 4)]
    assert word_runs(vector, slices, 2, CORE) == [range(2, 3), range(3, 5), range(0, 2)]


def test_twin_a_program_that_loses_its_gather_is_illegal(cases: list[RingCase]) -> None:
    for case in cases[:5]:
        board = case.boards[0]
        at = next(n for n, i in enumerate(board.instructions) if i.op == Op.GATHER)
        loop = next(n for n, i in enumerate(board.instructions) if i.op == Op.LOOP)
        code = list(board.instructions)
        code[loop] = dataclasses.replace(code[loop], words=code[loop].words - (at > loop))
        del code[at]
        assert any("rule 9" in line or "rule 3" in line for line in check_program(code, board.program.registers, CORE))
