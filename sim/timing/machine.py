"""What runs: one board, or several in a ring, with their memory and cables."""

from __future__ import annotations

import dataclasses

from hw.board.program import Program
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_config import DeviceTiming
from sim.timing.overrides import TimingOverrides
from sim.timing.result import TimingResult
from sim.timing.ring import run_ring_timing
from sim.timing.run import run_batch_timing, run_timing
from sim.timing.run_start import Request

__all__ = ["Machine"]


@dataclasses.dataclass(frozen=True)
class Machine:
    """Boards that share a model, by their programs in the order of the ring; one is a board alone.

    Parameters
    ----------
    programs : tuple of Program
    memory : DeviceTiming
        Of board 0; see ``sim.rtl.ring.board_memory``.
    links : LinkTiming
        The cables; one board has none.
    overrides : TimingOverrides
        Departures from the hardware.
    """

    programs: tuple[Program, ...]
    memory: DeviceTiming
    links: LinkTiming = dataclasses.field(default_factory=LinkTiming)
    overrides: TimingOverrides = dataclasses.field(default_factory=TimingOverrides)

    @property
    def boards(self) -> int:
        """How many there are."""
        return len(self.programs)

    @property
    def rows(self) -> int:
        """Tokens that can share one pass over the weights."""
        return self.programs[0].core.rows

    @property
    def context(self) -> int:
        """Positions of the key/value cache."""
        return int(self.programs[0].registers["context_limit"])

    def run(
        self,
        position: int,
        prompt_end: int,
        new_tokens: int,
        *,
        stop_position: int | None = None,
        events: bool = False,
    ) -> tuple[TimingResult, ...]:
        """The result of each board for a sequence. With ``stop_position`` a run ends when every board has begun that
        position.

        Raises TimingError; ValueError for programs that do not fit their core or one another.
        """
        if self.boards == 1:
            alone = run_timing(
                self.programs[0],
                position=position,
                prompt_end=prompt_end,
                max_new_tokens=new_tokens,
                memory=self.memory,
                overrides=self.overrides,
                stop_position=stop_position,
                events=events,
            )
            return (alone,)
        return run_ring_timing(
            self.programs,
            position=position,
            prompt_end=prompt_end,
            max_new_tokens=new_tokens,
            memory=self.memory,
            links=self.links,
            overrides=self.overrides,
            stop_position=stop_position,
            events=events,
        ).boards

    def run_batch(
        self, requests: int, position: int, prompt_end: int, new_tokens: int, *, events: bool = False
    ) -> tuple[TimingResult, ...]:
        """The result of the board for a batch of so many equal requests.

        Raises TimingError; ValueError for several boards, or for more requests than the core has rows.
        """
        if self.boards > 1:
            raise ValueError(f"a batch runs on one board, got {self.boards}")
        batch = {row: Request(position, prompt_end, new_tokens) for row in range(requests)}
        program, memory = self.programs[0], self.memory
        return (run_batch_timing(program, batch, memory=memory, overrides=self.overrides, events=events),)
