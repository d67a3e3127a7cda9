"""Orders of gathers that let a strip overtake its reader, or that end in a deadlock, are found when they run.

They are found whichever board is worked on first; and what the legality check lets pass runs.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
from collections import Counter

import numpy as np
import pytest

from hw.board.board_model import BoardError
from hw.board.gpt2_map import gpt2_register_map
from hw.gpt2.access import derive_access
from hw.gpt2.config import core_config
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Path
from hw.gpt2.legality import check_program
from hw.gpt2.ring_set import check_ring
from sim.functional import FunctionalRing
from sim.functional.exchange import Best
from sim.programs.ring_case import RingCase, random_ring_case, run_ring_case

CORE = core_config("16x4")
MAP = gpt2_register_map(CORE)
X, MIDDLE, OTHER = 0, 16, 32  # first strips of three vectors of 8 strips, in words 0, 4 and 8


def gather(dst: int, board: int, boards: int) -> Instruction:
    own = 8 // boards
    return Instruction(Op.GATHER, dst=dst, strips=8, src=own * board, words=own)


def product(src: int, dst: int, board: int, boards: int, **fields: int) -> Instruction:
    own = 8 // boards
    values = {"words": 2, "tail": 16, "strips": own, "group": own, "dst": dst + own * board, "send": 1, **fields}
    return Instruction(Op.MM, src=src // 4, **values)


def look(src: int) -> Instruction:
    """A product that only this board uses, in words 12 and on."""
    return Instruction(Op.MM, src=src // 4, words=2, tail=16, strips=1, group=1, dst=48)


def program(board: int, boards: int, *body: Instruction) -> list[Instruction]:
    embed = {"words": 1, "tail": 16, "strips": 8, "group": 8}
    head = {"words": 2, "tail": 16, "strips": 2, "group": 2, "path": Path.LOGITS, "commit": Commit.TOKEN}
    return [
        Instruction(Op.EMB, last=0, **embed),
        Instruction(Op.EMB, operand=Operand.TOKEN, first=0, **embed),
        *body,
        Instruction(Op.MM, decode_only=1, **head),
        Instruction(Op.NEXT),
    ]


def there_and_back(board: int, boards: int, *late: Instruction) -> list[Instruction]:
    """x -> middle -> x; ``late`` stands behind the middle's own slice."""
    return program(
        board,
        boards,
        gather(MIDDLE, board, boards),
        product(X, MIDDLE, board, boards),
        *late,
        gather(X, board, boards),
        product(MIDDLE, X, board, boards),
    )


def run(codes: list[list[Instruction]], folder: pathlib.Path, first: int = 0) -> None:
    """Run programs with weights of zero on a ring; cabled so that board ``first`` is worked on first."""
    case = random_ring_case(2, CORE, len(codes))  # lends registers, image and tokens
    boards = []
    for board, code in enumerate(codes):
        one = case.boards[board]
        registers = {**one.program.registers, "layers": 0, "vocab": 8, "token_offset": 8 * board, "embed_strips": 8}
        words = tuple(i.encode() for i in code)
        descriptors = tuple(a.encode() for a in derive_access(code, CORE))
        replaced = dataclasses.replace(one.program, instructions=words, descriptors=descriptors, registers=registers)
        run_registers = {**one.run_registers, "position": 0, "max_new_tokens": 2, "stop_count": 0}
        run_registers["prompt_end"] = len(one.tokens)
        boards.append(
            dataclasses.replace(
                one,
                program=replaced,
                run_registers=run_registers,
                channels=np.zeros_like(one.channels),
                tokens=(0, 1, 2),
            )
        )
    turned = tuple(boards[first:] + boards[:first])
    results = run_ring_case(dataclasses.replace(case, boards=turned), FunctionalRing(len(codes)).boards, folder)
    assert {result.error for result in results} == {0}


BOARDS = [2, 4]
TURNS = [(boards, first) for boards in BOARDS for first in range(boards)]


@pytest.mark.parametrize(("boards", "first"), TURNS)
def test_there_and_back_runs(boards: int, first: int, tmp_path: pathlib.Path) -> None:
    run([there_and_back(b, boards) for b in range(boards)], tmp_path, first)


@pytest.mark.parametrize(("boards", "first"), TURNS)
@pytest.mark.parametrize("late_board", [0, 1])
def test_a_late_reader_on_one_board(boards: int, first: int, late_board: int, tmp_path: pathlib.Path) -> None:
    """It reads x after its own slice of the middle is out: another board may be sending x already."""
    codes = [there_and_back(b, boards, *([look(X)] if b == late_board else [])) for b in range(boards)]
    with pytest.raises(BoardError, match="order of gathers is illegal"):
        run(codes, tmp_path, first)


@pytest.mark.parametrize(("boards", "first"), TURNS)
def test_twin_the_reader_before_the_own_slice_is_in_time(boards: int, first: int, tmp_path: pathlib.Path) -> None:
    codes = []
    for b in range(boards):
        code = there_and_back(b, boards)
        at = next(n for n, i in enumerate(code) if i.op == Op.GATHER)
        codes.append([*code[:at], look(X), *code[at:]])
    run(codes, tmp_path, first)


@pytest.mark.parametrize(("boards", "first"), TURNS)
def test_the_same_vector_twice(boards: int, first: int, tmp_path: pathlib.Path) -> None:
    """Middle, then middle again without anything between: a board can be two vectors ahead."""
    codes = [
        program(b, boards, *2 * [gather(MIDDLE, b, boards), product(X, MIDDLE, b, boards), look(MIDDLE)])
        for b in range(boards)
    ]
    with pytest.raises(BoardError, match="order of gathers is illegal"):
        run(codes, tmp_path, first)


