"""Products that the instructions of a program are worth: what the model asks for, without the core's padding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hw.board.program import Program
from hw.gpt2.isa import Instruction, Op, Path

__all__ = ["InstructionWork"]

_Counts = NDArray[np.int64]


class InstructionWork:
    """What each instruction of a program computes at a position.

    The dimensions of the model are those in ``program.notes["model"]``, a board's part of them in ``notes["slices"]``.
    Without them every column of a product counts as true, except logits beyond ``vocab``.

    Members: ``instructions``: decoded, by index; ``names``: what each computes (``program.notes``), else its operation;
    ``in_loop``: whether it runs once a layer; ``slots_per_cycle``: products that the matrix unit makes in a cycle, in
    all rows of the core; ``row_slots``: in one of them. With int8 weights these are products of MM; one of fp16 takes
    the slots of two, and counts as so many.
    """

    def __init__(self, program: Program) -> None:
        self.instructions = [Instruction.decode(word) for word in program.instructions]
        self.row_slots = program.core.tile * program.core.lanes * program.core.mm_strips
        self.slots_per_cycle = self.row_slots * program.core.rows
        self.names = _names(program, self.instructions)
        self.in_loop = _in_loop(self.instructions)
        self._core = program.core
        self._registers = program.registers
        model = program.notes.get("model")
        self._model: Mapping[str, int] | None = model if isinstance(model, dict) else None
        self._columns_of = None if self._model is None else _own_columns(self._model, program.notes.get("slices"))
        self._query_words = {
            word
            for one in self.instructions
            if one.op == Op.SC
            for word in range(one.src, one.src + one.heads * self._registers["key_words"])
        }

    def products(self, index: int, rows: _Counts, attended: _Counts) -> _Counts:
        """True products of instruction ``index`` in ``rows`` that together attend to ``attended`` positions, of each
        time that it was executed.

        MM: rows x elements of its k words x true columns. SC and AV: heads x positions attended x head size, in slots.
        EMB: none, because it multiplies by one.
        """
        instruction = self.instructions[index]
        if instruction.op == Op.MM:
            elements = (instruction.words - 1) * self._core.tile + instruction.tail
            return rows * elements * self._columns(index)
        if instruction.op in (Op.SC, Op.AV):
            return instruction.heads * attended * self._head_size(instruction) * self._core.mm_strips
        return np.zeros(len(rows), np.int64)

    def result_strips(self, index: int, position: int) -> int:
        """Strips of results that instruction ``index`` hands to the drain unit, one a cycle, at ``position``."""
        instruction = self.instructions[index]
        if instruction.op == Op.SC:
            return instruction.heads * (position // self._core.lanes + 1)
        if instruction.op == Op.AV:
            return instruction.heads * self._registers["value_strips"]
        return instruction.strips if instruction.op in (Op.MM, Op.EMB) and instruction.last else 0

    def tiles_to_first_result(self, index: int, position: int) -> int:
        """Issues of instruction ``index`` up to the first tile that ends a sum, parameter rows left out."""
        instruction = self.instructions[index]
        if instruction.op == Op.SC:
            return self._registers["key_words"]
        if instruction.op == Op.AV:
            return position // self._core.tile * self._registers["value_strips"] + 1
        if instruction.op == Op.EMB:
            return 1
        return (instruction.words - 1) * min(instruction.group, instruction.strips) // self._core.mm_strips + 1

    def _columns(self, index: int) -> int:
        """Columns of an MM that belong to the model, on this board."""
        core, last = self._core, self._last_run(index)
        all_columns = last.strips * core.lanes
        if last.path == Path.LOGITS:
            return max(0, min(all_columns, self._registers["vocab"] - last.dst * core.lanes))
        if self._columns_of is None:
            return all_columns
        # Keys and queries are padded to whole words a head.
        of_heads = last.dst >= core.new_key_base or last.dst // core.strips_per_word in self._query_words
        kind = "inner" if last.path == Path.GELU else "heads" if of_heads else "x"
        slice_of_model = of_heads or last.path in (Path.GELU, Path.RESIDUAL) or last.stats
        return min(all_columns, self._columns_of[kind]) if slice_of_model else all_columns

    def _last_run(self, index: int) -> Instruction:
        """The run with the results of the product that instruction ``index`` is a run of."""
        run = self.instructions[index]
        same = (one for one in self.instructions[index:] if one.op == Op.MM and one.last and one.acc == run.acc)
        return run if run.last else next(same, run)

    def _head_size(self, instruction: Instruction) -> int:
        if self._model is not None:
            return self._model["n_embd"] // self._model["n_head"]
        if instruction.op == Op.SC:
            return (self._registers["key_words"] - 1) * self._core.tile + instruction.tail
        return self._registers["value_strips"] * self._core.lanes


def _own_columns(model: Mapping[str, int], slices: object) -> dict[str, int]:
    """Columns of a board's results by kind; ``slices`` (``program.notes``) say its part of each."""
    part = slices if isinstance(slices, dict) else {}

    def count(kind: str, whole: int) -> int:
        return int(part[kind]["count"]) if kind in part else whole

    heads = count("heads", model["n_head"]) * (model["n_embd"] // model["n_head"])
    return {"heads": heads, "x": count("x", model["n_embd"]), "inner": count("inner", model["n_inner"])}


def _names(program: Program, instructions: list[Instruction]) -> list[str]:
    names = program.notes.get("instruction_names")
    if isinstance(names, list) and len(names) == len(instructions):
        return [str(name) for name in names]
    return [f"{instruction.op.name} {index}" for index, instruction in enumerate(instructions)]


def _in_loop(instructions: list[Instruction]) -> list[bool]:
    inside, left = [], 0
    for instruction in instructions:
        inside.append(left > 0)
        left = instruction.words if instruction.op == Op.LOOP else max(0, left - 1)
    return inside
