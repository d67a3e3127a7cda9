"""Registers of a simulated kernel as the host sees them: values by name, read and written by byte offset."""

from __future__ import annotations

from hw.board.board_model import BoardError
from hw.bus.registers import Register, RegisterMap

__all__ = ["RegisterFile"]


class RegisterFile:
    """Values of all registers of a map.

    The host reads and writes 32-bit words by offset; the kernel reads and writes whole registers by name. Offsets
    without a register and writes of the host to read-only registers raise BoardError, as the bus answers SLVERR.
    """

    def __init__(self, registers: RegisterMap) -> None:
        self._map = registers
        self._values = {register.name: 0 for register in registers}
        self._at: dict[int, tuple[Register, int]] = {}
        for register in registers:
            for word in range(register.bits // 32):
                self._at[register.offset + 4 * word] = (register, word)

    def __getitem__(self, name: str) -> int:
        return self._values[self._map[name].name]

    def __setitem__(self, name: str, value: int) -> None:
        bits = self._map[name].bits
        if not 0 <= value < 1 << bits:
            raise BoardError(f"register {name} has {bits} bits, got {value!r}")
        self._values[name] = value

    def _find(self, offset: int) -> tuple[Register, int]:
        if offset not in self._at:
            raise BoardError(f"no register at offset {offset:#x} of {self._map.name}")
        return self._at[offset]

    def snapshot(self) -> dict[str, int]:
        """A copy of all values by name."""
        return dict(self._values)

    def register_at(self, offset: int) -> str | None:
        """Name of the register that has a word at ``offset``."""
        found = self._at.get(offset)
        return found[0].name if found else None

    def read_word(self, offset: int) -> int:
        """The 32-bit word at ``offset`` as the host reads it; registers with access ``w`` read as zero."""
        register, word = self._find(offset)
        return 0 if register.access == "w" else self._values[register.name] >> (32 * word) & 0xFFFFFFFF

    def write_word(self, offset: int, value: int) -> None:
        """Write the 32-bit word at ``offset`` as the host does."""
        register, word = self._find(offset)
        if register.access != "rw":
            raise BoardError(f"register {register.name} ({register.access}) cannot be written")
        keep = self._values[register.name] & ~(0xFFFFFFFF << (32 * word))
        self._values[register.name] = keep | (value & 0xFFFFFFFF) << (32 * word)
