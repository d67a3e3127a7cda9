"""A verilated kernel as a board: what one board of its own and the boards of a ring have in common."""

from __future__ import annotations

import abc
import ctypes
import pathlib
from typing import NoReturn

from hw.board.board_model import BANK_BYTES, BoardError
from hw.board.gpt2_map import STALL_CAUSES, RunState, gpt2_register_map
from hw.board.program import MemoryImage, Program
from hw.bus.registers import RegisterMap
from hw.gpt2.isa import Access, Instruction, IsaError
from sim.devices.memory_config import DeviceTiming
from sim.kv_hash import hash_keys_and_values
from sim.rtl.build import BuiltBoard
from sim.rtl.harness import Counter, Result

__all__ = ["KernelBoard"]

_COUNTERS = {
    "ticks": Counter.RUN_TICKS,
    "harness_tiles": Counter.TILES,
    "harness_read_beats": Counter.READ_BEATS,
    "harness_write_beats": Counter.WRITE_BEATS,
    "harness_refresh_stalls": Counter.REFRESH_STALLS,
}
_UNITS = ("key and value writer", "statistics", "softmax", "arg-max")


class KernelBoard(abc.ABC):
    """A board of the compiled harness; implements ``hw.board.board_model.BoardModel`` but for ``close``.

    A subclass says in ``_raise`` what stops its boards.

    Parameters
    ----------
    built : BuiltBoard
        The compiled kernel.
    library : CDLL
        Its harness, loaded.
    board : int
        The harness's board, which the subclass releases. None is a closed board.
    timing : MemoryTiming, HbmTiming or DdrTiming
        The memory behind the ports.
    """

    def __init__(self, built: BuiltBoard, library: ctypes.CDLL, board: int, timing: DeviceTiming) -> None:
        self.built = built
        self.config = built.config
        self.map: RegisterMap = gpt2_register_map(built.config)
        self.timing = timing
        self._library = library
        self._board: int | None = board
        self._program: Program | None = None
        self._channel_bytes = 0
        self._base = [0] * built.config.channels
        self._set_timing()

    def load(self, program: Program, image: MemoryImage) -> None:
        """Reset the board, fill memory (image, then fp16 NaN), write instructions, descriptors and initial registers.

        Raises BoardError if the program is for another core or too long, or a file cannot be mapped.
        """
        if program.core.digest != self.config.digest:
            raise BoardError(
                f"program was compiled for core {program.core.name!r} (digest {program.core.digest[:16]}), "
                f"this board has {self.config.name!r} ({self.config.digest[:16]}); compile it for this core"
            )
        self._library.board_reset(self._handle())
        self._set_timing()
        for channel, path in enumerate(image.files):
            error = self._library.board_map(
                self._handle(), channel, str(path).encode(), image.image_bytes, image.channel_bytes
            )
            if error:
                raise BoardError(f"memory image {path} cannot be mapped: error {error}")
        self._channel_bytes = image.channel_bytes
        self._program = program
        values = {f"hbm{c}": c * BANK_BYTES for c in range(self.config.channels)} | dict(program.registers)
        for name, value in values.items():
            register = self.map[name]
            self.write_register(register.offset, value, register.bits // 8)
        for name, words in (("instructions", program.instructions), ("descriptors", program.descriptors)):
            window = self.map.window(name)
            if len(words) > window.words:
                raise BoardError(f"program has {len(words)} {name}, core {self.config.name!r} holds {window.words}")
            data = b"".join(word.to_bytes(window.stride, "little") for word in words)
            if data:
                self.write_register(window.offset, int.from_bytes(data, "little"), len(data))

    def read_register(self, offset: int, bytes: int = 4) -> int:
        """Read ``bytes`` (a multiple of 4) at ``offset``; low word first."""
        words = (ctypes.c_uint32 * self._word_count(offset, bytes))()
        response = self._library.board_read(self._handle(), offset, words, len(words))
        if response:
            raise self._access_error("read", offset, bytes, response)
        return int.from_bytes(memoryview(words).cast("B"), "little")

    def write_register(self, offset: int, value: int, bytes: int = 4) -> None:
        """Write ``bytes`` at ``offset``, low word first."""
        count = self._word_count(offset, bytes)
        if not 0 <= value < 1 << 8 * bytes:
            raise BoardError(f"value {value!r} for register offset {offset:#x} does not fit {bytes} bytes")
        words = (ctypes.c_uint32 * count).from_buffer_copy(value.to_bytes(bytes, "little"))
        response = self._library.board_write(self._handle(), offset, words, count)
        if response:
            raise self._access_error("write", offset, bytes, response)
        self._follow_bases(offset, words)

    def read_memory(self, channel: int, offset: int, bytes: int) -> bytes:
        """Read channel memory; ``offset`` in bytes from row 0."""
        return ctypes.string_at(self._memory(channel, offset, bytes), bytes)

    def write_memory(self, channel: int, offset: int, data: bytes) -> None:
        """Write channel memory (the image's files stay as they are)."""
        ctypes.memmove(self._memory(channel, offset, len(data)), bytes(data), len(data))

    def advance(self, max_cycles: int) -> int:
        """Clock the board until its run ends, at most ``max_cycles``; returns the cycles passed, 0 if no run is on.

        Raises BoardStuckError if a limit is reached, BoardError if the kernel breaks a rule of its memory ports.
        """
        if self._library.board_state(self._handle()) == RunState.IDLE:
            return 0
        passed = ctypes.c_uint64()
        result = self._library.board_advance(self._handle(), max_cycles, ctypes.byref(passed))
        if result not in (Result.PASSED, Result.DONE):
            self._raise(Result(result))
        return passed.value

    def counters(self) -> dict[str, int]:
        """Counters of the last run by register name; ``ticks`` and ``harness_*`` are the harness's own."""
        names = ["cycles", "tiles", *(f"stall_{cause}" for cause in STALL_CAUSES)]
        values = {name: self._named(name) for name in names}
        for name, index in _COUNTERS.items():
            values[name] = self._library.board_counter(self._handle(), index)
        return values

    def state_dump(self) -> dict[str, int]:
        """State and dump registers by name."""
        names = [r.name for r in self.map if r.name.startswith("dump_")]
        return {name: self._named(name) for name in ("state", "error", "error_info", "tokens_valid", *names)}

    def waits_for(self) -> str:
        """What every unit waits for, in words."""
        dump = self.state_dump()
        stall = dump["dump_stall"]
        cause = STALL_CAUSES[stall] if stall < len(STALL_CAUSES) else str(stall)
        busy = [unit for bit, unit in enumerate(_UNITS) if dump["dump_units"] >> bit & 1]
        instruction = self._line("instruction", dump["dump_instruction"])
        descriptor = self._line("descriptor", dump["dump_descriptor"])
        cycle = self._library.board_counter(self._handle(), Counter.RUN_TICKS)
        return (
            f"state {RunState(dump['state']).name}, cycle {cycle} of the run, "
            f"position {dump['dump_position']}, layer {dump['dump_layer']}; "
            f"issue waits for {cause!r} at {instruction}; "
            f"memory reader is at {descriptor}, {dump['dump_reads']} rows commanded and not taken, "
            f"read FIFOs hold {dump['dump_fifo'] & 0xFFFF} to {dump['dump_fifo'] >> 16} rows; "
            f"{dump['dump_writes']} write responses outstanding, {dump['dump_committed']} layers committed; "
            f"busy units: {', '.join(busy) or 'none'}"
        )

    def kv_hash(self) -> str:
        """SHA-256 over all key and value regions, whole, in order of channel and offset."""
        if self._program is None:
            raise BoardError("no program is loaded, so there are no key and value regions")

        def memory(channel: int, offset: int, bytes: int) -> ctypes.Array:
            return (ctypes.c_char * bytes).from_address(self._memory(channel, offset, bytes))

        return hash_keys_and_values(self._program, memory)

    def trace(self, path: pathlib.Path, from_cycle: int, cycles: int) -> None:
        """Write FST waves of ``cycles`` cycles of the next run (or the present one), from ``from_cycle`` on.

        The file is complete when the window or the run has ended. Raises BoardError if the board was built without
        ``trace``.
        """
        if not self.built.trace:
            raise BoardError("this board was built without waves; use build_board(config, trace=True)")
        self._library.board_trace(self._handle(), str(path).encode(), from_cycle, cycles)

    def waiting_ports(self) -> str:
        """What every memory port waits for, in words."""
        return "memory " + self._library.board_waiting(self._handle()).decode()

    @abc.abstractmethod
    def _raise(self, result: Result) -> NoReturn:
        """Report that :meth:`advance` ended for another reason than the run or the number of cycles."""

    def _handle(self) -> int:
        if self._board is None:
            raise BoardError("the board is closed")
        return self._board

    def _message(self) -> str:
        return self._library.board_message(self._handle()).decode()

    def _named(self, name: str) -> int:
        register = self.map[name]
        return self.read_register(register.offset, register.bits // 8)

    def _line(self, what: str, index: int) -> str:
        """Index and assembly of an instruction or descriptor."""
        words = () if self._program is None else getattr(self._program, f"{what}s")
        if index >= len(words):
            return f"{what} {index}"
        try:
            kind = Instruction if what == "instruction" else Access
            return f"{what} {index} ({kind.decode(words[index]).text()})"
        except IsaError:
            return f"{what} {index} (illegal word {words[index]:#x})"

    def _word_count(self, offset: int, bytes: int) -> int:
        if bytes <= 0 or bytes % 4 or offset % 4 or not 0 <= offset <= self.map.size - bytes:
            raise BoardError(
                f"register access of {bytes} bytes at {offset:#x}: only whole 32-bit words below {self.map.size:#x}"
            )
        return bytes // 4

    def _access_error(self, verb: str, offset: int, bytes: int, response: int) -> BoardError:
        if response < 0:
            return BoardError(f"{verb} of {bytes} bytes at register offset {offset:#x}: {self._message()}")
        spans = [(i.offset, i.end, f"{i.name} ({i.access})") for i in self.map.registers]
        spans += [(i.offset, i.end, f"{i.name} ({i.access})") for i in self.map.windows]
        what = next((text for start, end, text in spans if start <= offset < end), "no register")
        state = RunState(self._library.board_state(self._handle())).name
        return BoardError(
            f"{verb} of {bytes} bytes at register offset {offset:#x}, {what}, was refused in state {state}: "
            "only registers of the map, no writes to read-only ones; while a run lasts only ctrl and cancel are written"
        )

    def _follow_bases(self, offset: int, words: ctypes.Array) -> None:
        first = self.map["hbm0"].offset
        for index, word in enumerate(words):
            channel, part = divmod(offset + 4 * index - first, 8)
            if 0 <= channel < len(self._base):
                shift = 8 * part
                self._base[channel] = self._base[channel] & ~(0xFFFFFFFF << shift) | word << shift
                self._library.board_base(self._handle(), channel, self._base[channel] & -BANK_BYTES)

    def _memory(self, channel: int, offset: int, bytes: int) -> int:
        """Address in this process. Raises BoardError outside the channel's memory."""
        if not 0 <= channel < self.config.channels:
            raise BoardError(f"channel must be 0 to {self.config.channels - 1}, got {channel!r}")
        if offset < 0 or bytes < 0 or offset + bytes > self._channel_bytes:
            raise BoardError(
                f"bytes {offset} to {offset + bytes} are outside channel {channel}, which has {self._channel_bytes}"
            )
        return self._library.board_memory(self._handle(), channel) + offset

    def _set_timing(self) -> None:
        config = self.timing.memory_config(self.config.port_clock_mhz, self.config.port_bytes)
        self._library.board_timing(self._handle(), ctypes.byref(config), self.timing.seed)
