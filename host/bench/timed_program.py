"""What a user names when cycles are wanted, a model or program folder and a memory, and the conditions they make."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from host.compiler import chosen_core, chosen_sizes, fitting_shape, plan_program, plan_ring
from host.driver.program_memory import cached_positions
from host.errors import BadInput
from host.runtime.program_folders import load_programs
from host.runtime.request import check_boards, check_memory
from hw.board.program import Program
from sim.devices.hbm_timing import HbmTiming
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.devices.named import named_memory
from sim.timing.interpolation import prompt_rows, step_rows
from sim.timing.machine import Machine

__all__ = ["ASSUMED_CLOCK_MHZ", "TimedProgram", "announce", "milliseconds"]

ASSUMED_CLOCK_MHZ = 200
_ANNOUNCED_CYCLES = 1_000_000  # a second or two of simulation
_SEED_LIMIT = 1 << 31


@dataclasses.dataclass(frozen=True)
class TimedProgram:
    """What runs, what to call it, and the memory and cables that its cycles are counted with.

    Members: `programs`: one a board; `label`: of the model or folder; `memory_name`: of `sim.devices.named`; `memory`;
    `links`: between boards.
    """

    programs: tuple[Program, ...]
    label: str
    memory_name: str
    memory: HbmTiming | MemoryTiming
    links: LinkTiming = dataclasses.field(default_factory=LinkTiming)

    @classmethod
    def of_model(
        cls,
        model: str,
        core: str,
        context: int | None,
        memory: str,
        seed: int,
        *,
        boards: int = 1,
        hop_ns: float | None = None,
        rows: int | None = None,
        weights: str | None = None,
    ) -> TimedProgram:
        """The programs of a model by its sizes alone; `rows`, `weights`: of the core, if its name does not
        say them.

        Raises CheckpointError, ConfigError, CompileError, BadInput.
        """
        links = _links(boards, hop_ns)
        chosen = _memory(memory, seed)
        sizes, config = chosen_sizes(model), chosen_core(core, rows, weights)
        check_boards("rtl", boards, rows=config.rows)
        if boards == 1:
            programs: tuple[Program, ...] = (plan_program(fitting_shape(sizes, config, context)),)
        else:
            programs = plan_ring(sizes, config, boards, context=context).programs
        return cls(programs, sizes.label, memory, chosen, links)

    @classmethod
    def of_folder(cls, folder: Path, memory: str, seed: int, *, hop_ns: float | None = None) -> TimedProgram:
        """What `ringfly compile` wrote; images are not read. Raises ProgramError, BadInput."""
        programs = tuple(program for program, _ in load_programs(folder))
        return cls(programs, str(folder), memory, _memory(memory, seed), _links(len(programs), hop_ns))

    @property
    def program(self) -> Program:
        """The program of board 0."""
        return self.programs[0]

    @property
    def boards(self) -> int:
        """How many share the model."""
        return len(self.programs)

    def with_hop(self, hop_ns: float) -> TimedProgram:
        """The same with cables of another length."""
        return dataclasses.replace(self, links=dataclasses.replace(self.links, hop_ns=hop_ns))

    @property
    def machine(self) -> Machine:
        """What the timing model runs."""
        return Machine(self.programs, self.memory, self.links)

    @property
    def context(self) -> int:
        """Positions of the cache."""
        return int(self.program.registers["context_limit"])

    @property
    def rows(self) -> int:
        """Tokens that can share one pass over the weights."""
        return self.program.core.rows

    @property
    def cached(self) -> int:
        """Leading positions whose keys and values the image holds."""
        return cached_positions(self.program)

    def step_rows(self, attended: int, *, requests: int = 1) -> int:
        """Memory rows that a decode step of so many requests streams on all boards together: about the cycles that are
        simulated."""
        return sum(step_rows(program, attended, requests=requests) for program in self.programs)

    def prompt_rows(self, tokens: int) -> int:
        """Memory rows that a prompt streams on all boards together."""
        return prompt_rows(self.machine, tokens)

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
            "rows": core.rows,
            "weight_format": core.weights,
            "products_per_cycle": core.rows * core.tile * core.lanes * core.mm_strips,
            "core_clock_mhz": core.core_clock_mhz,
            "port_clock_mhz": core.port_clock_mhz,
            "memory_ports": f"{core.channels} x {core.port_bits} bit",
            "memory": self.memory_name,
            "memory_parameters": {"kind": type(self.memory).__name__, **dataclasses.asdict(self.memory)},
            "context": self.context,
            "boards": self.boards,
            "slices": [program.notes.get("slices") for program in self.programs] if self.boards > 1 else None,
            "link_parameters": dataclasses.asdict(self.links) if self.boards > 1 else None,
            "assumed_clock_mhz": ASSUMED_CLOCK_MHZ,
            "clocks": "assumed: nothing has been placed and routed",
        }


def milliseconds(cycles: int) -> float:
    """Time of so many cycles at the assumed clock."""
    return cycles / (1000 * ASSUMED_CLOCK_MHZ)


def announce(what: str, cycles: int) -> None:
    """Say on standard error what is simulated, if it takes more than a moment."""
    if cycles >= _ANNOUNCED_CYCLES:
        sys.stderr.write(f"timing {what}: about {cycles / 1e6:.1f} million cycles\n")
        sys.stderr.flush()


def _links(boards: int, hop_ns: float | None) -> LinkTiming:
    check_boards("rtl", boards)
    if boards == 1 and hop_ns is not None:
        raise BadInput(
            "one board has no cables: no --hop-ns for it",
            value=hop_ns,
            expected="2 or more boards",
            hint="Leave --hop-ns out, or give --boards.",
        )
    try:
        return LinkTiming() if hop_ns is None else LinkTiming(hop_ns=hop_ns)
    except ValueError as error:
        raise BadInput(str(error), value=hop_ns) from None


def _memory(name: str, seed: int) -> HbmTiming | MemoryTiming:
    check_memory(name)
    if not 0 <= seed < _SEED_LIMIT:
        raise BadInput(f"seed must be 0 to {_SEED_LIMIT - 1}, got {seed}", value=seed)
    return named_memory(name, seed)
