"""What was written in the course of one step, without values: the legality check's model of the core."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, Op, Params
from hw.gpt2.strips import addend_strips, operand_strips, result_strips

__all__ = ["StepState"]

Violation = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class _OpenProduct:
    """A product whose run with ``last`` has not come yet; ``param_slots`` are those of its own strips."""

    acc: int
    strips: int
    params: int
    scaled: bool
    param_slots: frozenset[int]


class StepState:
    """Executes instructions on written-flags; ``execute`` yields what it finds wrong as (rule, text)."""

    def __init__(self, config: CoreConfig, registers: Mapping[str, int]) -> None:
        self._config = config
        self._registers = defaultdict(int, registers)
        self._value_strips = registers.get("value_strips", 0)
        self._blocks = -(-registers.get("context_limit", 0) // config.tile)
        self._written = bytearray(config.strip_addresses)
        self._norm = [False, False]
        self._open: list[_OpenProduct] = []
        self._keys = self._values = False
        self._probabilities: dict[int, int] = {}  # word -> head whose probabilities it holds

    def begin_layer(self) -> None:
        """One more iteration of a loop: keys, values and probabilities of the one before do not count."""
        self._keys = self._values = False
        self._probabilities.clear()

    def execute(self, instruction: Instruction) -> Iterator[Violation]:
        """Everything that is wrong about an instruction at this point; its writes are done afterwards."""
        for strips in operand_strips(instruction, self._registers, self._config):
            if missing := self._unwritten(strips):
                yield (
                    "rule 3",
                    f"reads activation strips {missing[0]} to {missing[-1]}, not all written before in this step",
                )
        if instruction.op in (Op.MM, Op.EMB):
            yield from self._product(instruction)
        elif instruction.op == Op.SC:
            yield from self._scores(instruction)
        elif instruction.op == Op.AV:
            yield from self._attend(instruction)
        elif instruction.op == Op.GATHER:  # other boards' strips can be read from here on
            own = range(instruction.dst + instruction.src, instruction.dst + instruction.src + instruction.words)
            vector = range(instruction.dst, instruction.dst + instruction.strips)
            self._write(range(vector.start, own.start))
            self._write(range(own.stop, vector.stop))

    def at_end(self) -> Iterator[Violation]:
        """What is wrong at NEXT."""
        for product in self._open:
            yield "rule 6", f"the product at acc {product.acc} has no run with last"

    def _unwritten(self, strips: range) -> list[int]:
        return [s for s in strips if s >= len(self._written) or not self._written[s]]

    def _write(self, strips: range) -> None:
        self._written[strips.start : strips.stop] = b"\1" * len(strips)

    def _param_slots(self, mm: Instruction, strips: int) -> frozenset[int]:
        depth = self._config.param_depth
        return frozenset((mm.acc + s) % depth for s in range(min(strips, depth)))

    def _product(self, mm: Instruction) -> Iterator[Violation]:
        ours, scaled = None, mm.op == Op.MM and self._config.has_int8
        if not mm.first:
            ours = next((p for p in self._open if p.acc == mm.acc), None)
            if ours is None or ours.strips != mm.strips:
                yield "rule 3", f"first=0, but no run left {mm.strips} strips open at acc {mm.acc}"
            elif ours.params != mm.params:
                yield "section 3", f"params {Params(mm.params).name}, the first run took {Params(ours.params).name}"
            elif ours.scaled != scaled:
                yield "section 3", "runs of a product with int8 weights are all MM: EMB takes no scales"
        open_strips = mm.strips if not (mm.first and mm.last) else min(mm.group, mm.strips)
        with_params = scaled or mm.params != Params.NONE
        block = self._config.param_strips
        rows = -(-mm.strips // block) * block if mm.first and with_params else 0  # padding is stored too
        yield from self._collisions(mm.acc, open_strips, self._param_slots(mm, rows), ours)
        if ours is not None and mm.last:
            self._open.remove(ours)
        if not mm.last:
            if mm.first:
                used = self._param_slots(mm, mm.strips if with_params else 0)
                self._open.append(_OpenProduct(mm.acc, mm.strips, mm.params, scaled, used))
            return
        if mm.params == Params.NORM and not self._norm[mm.norm]:
            yield "rule 3", f"LayerNorm scalars {mm.norm} were not computed before in this step"
        if missing := self._unwritten(addend_strips(mm)):
            yield "rule 3", f"RESIDUAL reads strips {missing[0]} to {missing[-1]}, not all written before in this step"
        self._write(result_strips(mm, self._registers))
        if mm.stats:
            self._norm[mm.stats_set] = True
        self._keys |= mm.commit == Commit.KEYS
        self._values |= mm.commit == Commit.VALUES

    def _collisions(
        self, acc: int, count: int, params: frozenset[int], ours: _OpenProduct | None
    ) -> Iterator[Violation]:
        for product in self._open:
            if product is ours:
                continue
            if acc < product.acc + product.strips and product.acc < acc + count:
                yield "rule 6", f"accumulators {acc} to {acc + count - 1} belong to the open product at {product.acc}"
            if params & product.param_slots:
                yield "rule 6", f"parameters overwrite those of the open product at acc {product.acc}"

    def _scores(self, sc: Instruction) -> Iterator[Violation]:
        if not self._keys:
            yield "rule 4", "SC before the keys of this layer are committed"
        yield from self._collisions(sc.acc, 1, frozenset(), None)
        for j in range(sc.heads):
            first = sc.prob + j * sc.prob_stride
            for word in range(first, first + self._blocks):
                self._probabilities[word] = sc.head0 + j

    def _attend(self, av: Instruction) -> Iterator[Violation]:
        if not self._values:
            yield "rule 4", "AV before the values of this layer are committed"
        for j in range(av.heads):
            first = av.prob + j * av.prob_stride
            owners = {self._probabilities.get(word) for word in range(first, first + self._blocks)}
            if owners != {av.head0 + j}:
                yield "rule 4", f"probability words {first} and on do not hold those of head {av.head0 + j}"
        yield from self._collisions(av.acc, self._value_strips, frozenset(), None)
        self._write(result_strips(av, self._registers))
