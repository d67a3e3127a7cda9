"""A program in words: memory map, instructions with what each streams, bytes and ideal cycles of a token."""

from __future__ import annotations

import dataclasses

from host.planner.partition import KINDS
from host.planner.plan import Plan
from hw.board.program import Program
from hw.gpt2.access import weight_rows
from hw.gpt2.isa import Access, Commit, Instruction, Op, Operand, Params, Path

__all__ = ["explain", "ideal_cycles", "ring_summary", "summary"]


def ideal_cycles(program: Program, positions: int, *, decode: bool = True, requests: int = 1) -> int:
    """Rows that one step streams with `positions` attended positions, itself included: one a cycle at best.

    The step is that of one token, or, on a core with rows, of a batch of so many `requests` with `positions` each.
    """
    return sum(rows for _, _, rows in _streamed(program, positions, decode, requests))


def summary(program: Program) -> dict[str, object]:
    """Figures of a program for ``--json``; bytes are those of one board."""
    core, registers = program.core, program.registers
    row_bytes = core.port_bytes * core.channels
    context = registers["context_limit"]
    position_rows = registers["heads"] * (registers["key_words"] / core.lanes + registers["value_strips"] / core.tile)
    kinds: dict[str, int] = {}
    for region in program.regions:
        kinds[region.name] = kinds.get(region.name, 0) + region.bytes
    cycles = {str(n): ideal_cycles(program, n) for n in _contexts(context)}
    batch = {str(n): ideal_cycles(program, n, requests=core.rows) for n in _contexts(context)}
    return {
        "core": core.name,
        "rows": core.rows,
        "weight_format": core.weights,
        "core_digest": core.digest,
        "model_digest": program.model_digest,
        "model": program.notes.get("model"),
        "context": context,
        "instructions": len(program.instructions),
        "descriptors": len(program.descriptors),
        "region_bytes": kinds,
        "weight_bytes_per_token": _weight_rows(program) * row_bytes,
        "kv_bytes_per_position": int(registers["layers"] * position_rows * row_bytes),
        "ideal_decode_cycles": cycles,
        "ideal_ms_at_core_clock": {n: round(c / core.core_clock_mhz / 1e3, 6) for n, c in cycles.items()},
        **({"ideal_batch_step_cycles": batch} if core.rows > 1 else {}),
        "cycles_source": "ideal: one memory row a cycle, no stalls",
    }


def ring_summary(plan: Plan) -> dict[str, object]:
    """Figures of a ring as a whole for ``--json``."""
    return {
        "boards": plan.partition.boards,
        "ring_key": f"{plan.key:016x}",
        "slices": {kind: list(getattr(plan.partition, kind)) for kind in KINDS},
        "decode_step": dataclasses.asdict(plan.estimate),
    }


def explain(program: Program) -> str:
    """The map for people: regions, registers, instruction and access listing, bytes and ideal cycles."""
    core = program.core
    facts = summary(program)
    lines = [
        *([f"board {program.board} of {program.boards}: {_slices_line(program)}"] if program.boards > 1 else []),
        f"core {core.name}: {_rows_text(core.rows, 'rows x ')}{core.lanes} lanes x {core.tile} products, "
        f"{core.channels} channels x {core.port_bits} bit, weights {core.weights}",
        f"model {_model_line(program)}",
        f"cache {facts['context']} positions{_rows_text(core.rows, 'requests', ' of each of ')}, "
        f"{facts['kv_bytes_per_position']:,} bytes of keys and values a position",
        "",
        *_memory_map(program),
        "",
        *_instruction_listing(program),
        "",
        *_access_listing(program),
        "",
        f"{facts['weight_bytes_per_token']:,} bytes of weights a token",
        "ideal cycles of a decode step (a row a cycle, no stalls):",
    ]
    context = program.registers["context_limit"]
    for positions in _contexts(context):
        cycles = ideal_cycles(program, positions)
        lines.append(
            f"  {positions:>6,} positions attended: {cycles:>12,} cycles, "
            f"{cycles / core.core_clock_mhz / 1e3:.3f} ms at {core.core_clock_mhz} MHz"
        )
    if core.rows > 1:
        lines.append(f"ideal cycles of a step of a batch of {core.rows} requests:")
        for positions in _contexts(context):
            cycles = ideal_cycles(program, positions, requests=core.rows)
            lines.append(
                f"  {positions:>6,} positions attended by each: {cycles:>12,} cycles, "
                f"{cycles / core.core_clock_mhz / 1e3:.3f} ms at {core.core_clock_mhz} MHz"
            )
    return "\n".join(lines) + "\n"


def _rows_text(rows: int, what: str, before: str = "") -> str:
    """So many rows, or nothing for one."""
    return f"{before}{rows} {what}" if rows > 1 else ""


