"""What a partition costs in simulated cycles: a decode step of the boards' programs on the timing model."""

from __future__ import annotations

import dataclasses

from host.compiler.compile import plan_program
from host.compiler.shape import Shape
from host.planner.partition import Partition
from host.planner.plan import Estimate
from hw.gpt2.config import CoreConfig
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_config import DeviceTiming
from sim.devices.named import named_memory
from sim.timing.ring import run_ring_timing
from sw.models.gpt2_config import GPT2Config

__all__ = ["TimedCost"]

POSITIONS = 128  # attended in the step that is timed, if the context is as long
FEW_LAYERS, MORE_LAYERS = 2, 4


class TimedCost:
    """Cost of partitions of `model` on two or more boards of `core` with a cache of `context` positions.

    A model of more than `MORE_LAYERS` layers is timed with two numbers of layers; all further layers take what the last
    ones took. `links` and `memory` default to fault-free cables of 500 ns and the U280's HBM. Calling it raises
    TimingError if the boards get stuck.
    """

    def __init__(
        self,
        model: GPT2Config,
        core: CoreConfig,
        context: int,
        links: LinkTiming | None = None,
        memory: DeviceTiming | None = None,
    ) -> None:
        self._model, self._core, self._context = model, core, context
        self._links = LinkTiming() if links is None else links
        self._memory = named_memory("u280", 0) if memory is None else memory
        self.positions = min(POSITIONS, context)
        self._known: dict[Partition, int] = {}

    def __call__(self, partition: Partition) -> int:
        """Cycles of a decode step, until the slowest board has its token."""
        if partition not in self._known:
            layers = self._model.n_layer
            if layers <= MORE_LAYERS:
                cycles = self._timed(partition, layers)
            else:
                few, more = (self._timed(partition, count) for count in (FEW_LAYERS, MORE_LAYERS))
                cycles = more + round((layers - MORE_LAYERS) * (more - few) / (MORE_LAYERS - FEW_LAYERS))
            self._known[partition] = cycles
        return self._known[partition]

    def estimate(self, partition: Partition) -> Estimate:
        """The same with its source."""
        source = f"sim.timing, {self._links.hop_ns:g} ns a hop"
        if self._model.n_layer > MORE_LAYERS:
            source += f", from steps of {FEW_LAYERS} and {MORE_LAYERS} layers"
        return Estimate(self(partition), self.positions, source)

    def _timed(self, partition: Partition, layers: int) -> int:
        model = dataclasses.replace(self._model, n_layer=layers)
        programs = [
            plan_program(Shape(model, self._core, self._context, partition, board)) for board in range(partition.boards)
        ]
        result = run_ring_timing(
            programs,
            position=self.positions - 1,
            prompt_end=self.positions,
            max_new_tokens=1,
            memory=self._memory,
            links=self._links,
        )
        return max(board.cycles for board in result.boards)
