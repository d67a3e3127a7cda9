"""A register-level double of a ring of boards: any number of boards that make tokens by a formula, with faults."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from host.driver import gpt2_kernel
from host.driver.sim_device import SimU280Device
from host.driver.xclbin import write_xclbin
from host.runtime import appliance as appliance_module
from host.runtime.appliance import Appliance, open_appliance
from hw.board.gpt2_map import IDENTITY, INTERFACE_VERSION, ErrorCode, RunState, gpt2_register_map
from hw.board.program import MemoryImage, Program, Region
from hw.gpt2.config import CORE_CONFIGS
from hw.gpt2.isa import Access, AccessKind, Instruction, Op

CORE = CORE_CONFIGS["16x4"]
VOCABULARY, CONTEXT, LOGITS_BYTE, STRIPS = 64, 64, 8192, 24
Programs = list[tuple[Program, MemoryImage]]


def next_token(place: int, token: int) -> int:
    return (7 * place + 3 * token + 5) % VOCABULARY


def expected_tokens(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(len(tokens) - 1, tokens[-1]))
    return tokens[len(prompt) :]


def logits_of(token: int) -> np.ndarray:
    """fp32 logits of the whole vocabulary that have their maximum at `token`."""
    return -np.abs(np.arange(VOCABULARY) - token).astype(np.float32)


def ring_programs(folder: pathlib.Path, boards: int) -> Programs:
    """Programs of `boards` boards with uneven columns; board b computes strips of [0, 24) of one gathered vector."""
    files = tuple(folder / f"ch{channel:02}.bin" for channel in range(CORE.channels))
    for path in files:
        path.touch()
    columns = [8] * (boards - 1) + [VOCABULARY - 8 * (boards - 1)]
    own = STRIPS // boards
    found = []
    for board in range(boards):
        registers = {
            "context_limit": CONTEXT, "vocab": columns[board], "token_offset": sum(columns[:board]), "width": 16,
            "layers": 1, "logits_base": LOGITS_BYTE // CORE.port_bytes, "logits_rows": 2,
        }  # fmt: skip
        instructions = [Instruction(Op.NEXT)]
        if boards > 1:
            registers |= {"ring_boards": boards, "ring_board": board, "ring_key": 0x1234_5678_9ABC_DEF0}
            instructions.insert(0, Instruction(Op.GATHER, dst=8, strips=STRIPS, src=own * board, words=own))
        regions = [
            Region(kind, kind, channel, offset, size)
            for channel in range(CORE.channels)
            for kind, offset, size in (("keys", 0, 4096), ("values", 4096, 4096), ("logits", LOGITS_BYTE, 8192))
        ]
        program = Program(
            CORE, "double", board, boards,
            tuple(item.encode() for item in instructions), (Access(AccessKind.NEXT).encode(),),
            tuple(regions), registers,
        )  # fmt: skip
        found.append((program, MemoryImage(files, 0, 1 << 16, ("",) * CORE.channels)))
    return found


class DoubleBoard:
    """One board of a DoubleRing; `trip` is called with (board, method) before each access."""

    def __init__(self, ring: DoubleRing, place: int) -> None:
        self.ring, self.place, self.map = ring, place, gpt2_register_map(CORE)
        self.version, self.digest = INTERFACE_VERSION, int(CORE.digest[:16], 16)
        self.words: dict[int, int] = {}
        self.memory = [bytearray() for _ in range(CORE.channels)]
        self.closes = 0
        self.running = False

    def load(self, program: Program, image: MemoryImage) -> None:
        self.ring.trip(self.place, "load")
        self.words, self.running = {}, False
        self.memory = [bytearray(1 << 15) for _ in image.files]
        values = {"identity": IDENTITY, "interface_version": self.version, "config_digest": self.digest}
        for name, value in (values | dict(program.registers)).items():
            self.put(name, value)
        self.put("ctrl", 0x0C)

    def put(self, name: str, value: int) -> None:
        for word in range(self.map[name].bits // 32):
            self.words[self.map[name].offset + 4 * word] = value >> 32 * word & 0xFFFFFFFF

    def get(self, name: str) -> int:
        register = self.map[name]
        return sum(self.words.get(register.offset + 4 * i, 0) << 32 * i for i in range(register.bits // 32))

    def read_register(self, offset: int, bytes: int = 4) -> int:
        self.ring.trip(self.place, "read_register")
        return sum(self.words.get(offset + 4 * i, 0) << 32 * i for i in range(bytes // 4))

    def write_register(self, offset: int, value: int, bytes: int = 4) -> None:
        self.ring.trip(self.place, "write_register")
        if offset == self.map["cancel"].offset:
            if self.running and self.place not in self.ring.deaf:
                self.fail(ErrorCode.CANCELLED, 0)
            return
        if offset == 0:
            if value & 1 and not self.running:
                self._start()
            return
        for i in range(bytes // 4):
            self.words[offset + 4 * i] = value >> 32 * i & 0xFFFFFFFF

    def _start(self) -> None:
        self.ring.trip(self.place, "start")
        if self.place in self.ring.lost_starts:
            return
        self.running = True
        for name, value in (("start_count", self.get("start_count") + 1), ("tokens_valid", self.get("prompt_end")),
                            ("dump_position", self.get("position")), ("error", 0), ("cycles", 0),
                            ("ctrl", 0), ("state", RunState.RUN)):  # fmt: skip
            self.put(name, value)

    def end(self, error: ErrorCode, info: int = 0) -> None:
        self.running = False
        for name, value in (("error", error), ("error_info", info), ("ctrl", 0x0E), ("state", RunState.IDLE),
                            ("done_count", self.get("done_count") + 1)):  # fmt: skip
            self.put(name, value)

    def fail(self, error: ErrorCode, info: int) -> None:
        """End with an error and, as ABORT does, the others with it; boards that nothing reaches go on."""
        self.end(error, info)
        for other in self.ring.boards:
            if other.running and other.place not in self.ring.deaf:
                other.end(ErrorCode.PEER_FAILED, self.place << 8 | error)

    def position(self) -> None:
        """One position of the run."""
        place, window = self.get("dump_position"), self.map.window("tokens")
        self.put("cycles", self.get("cycles") + 1000)
        self.put("dump_position", place + 1)
        if place + 1 < self.get("prompt_end"):
            return
        token = next_token(place, self.words[window.offset + 4 * place])
        if self.get("flags"):
            first, count = self.get("token_offset"), self.get("vocab")
            data = logits_of(token)[first : first + count].astype("<f4").tobytes()
            row = LOGITS_BYTE + 2 * CORE.port_bytes * place
            for word in range(0, len(data), CORE.port_bytes):
                channel, line = word // CORE.port_bytes % CORE.channels, word // CORE.port_bytes // CORE.channels
                at = row + line * CORE.port_bytes
                part = data[word : word + CORE.port_bytes]
                self.memory[channel][at : at + len(part)] = part
        token = self.ring.wrong_tokens.get((self.place, place), token)
        self.words[window.offset + 4 * (place + 1)] = token
        self.put("tokens_valid", place + 2)
        new = place + 2 - self.get("prompt_end")
        stops = [self.get(f"stop_{i}") for i in range(self.get("stop_count"))]
        if new == self.get("max_new_tokens") or token in stops or place + 1 == CONTEXT:
            self.end(ErrorCode.NONE)

    def advance(self, max_cycles: int) -> int:
        self.ring.trip(self.place, "advance")
        self.ring.advance()
        return max_cycles

    def read_memory(self, channel: int, offset: int, bytes: int) -> bytes:
        self.ring.trip(self.place, "read_memory")
        return b"\0" * bytes if offset + bytes > 1 << 15 else self.memory[channel][offset : offset + bytes]

    def write_memory(self, channel: int, offset: int, data: bytes) -> None:
        self.memory[channel][offset : offset + len(data)] = data

    def counters(self) -> dict[str, int]:
        return {"ticks": self.get("cycles")}

    def state_dump(self) -> dict[str, int]:
        return {}

    def kv_hash(self) -> str:
        return ""

    def close(self) -> None:
        self.closes += 1
        self.running = False


class DoubleRing:
    """Boards that work on one position together when all of them run.

    Faults: `faults`: position -> (board, code, info) that end runs there; `deaf`: boards that neither work, nor hear an
    ABORT or a cancel; `lost_starts`: boards that do not take a start; `wrong_tokens`: (board, position) -> token;
    `trip`: called with (board, method) at each access.
    """

    def __init__(self, boards: int) -> None:
        self.boards = tuple(DoubleBoard(self, place) for place in range(boards))
        self.faults: dict[int, list[tuple[int, ErrorCode, int]]] = {}
        self.deaf: set[int] = set()
        self.lost_starts: set[int] = set()
        self.wrong_tokens: dict[tuple[int, int], int] = {}
        self.trip: Callable[[int, str], None] = lambda board, method: None
        self.frames_a_position = 0

    def advance(self) -> None:
        running = [board for board in self.boards if board.running and board.place not in self.deaf]
        if not running:
            return
        faults = self.faults.get(running[0].get("dump_position"), [])
        for board, code, info in faults[1:]:
            self.boards[board].end(code, info)
        for board, code, info in faults[:1]:
            self.boards[board].fail(code, info)
        if all(board.running for board in self.boards) and not self.deaf:
            for board in self.boards:
                board.position()
                for port in (0, 1):
                    name = f"link_{port}_frames_sent"
                    board.put(name, (board.get(name) + self.frames_a_position) % (1 << 16))


@pytest.fixture(scope="session")
def ring_double() -> type[DoubleRing]:
    return DoubleRing


@pytest.fixture
def programs(tmp_path: pathlib.Path) -> Callable[[int], Programs]:
    return lambda boards: ring_programs(tmp_path, boards)


@pytest.fixture(scope="session")
def expected() -> Callable[[list[int], int], list[int]]:
    return expected_tokens


@pytest.fixture(scope="session")
def whole_logits() -> Callable[[int], np.ndarray]:
    return logits_of


@pytest.fixture(scope="session")
def xclbin(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_xclbin(CORE, tmp_path_factory.mktemp("xclbin") / "gpt2.xclbin")


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt2_kernel, "CANCEL_S", 0.05)
    monkeypatch.setattr(appliance_module, "SETTLE_S", 0.05)


@pytest.fixture
def opened(programs: Any, xclbin: pathlib.Path) -> Iterator[Callable[[int], tuple[Any, Appliance]]]:
    """Opens a ring of so many boards with its programs loaded: (double, appliance)."""
    with contextlib.ExitStack() as stack:

        def make(boards: int) -> tuple[Any, Appliance]:
            ring = DoubleRing(boards)
            appliance = stack.enter_context(open_appliance(ring.boards, CORE, xclbin=xclbin, poll_cycles=10))
            appliance.load(programs(boards), verify=False)
            return ring, appliance

        yield make
    assert SimU280Device._open == []