def _model_line(program: Program) -> str:
    model = program.notes.get("model")
    text = f"sha256 {program.model_digest[:16]}"
    if isinstance(model, dict):
        text = (
            f"{model['n_layer']} layers, width {model['n_embd']}, {model['n_head']} heads, inner {model['n_inner']}, "
            f"vocabulary {model['vocab_size']:,}; {text}"
        )
    return text


def _slices_line(program: Program) -> str:
    slices = program.notes.get("slices")
    if not isinstance(slices, dict):
        return "slices unknown"
    ends = {kind: f"{part['first']:,} to {part['first'] + part['count'] - 1:,}" for kind, part in slices.items()}
    return (
        f"heads {ends['heads']}; columns {ends['x']} of x, {ends['inner']} of the feed-forward vector, "
        f"{ends['vocabulary']} of the logits"
    )


def _memory_map(program: Program) -> list[str]:
    core = program.core
    lines = [
        "memory, the same in every channel (bytes of one channel; rows of all channels):",
        f"  {'region':<20}{'first byte':>14}{'bytes':>14}{'rows':>12}",
    ]
    for region in program.regions:
        if region.channel == 0:
            rows = region.bytes // core.port_bytes
            lines.append(f"  {region.name:<20}{region.offset:>#14x}{region.bytes:>14,}{rows:>12,}")
    used = max(region.offset + region.bytes for region in program.regions)
    lines.append(f"  {'in all':<20}{'':>14}{used:>14,}{-(-used // core.port_bytes):>12,}")
    return lines


def _instruction_listing(program: Program) -> list[str]:
    positions = program.registers["context_limit"]
    rows = _streamed(program, positions, decode=True)
    total = sum(count for _, _, count in rows)
    names = program.notes.get("instruction_names")
    lines = [f"instructions; rows streamed a token, and their share of a step with the cache full ({positions:,}):"]
    for (index, instruction, count), name in zip(rows, _names(names, len(rows)), strict=True):
        share = f"{100 * count / total:5.1f} %" if count else "       "
        lines.append(f"  {index:>3} {count:>10,} {share}  {name or _effect(instruction)}")
        lines.append(f"      {instruction.text()}")
    return lines


def _names(names: object, count: int) -> list[str]:
    return [str(name) for name in names] if isinstance(names, list | tuple) and len(names) == count else [""] * count


def _access_listing(program: Program) -> list[str]:
    lines = ["access program (memory rows, ahead of the instructions):"]
    lines += [f"  {index:>3} {Access.decode(word).text()}" for index, word in enumerate(program.descriptors)]
    return lines


def _contexts(context: int) -> list[int]:
    return sorted({n for n in (1, 128, 1000, context) if n <= context})


def _weight_rows(program: Program) -> int:
    return sum(
        count for _, instruction, count in _streamed(program, 1, decode=True) if instruction.op in (Op.MM, Op.EMB)
    )


def _streamed(program: Program, positions: int, decode: bool, requests: int = 1) -> list[tuple[int, Instruction, int]]:
    """(index, instruction, rows streamed a step) of every instruction; each request attends to `positions`."""
    core, registers = program.core, program.registers
    found, times, left = [], 1, 0
    for index, word in enumerate(program.instructions):
        instruction = Instruction.decode(word)
        rows = 0
        if decode or not instruction.decode_only:
            if instruction.op == Op.MM:
                rows = weight_rows(instruction, core)
            elif instruction.op == Op.EMB:
                rows = requests * instruction.strips
            elif instruction.op == Op.SC:
                rows = requests * instruction.heads * -(-positions // core.lanes) * registers["key_words"]
            elif instruction.op == Op.AV:
                rows = requests * instruction.heads * -(-positions // core.tile) * registers["value_strips"]
        found.append((index, instruction, rows * (times if left else 1)))
        left = max(0, left - 1)
        if instruction.op == Op.LOOP:
            times, left = instruction.strips, instruction.words
    return found


def _effect(instruction: Instruction) -> str:
    """What an instruction does, for a program without names."""
    if instruction.op == Op.EMB:
        return f"{Operand(instruction.operand).name.lower()} embedding"
    if instruction.op == Op.MM:
        parts = [f"product to {Path(instruction.path).name.lower()}"]
        if instruction.params:
            parts.append(f"parameters {Params(instruction.params).name.lower()}")
        if instruction.commit:
            parts.append(f"commits {Commit(instruction.commit).name.lower()}")
        return ", ".join(parts)
    return {
        Op.SC: "scores, softmax",
        Op.AV: "probabilities x values",
        Op.LOOP: "loop over the layers",
        Op.GATHER: "strips of other boards announced",
    }.get(instruction.op, "next position")
