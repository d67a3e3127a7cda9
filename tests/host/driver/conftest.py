"""A tiny exact program, a register-level board double that runs it, and the boards that the driver tests share."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import shutil
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from host.driver.gpt2_kernel import Gpt2Kernel
from host.driver.pynq_import import pynq
from host.driver.session import open_kernel
from host.driver.sim_device import SimU280Device
from host.driver.xclbin import write_xclbin
from hw.board.board_model import BoardError, BoardModel, BoardStuckError
from hw.board.gpt2_map import (
    IDENTITY,
    INTERFACE_VERSION,
    ErrorCode,
    Flags,
    RunState,
    gpt2_register_map,
    row_register,
)
from hw.board.program import MemoryImage, Program, ProgramError, Region
from hw.gpt2.config import CORE_CONFIGS, CoreConfig
from hw.gpt2.isa import Access, AccessKind, Commit, Instruction, Op, Operand, Path
from sim.functional import FunctionalBoard

CORE = CORE_CONFIGS["16x4"]
ROWS_CORE = CORE_CONFIGS["16x4r4"]
WIDTH, VOCAB, CONTEXT, SEED = 16, 64, 64, 20261130


def _rows(table: np.ndarray) -> np.ndarray:
    """A (16 k, columns) matrix as rows [k word, strip, lane, element] of a 16x4 core."""
    words, strips = table.shape[0] // CORE.tile, table.shape[1] // CORE.lanes
    return table.reshape(words, CORE.tile, strips, CORE.lanes).transpose(0, 2, 3, 1)


@dataclasses.dataclass(frozen=True)
class TinyModel:
    """next = argmax((position[p] + token[t]) @ head): whole numbers, exact in fp16 and fp32, and no attention."""

    folder: pathlib.Path
    position: np.ndarray
    token: np.ndarray
    head: np.ndarray

    def logits(self, place: int, token: int) -> np.ndarray:
        return (self.position[place] + self.token[token]) @ self.head

    def generate(self, prompt: list[int], count: int, stops: tuple[int, ...] = ()) -> list[int]:
        tokens, new = list(prompt), []
        while len(new) < count and len(tokens) <= CONTEXT:
            new.append(int(np.argmax(self.logits(len(tokens) - 1, tokens[-1]))))
            tokens.append(new[-1])
            if new[-1] in stops:
                break
        return new


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    print(f"tiny model seed {SEED}")
    random = np.random.default_rng(SEED)
    position = random.integers(-3, 4, (CONTEXT, WIDTH)).astype(np.float32)
    token = random.integers(-4, 5, (VOCAB, WIDTH)).astype(np.float32)
    head = random.integers(-5, 6, (WIDTH, VOCAB)).astype(np.float32)
    tables = [_rows(table) for table in (head, position, token)]
    bases = np.cumsum([0] + [table.shape[0] * table.shape[1] for table in tables])
    rows = np.concatenate([table.reshape(-1, CORE.lanes, CORE.tile) for table in tables]).astype("<f2")
    folder = tmp_path_factory.mktemp("tiny_program")
    files, hashes = [], []
    for channel in range(CORE.channels):
        path = folder / f"ch{channel:02}.bin"
        path.write_bytes(rows[:, channel].tobytes())
        files.append(path)
        hashes.append(hashlib.sha256(path.read_bytes()).hexdigest())
    image_bytes = len(rows) * CORE.port_bytes
    layout = [("weights", "weights", 0, image_bytes), ("keys", "keys", 8192, 4096), ("values", "values", 12288, 4096)]
    layout.append(("logits", "logits", 16384, CONTEXT * 2 * CORE.port_bytes))
    strips = WIDTH // CORE.lanes
    emb = {"words": 1, "tail": CORE.tile, "strips": strips, "group": strips}
    instructions = [
        Instruction(Op.EMB, first=1, last=0, operand=Operand.POSITION, **emb),
        Instruction(Op.EMB, first=0, last=1, operand=Operand.TOKEN, **emb),
        Instruction(
            Op.MM,
            decode_only=1,
            path=Path.LOGITS,
            commit=Commit.TOKEN,
            words=1,
            tail=CORE.tile,
            strips=VOCAB // CORE.lanes,
            group=VOCAB // CORE.lanes,
        ),
        Instruction(Op.NEXT),
    ]
    accesses = [
        Access(AccessKind.EMBED, count=strips, operand=Operand.POSITION),
        Access(AccessKind.EMBED, count=strips, operand=Operand.TOKEN),
        Access(AccessKind.WEIGHTS, decode_only=1, count=VOCAB // CORE.lanes),
        Access(AccessKind.NEXT),
    ]
    registers = {
        "context_limit": CONTEXT,
        "width": WIDTH,
        "eps_term": 1 << 70,
        "score_scale": 0x3F800000,
        "vocab": VOCAB,
        "layers": 1,
        "heads": 1,
        "key_words": 1,
        "value_strips": 1,
        "weight_base": int(bases[0]),
        "position_base": int(bases[1]),
        "token_base": int(bases[2]),
        "embed_strips": strips,
        "key_base": 8192 // CORE.port_bytes,
        "key_layer_rows": 16,
        "key_head_rows": 16,
        "value_base": 12288 // CORE.port_bytes,
        "value_layer_rows": 16,
        "value_head_rows": 16,
        "logits_base": 16384 // CORE.port_bytes,
        "logits_rows": 2,
    }
    regions = [Region(*item[:2], c, *item[2:]) for c in range(CORE.channels) for item in layout]
    program = Program(
        core=CORE,
        model_digest="tiny",
        board=0,
        boards=1,
        instructions=tuple(item.encode() for item in instructions),
        descriptors=tuple(item.encode() for item in accesses),
        regions=tuple(regions),
        registers=registers,
    )
    program.save(folder, MemoryImage(tuple(files), image_bytes, 65536, tuple(hashes)))
    return TinyModel(folder, position, token, head)


@pytest.fixture(scope="session")
def tiny_rows(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """The tiny program for a core with four rows: the same image, keys, values and logits for four requests."""
    program, image = Program.load(tiny.folder)
    registers, regions = dict(program.registers), list(program.regions)
    for row in range(1, ROWS_CORE.rows):
        first = 32768 + (row - 1) * 12288
        for i, (kind, base) in enumerate((("keys", "key"), ("values", "value"), ("logits", "logits"))):
            at = first + 4096 * i
            registers[row_register(f"{base}_base", row)] = at // CORE.port_bytes
            regions += [Region(row_register(kind, row), kind, c, at, 4096) for c in range(CORE.channels)]
    folder = tmp_path_factory.mktemp("tiny_rows_program")
    files = [pathlib.Path(shutil.copy(path, folder / path.name)) for path in image.files]
    rows_program = dataclasses.replace(program, core=ROWS_CORE, registers=registers, regions=tuple(regions))
    rows_program.save(folder, dataclasses.replace(image, files=tuple(files), channel_bytes=1 << 17))
    return dataclasses.replace(tiny, folder=folder)


class BoardDouble:
    """Register-level double of a board that runs the tiny program from memory; faults are injected by attributes."""

    cycles_per_step = 1000

    def __init__(self, core: CoreConfig = CORE) -> None:
        self.core = core
        self.map = gpt2_register_map(core)
        self.words: dict[int, int] = {}
        self.memory: list[dict[int, bytes]] = []
        self.batch = False
        self.places: dict[int, int] = {}  # next position of each row at work
        self.made: dict[int, int] = {}
        self.identity, self.version, self.digest = IDENTITY, INTERFACE_VERSION, int(core.digest[:16], 16)
        self.stuck_at: int | None = None  # position that never ends
        self.raises_stuck = False
        self.lost_starts = 0
        self.fault: tuple[ErrorCode, int] | None = None
        self.loads, self.closed = 0, False
        self.image: MemoryImage | None = None

    def load(self, program: Program, image: MemoryImage) -> None:
        if program.core.digest != self.core.digest:
            raise ProgramError(f"model is core {self.core.name}, program is for {program.core.name}")
        self.loads += 1
        self.image, self.words, self.running = image, {}, False
        self.memory = [{} for _ in image.files]
        for channel, path in enumerate(image.files):
            data = path.read_bytes() if image.image_bytes else b""
            data += b"\x00\x7e" * (-len(data) % 4096 // 2)
            for page in range(0, len(data), 4096):
                self.memory[channel][page // 4096] = data[page : page + 4096]
        self._put("identity", self.identity)
        self._put("interface_version", self.version)
        self._put("config_digest", self.digest)
        for name, value in program.registers.items():
            self._put(name, value)
        self._state(RunState.IDLE)

    def _put(self, name: str, value: int) -> None:
        register = self.map[name]
        for word in range(register.bits // 32):
            self.words[register.offset + 4 * word] = value >> 32 * word & 0xFFFFFFFF

    def _get(self, name: str) -> int:
        return self.read_register(self.map[name].offset, self.map[name].bits // 8)

    def _state(self, state: RunState) -> None:
        self._put("state", state)
        self.words[0] = 0x0C if state == RunState.IDLE else 0

    def read_register(self, offset: int, bytes: int = 4) -> int:
        if offset % 4 or bytes % 4 or not 0 <= offset <= self.map.size - bytes:
            raise BoardError(f"bad register access {bytes} at {offset:#x}")
        return sum(self.words.get(offset + 4 * i, 0) << 32 * i for i in range(bytes // 4))

    def write_register(self, offset: int, value: int, bytes: int = 4) -> None:
        self.read_register(offset, bytes)
        for i in range(bytes // 4):
            at, word = offset + 4 * i, value >> 32 * i & 0xFFFFFFFF
            names = [r.name for r in self.map if r.offset <= at < r.end]
            if names == ["ctrl"]:
                if word & 1 and not self.running and not self.lost_starts:
                    self._begin()
            elif names == ["cancel"]:
                if self.running:
                    self._end(ErrorCode.CANCELLED, 0)
            elif not names or self.map[names[0]].access == "rw":
                self.words[at] = word

    def _begin(self) -> None:
        rows = range(self.core.rows)
        self.batch = self.core.rows > 1 and bool(self._get("flags") & Flags.BATCH)
        mask = self._get("batch_rows") if self.batch else 1
        self.running = True
        self.places = {row: self._get(row_register("position", row)) for row in rows if mask >> row & 1}
        self.made = dict.fromkeys(self.places, 0)
        self._put("start_count", self._get("start_count") + 1)
        for row in rows:
            self._put(row_register("tokens_valid", row), self._get(row_register("prompt_end", row)))
        self._put("dump_position", self._get("position"))
        self._put("cycles", 0)
        self._put("error", 0)
        self._state(RunState.RUN)

    def _end(self, error: ErrorCode, info: int) -> None:
        self.running = False
        self._put("error", error)
        self._put("error_info", info)
        self._put("done_count", self._get("done_count") + 1)
        self._state(RunState.IDLE)
        self.words[0] |= 2

    def advance(self, max_cycles: int) -> int:
        cycles = 0
        while self.running and cycles < max_cycles:
            cycles += self.cycles_per_step
            place = self._get("dump_position")
            if place == self.stuck_at:
                if self.raises_stuck:
                    raise BoardStuckError("no progress: everything waits for memory")
                return cycles
            self._put("cycles", self._get("cycles") + self.cycles_per_step)
            self._step()
        return cycles

    def _table(self, base: str, index: int) -> np.ndarray:
        strips = self._get("embed_strips")
        rows = range(self._get(base) + index // CORE.tile * strips, self._get(base) + (index // CORE.tile + 1) * strips)
        return np.array([self._row(row)[:, index % CORE.tile] for row in rows], np.float32).reshape(-1)

    def _row(self, row: int) -> np.ndarray:
        at = row * CORE.port_bytes
        parts = [self.read_memory(c, self._base(c) + at, CORE.port_bytes) for c in range(CORE.channels)]
        return np.array([np.frombuffer(part, "<f2") for part in parts])

    def _base(self, channel: int) -> int:
        return self._get(f"hbm{channel}") & 0x0FFFFFFF

    def _step(self) -> None:
        """The next position of every request, of a sequence the next positions up to a whole group of rows."""
        for row, place in self.places.items():
            if place >= self._get("context_limit") or self._get(row_register("max_new_tokens", row)) == 0:
                return self._end(ErrorCode.START, place)
        for row, first in list(self.places.items()):
            place, end = first, self._get(row_register("prompt_end", row))
            if not self.batch and first + 1 < end:
                place = min((first | (self.core.rows - 1)) + 1, end) - 1
            if self.fault and self.fault[1] == place:
                return self._end(self.fault[0], place | (row << 24 if self.batch else 0))
            self.places[row] = place + 1
            if place + 1 >= end and self._decide(row, place):
                del self.places[row]
        if not self.places:
            return self._end(ErrorCode.NONE, 0)
        return self._put("dump_position", next(iter(self.places.values())))

    def _decide(self, row: int, place: int) -> bool:
        """Append a row's token behind a position; whether the request is complete."""

        def get(name: str) -> int:
            return self._get(row_register(name, row))

        tokens = self.map.window(row_register("tokens", row)).offset
        x = self._table("position_base", place) + self._table("token_base", self.words[tokens + 4 * place])
        strips = range(self._get("weight_base"), self._get("weight_base") + VOCAB // CORE.lanes)
        logits = np.concatenate([x @ self._row(row).T.astype(np.float32) for row in strips])
        if self._get("flags") & Flags.WRITE_LOGITS:
            data = logits.astype("<f4").tobytes()
            first = (get("logits_base") + place * self._get("logits_rows")) * CORE.port_bytes
            for word in range(len(data) // CORE.port_bytes):
                channel, line = word % CORE.channels, word // CORE.channels
                part = data[word * CORE.port_bytes : (word + 1) * CORE.port_bytes]
                self.write_memory(channel, self._base(channel) + first + line * CORE.port_bytes, part)
        token = int(np.argmax(logits))
        self.words[tokens + 4 * (place + 1)] = token
        self._put(row_register("tokens_valid", row), place + 2)
        self.made[row] += 1
        stops = [get(f"stop_{i}") for i in range(get("stop_count"))]
        full = place + 1 == self._get("context_limit")
        return self.made[row] == get("max_new_tokens") or token in stops or full

    def read_memory(self, channel: int, offset: int, bytes: int) -> bytes:
        assert self.image is not None
        if not 0 <= channel < len(self.memory) or offset < 0 or offset + bytes > self.image.channel_bytes:
            raise BoardError(f"channel {channel} has no bytes {offset:#x} to {offset + bytes:#x}")
        pages = range(offset // 4096, (offset + bytes + 4095) // 4096)
        whole = b"".join(self.memory[channel].get(page, b"\x00\x7e" * 2048) for page in pages)
        return whole[offset % 4096 : offset % 4096 + bytes]

    def write_memory(self, channel: int, offset: int, data: bytes) -> None:
        self.read_memory(channel, offset, len(data))
        for at, byte in enumerate(data, offset):
            page = bytearray(self.memory[channel].get(at // 4096, b"\x00\x7e" * 2048))
            page[at % 4096] = byte
            self.memory[channel][at // 4096] = bytes(page)

    def counters(self) -> dict[str, int]:
        return {"cycles": self._get("cycles"), "ticks": self._get("cycles")}

    def state_dump(self) -> dict[str, int]:
        return {register.name: self._get(register.name) for register in self.map if register.name.startswith("dump_")}

    def kv_hash(self) -> str:
        digest = hashlib.sha256()
        for channel in range(CORE.channels):
            digest.update(self.read_memory(channel, 8192, 8192))
        return digest.hexdigest()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def double() -> BoardDouble:
    return BoardDouble()


@pytest.fixture(scope="session")
def board_double() -> Callable[..., BoardDouble]:
    return BoardDouble


@pytest.fixture(scope="session")
def xclbin(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_xclbin(CORE, tmp_path_factory.mktemp("xclbin") / "gpt2.xclbin")


@pytest.fixture(scope="session")
def rtl_build() -> object:
    build = pytest.importorskip("sim.rtl.build")
    return build.build_board(CORE)


@pytest.fixture(scope="session")
def rows_xclbin(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_xclbin(ROWS_CORE, tmp_path_factory.mktemp("rows_xclbin") / "gpt2.xclbin")


@pytest.fixture(params=["double", "functional", pytest.param("rtl", marks=pytest.mark.slow)])
def rows_board(request: pytest.FixtureRequest) -> BoardModel:
    """Boards whose core has four rows, alike in all that the host sees."""
    if request.param == "double":
        return BoardDouble(ROWS_CORE)
    if request.param == "functional":
        return FunctionalBoard(ROWS_CORE)
    module = pytest.importorskip("sim.rtl.board")
    board: BoardModel = module.RtlBoard(pytest.importorskip("sim.rtl.build").build_board(ROWS_CORE))
    return board


@pytest.fixture
def rows_kernel(rows_board: BoardModel, rows_xclbin: pathlib.Path, tiny_rows: TinyModel) -> Iterator[Gpt2Kernel]:
    """The kernel of such a board with the tiny program loaded."""
    with open_kernel(rows_board, ROWS_CORE, xclbin=rows_xclbin, poll_cycles=64) as kernel:
        kernel.load(tiny_rows.folder)
        yield kernel


@pytest.fixture(params=["double", "functional", "rtl"])
def board(request: pytest.FixtureRequest) -> Iterator[BoardModel]:
    """Every board model that can stand behind the PYNQ device."""
    if request.param == "double":
        model: BoardModel = BoardDouble()
    elif request.param == "functional":
        model = FunctionalBoard()
    else:
        module = pytest.importorskip("sim.rtl.board")
        model = module.RtlBoard(request.getfixturevalue("rtl_build"))
    yield model
    model.close()


@pytest.fixture
def device(board: BoardModel) -> Iterator[SimU280Device]:
    """A card that works little between two polls, so that runs can be watched."""
    device = SimU280Device(board, poll_cycles=64)
    yield device
    device.close()


@pytest.fixture
def overlay(device: SimU280Device, xclbin: pathlib.Path) -> pynq.Overlay:
    return pynq.Overlay(str(xclbin), device=device)


@pytest.fixture
def kernel(overlay: pynq.Overlay, tiny: TinyModel) -> Iterator[Gpt2Kernel]:
    """The kernel with the tiny program loaded."""
    with overlay.gpt2_0 as ip:
        ip.load(tiny.folder)
        yield ip