@pytest.mark.parametrize(("boards", "first"), TURNS)
def test_a_vector_that_is_announced_again_unread(boards: int, first: int, tmp_path: pathlib.Path) -> None:
    """x to middle, x to other, x to middle: nobody waits for the middle."""
    codes = []
    for b in range(boards):
        steps = [(gather(dst, b, boards), product(X, dst, b, boards)) for dst in (MIDDLE, OTHER, MIDDLE)]
        codes.append(program(b, boards, *itertools.chain(*steps), look(MIDDLE), look(OTHER)))
    with pytest.raises(BoardError, match="order of gathers is illegal"):
        run(codes, tmp_path, first)


def test_reading_before_the_own_slice_is_a_deadlock(tmp_path: pathlib.Path) -> None:
    codes = []
    for b in range(2):
        code = there_and_back(b, 2)
        at = next(n for n, i in enumerate(code) if i.op == Op.GATHER)
        codes.append([*code[: at + 1], look(MIDDLE), *code[at + 1 :]])
    with pytest.raises(BoardError) as caught:
        run(codes, tmp_path)
    assert str(caught.value) == (
        "the boards wait for each other for ever: "
        "board 0: instruction 3 (MM) waits for strips 20 to 23 of other boards; "
        "board 1: instruction 3 (MM) waits for strips 16 to 19 of other boards"
    )


def test_boards_in_different_order_deadlock(tmp_path: pathlib.Path) -> None:
    codes = []
    for b, order in enumerate([(MIDDLE, OTHER), (OTHER, MIDDLE)]):
        steps = [(gather(dst, b, 2), product(X, dst, b, 2), look(dst)) for dst in order]
        codes.append(program(b, 2, *itertools.chain(*steps)))
    with pytest.raises(BoardError, match=r"for ever: board 0: instruction 4 \(MM\) waits for strips 20 to 23 of other"):
        run(codes, tmp_path)


def test_strips_that_nobody_announced(tmp_path: pathlib.Path) -> None:
    codes = [[i for i in there_and_back(b, 2) if b == 0 or i.op != Op.GATHER] for b in range(2)]
    with pytest.raises(BoardError, match="board 1: instruction 2 at position 0: sends strips 20 to 23, not all"):
        run(codes, tmp_path)


def test_an_empty_best_never_wins() -> None:
    best = Best()
    best.take(Best(token=7, value=0xBF800000, found=True))
    best.take(Best())
    assert (best.token, best.found) == (7, True)
    best.take(Best(token=9, value=0xBF800000, found=True))
    assert best.token == 7
    best.take(Best(token=3, value=0xBF800000, found=True))
    assert best.token == 3
    best.take(Best(nan=True))
    assert best.nan and best.token == 3


# Mutations of random programs: the check must refuse whatever the executor cannot run.


def _mutated(code: tuple[Instruction, ...], rng: random.Random) -> list[Instruction]:
    """Two neighbours change places, or an instruction moves or loses what ties it to the ring."""
    new = list(code)
    at = rng.choice([n for n, i in enumerate(code) if i.op in (Op.GATHER, Op.MM, Op.AV) and n + 1 < len(code)])
    kind = rng.random()
    if kind < 0.5:
        new[at], new[at + 1] = new[at + 1], new[at]
    elif kind < 0.7 and code[at].op == Op.GATHER:
        new[at] = dataclasses.replace(code[at], src=rng.randint(0, code[at].strips - 1))
    elif kind < 0.85:
        new[at] = dataclasses.replace(code[at], send=1 - code[at].send, words=code[at].words)
    else:
        new[at] = dataclasses.replace(code[at], words=max(1, code[at].words - 1))
    return new


def _with(case: RingCase, board: int, code: list[Instruction]) -> RingCase:
    one = case.boards[board]
    words = tuple(i.encode() for i in code)
    descriptors = tuple(a.encode() for a in derive_access(code, CORE))
    changed = dataclasses.replace(one.program, instructions=words, descriptors=descriptors)
    boards = list(case.boards)
    boards[board] = dataclasses.replace(one, program=changed, instructions=tuple(code))
    return dataclasses.replace(case, boards=tuple(boards))


def _verdicts(seeds: range, folder: pathlib.Path) -> Counter[tuple[bool, bool]]:
    """How often (legal, runs) mutated programs are."""
    counts: Counter[tuple[bool, bool]] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        case = random_ring_case(seed % 20, CORE, rng.choice([2, 3]))
        board = rng.randrange(len(case.boards))
        try:
            mutant = _with(case, board, _mutated(case.boards[board].instructions, rng))
        except ValueError:  # no loop any more, so no access program
            continue
        one = mutant.boards[board]
        lines = check_program(one.instructions, one.program.registers, CORE)
        legal = not lines and not check_ring([b.program for b in mutant.boards])
        try:
            run_ring_case(mutant, FunctionalRing(len(case.boards)).boards, folder)
            runs = True
        except BoardError:
            runs = False
        counts[legal, runs] += 1
    return counts


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 600), marks=pytest.mark.slow)])
def test_what_is_legal_runs(seeds: range, tmp_path: pathlib.Path) -> None:
    counts = _verdicts(seeds, tmp_path)
    assert counts[True, False] == 0
    assert counts[True, True] >= len(seeds) // 6 and counts[False, False] >= len(seeds) // 6
