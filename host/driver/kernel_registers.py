"""The GPT-2 kernel's registers by the names of its map, over PYNQ's MMIO."""

from __future__ import annotations

import pathlib
from typing import Any

from host.driver.kernel_identity import check_kernel
from host.driver.pynq_import import pynq
from host.driver.state_words import state_registers, state_words
from host.driver.xclbin_info import read_xclbin
from host.errors import BadInput
from hw.board.gpt2_map import LINK_COUNTERS, LINK_PORTS, STALL_CAUSES, gpt2_register_map, row_register

__all__ = ["KernelRegisters"]


class KernelRegisters(pynq.DefaultIP):
    """Register access, status and counters of one kernel.

    PYNQ's own ``register_map`` works beside it, up to 64 bits a register.

    Attributes
    ----------
    core : CoreConfig
        The core that the loaded xclbin describes.
    map : RegisterMap
        Its registers and windows.

    Raises VersionMismatch on creation if the kernel is not the one of its xclbin.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__(description)
        info = read_xclbin(pathlib.Path(self.device.bitfile_name))
        self.core = info.core
        self.map = gpt2_register_map(self.core)
        check_kernel(info, self.get)

    def get(self, name: str) -> int:
        """Value of a register of any width, low word read first."""
        register = self.map[name]
        words = [self.mmio.read(register.offset + 4 * word) for word in range(register.bits // 32)]
        return sum(word << 32 * index for index, word in enumerate(words))

    def set(self, name: str, value: int) -> None:
        """Write a register of any width, low word first. Raises BadInput if the value does not fit."""
        register = self.map[name]
        if not 0 <= value < 1 << register.bits:
            raise BadInput(f"register {name} has {register.bits} bits, got {value!r}", value=value)
        self.mmio.write(register.offset, int(value).to_bytes(register.bits // 8, "little"))

    def running(self) -> bool:
        """A run is under way (on a simulated board asking lets it work a little)."""
        return self.get("done_count") != self.get("start_count")

    def cancel(self) -> None:
        """Ask the kernel to end the run (``wait`` then gives reason ``cancelled``); nothing happens without one."""
        self.set("cancel", 1)

    def ring(self, first: int, end: int, row: int = 0) -> list[int]:
        """Entries ``first`` to ``end`` - 1 of a row's token ring; a sequence has row 0's."""
        window = self.map.window(row_register("tokens", row))
        return [self.mmio.read(window.offset + window.stride * place) for place in range(first, end)]

    def tokens(self, row: int = 0) -> list[int]:
        """All valid tokens of a row's ring, prompt included; may be called during a run."""
        return self.ring(0, self.get(row_register("tokens_valid", row)), row)

    def counters(self) -> dict[str, int]:
        """``cycles``, ``tiles`` and ``stall_*`` of the last run from the kernel's registers, in cycles."""
        return {name: self.get(name) for name in ("cycles", "tiles", *(f"stall_{cause}" for cause in STALL_CAUSES))}

    def link_counters(self) -> list[dict[str, int]]:
        """Counters of each ring port since the kernel's reset, modulo 2^16."""
        return [{name: self.get(f"link_{port}_{name}") for name in LINK_COUNTERS} for port in range(LINK_PORTS)]

    def state_dump(self) -> dict[str, int]:
        """The state registers by name."""
        return {name: self.get(name) for name in state_registers(self.core.rows)}

    def state_text(self) -> str:
        """The state dump in words: where the kernel is and what it waits for."""
        return state_words(self.state_dump())
