"""Which strips an instruction reads and writes (docs/core.md, sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Instruction, Op, Path

__all__ = ["addend_strips", "operand_strips", "result_strips"]


def operand_strips(instruction: Instruction, registers: Mapping[str, int], config: CoreConfig) -> list[range]:
    """Strip addresses of the activation words that an instruction reads, of each last word up to ``tail``."""
    per_word = config.strips_per_word
    if instruction.op == Op.MM:
        vectors, words = 1, instruction.words
    elif instruction.op == Op.SC:
        vectors, words = instruction.heads, registers["key_words"]
    else:
        return []
    used = (words - 1) * per_word + -(-instruction.tail // config.lanes)
    starts = [(instruction.src + vector * words) * per_word for vector in range(vectors)]
    return [range(start, start + used) for start in starts]


def addend_strips(instruction: Instruction) -> range:
    """Strip addresses to whose contents an instruction adds its results."""
    if instruction.op in (Op.MM, Op.EMB) and instruction.last and instruction.path == Path.RESIDUAL:
        return range(instruction.dst, instruction.dst + instruction.strips)
    return range(0)


def result_strips(instruction: Instruction, registers: Mapping[str, int]) -> range:
    """Strip addresses that an instruction writes, those of new keys and new values too."""
    if instruction.op == Op.AV:
        return range(instruction.dst, instruction.dst + instruction.heads * registers["value_strips"])
    if instruction.op in (Op.MM, Op.EMB) and instruction.last and instruction.path != Path.LOGITS:
        return range(instruction.dst, instruction.dst + instruction.strips)
    return range(0)
