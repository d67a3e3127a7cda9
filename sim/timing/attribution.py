"""Where the cycles of a run went: useful products, and every lost cycle in exactly one bucket.

All is counted in product slots: the matrix unit has ``rows * tile * lanes`` of them a cycle, with int8 weights twice as
many, of which a product of fp16 takes two. They are whole numbers, so
sums are exact; cycles, multiples of a power of two, are made of them at the end and are exact too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hw.board.gpt2_map import STALL_CAUSES
from hw.board.program import Program
from hw.gpt2.isa import Op, Operand
from sim.timing.products import InstructionWork
from sim.timing.result import TimingResult

__all__ = ["LOST", "LOST_MEANINGS", "STALL_BUCKETS", "Attribution", "AttributionError", "Ledger", "counter_attribution"]

LOST_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "parameters": "rows of biases and column sums, and waits between them",
        "embedding": "rows of the position and token embedding",
        "padding": "products with columns, elements or positions that the model does not have",
        "idle_rows": "multipliers of rows that took no part, or whose logits nobody wants",
        "refresh": "a memory channel was being refreshed",
        "memory": "memory had not delivered, no refresh",
        "token_gap": "from the last tile of a step to the arg-max, and from there to the token's embedding",
        "step_gap": "a batch's step began, and with it the reader: until its first row came",
        "instruction": "no decoded instruction at hand",
        "drain": "an activation word was still on its way through the drain unit",
        "dependency": "the accumulator, the newest key or value, or the destination was not ready",
        "softmax": "probabilities or their sum were not ready, or no score row was free",
        "layernorm": "LayerNorm scalars were not ready, or their unit was busy",
        "key_value_write": "keys or values of the layer before were still being written",
        "link": "another board's strips, sums or arg-max had not arrived, or the queue toward the others was full",
        "run_start": "from start to the first tile of the run",
        "run_end": "from the last token to done",
    }
)
"""What each bucket of lost cycles holds."""

LOST = tuple(LOST_MEANINGS)

STALL_BUCKETS: Mapping[str, str] = MappingProxyType(
    {
        "token": "token_gap",
        "instruction": "instruction",
        "writer": "key_value_write",
        "statistics": "layernorm",
        "params": "parameters",
        "accumulator": "dependency",
        "score_room": "softmax",
        "softmax": "softmax",
        "norm": "layernorm",
        "operand": "drain",
        "link": "link",
        "new_kv": "dependency",
        "result": "dependency",
        "send": "link",
        "stream": "memory",
        "drain": "run_end",
    }
)
"""Bucket of each cause of ``hw.board.gpt2_map.STALL_CAUSES``. ``stream`` is split further: what a refresh costs is
``refresh``, what the row of a generated token costs ``token_gap``, and what a batch's first row of a step costs
``step_gap``. The first tile of a run waits in ``run_start``, whatever for, refreshes excepted."""

_COLUMNS = ("useful", *LOST)
_INDEX = {name: column for column, name in enumerate(_COLUMNS)}


class AttributionError(RuntimeError):
    """Cycles that are in no bucket or in two: a defect of the timing model or of this table."""


@dataclasses.dataclass(frozen=True)
class Attribution:
    """Cycles of a part of a run by what they were used for.

    ``useful_products`` and ``lost_slots`` (by bucket) are products and product slots of all ``boards``; they make up
    ``cycles`` times ``boards`` times ``slots_per_cycle``, else AttributionError.
    """

    cycles: int
    slots_per_cycle: int
    useful_products: int
    lost_slots: Mapping[str, int]
    boards: int = 1

    def __post_init__(self) -> None:
        named = self.useful_products + sum(self.lost_slots.values())
        if named != self._slots:
            raise AttributionError(f"{self.cycles} cycles have {self._slots} product slots, {named} are named")

    @classmethod
    def of_ring(cls, parts: Sequence[Attribution]) -> Attribution:
        """The same part of a run on all boards of a ring, as long as on the slowest.

        What others are shorter is ``link``: a few cycles of a step, at whose end all wait for each other's arg-max.
        """
        cycles = max(part.cycles for part in parts)
        lost = {name: sum(part.lost_slots[name] for part in parts) for name in parts[0].lost_slots}
        lost["link"] += sum((cycles - part.cycles) * part.slots_per_cycle for part in parts)
        useful = sum(part.useful_products for part in parts)
        return cls(cycles, parts[0].slots_per_cycle, useful, lost, len(parts))

    @property
    def _slots(self) -> int:
        return self.cycles * self.slots_per_cycle * self.boards

    @property
    def useful_cycles(self) -> int | float:
        """Cycles that the useful products would take alone, of all boards together, exactly."""
        return self._cycles(self.useful_products)

    @property
    def useful_fraction(self) -> float:
        """Useful products over all product slots."""
        return self.useful_products / self._slots if self.cycles else 0.0

    @property
    def lost_cycles(self) -> dict[str, int | float]:
        """Lost cycles by bucket, exactly: with ``useful_cycles`` their sum is ``cycles`` times ``boards``."""
        return {name: self._cycles(slots) for name, slots in self.lost_slots.items()}

    def facts(self) -> dict[str, object]:
        """The figures for ``--json``."""
        return {
            "cycles": self.cycles,
            "boards": self.boards,
            "useful_cycles": self.useful_cycles,
            "useful_fraction": self.useful_fraction,
            "lost_cycles": self.lost_cycles,
        }

    def _cycles(self, slots: int) -> int | float:
        whole, rest = divmod(slots, self.slots_per_cycle)
        return slots / self.slots_per_cycle if rest else whole


class Ledger:
    """The product slots of every span of a run.

    Parameters
    ----------
    program, result
        What ran, and what ``run_timing`` returned for it.
    prompt_end : int
        As in the run: tokens from there on were generated. Of a batch it does not matter.

    Members: ``work``; ``spans``; ``durations``: cycles of each span, from the last issue before to its own last one.
    Raises AttributionError if the tiles and stalls of a span are not its duration.
    """

    def __init__(self, program: Program, result: TimingResult, prompt_end: int) -> None:
        self.work = InstructionWork(program)
        self.spans = result.spans
        self._result = result
        self.durations = np.diff(result.spans["last_issue"], prepend=-1)
        self._slots = self._entries(prompt_end)
        wrong = self._slots.sum(axis=1) != self.durations * self.work.slots_per_cycle
        if wrong.any():
            at = int(np.argmax(wrong))
            raise AttributionError(
                f"span {at} (instruction {self.spans[at]['index']}, position {self.spans[at]['position']}) takes "
                f"{self.durations[at]} cycles, its tiles and stalls are another number"
            )

    def run(self) -> Attribution:
        """The whole run, from start to done."""
        slots = self._slots.sum(axis=0)
        for cause, cycles in self._result.tail.items():
            slots[_INDEX[STALL_BUCKETS[cause]]] += cycles * self.work.slots_per_cycle
        return self._attribution(self._result.cycles, slots)

    def at(self, position: int) -> NDArray[np.bool_]:
        """The spans of the step at ``position``; of a sequence whose steps take several, its last one.

        Raises AttributionError if there is no such step, or if requests of a batch were there in different steps.
        """
        steps = np.unique(self.spans["step"][self.spans["position"] == position])
        if len(steps) != 1:
            raise AttributionError(f"position {position} belongs to {len(steps)} steps of the run, not to one")
        return np.asarray(self.spans["step"] == steps[0])

    def step(self, position: int) -> Attribution:
        """All instructions of the step at ``position``, each with the stalls in front of it."""
        return self._part(self.at(position))

    def layers(self, position: int) -> Iterator[tuple[str, Attribution]]:
        """The step at ``position`` by layer: before the layers, each of them, behind them."""
        at = self.at(position)
        inside = np.array([self.work.in_loop[index] for index in self.spans["index"]], bool)
        loop = int(np.argmax(self.work.in_loop)) if any(self.work.in_loop) else 0
        yield "before the layers", self._part(at & ~inside & (self.spans["index"] < loop))
        for layer in np.unique(self.spans["layer"][at & inside]):
            yield f"layer {layer}", self._part(at & inside & (self.spans["layer"] == layer))
        yield "behind the layers", self._part(at & ~inside & (self.spans["index"] >= loop))

    def instructions(self, position: int) -> Iterator[tuple[int, str, Attribution]]:
        """The step at ``position`` by instruction, all layers together: (index, name, where its cycles went)."""
        at = self.at(position)
        for index in np.unique(self.spans["index"][at]).tolist():
            yield index, self.work.names[index], self._part(at & (self.spans["index"] == index))

    def window(self, position: int) -> tuple[int, int]:
        """First cycle of the step at ``position``, and the one behind its last tile."""
        at = np.flatnonzero(self.at(position))
        end = int(self.spans["last_issue"][at[-1]]) + 1
        return end - int(self.durations[at].sum()), end

    def _part(self, chosen: NDArray[np.bool_]) -> Attribution:
        return self._attribution(int(self.durations[chosen].sum()), self._slots[chosen].sum(axis=0))

    def _attribution(self, cycles: int, slots: NDArray[np.int64]) -> Attribution:
        useful, *lost = (int(value) for value in slots)
        return Attribution(cycles, self.work.slots_per_cycle, useful, dict(zip(LOST, lost, strict=True)))

    def _entries(self, prompt_end: int) -> NDArray[np.int64]:
        spans, per_cycle = self.spans, self.work.slots_per_cycle
        slots = np.zeros((len(spans), len(_COLUMNS)), np.int64)
        for cause in STALL_CAUSES:
            slots[:, _INDEX[STALL_BUCKETS[cause]]] += spans[f"stall_{cause}"] * per_cycle
        slots[:, _INDEX["refresh"]] += spans["refresh"] * per_cycle
        slots[:, _INDEX["memory"]] -= spans["refresh"] * per_cycle
        if self._result.batch:
            _move(slots, np.diff(spans["step"], prepend=-1) > 0, "memory", "step_gap")
        else:
            tokens = [one.op == Op.EMB and one.operand == Operand.TOKEN for one in self.work.instructions]
            generated = np.array(tokens, bool)[spans["index"]] & (spans["position"] >= prompt_end)
            _move(slots, generated, "memory", "token_gap")
        if len(spans):  # what the first tile of the run waits for
            first = np.arange(len(spans)) == 0
            for name in LOST:
                if name != "refresh":
                    _move(slots, first, name, "run_start")
        slots[:, _INDEX["parameters"]] += spans["params"] * per_cycle
        for index, instruction in enumerate(self.work.instructions):
            at = spans["index"] == index
            issued = spans["tiles"][at] * per_cycle
            if instruction.op == Op.EMB:
                slots[at, _INDEX["embedding"]] += issued
                continue
            counted = spans["tiles"][at] * spans["rows"][at] * self.work.row_slots
            useful = self.work.products(index, spans["rows"][at], spans["attended"][at])
            slots[at, _INDEX["useful"]] += useful
            slots[at, _INDEX["padding"]] += counted - useful
            slots[at, _INDEX["idle_rows"]] += issued - counted
        return slots


def counter_attribution(counters: Mapping[str, int], ledger: Ledger) -> Attribution:
    """A whole run by counters alone: the stall registers and ``refresh_stalls``, as gateware and timing both have them.

    The tiles are split by the program, which ``ledger`` knows from a run of the same positions. The causes are not
    split further: nothing is ``run_start`` or ``step_gap``, and a generated token's row is ``memory``. Raises
    AttributionError if the counters' tiles are not those of the program.
    """
    per_cycle = ledger.work.slots_per_cycle
    tiles = ledger.run()
    expected = int(ledger.spans["tiles"].sum() + ledger.spans["params"].sum())
    if counters["tiles"] != expected:
        raise AttributionError(f"the run issued {counters['tiles']} tiles, its program has {expected}")
    lost = dict.fromkeys(LOST, 0)
    lost["parameters"] = int(ledger.spans["params"].sum()) * per_cycle
    for name in ("embedding", "padding", "idle_rows"):
        lost[name] = tiles.lost_slots[name]
    for cause in STALL_CAUSES:
        lost[STALL_BUCKETS[cause]] += counters[f"stall_{cause}"] * per_cycle
    lost["refresh"] += counters["refresh_stalls"] * per_cycle
    lost["memory"] -= counters["refresh_stalls"] * per_cycle
    return Attribution(counters["cycles"], per_cycle, tiles.useful_products, lost)


def _move(slots: NDArray[np.int64], chosen: NDArray[np.bool_], source: str, target: str) -> None:
    if source == target:
        return
    slots[chosen, _INDEX[target]] += slots[chosen, _INDEX[source]]
    slots[chosen, _INDEX[source]] = 0
