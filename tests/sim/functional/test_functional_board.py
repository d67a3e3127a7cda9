"""The functional board behaves as the register map says: start, done, cancel, errors, token ring, memory."""

from __future__ import annotations

import dataclasses
import pathlib
import random

import numpy as np
import pytest

from hw.board.board_model import BoardError, BoardModel, BoardStuckError
from hw.board.gpt2_map import IDENTITY, ErrorCode, RunState, gpt2_register_map
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import core_config
from hw.gpt2.isa import Access, AccessKind, Instruction, Op
from sim.functional import FunctionalBoard
from sim.programs import RandomCase, random_case, run_case
from sim.programs.image_builder import write_image

CORE = core_config("16x4")
MAP = gpt2_register_map(CORE)
SEED = 4  # starts with a past; the tests below set position, prompt and steps themselves


def _case(**run: int) -> RandomCase:
    case = random_case(SEED, CORE)
    defaults = {"position": 4, "prompt_end": 6, "max_new_tokens": 3, "stop_count": 0}
    return dataclasses.replace(case, run_registers={**case.run_registers, **defaults, **run})


class Session:
    """A board with a case loaded and its run registers written."""

    def __init__(self, case: RandomCase, folder: pathlib.Path) -> None:
        self.case = case
        self.board = FunctionalBoard(CORE)
        self.board.load(case.program, write_image(list(case.channels), case.channel_bytes, folder))
        for index, token in enumerate(case.tokens):
            self.write_token(index, token)
        for name, value in case.run_registers.items():
            self.write(name, value)

    def read(self, name: str) -> int:
        return self.board.read_register(MAP[name].offset, MAP[name].bits // 8)

    def write(self, name: str, value: int) -> None:
        self.board.write_register(MAP[name].offset, value, MAP[name].bits // 8)

    def token(self, index: int) -> int:
        return self.board.read_register(MAP.window("tokens").offset + 4 * index)

    def write_token(self, index: int, token: int) -> None:
        self.board.write_register(MAP.window("tokens").offset + 4 * index, token)

    def start(self) -> None:
        self.write("ctrl", 1)

    def finish(self) -> None:
        for _ in range(100):
            if self.read("ctrl") & 2:
                return
            assert self.board.advance(10_000) == 0
        raise AssertionError("no done after 100 positions")


def test_it_is_a_board_model() -> None:
    assert isinstance(FunctionalBoard(), BoardModel)


def test_a_run_from_start_to_done(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    assert session.read("ctrl") == 0b1100 and session.read("state") == RunState.IDLE
    session.start()
    assert session.read("ctrl") == 0 and session.read("state") == RunState.RUN
    assert session.read("tokens_valid") == 6
    valid = []
    while not session.read("ctrl") & 2:
        session.board.advance(1)
        valid.append(session.read("tokens_valid"))
    assert valid == [6, 7, 8, 9]  # position 4 is a prompt step, then one token a position: the ring is read meanwhile
    assert session.read("ctrl") == 0b1110 and session.read("ctrl") == 0b1110  # done stays
    assert (session.read("start_count"), session.read("done_count")) == (1, 1)
    assert session.read("error") == ErrorCode.NONE
    counters = session.board.counters()
    assert counters["cycles"] == counters["ticks"] == 0 and counters["tiles"] == session.read("tiles") > 0
    assert session.board.advance(1) == 0 and session.read("done_count") == 1


def test_identity(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    assert session.read("identity") == IDENTITY
    assert session.read("config_digest") == int(CORE.digest[:16], 16)
    assert session.read("core_shape") == 16 | 4 << 8 | 4 << 16 | 1 << 24


def test_cancel_and_the_next_run(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    session.write("cancel", 1)  # nothing runs: no effect
    session.start()
    session.board.advance(1)
    session.write("cancel", 1)
    session.finish()
    assert session.read("error") == ErrorCode.CANCELLED
    session.start()
    session.finish()
    fresh = Session(_case(), tmp_path)
    fresh.start()
    fresh.finish()
    assert session.read("error") == ErrorCode.NONE and session.read("done_count") == 2
    assert session.board.kv_hash() == fresh.board.kv_hash()
    assert [session.token(i) for i in range(9)] == [fresh.token(i) for i in range(9)]


def test_start_while_running_is_ignored_and_registers_are_locked(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    session.start()
    session.start()
    assert session.read("start_count") == 1
    with pytest.raises(BoardError, match="only ctrl and cancel"):
        session.write("position", 0)
    with pytest.raises(BoardError, match="only ctrl and cancel"):
        session.write_token(0, 1)


@pytest.mark.parametrize(
    ("run", "info"),
    [
        ({"position": 48, "prompt_end": 49}, 48),
        ({"position": 6, "prompt_end": 6}, 6),
        ({"prompt_end": 1000}, 4),
        ({"max_new_tokens": 0}, 4),
        ({"context_limit": 2000}, 4),
    ],
)
def test_start_registers_out_of_range(run: dict[str, int], info: int, tmp_path: pathlib.Path) -> None:
    session = Session(_case(**run), tmp_path)
    session.start()
    session.finish()
    assert (session.read("error"), session.read("error_info")) == (ErrorCode.START, info)
    assert session.read("tiles") == 0


def test_stop_id_ends_the_run(tmp_path: pathlib.Path) -> None:
    free = Session(_case(), tmp_path)
    free.start()
    free.finish()
    second = free.token(7)
    assert second != free.token(6)
    stopped = Session(_case(stop_count=2, stop_0=CORE.context + 1, stop_1=second), tmp_path)
    stopped.start()
    stopped.finish()
    assert stopped.read("tokens_valid") == 8 and stopped.token(7) == second
    beyond = Session(_case(stop_count=1, stop_0=CORE.context + 1, stop_1=second), tmp_path)  # twin: not in use
    beyond.start()
    beyond.finish()
    assert beyond.read("tokens_valid") == 9


def test_the_cache_fills_to_its_last_position(tmp_path: pathlib.Path) -> None:
    case = _case(max_new_tokens=1000)
    session = Session(case, tmp_path)
    session.start()
    session.finish()
    limit = case.program.registers["context_limit"]
    assert session.read("tokens_valid") == limit + 1 and session.read("error") == ErrorCode.NONE


def test_nan_logits(tmp_path: pathlib.Path) -> None:
    case = _case()
    head = case.product_rows[-1]
    channels = case.channels.copy()
    channels[0, (head[0] + head[1] - 1) * CORE.port_bytes // 2] = 0x7E00  # column lanes * (strips - 1) of the logits
    inside = dataclasses.replace(case, channels=channels)
    columns = case.program.registers["vocab"]
    assert columns > 0
    session = Session(inside, tmp_path)
    session.start()
    session.finish()
    assert (session.read("error"), session.read("error_info")) == (ErrorCode.NAN_LOGITS, 5)
    assert session.read("tokens_valid") == 6


def test_an_unknown_operation(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    index = len(session.case.instructions) - 1
    session.board.write_register(MAP.window("instructions").offset + 16 * index, 15, 16)
    session.start()
    session.finish()
    assert (session.read("error"), session.read("error_info")) == (ErrorCode.ILLEGAL, index)


def test_register_access_rules(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    board = session.board
    assert board.read_register(MAP.window("instructions").offset, 16) == 0  # write-only
    for offset, size in ((0x001, 4), (0x000, 3), (0x000, 0), (0x10000, 4)):
        with pytest.raises(BoardError, match="whole words"):
            board.read_register(offset, size)
    with pytest.raises(BoardError, match="no register"):
        board.read_register(0x00C)
    with pytest.raises(BoardError, match="cannot be written"):
        session.write("identity", 1)
    session.write("eps_term", (1 << 95) | 5)
    assert session.read("eps_term") == (1 << 95) | 5


def test_memory_and_image_files(tmp_path: pathlib.Path) -> None:
    session = Session(_case(), tmp_path)
    before = (tmp_path / "ch00.bin").read_bytes()
    board, size = session.board, session.case.channel_bytes
    assert board.read_memory(0, 0, 8) == before[:8]
    assert board.read_memory(3, size - 4, 4) == b"\x00\x7e" * 2  # behind the image: fp16 NaN
    board.write_memory(0, 2, b"\x12\x34\x56")
    assert board.read_memory(0, 0, 6) == before[:2] + b"\x12\x34\x56" + before[5:6]
    assert (tmp_path / "ch00.bin").read_bytes() == before
    for channel, offset, count in ((4, 0, 4), (0, size - 2, 4), (0, -2, 4)):
        with pytest.raises(BoardError):
            board.read_memory(channel, offset, count)


def test_row_0_may_lie_anywhere_in_the_bank(tmp_path: pathlib.Path) -> None:
    case = _case()
    plain = run_case(case, FunctionalBoard(), tmp_path)
    shift = 64 * CORE.port_bytes
    moved = np.concatenate([np.full((CORE.channels, shift // 2), 0x7E00, np.uint16), case.channels], axis=1)
    regions = tuple(dataclasses.replace(region, offset=region.offset + shift) for region in case.program.regions)
    bases = {f"hbm{c}": (c << 28) + shift for c in range(CORE.channels)}
    program = dataclasses.replace(case.program, regions=regions, registers={**case.program.registers, **bases})
    elsewhere = dataclasses.replace(case, program=program, channels=moved, channel_bytes=case.channel_bytes + shift)
    assert run_case(elsewhere, FunctionalBoard(), tmp_path) == plain
    torn = dataclasses.replace(program, registers={**program.registers, "hbm1": 0})
    with pytest.raises(BoardError, match="one offset"):
        run_case(dataclasses.replace(elsewhere, program=torn), FunctionalBoard(), tmp_path)


def test_load_again_and_close(tmp_path: pathlib.Path) -> None:
    case = _case()
    board = FunctionalBoard(CORE)
    first = run_case(case, board, tmp_path)
    assert run_case(case, board, tmp_path) == first
    nothing = Program(CORE, "", 0, 1, (), (), (), {})
    empty = MemoryImage((pathlib.Path("/dev/null"),) * 4, 0, 256 << 20, ("",) * 4)
    board.load(nothing, empty)
    assert board.read_register(MAP["identity"].offset) == IDENTITY
    assert board.read_memory(2, (256 << 20) - 2, 2) == b"\x00\x7e"
    board.close()
    board.close()
    with pytest.raises(BoardError, match="no program"):
        board.read_register(0)


def test_only_programs_of_its_core(tmp_path: pathlib.Path) -> None:
    other = random_case(0, core_config("64x16"))
    with pytest.raises(BoardError, match="compiled for core '64x16'"):
        run_case(other, FunctionalBoard(CORE), tmp_path)


def _with_descriptors(case: RandomCase, descriptors: list[Access]) -> RandomCase:
    words = tuple(access.encode() for access in descriptors)
    return dataclasses.replace(case, program=dataclasses.replace(case.program, descriptors=words))


def test_twin_a_wrong_access_program_is_wrong_as_on_the_board(tmp_path: pathlib.Path) -> None:
    case = _case()
    right = [Access.decode(word) for word in case.program.descriptors]
    result = run_case(case, FunctionalBoard(), tmp_path)
    weights = next(i for i, access in enumerate(right) if access.kind == AccessKind.WEIGHTS)
    more = list(right)
    more[weights] = dataclasses.replace(more[weights], count=more[weights].count + 1)
    outcome = run_case(_with_descriptors(case, more), FunctionalBoard(), tmp_path)
    assert (outcome.logits, outcome.keys_values) != (result.logits, result.keys_values)
    less = list(right)
    less[-2] = dataclasses.replace(less[-2], count=less[-2].count - 1)
    assert less[-2].kind == AccessKind.WEIGHTS
    with pytest.raises(BoardStuckError, match="waits for"):
        run_case(_with_descriptors(case, less), FunctionalBoard(), tmp_path)
    with pytest.raises(BoardError, match=f"access descriptor {len(right) - 1} cannot be read"):
        run_case(_with_descriptors(case, right[:-1]), FunctionalBoard(), tmp_path)
    endless = [Access(AccessKind.WEIGHTS)] * CORE.descriptors
    with pytest.raises(BoardError, match="no NEXT"):
        run_case(_with_descriptors(case, endless), FunctionalBoard(), tmp_path)


def test_rows_outside_memory(tmp_path: pathlib.Path) -> None:
    case = _case()
    registers = {**case.program.registers, "weight_base": 1 << 20}
    far = dataclasses.replace(case, program=dataclasses.replace(case.program, registers=registers))
    with pytest.raises(BoardError, match="a channel has"):
        run_case(far, FunctionalBoard(), tmp_path)


@pytest.mark.parametrize("field", ["acc", "src", "dst", "tail", "prob", "head0"])
def test_sizes_beyond_the_core_are_refused(field: str, tmp_path: pathlib.Path) -> None:
    """Illegal programs end in an error of the executor, never in somebody else's memory."""
    rng = random.Random(SEED)
    case = _case()
    wide = {"acc": 250, "src": 4000, "dst": 65_000, "tail": 100, "prob": 1000, "head0": 120}
    ops = {"prob": (Op.SC,), "head0": (Op.SC, Op.AV), "src": (Op.MM, Op.SC), "tail": (Op.MM, Op.SC)}
    where = [n for n, i in enumerate(case.instructions) if i.op in ops.get(field, (Op.MM,)) and not i.decode_only]
    for index in rng.sample(where, min(3, len(where))):
        broken = dataclasses.replace(case.instructions[index], **{field: wide[field]})
        words = list(case.program.instructions)
        words[index] = broken.encode()
        program = dataclasses.replace(case.program, instructions=tuple(words))
        with pytest.raises(BoardError, match=f"instruction {index}"):
            run_case(dataclasses.replace(case, program=program), FunctionalBoard(), tmp_path)


def test_instruction_memory_without_next(tmp_path: pathlib.Path) -> None:
    case = _case()
    program = dataclasses.replace(case.program, instructions=(Instruction(Op.LOOP, strips=1, words=0).encode(),))
    result = run_case(dataclasses.replace(case, program=program), FunctionalBoard(), tmp_path)
    assert result.error == ErrorCode.ILLEGAL
