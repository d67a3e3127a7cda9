"""Derives the access program from the instructions: the same work, said in memory rows (docs/core.md, section 5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Access, AccessKind, Instruction, IsaError, Op, Params

__all__ = ["derive_access", "param_rows", "weight_rows"]


def param_rows(instruction: Instruction, config: CoreConfig) -> int:
    """Parameter rows that an MM takes from the weight stream: none unless it starts the accumulation."""
    if not instruction.first:
        return 0
    blocks = -(-instruction.strips // config.param_strips)
    kinds = {Params.NONE: 0, Params.BIAS: 1, Params.NORM: 2}[Params(instruction.params)]
    return blocks * (kinds + config.has_int8)


def weight_rows(instruction: Instruction, config: CoreConfig) -> int:
    """Rows that an MM takes from the weight stream: one a tile, and its parameter rows."""
    tiles = -(-instruction.strips // config.mm_strips) * instruction.words
    return tiles + param_rows(instruction, config)


def derive_access(instructions: Sequence[Instruction], config: CoreConfig) -> list[Access]:
    """The access descriptors of a program.

    Neighbouring WEIGHTS descriptors with equal ``decode_only`` become one, but never across the ends of a loop.
    Raises IsaError if a LOOP holds a LOOP or NEXT or reaches behind the program.
    """
    accesses: list[Access] = []
    fence = 0  # the first descriptor with which the next one may merge
    loop_at, loop_end = 0, 0  # descriptor of the open loop, instruction behind it
    for index, instruction in enumerate(instructions):
        if index < loop_end and instruction.op in (Op.LOOP, Op.NEXT):
            raise IsaError(f"instruction {index}: {instruction.op.name} stands in a loop that ends behind {loop_end}")
        if instruction.op == Op.LOOP:
            loop_at, loop_end = len(accesses), index + 1 + instruction.words
            if loop_end > len(instructions):
                raise IsaError(
                    f"instruction {index}: LOOP repeats {instruction.words} instructions, "
                    f"only {len(instructions) - index - 1} follow"
                )
            accesses.append(Access(kind=AccessKind.LOOP, decode_only=instruction.decode_only, count=instruction.strips))
            fence = len(accesses)
            continue
        access = _access(instruction, config)
        last = accesses[-1] if len(accesses) > fence else None
        if (
            last
            and access
            and access.kind == AccessKind.WEIGHTS == last.kind
            and access.decode_only == last.decode_only
        ):
            accesses[-1] = dataclasses.replace(last, count=last.count + access.count)
        elif access:
            accesses.append(access)
        if index + 1 == loop_end:
            accesses[loop_at] = dataclasses.replace(accesses[loop_at], length=len(accesses) - loop_at - 1)
            fence = len(accesses)
    return accesses


def _access(instruction: Instruction, config: CoreConfig) -> Access | None:
    decode_only = instruction.decode_only
    if instruction.op == Op.GATHER:  # its strips come from other boards, not from memory
        return None
    if instruction.op == Op.MM:
        return Access(kind=AccessKind.WEIGHTS, decode_only=decode_only, count=weight_rows(instruction, config))
    if instruction.op == Op.EMB:
        return Access(
            kind=AccessKind.EMBED,
            decode_only=decode_only,
            operand=instruction.operand,
            count=instruction.strips,
            offset=instruction.src,
        )
    if instruction.op == Op.NEXT:
        return Access(kind=AccessKind.NEXT, decode_only=decode_only)
    kind = AccessKind.KEYS if instruction.op == Op.SC else AccessKind.VALUES
    return Access(kind=kind, decode_only=decode_only, head0=instruction.head0, heads=instruction.heads)
