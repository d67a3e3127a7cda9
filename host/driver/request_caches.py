"""What the driver knows of keys, values and logits in board memory: one cache, or on a core with rows one a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from host.driver.program_memory import cached_positions
from host.driver.run_request import RunRequest
from host.errors import BadInput
from hw.board.gpt2_map import row_register
from hw.board.program import Program

__all__ = ["BASES", "RequestCaches"]

BASES = ("key_base", "value_base", "logits_base")
"""Registers that say where a request's cache is."""


class RequestCaches:
    """The caches of a loaded program; of none without a program.

    Parameters: `program`: its registers ``key_base``, ``key_base_1`` ... say how many caches there are.

    Attributes: `tokens`: of each cache the tokens whose keys and values it holds, None for any token; `logits`: of each
    the positions whose logits it holds.
    """

    def __init__(self, program: Program | None) -> None:
        self.tokens: list[tuple[int | None, ...]] = []
        self.logits: list[range] = []
        self._bases: list[dict[str, int]] = []
        if program is None:
            return
        registers = program.registers
        for row in range(program.core.rows):
            names = {name: row_register(name, row) for name in BASES}
            if row and not all(name in registers for name in names.values()):
                break
            self._bases.append({name: registers[of_row] for name, of_row in names.items() if of_row in registers})
            self.tokens.append((None,) * cached_positions(program))
            self.logits.append(range(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def require(self, row: int) -> None:
        """Raise BadInput unless there is a cache of this row."""
        if not 0 <= row < len(self):
            raise BadInput(
                f"there is no cache of row {row}: the program has "
                + (f"those of rows 0 to {len(self) - 1}" if len(self) > 1 else "one, of row 0"),
                kind="unknown_row",
                value=row,
                expected=f"0 to {len(self) - 1}",
                hint="" if len(self) > 1 else "Compile the model for a core with rows, such as 16x4r4.",
            )

    def bases(self, row: int) -> dict[str, int]:
        """Values with which row 0's registers name this row's cache; none where there is only one."""
        return self._bases[row] if len(self) > 1 else {}

    def at(self, registers: Mapping[str, int]) -> int | None:
        """The row whose cache is where `registers` (by the names in `BASES`) say, or None."""
        if len(self) < 2:
            return 0 if len(self) else None
        return next((row for row, bases in enumerate(self._bases) if bases == dict(registers)), None)

    def begin(self, row: int, request: RunRequest) -> None:
        """A run starts: what stands from its first position on is no longer what it was."""
        self.tokens[row], self.logits[row] = self.tokens[row][: request.position], range(0)

    def record(self, row: int, request: RunRequest, new: Sequence[int]) -> None:
        """A run has ended well with these new tokens, of which the last has no keys and values yet."""
        steps = len(request.prompt_ids) - 1
        kept = self.tokens[row][: request.position]  # a run writes from its first position on
        self.tokens[row] = (*kept, *request.prompt_ids[len(kept) :], *new[:-1])
        self.logits[row] = range(steps, steps + len(new)) if request.write_logits else range(0)
