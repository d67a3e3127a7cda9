"""Runs of several functional boards: joining, errors told to all, cancel, boards that never come, the next run."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from hw.board.board_model import BoardError, BoardModel
from hw.board.gpt2_map import INTERFACE_VERSION, ErrorCode, RunState, gpt2_register_map
from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard, FunctionalRing
from sim.programs.image_builder import write_image
from sim.programs.random_case import random_case, run_case, start_case
from sim.programs.ring_case import RingCase, random_ring_case, run_ring_case

CORE = core_config("16x4")
MAP = gpt2_register_map(CORE)
RIGHT = 1 << 31


def changed(case: RingCase, board: int, **registers: int) -> RingCase:
    """A case with other program registers on one board."""
    boards = list(case.boards)
    program = dataclasses.replace(boards[board].program, registers={**boards[board].program.registers, **registers})
    boards[board] = dataclasses.replace(boards[board], program=program)
    return dataclasses.replace(case, boards=tuple(boards))


class Session:
    """A ring with a case loaded on its boards."""

    def __init__(self, case: RingCase, folder: pathlib.Path, versions: list[int] | None = None) -> None:
        self.case = case
        self.ring = FunctionalRing(len(case.boards), CORE, versions=versions)
        for index, (board, one) in enumerate(zip(self.ring.boards, case.boards, strict=True)):
            place = folder / f"{index}"
            place.mkdir(exist_ok=True)
            board.load(one.program, write_image(list(one.channels), one.channel_bytes, place))

    def read(self, board: int, name: str) -> int:
        return self.ring.boards[board].read_register(MAP[name].offset, MAP[name].bits // 8)

    def write(self, board: int, name: str, value: int) -> None:
        self.ring.boards[board].write_register(MAP[name].offset, value)

    def start(self, *boards: int, **run: int) -> None:
        for board in boards or range(len(self.case.boards)):
            one = self.case.boards[board]
            registers = {"stop_count": 0, "max_new_tokens": 4, **run}
            start_case(
                dataclasses.replace(one, run_registers={**one.run_registers, **registers}), self.ring.boards[board]
            )

    def advance(self, board: int = 0, cycles: int = 100) -> None:
        assert self.ring.boards[board].advance(cycles) == 0

    def finish(self) -> None:
        for _ in range(100):
            if all(self.read(b, "ctrl") & 2 for b in range(len(self.case.boards))):
                return
            self.advance()
        raise AssertionError("the ring has not ended after 100 positions")

    def errors(self) -> list[tuple[int, int]]:
        return [(self.read(b, "error"), self.read(b, "error_info")) for b in range(len(self.case.boards))]

    def tokens(self) -> list[list[int]]:
        window = MAP.window("tokens")
        return [
            [board.read_register(window.offset + 4 * i) for i in range(self.read(n, "tokens_valid"))]
            for n, board in enumerate(self.ring.boards)
        ]


def two() -> RingCase:
    return random_ring_case(0, CORE, 2)


def three() -> RingCase:
    return random_ring_case(1, CORE, 3)


def test_boards_are_board_models() -> None:
    assert all(isinstance(board, BoardModel) for board in FunctionalRing(3).boards)
    for boards in (0, 9):
        with pytest.raises(ValueError, match=f"1 to 8 boards, got {boards}"):
            FunctionalRing(boards)
    with pytest.raises(ValueError, match="1 interface versions for 2 boards"):
        FunctionalRing(2, versions=[1])


def test_an_advance_of_any_board_is_one_position_of_all(tmp_path: pathlib.Path) -> None:
    session = Session(three(), tmp_path)
    assert session.read(1, "link_status") == 0b00011
    session.start(2, 0, 1)
    begin = session.read(0, "tokens_valid")
    while session.read(0, "tokens_valid") == begin:  # prompt steps
        session.advance(2)
    assert session.read(1, "link_status") == 0b10011
    assert [session.read(b, "tokens_valid") for b in range(3)] == [begin + 1] * 3
    session.advance(1)
    assert [session.read(b, "tokens_valid") for b in range(3)] == [begin + 2] * 3
    session.finish()
    assert session.errors() == [(ErrorCode.NONE, 0)] * 3
    tokens = session.tokens()
    assert tokens[0] == tokens[1] == tokens[2]
    assert [session.read(b, "done_count") for b in range(3)] == [1] * 3
    assert session.read(0, "link_status") == 0b00011 and session.read(0, "state") == RunState.IDLE


def test_boards_wait_for_the_last_one_to_start(tmp_path: pathlib.Path) -> None:
    session = Session(three(), tmp_path)
    session.start(0, 1)
    for _ in range(5):
        session.advance()
    assert session.read(0, "state") == RunState.RUN and session.read(0, "link_status") == 0b00011
    session.start(2)
    session.finish()
    assert session.errors() == [(ErrorCode.NONE, 0)] * 3


@pytest.mark.parametrize(
    ("started", "errors"),
    [
        ((0, 1), [(ErrorCode.NO_HELLO, 0b01), (ErrorCode.NO_HELLO, 0b10), (0, 0)]),
        ((2,), [(0, 0), (0, 0), (ErrorCode.NO_HELLO, 0b11)]),
    ],
)
def test_a_neighbour_that_never_starts(
    started: tuple[int, ...], errors: list[tuple[int, int]], tmp_path: pathlib.Path
) -> None:
    session = Session(three(), tmp_path)
    session.start(*started, link_limit=250)
    session.advance(started[0])
    session.advance(started[0])
    assert session.read(started[0], "state") == RunState.RUN
    session.advance(started[0])
    assert session.errors() == errors
    late = [b for b in range(3) if b not in started]
    session.start(*late, link_limit=250)  # the run was broken off before they began it
    session.advance(late[0])
    assert all(session.read(b, "error") == ErrorCode.PEER_FAILED for b in late)
    session.start(ring_run=99)
    session.finish()
    assert [code for code, _ in session.errors()] == [ErrorCode.NONE] * 3


def test_twin_without_a_limit_they_wait_for_ever(tmp_path: pathlib.Path) -> None:
    session = Session(three(), tmp_path)
    session.start(0, 1, link_limit=0)
    for _ in range(50):
        session.advance(0, 1_000_000)
    assert session.read(0, "state") == RunState.RUN


def test_another_run_number_is_no_hello(tmp_path: pathlib.Path) -> None:
    session = Session(two(), tmp_path)
    session.start(0, ring_run=5, link_limit=100)
    session.start(1, ring_run=6, link_limit=100)
    session.advance()
    assert session.errors() == [(ErrorCode.NO_HELLO, 0b11)] * 2


def test_wrong_versions(tmp_path: pathlib.Path) -> None:
    new = INTERFACE_VERSION + 1
    session = Session(two(), tmp_path, [INTERFACE_VERSION, new])
    session.start()
    session.advance()
    assert session.errors() == [(ErrorCode.RING_VERSION, new), (ErrorCode.RING_VERSION, INTERFACE_VERSION)]


def test_swapped_boards(tmp_path: pathlib.Path) -> None:
    case = random_ring_case(2, CORE, 4)
    swapped = dataclasses.replace(case, boards=tuple(case.boards[i] for i in (0, 2, 1, 3)))
    session = Session(swapped, tmp_path)
    session.start()
    session.advance()
    assert session.errors() == [
        (ErrorCode.RING_ORDER, RIGHT | 4 << 8 | 2),
        (ErrorCode.RING_ORDER, 4 << 8 | 0),
        (ErrorCode.RING_ORDER, 4 << 8 | 2),
        (ErrorCode.RING_ORDER, 4 << 8 | 1),
    ]


def test_twin_a_turned_ring_is_in_order(tmp_path: pathlib.Path) -> None:
    case = random_ring_case(2, CORE, 4)
    session = Session(dataclasses.replace(case, boards=(*case.boards[1:], case.boards[0])), tmp_path)
    session.start()
    session.finish()
    turned = session.tokens()
    straight = Session(case, tmp_path)
    straight.start()
    straight.finish()
    assert [code for code, _ in session.errors()] == [ErrorCode.NONE] * 4
    assert turned[0] == straight.tokens()[0]


def test_a_board_of_another_plan(tmp_path: pathlib.Path) -> None:
    session = Session(changed(three(), 1, ring_key=12345), tmp_path)
    session.start()
    session.advance()
    assert session.errors() == [(ErrorCode.RING_PROGRAM, 1), (ErrorCode.RING_PROGRAM, 0), (ErrorCode.RING_PROGRAM, 0)]


def test_only_neighbours_see_a_wrong_board_the_others_are_told(tmp_path: pathlib.Path) -> None:
    session = Session(changed(random_ring_case(2, CORE, 4), 1, ring_key=12345), tmp_path)
    session.start()
    session.advance()
    errors = session.errors()
    assert [code for code, _ in errors] == [ErrorCode.RING_PROGRAM] * 3 + [ErrorCode.PEER_FAILED]
    assert errors[3][1] == 0 << 8 | ErrorCode.RING_PROGRAM


def test_cancel_ends_all(tmp_path: pathlib.Path) -> None:
    session = Session(three(), tmp_path)
    session.start()
    session.advance()
    session.write(1, "cancel", 1)
    session.advance()
    peer = (ErrorCode.PEER_FAILED, 1 << 8 | ErrorCode.CANCELLED)
    assert session.errors() == [peer, (ErrorCode.CANCELLED, 0), peer]
    session.start(ring_run=77)
    session.finish()
    assert session.errors() == [(ErrorCode.NONE, 0)] * 3


def test_wrong_start_registers_end_all(tmp_path: pathlib.Path) -> None:
    session = Session(two(), tmp_path)
    session.start(0)
    session.start(1, max_new_tokens=0)
    session.advance()
    position = session.case.boards[1].run_registers["position"]
    assert session.errors() == [(ErrorCode.PEER_FAILED, 1 << 8 | ErrorCode.START), (ErrorCode.START, position)]


@pytest.mark.parametrize("registers", [{"ring_board": 2}, {"ring_boards": 9}])
def test_a_place_that_is_not_in_the_ring(registers: dict[str, int], tmp_path: pathlib.Path) -> None:
    session = Session(changed(two(), 1, **registers), tmp_path)
    session.start()
    session.advance()
    assert session.read(1, "error") == ErrorCode.START
    assert session.read(0, "error") == ErrorCode.PEER_FAILED


def test_an_unknown_instruction_ends_all(tmp_path: pathlib.Path) -> None:
    session = Session(two(), tmp_path)
    window = MAP.window("instructions")
    session.ring.boards[1].write_register(window.offset + 2 * window.stride, 15)
    session.start()
    session.advance()
    assert session.errors() == [(ErrorCode.PEER_FAILED, 1 << 8 | ErrorCode.ILLEGAL), (ErrorCode.ILLEGAL, 2)]


def test_a_nan_on_one_board_ends_all_with_nan_logits(tmp_path: pathlib.Path) -> None:
    """A tile of the last board's head becomes NaN: no other board sees one."""
    case = three()
    one = case.boards[2]
    channels = one.channels.copy()
    end = one.program.registers["position_base"] * CORE.port_bytes // 2
    channels[:, end - CORE.port_bytes // 2 : end] = 0x7E00  # the head's last row stands last in the stream
    session = Session(
        dataclasses.replace(case, boards=(*case.boards[:2], dataclasses.replace(one, channels=channels))), tmp_path
    )
    session.start()
    session.finish()
    first_decode = one.run_registers["prompt_end"] - 1
    assert session.errors() == [(ErrorCode.NAN_LOGITS, first_decode)] * 3
    assert [session.read(b, "tokens_valid") for b in range(3)] == [first_decode + 1] * 3


def test_boards_that_ask_for_different_lengths_are_named(tmp_path: pathlib.Path) -> None:
    session = Session(two(), tmp_path)
    session.start(0, max_new_tokens=2)
    session.start(1, max_new_tokens=3)
    with pytest.raises(BoardError, match="for ever: board 0: has ended its run; board 1: instruction"):
        session.finish()
    with pytest.raises(BoardError, match="wait for each other for ever"):
        session.advance()
    session.write(1, "cancel", 1)
    session.advance()
    assert session.errors() == [(ErrorCode.NONE, 0), (ErrorCode.CANCELLED, 0)]
    session.start(ring_run=9)
    session.finish()
    assert session.errors() == [(ErrorCode.NONE, 0)] * 2


def test_a_ring_of_fewer_boards_than_are_cabled(tmp_path: pathlib.Path) -> None:
    case = random_ring_case(2, CORE, 4)
    pair = random_ring_case(0, CORE, 2).boards
    session = Session(dataclasses.replace(case, boards=(*pair, *pair)), tmp_path)
    session.start()
    with pytest.raises(BoardError, match="ring_boards is 2, 4 boards are cabled"):
        session.advance()


def test_a_board_alone_in_a_ring(tmp_path: pathlib.Path) -> None:
    """Programs of one board run on a board of a ring as on a board alone."""
    case = random_case(4, CORE)
    want = run_case(case, FunctionalBoard(), tmp_path)
    assert run_case(case, FunctionalRing(1).boards[0], tmp_path) == want
    assert run_case(case, FunctionalRing(2).boards[1], tmp_path) == want


def test_a_program_for_a_ring_needs_one(tmp_path: pathlib.Path) -> None:
    one = random_ring_case(0, CORE, 2).boards[0]
    alone = dataclasses.replace(one.program, registers={**one.program.registers, "ring_boards": 0})
    with pytest.raises(BoardError, match=r"instruction \d+ at position \d+: needs other boards"):
        run_case(dataclasses.replace(one, program=alone), FunctionalBoard(), tmp_path)


def test_the_same_bits_whatever_board_is_polled(tmp_path: pathlib.Path) -> None:
    case = three()
    want = run_ring_case(case, FunctionalRing(3).boards, tmp_path)
    session = Session(case, tmp_path)
    for board in (2, 1, 0):
        start_case(case.boards[board], session.ring.boards[board])
    polls = np.random.default_rng(1).integers(3, size=100)
    for board in polls:
        session.advance(int(board))
    assert [b.kv_hash() for b in session.ring.boards] == [result.keys_values for result in want]
    assert [tuple(tokens) for tokens in session.tokens()] == [result.tokens for result in want]
