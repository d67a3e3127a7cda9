"""A core with rows behind its registers: starts, what can be read during a run, cancel, NaN logits, no ring."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from hw.board.board_model import BoardError
from hw.board.gpt2_map import ErrorCode, Flags, RunState, gpt2_register_map, row_register
from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard, FunctionalRing
from sim.programs import RandomCase, random_case, run_case
from sim.programs.image_builder import write_image
from sim.programs.random_case import start_case

CORE = core_config("16x4r4")
MAP = gpt2_register_map(CORE)
BATCH = int(Flags.BATCH | Flags.WRITE_LOGITS)
PROMPTS = (3, 1, 4, 2)


def _case(**run: int) -> RandomCase:
    """Four requests with prompts of different lengths and three new tokens each; ``run``: other registers."""
    case = random_case(3, CORE)
    registers = {"flags": BATCH, "batch_rows": 0b1111}
    for row, length in enumerate(PROMPTS):
        own = {"position": 0, "prompt_end": length, "max_new_tokens": 3, "stop_count": 0}
        registers |= {row_register(name, row): value for name, value in own.items()}
    tokens = [tuple((5 * row + i) % 20 for i in range(length)) for row, length in enumerate(PROMPTS)]
    changed = case.run_registers | registers | run
    return dataclasses.replace(case, run_registers=changed, tokens=tokens[0], row_tokens=tuple(tokens[1:]))


class Session:
    """A board with a case loaded and started."""

    def __init__(self, case: RandomCase, folder: pathlib.Path) -> None:
        self.board = FunctionalBoard(CORE)
        self.board.load(case.program, write_image(list(case.channels), case.channel_bytes, folder))
        start_case(case, self.board)

    def read(self, name: str) -> int:
        return self.board.read_register(MAP[name].offset, MAP[name].bits // 8)

    def of_rows(self, name: str) -> list[int]:
        return [self.read(row_register(name, row)) for row in range(CORE.rows)]

    def steps(self, *names: str) -> list[list[int]]:
        """Registers behind each step of a run that goes on."""
        seen = []
        for _ in range(100):
            self.board.advance(1)
            if self.read("ctrl") & 2:
                return seen
            seen.append([self.read(name) for name in names])
        raise AssertionError("no done after 100 steps")


def test_tokens_appear_row_by_row(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    assert session.read("state") == RunState.RUN and session.of_rows("tokens_valid") == list(PROMPTS)
    names = [row_register("tokens_valid", row) for row in range(CORE.rows)]
    assert session.steps(*names) == [[3, 2, 4, 2], [3, 3, 4, 3], [4, 4, 4, 4], [5, 4, 5, 5], [6, 4, 6, 5]]
    assert session.of_rows("tokens_valid") == [6, 4, 7, 5]
    assert (session.read("error"), session.read("error_info"), session.read("done_count")) == (ErrorCode.NONE, 0, 1)


def test_the_state_dump_of_a_batch(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    layers = random_case(3, CORE).program.registers["layers"]
    # rows 0 to 3 decide for the last time in steps 5, 3, 6, 4: position of the lowest row at work
    assert session.steps("dump_position", "dump_committed") == [[step, step * layers] for step in range(1, 6)]
    assert session.read("dump_position") == 5 and session.read("dump_committed") == 6 * layers


def test_the_state_dump_of_a_sequence(tmp_path: pathlib.Path) -> None:
    run = {"flags": int(Flags.WRITE_LOGITS), "prompt_end": 7, "max_new_tokens": 2}
    case = dataclasses.replace(_case(**run), tokens=(1, 2, 3, 4, 5, 6, 7))
    session = Session(case, tmp_path)
    layers = case.program.registers["layers"]
    assert session.read("dump_position") == 3  # positions 0 to 3
    # then 4 to 6, which decide on token 7, and 7
    assert session.steps("dump_position", "dump_committed", "tokens_valid") == [[6, layers, 7], [7, 2 * layers, 8]]
    assert session.read("dump_position") == 7 and session.read("tokens_valid") == 9


@pytest.mark.parametrize(
    ("run", "info"),
    [
        ({"batch_rows": 0, "position": 2}, 2),
        ({"batch_rows": 0b10000, "position": 2}, 2),
        ({"position_2": 4}, 4),
        ({"position_2": 9, "prompt_end_2": 9, "position_3": 8, "prompt_end_3": 7}, 9),
        ({"position_1": 2000, "prompt_end_1": 2001}, 2000),
        ({"prompt_end_3": 1000, "position_3": 1}, 1),
        ({"max_new_tokens_1": 0}, 0),
        ({"context_limit": 2000, "position": 2}, 2),
        ({"ring_boards": 2, "position": 1}, 1),
        ({"flags": 1, "position": 5, "prompt_end": 3}, 5),
    ],
)
def test_start_registers_out_of_range(run: dict[str, int], info: int, tmp_path: pathlib.Path) -> None:
    session = Session(_case(**run), tmp_path)
    wanted = [run.get(row_register("prompt_end", row), length) for row, length in enumerate(PROMPTS)]
    assert session.steps() == []
    assert (session.read("error"), session.read("error_info"), session.read("tiles")) == (ErrorCode.START, info, 0)
    assert session.of_rows("tokens_valid") == wanted


@pytest.mark.parametrize("run", [{"batch_rows": 0b1011, "position_2": 4}, {"flags": 1, "max_new_tokens_1": 0}])
def test_rows_that_take_no_part_may_be_out_of_range(run: dict[str, int], tmp_path: pathlib.Path) -> None:
    session = Session(_case(**run), tmp_path)
    session.steps()
    assert session.read("error") == ErrorCode.NONE and session.read("tokens_valid") == 6
    assert session.read("tokens_valid_2") == PROMPTS[2]


def test_cancel_and_the_next_run(tmp_path: pathlib.Path) -> None:
    case = _case()
    session = Session(case, tmp_path)
    session.board.advance(1)
    session.board.write_register(MAP["cancel"].offset, 1)
    assert session.steps() == [] and session.read("error") == ErrorCode.CANCELLED
    assert session.of_rows("tokens_valid") == [3, 2, 4, 2]
    start_case(case, session.board)
    session.steps()
    fresh = Session(case, tmp_path)
    fresh.steps()
    assert session.read("error") == ErrorCode.NONE and session.of_rows("tokens_valid") == fresh.of_rows("tokens_valid")
    assert session.board.kv_hash() == fresh.board.kv_hash()


def _with_nan(case: RandomCase, token: int) -> RandomCase:
    """The embedding of a token begins with a NaN."""
    row = case.program.registers["token_base"] + token // CORE.tile * case.program.registers["embed_strips"]
    channels = case.channels.copy()
    channels[0, row * CORE.port_bytes // 2 + token % CORE.tile] = 0x7E00  # lane 0 is channel 0
    return dataclasses.replace(case, channels=channels)


@pytest.mark.parametrize(
    ("rows", "info"), [((3,), 1 | 3 << 24), ((2, 3), 1 | 2 << 24), ((1, 2, 3), 1 | 1 << 24), ((), 0)]
)
def test_nan_logits_name_the_lowest_row(rows: tuple[int, ...], info: int, tmp_path: pathlib.Path) -> None:
    """Prompts of 3, 2, 2, 2 tokens: rows 1 to 3 decide in the second step; row 0 has the NaN too, but decides later."""
    case = _case(prompt_end_1=2, prompt_end_2=2)
    others = tuple((20 + row, 19 if row in rows else 25 + row) for row in range(1, 4))
    case = dataclasses.replace(case, tokens=(1, 19 if rows else 4, 2), row_tokens=others)
    session = Session(_with_nan(case, 19), tmp_path)
    session.steps()
    error = ErrorCode.NAN_LOGITS if rows else ErrorCode.NONE
    assert (session.read("error"), session.read("error_info")) == (error, info)
    wanted = [3, 2, 2, 2] if rows else [6, 5, 5, 5]  # nobody takes a token in that step
    assert session.of_rows("tokens_valid") == wanted


def test_rows_that_do_not_decide_cannot_fail(tmp_path: pathlib.Path) -> None:
    """Row 2 meets the NaN in its prompt, at position 0, while row 1 decides; it fails when it decides itself."""
    case = _case()
    case = dataclasses.replace(case, row_tokens=(case.row_tokens[0], (19, 31, 32, 33), case.row_tokens[2]))
    session = Session(_with_nan(case, 19), tmp_path)
    assert len(session.steps()) == 3
    assert (session.read("error"), session.read("error_info")) == (ErrorCode.NAN_LOGITS, 3 | 2 << 24)
    assert session.of_rows("tokens_valid") == [4, 4, 4, 4]


def test_rows_are_locked_during_a_run(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    for offset in (MAP["position_3"].offset, MAP.window("tokens_2").offset):
        with pytest.raises(BoardError, match="only ctrl and cancel"):
            session.board.write_register(offset, 1)
    session.steps()
    with pytest.raises(BoardError, match="cannot be written"):
        session.board.write_register(MAP["tokens_valid_1"].offset, 1)
    assert session.read("core_shape") >> 24 == 4


def test_rows_have_no_ring(tmp_path: pathlib.Path) -> None:
    ring = FunctionalRing(2, CORE)
    case = _case(ring_boards=2, position=1)
    run_case(case, ring.boards[0], tmp_path)
    board = ring.boards[0]
    assert (board["error"], board["error_info"]) == (ErrorCode.START, 1)


def test_messages_name_rows(tmp_path: pathlib.Path) -> None:
    case = _case()
    far = dataclasses.replace(
        case.program, registers={**case.program.registers, "key_base_2": 1 << 20, "value_base_2": 1 << 20}
    )
    with pytest.raises(BoardError, match=r"at position 0 of row 0, position 0 of row 1, .*; a channel has"):
        run_case(dataclasses.replace(case, program=far), FunctionalBoard(), tmp_path)
    sequence = _case(flags=1)
    far = dataclasses.replace(sequence.program, registers={**sequence.program.registers, "weight_base": 1 << 20})
    with pytest.raises(BoardError, match="at positions 0 to 2; a channel has"):
        run_case(dataclasses.replace(sequence, program=far), FunctionalBoard(), tmp_path)
