"""One simulated board that computes the right bits at once: the functional executor behind ``BoardModel``."""

from __future__ import annotations

from hw.board.board_model import BANK_BYTES, BoardError
from hw.board.gpt2_map import (
    IDENTITY,
    INTERFACE_VERSION,
    ROW_REGISTERS,
    SAMPLING_REGISTERS,
    ErrorCode,
    Flags,
    RunState,
    gpt2_register_map,
    row_register,
)
from hw.board.program import MemoryImage, Program
from hw.bus.registers import Window
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Access, AccessKind, Instruction, IsaError, Op
from sim.kv_hash import hash_keys_and_values

from .board_run import BoardRun
from .channel_memory import ChannelMemory
from .core_step import CoreStep
from .exchange import BoardExchange, Waits
from .register_file import RegisterFile
from .row_stream import RowStream

__all__ = ["FunctionalBoard"]

_DONE, _IDLE, _READY = 2, 4, 8


class FunctionalBoard:
    """A ``hw.board.board_model.BoardModel`` that executes programs bit for bit as the gateware does, without cycles.

    Parameters
    ----------
    config : CoreConfig or None
        The only core that ``load`` accepts; None: whatever the program was made for.
    interface_version : int
        What its register says; another one than this package's plays an old or a new board.

    One ``advance`` is one step (docs/rows.md, section 2; with one row: one position); cycle and stall counters stay
    zero, ``tiles`` counts. ``dump_position`` is the last position of the step at hand, in a batch that of the lowest
    row at work; ``dump_committed`` counts layer instances of steps. ``done`` stays set until the next start. Start
    registers out of range end the run at the first ``advance``. While a run is going on a start is ignored and every
    write but to ``ctrl`` and ``cancel`` is refused. Not for use from several threads at once.
    """

    def __init__(self, config: CoreConfig | None = None, *, interface_version: int = INTERFACE_VERSION) -> None:
        self._only = config
        self._version = interface_version
        self._program: Program | None = None
        self._run: BoardRun | None = None

    def load(self, program: Program, image: MemoryImage) -> None:
        """See BoardModel. Raises BoardError if program or image do not belong to the core."""
        config = program.core
        if self._only is not None and self._only.digest != config.digest:
            raise BoardError(
                f"program was compiled for core {config.name!r} (digest {config.digest[:16]}), this board has "
                f"{self._only.name!r} ({self._only.digest[:16]}); compile it for this core"
            )
        if len(image.files) != config.channels or image.image_bytes % config.port_bytes:
            raise BoardError(
                f"image has {len(image.files)} files of {image.image_bytes} bytes; core {config.name} needs "
                f"{config.channels} of whole {config.port_bytes}-byte words"
            )
        self._program = program
        self._config: CoreConfig = config
        self._memory = ChannelMemory(image)
        self._map = gpt2_register_map(config)
        self._registers = RegisterFile(self._map)
        self._windows = {window.name: [0] * window.words for window in self._map.windows}
        self._run = None
        self._cancelled = False
        for name, words in (("instructions", program.instructions), ("descriptors", program.descriptors)):
            if len(words) > len(self._windows[name]):
                raise BoardError(f"program has {len(words)} {name}, core {config.name} {len(self._windows[name])}")
            self._windows[name][: len(words)] = words
        constants = {
            "identity": IDENTITY,
            "interface_version": self._version,
            "config_digest": int(config.digest[:16], 16),
            "core_shape": config.tile | config.lanes << 8 | config.channels << 16 | config.rows << 24,
        }
        for name, value in (*constants.items(), *program.registers.items()):
            self._registers[name] = value

    def read_register(self, offset: int, bytes: int = 4) -> int:
        """See BoardModel."""
        value = 0
        for i, at in enumerate(self._words(offset, bytes)):
            value |= self._read_word(at) << (32 * i)
        return value

    def write_register(self, offset: int, value: int, bytes: int = 4) -> None:
        """See BoardModel."""
        for i, at in enumerate(self._words(offset, bytes)):
            self._write_word(at, value >> (32 * i) & 0xFFFFFFFF)

    def read_memory(self, channel: int, offset: int, bytes: int) -> bytes:
        """See BoardModel."""
        self._loaded()
        return self._memory.bytes_of(channel, offset, bytes).tobytes()

    def write_memory(self, channel: int, offset: int, data: bytes) -> None:
        """See BoardModel."""
        self._loaded()
        self._memory.bytes_of(channel, offset, len(data))[:] = memoryview(data)

    def advance(self, max_cycles: int) -> int:
        """Process one step if a run is going on. Returns 0: there are no cycles here."""
        self._loaded()
        if self.may_go_on():
            for wait in self.step():
                raise BoardError(f"{wait}, but this board works alone")
        return 0

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return self._run is not None

    def may_go_on(self) -> bool:
        """Whether the run has a step to process; ends it if it is cancelled or has wrong start registers."""
        if self._run is None:
            return False
        if self._cancelled:
            self.end(ErrorCode.CANCELLED)
        elif self._run.refused is not None:
            self.end(*self._run.refused)
        return self._run is not None

    def join(self, exchange: BoardExchange) -> None:
        """Process the positions of this run together with other boards."""
        assert self._run is not None
        self._run.join(exchange)

    def step(self) -> Waits[None]:
        """Process one step of the run, and end the run behind its last one; yields what it waits for."""
        assert self._run is not None
        ending = yield from self._run.step()
        if ending is not None:
            self.end(*ending)

    def end(self, error: ErrorCode, info: int = 0) -> None:
        """End the run."""
        r = self._registers
        r["error"], r["error_info"] = error, info
        r["ctrl"], r["state"] = _DONE, RunState.IDLE
        r["done_count"] = (r["done_count"] + 1) & 0xFFFFFFFF
        self._run = None

    def counters(self) -> dict[str, int]:
        """See BoardModel: ``tiles`` counts, ``cycles``, ``ticks`` and all stalls are 0."""
        self._loaded()
        names = [r.name for r in self._map if r.name in ("cycles", "tiles") or r.name.startswith("stall_")]
        return {**{name: self._registers[name] for name in names}, "ticks": 0}

    def state_dump(self) -> dict[str, int]:
        """See BoardModel."""
        self._loaded()
        names = [r.name for r in self._map if r.name.startswith("dump_")]
        return {name: self._registers[name] for name in ("state", "error", "error_info", "tokens_valid", *names)}

    def kv_hash(self) -> str:
        """See BoardModel."""
        return hash_keys_and_values(self._loaded(), self._memory.bytes_of)

    def close(self) -> None:
        """See BoardModel."""
        if self._program is not None:
            self._program = None
            self._run = None
            del self._memory

    def _loaded(self) -> Program:
        if self._program is None:
            raise BoardError("no program is loaded on this board; call load first")
        return self._program

    def _words(self, offset: int, count: int) -> range:
        self._loaded()
        if offset % 4 or count % 4 or count <= 0 or not 0 <= offset <= self._map.size - count:
            raise BoardError(
                f"register access of {count} bytes at {offset:#x}: must be whole words inside {self._map.size:#x}"
            )
        return range(offset, offset + count, 4)

    def _window_at(self, offset: int) -> tuple[Window, int, int] | None:
        for window in self._map.windows:
            index, rest = divmod(offset - window.offset, window.stride)
            if 0 <= index < window.words and rest * 8 < window.bits:
                return window, index, rest * 8
        return None

    def _read_word(self, offset: int) -> int:
        if at := self._window_at(offset):
            window, index, shift = at
            return 0 if window.access == "w" else self._windows[window.name][index] >> shift & 0xFFFFFFFF
        value = self._registers.read_word(offset)
        if self._registers.register_at(offset) == "ctrl":
            value |= _IDLE | _READY if self._run is None else 0
        return value

    def _write_word(self, offset: int, value: int) -> None:
        name = self._registers.register_at(offset)
        if name == "ctrl":
            if value & 1 and self._run is None:
                self._start()
        elif name == "cancel":
            self._cancelled = self._run is not None
        elif self._run is not None:
            raise BoardError(f"write at offset {offset:#x} during a run: only ctrl and cancel can be written")
        elif at := self._window_at(offset):
            window, index, shift = at
            words = self._windows[window.name]
            words[index] = words[index] & ~(0xFFFFFFFF << shift) | value << shift
        else:
            self._registers.write_word(offset, value)

    def _start(self) -> None:
        r, config = self._registers, self._config
        for name in ("ctrl", "error", "error_info", "tiles", "dump_committed"):
            r[name] = 0
        r["start_count"] = (r["start_count"] + 1) & 0xFFFFFFFF
        r["state"] = RunState.RUN
        registers = r.snapshot()
        first_row = self._first_row()
        own_bases = [row_register(name, row) for name in ROW_REGISTERS for row in range(config.rows) if "base" in name]
        for base in ("weight_base", "position_base", "token_base", *own_bases):
            registers[base] += first_row
        by_row = [self._of_row(registers, row) for row in range(config.rows)]
        stream = RowStream(self._descriptors(), by_row, config, self._memory.channel_bytes // config.port_bytes)
        core = CoreStep(self._instructions(), by_row, config, stream, self._memory)
        tokens = [self._windows[row_register("tokens", row)] for row in range(config.rows)]
        self._run = BoardRun(config, r, tokens, core)
        self._cancelled = False

    def _of_row(self, registers: dict[str, int], row: int) -> dict[str, int]:
        """Registers as a row sees them: in a batch it has some of its own."""
        if not registers["flags"] & Flags.BATCH:
            return registers
        own = (*ROW_REGISTERS, *SAMPLING_REGISTERS)
        return {**registers, **{name: registers[row_register(name, row)] for name in own}}

    def _first_row(self) -> int:
        """Row of the model's memory at which the registers ``hbm<c>`` place row 0, the same in every channel."""
        starts = {self._registers[f"hbm{c}"] % BANK_BYTES for c in range(self._config.channels)}
        start = starts.pop()
        if starts or start % self._config.port_bytes:
            raise BoardError(
                f"hbm0 to hbm{self._config.channels - 1} must place row 0 at one offset inside every channel, a "
                f"multiple of {self._config.port_bytes}; got {sorted({start, *starts})}"
            )
        return start // self._config.port_bytes

    def _instructions(self) -> list[Instruction | None]:
        """Up to NEXT; None for a word that is no instruction."""
        instructions: list[Instruction | None] = []
        for word in self._windows["instructions"]:
            try:
                instructions.append(Instruction.decode(word))
            except IsaError:
                instructions.append(None)
            last = instructions[-1]
            if last is not None and last.op == Op.NEXT:
                break
        return instructions

    def _descriptors(self) -> list[Access]:
        descriptors: list[Access] = []
        for index, word in enumerate(self._windows["descriptors"]):
            try:
                descriptors.append(Access.decode(word))
            except IsaError as error:
                raise BoardError(f"access descriptor {index} cannot be read: {error}") from None
            if descriptors[-1].kind == AccessKind.NEXT:
                return descriptors
        raise BoardError("the access program has no NEXT; derive it with hw.gpt2.access.derive_access")
