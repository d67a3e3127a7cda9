"""Products that the instructions of a program are worth: what the model asks for, without the core's padding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hw.board.program import Program
from hw.gpt2.isa import Instruction, Op, Path

__all__ = ["InstructionWork"]

Positions = NDArray[np.int64]


class InstructionWork:
    """What each instruction of a program computes at a position.

    The dimensions of the model are those in ``program.notes["model"]``. Without them every column of a product counts
    as true, except logits beyond ``vocab``.

    Members: ``instructions``: decoded, by index; ``names``: what each computes (``program.notes``), else its operation;
    ``in_loop``: whether it runs once a layer; ``slots_per_cycle``: products that the matrix unit makes in a cycle.
    """

    def __init__(self, program: Program) -> None:
        self.instructions = [Instruction.decode(word) for word in program.instructions]
        self.slots_per_cycle = program.core.tile * program.core.lanes
        self.names = _names(program, self.instructions)
        self.in_loop = _in_loop(self.instructions)
        self._core = program.core
        self._registers = program.registers
        model = program.notes.get("model")
        self._model: Mapping[str, int] | None = model if isinstance(model, dict) else None
        self._query_words = {
            word
            for one in self.instructions
            if one.op == Op.SC
            for word in range(one.src, one.src + one.heads * self._registers["key_words"])
        }

    def products(self, index: int, positions: Positions) -> Positions:
        """True products of instruction ``index`` at each of ``positions``.

        MM: elements of its k words times true columns. SC and AV: heads x positions attended x head size. EMB: none,
        because it multiplies by one.
        """
        instruction = self.instructions[index]
        if instruction.op == Op.MM:
            elements = (instruction.words - 1) * self._core.tile + instruction.tail
            return np.full(len(positions), elements * self._columns(instruction), np.int64)
        if instruction.op in (Op.SC, Op.AV):
            return instruction.heads * (positions + 1) * self._head_size(instruction)
        return np.zeros(len(positions), np.int64)

    def result_strips(self, index: int, positions: Positions) -> Positions:
        """Strips of results that instruction ``index`` hands to the drain unit, one a cycle, at ``positions``."""
        instruction = self.instructions[index]
        if instruction.op == Op.SC:
            return instruction.heads * (positions // self._core.lanes + 1)
        if instruction.op == Op.AV:
            strips = instruction.heads * self._registers["value_strips"]
        else:
            strips = instruction.strips if instruction.op in (Op.MM, Op.EMB) and instruction.last else 0
        return np.full(len(positions), strips, np.int64)

    def tiles_to_first_result(self, index: int, position: int) -> int:
        """Issues of instruction ``index`` up to the first tile that ends a sum, parameter rows left out."""
        instruction = self.instructions[index]
        if instruction.op == Op.SC:
            return self._registers["key_words"]
        if instruction.op == Op.AV:
            return position // self._core.tile * self._registers["value_strips"] + 1
        words = instruction.words if instruction.op == Op.MM else 1
        return (words - 1) * min(instruction.group, instruction.strips) + 1

    def _columns(self, instruction: Instruction) -> int:
        """Columns of an MM that belong to the model."""
        core, model = self._core, self._model
        all_columns = instruction.strips * core.lanes
        if instruction.path == Path.LOGITS:
            return max(0, min(all_columns, self._registers["vocab"] - instruction.dst * core.lanes))
        if model is None:
            return all_columns
        if instruction.path == Path.GELU:
            return min(all_columns, model["n_inner"])
        # Keys and queries are padded to whole words a head; heads x head size is the width.
        whole_vector = (
            instruction.dst >= core.new_key_base
            or instruction.path == Path.RESIDUAL
            or instruction.stats
            or instruction.dst // core.strips_per_word in self._query_words
        )
        return min(all_columns, model["n_embd"]) if whole_vector else all_columns

    def _head_size(self, instruction: Instruction) -> int:
        if self._model is not None:
            return self._model["n_embd"] // self._model["n_head"]
        if instruction.op == Op.SC:
            return (self._registers["key_words"] - 1) * self._core.tile + instruction.tail
        return self._registers["value_strips"] * self._core.lanes


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
