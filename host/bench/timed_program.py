"""What a user names when cycles are wanted, a model or program folder and a memory, and the conditions they make."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from host.compiler import chosen_core, chosen_sizes, fitting_shape, plan_program
from host.driver.program_memory import cached_positions
from host.errors import BadInput
from host.runtime.request import check_memory
from hw.board.program import Program
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.devices.named import named_memory

__all__ = ["ASSUMED_CLOCK_MHZ", "TimedProgram", "announce", "check_boards", "milliseconds"]

ASSUMED_CLOCK_MHZ = 200
_ANNOUNCED_CYCLES = 1_000_000  # a second or two of simulation
_SEED_LIMIT = 1 << 31


@dataclasses.dataclass(frozen=True)
class TimedProgram:
    """A program, what to call it, and the memory that its cycles are counted with.

    Members: `program`; `label`: of the model or folder; `memory_name`: of `sim.devices.named`; `memory`.
    """

    program: Program
    label: str
    memory_name: str
    memory: HbmTiming | MemoryTiming

    @classmethod
    def of_model(cls, model: str, core: str, context: int | None, memory: str, seed: int) -> TimedProgram:
        """The program of a model by its sizes alone. Raises CheckpointError, ConfigError, CompileError, BadInput."""
        chosen = _memory(memory, seed)
        sizes = chosen_sizes(model)
        program = plan_program(fitting_shape(sizes, chosen_core(core), context))
        return cls(program, sizes.label, memory, chosen)

    @classmethod
    def of_folder(cls, folder: Path, memory: str, seed: int) -> TimedProgram:
        """A compiled program; its image is not read. Raises ProgramError, BadInput."""
        return cls(Program.load(folder)[0], str(folder), memory, _memory(memory, seed))

    @property
    def context(self) -> int:
        """Positions of the cache."""
        return int(self.program.registers["context_limit"])

    @property
    def cached(self) -> int:
        """Leading positions whose keys and values the image holds."""
        return cached_positions(self.program)

    def check_positions(self, what: str, value: int, limit: int | None = None) -> None:
        """Raise BadInput unless 1 <= `value` <= `limit`, the context if None."""
        most = self.context if limit is None else limit
        if not 1 <= value <= most:
            raise BadInput(
                f"{what} must be 1 to {most}, got {value}: the cache of {self.label} has {self.context} positions",
                value=value,
                expected=f"1 to {most}",
            )

    def conditions(self) -> dict[str, object]:
        """Everything that the cycles depend on but the position, for `--json`."""
        core = self.program.core
        return {
            "model": self.label,
            "model_sizes": self.program.notes.get("model"),
            "weights": "none are read; all token ids count as 0",
            "core": core.name,
            "core_digest": core.digest,
            "products_per_cycle": core.tile * core.lanes,
            "core_clock_mhz": core.core_clock_mhz,
            "port_clock_mhz": core.port_clock_mhz,
            "memory_ports": f"{core.channels} x {core.port_bits} bit",
            "memory": self.memory_name,
            "memory_parameters": {"kind": type(self.memory).__name__, **dataclasses.asdict(self.memory)},
            "context": self.context,
            "boards": 1,
            "assumed_clock_mhz": ASSUMED_CLOCK_MHZ,
            "clocks": "assumed: nothing has been placed and routed",
        }


def check_boards(boards: int) -> None:
    """Raise BadInput unless it is one board."""
    if boards != 1:
        raise BadInput(
            f"boards must be 1, got {boards}: this version runs a model on one board",
            value=boards,
            expected=1,
            hint="Leave --boards out.",
        )


def milliseconds(cycles: int) -> float:
    """Time of so many cycles at the assumed clock."""
    return cycles / (1000 * ASSUMED_CLOCK_MHZ)


def announce(what: str, cycles: int) -> None:
    """Say on standard error what is simulated, if it takes more than a moment."""
    if cycles >= _ANNOUNCED_CYCLES:
        sys.stderr.write(f"timing {what}: about {cycles / 1e6:.1f} million cycles\n")
        sys.stderr.flush()


def _memory(name: str, seed: int) -> HbmTiming | MemoryTiming:
    check_memory(name)
    if not 0 <= seed < _SEED_LIMIT:
        raise BadInput(f"seed must be 0 to {_SEED_LIMIT - 1}, got {seed}", value=seed)
    return named_memory(name, seed)
