"""A simulated Alveo U280 as a PYNQ device: unmodified `pynq.Overlay`, `pynq.allocate` and register maps run on it.

Whoever calls PYNQ owns the board model: everything runs in the caller's thread. The model works while the host polls:
each read of a status register (``ctrl``, ``done_count``, ``tokens_valid`` of any row, ``state``) during a run lets it
advance by ``poll_cycles`` first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import Any, ClassVar

from host.driver import gpt2_kernel  # noqa: F401 - importing it binds the driver to the kernel
from host.driver.card_lock import CardLock
from host.driver.kernel_identity import check_kernel
from host.driver.program_memory import program_bytes
from host.driver.pynq_import import pynq, xclbin_parser
from host.driver.sim_memory import Allocation, HbmBank, SimBuffer, bank_names
from host.driver.u280_platform import KERNEL_BASE, bank_tag
from host.driver.xclbin_info import read_xclbin
from host.errors import BadInput, BadPointer, BoardFailed, DeviceBusy, StuckKernel, VersionMismatch
from hw.board.board_model import BANK_BYTES, BoardError, BoardModel, BoardStuckError
from hw.board.gpt2_map import gpt2_register_map, row_register
from hw.board.program import MemoryImage, Program, ProgramError
from hw.gpt2.config import CoreConfig

__all__ = ["SimU280Device"]

_POLLED = ("ctrl", "done_count", "tokens_valid", "state")
_START, _IDLE = 1 << 0, 1 << 2  # bits of ctrl
_NO_FILE = pathlib.Path(os.devnull)  # image of a board that has no program yet


class SimU280Device(pynq.Device):
    """One simulated card over any :class:`hw.board.board_model.BoardModel`.

    Parameters
    ----------
    board : BoardModel
        The executor behind it; the device closes it.
    tag : str
        Name of the card, unique in the process.
    poll_cycles : int
        Core cycles that pass for one poll of a running kernel.
    card : str, optional
        Name under which the card is locked until the device is closed (see CardLock); without one it is nobody else's.

    Errors: see ``host.errors``; those of the board model arrive as BoardFailed and StuckKernel. DeviceBusy for a card
    that is in use.
    """

    _probe_priority_ = 10
    _open: ClassVar[list[SimU280Device]] = []

    @classmethod
    def _probe_(cls) -> list[SimU280Device]:
        return list(cls._open)

    def __init__(
        self, board: BoardModel, *, tag: str = "sim-u280", poll_cycles: int = 4096, card: str | None = None
    ) -> None:
        super().__init__(tag)
        if poll_cycles < 1:
            raise BadInput(f"poll_cycles must be at least 1, got {poll_cycles!r}", value=poll_cycles)
        self._lock = None if card is None else CardLock(card)
        if self._lock is not None:
            self._lock.acquire()
        self.board = board
        self.name = "xilinx_u280_gen3x16_xdma_base_1"
        self.capabilities = {"REGISTER_RW": True}
        self.poll_interval_s = 0.0  # a poll is what lets the model work
        self._poll_cycles = poll_cycles
        self._banks: dict[int, HbmBank] = {}
        self._ports: list[int] = []
        self._polled: list[int] = []
        self._cancel = -1
        self._kernel_bytes = 0  # until an xclbin says so
        self._program: list[Allocation] = []
        self._running = False
        self._closed = False
        self._open.append(self)

    # Overlay: metadata and download

    def get_bitfile_metadata(self, bitfile_name: str, partial: bool = False) -> Any:
        """PYNQ's description of an xclbin. Raises BadXclbin, VersionMismatch before PYNQ's parser sees the file."""
        if partial:
            raise BadInput("the simulated board has no partial reconfiguration")
        read_xclbin(pathlib.Path(bitfile_name))
        return xclbin_parser.XclBin(bitfile_name)

    def download(self, bitstream: Any, parser: Any = None) -> None:
        """Take an xclbin into use. Raises VersionMismatch for another core than the board's, DeviceBusy in a run."""
        self._require_idle("load an xclbin")
        self._free_program()
        info = read_xclbin(pathlib.Path(bitstream.bitfile_name))
        registers = gpt2_register_map(info.core)
        try:
            self._load_model(_blank_program(info.core), MemoryImage((_NO_FILE,) * info.core.channels, 0, 0, ()), 0)
        except ProgramError as error:
            raise VersionMismatch(
                f"the board's core is not that of xclbin {info.path}: {error}",
                value=info.core.name,
                hint="Open the board with this core, or use the xclbin of the board's core.",
            ) from None
        with self._board_errors():
            check_kernel(info, lambda name: self._read(registers[name].offset, registers[name].bits // 8))
        self._ports = [registers[f"hbm{channel}"].offset for channel in range(info.core.channels)]
        of_rows = [row_register("tokens_valid", row) for row in range(1, info.core.rows)]
        self._polled = [registers[name].offset for name in (*_POLLED, *of_rows)]
        self._kernel_bytes = registers.size
        self._cancel = registers["cancel"].offset
        self.post_download(bitstream, parser)

    def gen_cache(self, bitstream: Any, parser: Any = None) -> None:
        """PYNQ's metadata cache; the xclbin itself is quick to read."""

    def open_context(self, description: dict[str, Any]) -> int:
        """Number of the kernel; a simulated card has no other users."""
        return int(description["index"])

    # Registers

    def read_registers(self, address: int, length: int) -> bytes:
        """Bytes of kernel registers at a physical address; 4-byte aligned."""
        offset = self._offset(address, length)
        if self._running and any(offset <= polled < offset + length for polled in self._polled):
            self.advance(self._poll_cycles)
        with self._board_errors():
            return self._read(offset, length).to_bytes(length, "little")

    def write_registers(self, address: int, data: Any) -> None:
        """Write kernel registers, low word first.

        A start checks first that the ports' pointers are live buffers. During a run the kernel takes a cancel and
        nothing else: other writes, a second start too, raise DeviceBusy.
        """
        words = bytes(data)
        offset = self._offset(address, len(words))
        value = int.from_bytes(words, "little")
        start = offset == 0 and value & _START
        if self._running and offset != self._cancel:
            with self._board_errors():
                self._running = not self._read(0, 4) & _IDLE
            self._require_idle("start the kernel again" if start else f"write register offset {offset:#x}")
        if start:
            self._check_pointers()
        with self._board_errors():
            self.board.write_register(offset, value, len(words))
        if start:
            self._running = True

    def advance(self, max_cycles: int) -> int:
        """Let the board model work for at most ``max_cycles`` core cycles; returns the cycles passed."""
        with self._board_errors():
            cycles = self.board.advance(max_cycles)
            self._running = not self._read(0, 4) & _IDLE
        return cycles

    def harness_counters(self) -> dict[str, int]:
        """Counters of the last run as the board model's own harness counts them."""
        with self._board_errors():
            return dict(self.board.counters())

    # Memory

    def get_memory(self, desc: dict[str, Any]) -> HbmBank:
        """The bank of a ``mem_dict`` entry; the same object each time."""
        if desc["idx"] not in self._banks:
            self._banks[desc["idx"]] = HbmBank(self, desc)
        return self._banks[desc["idx"]]

    def get_memory_by_name(self, name: str) -> HbmBank:
        """The bank with a tag such as ``HBM[0]``."""
        for desc in self.mem_dict.values():
            if name == desc["tag"] and desc["used"]:
                return self.get_memory(desc)
        raise BadInput(f"no bank {name!r} in use", value=name, expected=bank_names(self._used_banks()))

    @property
    def default_memory(self) -> HbmBank:
        """PYNQ's bank for ``allocate`` without target: there is one only if the kernel uses a single bank."""
        banks = self._used_banks()
        if len(banks) == 1:
            return self.get_memory(banks[0])
        if not banks:
            raise BadInput("the board has no memory before an overlay is loaded", hint="Load an overlay first.")
        raise BadInput(
            f"the kernel uses {len(banks)} memory banks ({bank_names(banks)}): a buffer must name one of them",
            expected=bank_names(banks),
            hint="Write allocate(..., target=overlay.HBM0).",
        )

    def flush(self, bo: Allocation, offset: int, ptr: int, nbytes: int) -> None:
        """Copy ``nbytes`` of a buffer's host array, from ``offset``, to device memory."""
        del ptr
        self._require_live(bo)
        with self._board_errors():
            self.board.write_memory(bo.bank.idx, bo.offset + offset, bo.host[offset : offset + nbytes].tobytes())

    def invalidate(self, bo: Allocation, offset: int, ptr: int, nbytes: int) -> None:
        """Copy device memory to ``nbytes`` of a buffer's host array, from ``offset``."""
        del ptr
        self._require_live(bo)
        with self._board_errors():
            data = self.board.read_memory(bo.bank.idx, bo.offset + offset, nbytes)
        bo.host[offset : offset + nbytes] = memoryview(data)

    def load_program(self, program: Program, image: MemoryImage) -> list[SimBuffer]:
        """Load a program without copying its image: the board model maps the files.

        Returns the program's buffer of each channel; their host arrays hold nothing until ``invalidate``. The program
        loaded before loses its buffers; the user's own buffers keep their content. Raises BankFull, DeviceBusy.
        """
        self._require_idle("load a program")
        self._free_program()
        nbytes = program_bytes(program, image)
        banks = [self.get_memory_by_name(bank_tag(channel)) for channel in range(len(image.files))]
        buffers = [bank.allocate_program(nbytes) for bank in banks]
        self._load_model(program, image, nbytes)
        self._program = [buffer.bo for buffer in buffers if buffer.bo is not None]
        return buffers

    def close(self) -> None:
        """Release the board model; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._open.remove(self)
            try:
                self.board.close()
            finally:
                if self._lock is not None:
                    self._lock.release()

    def _free_program(self) -> None:
        for allocation in self._program:
            allocation.free()
        self._program = []

    def _load_model(self, program: Program, image: MemoryImage, nbytes: int) -> None:
        """Give the board model the program and whole banks as memory; the user's buffers in them keep their content."""
        users = [item for bank in self._banks.values() for item in bank.allocations if item.offset >= nbytes]
        with self._board_errors():
            contents = [self.board.read_memory(item.bank.idx, item.offset, item.nbytes) for item in users]
            self.board.load(program, dataclasses.replace(image, channel_bytes=BANK_BYTES))
            for item, content in zip(users, contents, strict=True):
                self.board.write_memory(item.bank.idx, item.offset, content)

    def _used_banks(self) -> list[dict[str, Any]]:
        return [desc for desc in getattr(self, "mem_dict", {}).values() if desc["used"] and not desc["streaming"]]

    # Checks

    def _read(self, offset: int, length: int) -> int:
        return self.board.read_register(offset, length)

    def _offset(self, address: int, length: int) -> int:
        offset = address - KERNEL_BASE
        if offset < 0 or offset + length > self._kernel_bytes or offset % 4 or length % 4 or not length:
            raise BadInput(
                f"access of {length} bytes at {address:#x} is not in the kernel's registers or not in 4-byte words",
                value=address,
                expected=f"{KERNEL_BASE:#x} to {KERNEL_BASE + self._kernel_bytes - 1:#x}"
                if self._kernel_bytes
                else "none",
            )
        return offset

    def _check_pointers(self) -> None:
        """Refuse a start whose memory ports do not point into live buffers of their own banks."""
        for channel, offset in enumerate(self._ports):
            with self._board_errors():
                address = self._read(offset, 8)
            bank, inside = divmod(address, BANK_BYTES)
            holder = self._banks[bank].find(inside) if bank in self._banks else None
            if holder is None or bank != channel:
                raise BadPointer(
                    f"register hbm{channel} holds {address:#x}, which is in "
                    + (f"a buffer of {holder.bank.tag}" if holder else "no live buffer")
                    + f"; port {channel} reaches {bank_tag(channel)}",
                    value=address,
                    expected=f"an address in a buffer of {bank_tag(channel)}",
                    hint="Load a program, or write the device_address of a buffer in that bank.",
                )

    def _require_live(self, bo: Allocation) -> None:
        if not bo.live:
            raise BadPointer(f"the buffer was freed ({bo})", hint="Allocate it again.")

    def _require_idle(self, what: str) -> None:
        if self._running:
            raise DeviceBusy(
                f"cannot {what}: board {self.tag} is running a kernel",
                value=self.tag,
                hint="Wait for it, or cancel it and wait.",
            )

    @contextlib.contextmanager
    def _board_errors(self) -> Iterator[None]:
        """The board model's errors in the host's tree."""
        if self._closed:
            raise BoardFailed(f"board {self.tag} is closed", hint="Open a new device.")
        try:
            yield
        except BoardStuckError as error:
            raise StuckKernel(f"the kernel on {self.tag} is stuck: {error}", value=self.tag) from error
        except BoardError as error:
            raise BoardFailed(f"board {self.tag} failed: {error}", value=self.tag) from error


def _blank_program(core: CoreConfig) -> Program:
    """What a freshly configured board holds."""
    return Program(core, "", 0, 1, (), (), (), {})
