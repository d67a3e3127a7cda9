"""Register maps as values: one object from which decode, xclbin metadata, driver names and documentation come."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

__all__ = ["Register", "RegisterMap", "RegisterMapError", "Window"]


class RegisterMapError(ValueError):
    """Registers that overlap, are misaligned or lie outside the map, or an unknown name."""


@dataclasses.dataclass(frozen=True)
class Register:
    """One register of an AXI-Lite map.

    ``offset`` in bytes, ``bits`` 32 or a multiple of 32 (64-bit registers are two words, low word first),
    ``access`` ``r`` (read only), ``rw``, or ``w`` (a write is a strobe, reads as zero).
    """

    name: str
    offset: int
    bits: int
    access: str
    doc: str

    @property
    def end(self) -> int:
        """First byte behind the register."""
        return self.offset + self.bits // 8


@dataclasses.dataclass(frozen=True)
class Window:
    """A memory behind the map: ``words`` entries of ``bits`` bits, each on a boundary of ``stride`` bytes."""

    name: str
    offset: int
    words: int
    bits: int
    stride: int
    access: str
    doc: str

    @property
    def end(self) -> int:
        """First byte behind the window."""
        return self.offset + self.words * self.stride


@dataclasses.dataclass(frozen=True)
class RegisterMap:
    """Registers and windows of one kernel within ``size`` bytes. Raises RegisterMapError if they overlap."""

    name: str
    size: int
    registers: tuple[Register, ...]
    windows: tuple[Window, ...]

    def __post_init__(self) -> None:
        names: set[str] = set()
        spans: list[tuple[int, int, str]] = []
        items: list[Register | Window] = [*self.registers, *self.windows]
        for item in items:
            if item.name in names:
                raise RegisterMapError(f"{self.name}: two entries named {item.name!r}")
            names.add(item.name)
            if item.offset % 4 or item.bits % 32:
                raise RegisterMapError(f"{self.name}: {item.name} must be whole 32-bit words, got {item!r}")
            spans.append((item.offset, item.end, item.name))
        spans.sort()
        for (_, end, one), (start, _, other) in itertools.pairwise(spans):
            if start < end:
                raise RegisterMapError(f"{self.name}: {one} ends at {end:#x}, {other} starts at {start:#x}")
        if spans and spans[-1][1] > self.size:
            raise RegisterMapError(f"{self.name}: {spans[-1][2]} ends at {spans[-1][1]:#x}, map has {self.size:#x}")

    def __iter__(self) -> Iterator[Register]:
        return iter(self.registers)

    def __getitem__(self, name: str) -> Register:
        for register in self.registers:
            if register.name == name:
                return register
        near = [r.name for r in self.registers if name.split("_")[0] in r.name]
        raise RegisterMapError(f"{self.name} has no register {name!r}; near names: {', '.join(near) or 'none'}")

    def window(self, name: str) -> Window:
        """The window of that name."""
        for window in self.windows:
            if window.name == name:
                return window
        known = ", ".join(window.name for window in self.windows)
        raise RegisterMapError(f"{self.name} has no window {name!r}; windows: {known}")

    def markdown(self) -> str:
        """The documentation table."""
        rows = ["| offset | name | bits | access | meaning |", "|---|---|---|---|---|"]
        for r in sorted(self.registers, key=lambda item: item.offset):
            rows.append(f"| {r.offset:#06x} | `{r.name}` | {r.bits} | {r.access} | {_cell(r.doc)} |")
        for w in self.windows:
            rows.append(f"| {w.offset:#06x} | `{w.name}`[{w.words}] | {w.bits} | {w.access} | {_cell(w.doc)} |")
        return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    """Text that may stand in a cell of a Markdown table."""
    return text.replace("|", "\\|")
