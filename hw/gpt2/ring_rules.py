"""Rules 7 to 10 of docs/ring.md, section 3: what a board's program may do with strips of other boards."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hw.board.gpt2_map import MAX_BOARDS
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, Op, Params, Path
from hw.gpt2.strips import addend_strips, operand_strips, result_strips

__all__ = ["RingState", "instruction_violations", "ring_violations"]


Violation = tuple[int | None, str, str]
"""Instruction or None for the whole program, rule, what is wrong."""


def ring_violations(
    instructions: Sequence[Instruction],
    order: Sequence[int],
    loops: Mapping[int, int],
    registers: Mapping[str, int],
    config: CoreConfig,
) -> Iterator[Violation]:
    """Everything that breaks rules 7 to 10.

    Parameters
    ----------
    order : sequence of int
        Instructions of one step as they are executed, loops at least twice.
    loops : mapping
        Index of its LOOP for every instruction in one.
    """
    boards, board = registers.get("ring_boards", 0), registers.get("ring_board", 0)
    if boards <= 1:
        for index, instruction in enumerate(instructions):
            if instruction.send or instruction.op == Op.GATHER:
                yield index, "rule 7", f"needs other boards, register ring_boards is {boards}"
        return
    if not config.has_ring:
        yield None, "rule 7", f"register ring_boards is {boards}, core {config.name} has no ring"
        return
    if boards > MAX_BOARDS or board >= boards:
        yield None, "rule 7", f"board {board} of {boards}: a ring has up to {MAX_BOARDS} boards, numbered from 0"
    for index, _ in enumerate(instructions):
        yield from instruction_violations(instructions, index, loops, registers, config)
    state = RingState(registers, config)
    for prompt in (True, True, False, False):  # so that each kind of step follows each that it can follow
        for index in order:
            instruction = instructions[index]
            if not (prompt and instruction.decode_only):
                yield from ((index, rule, text) for rule, text in state.execute(instruction))
        yield from ((None, rule, text) for rule, text in state.end_step())


def instruction_violations(
    instructions: Sequence[Instruction],
    index: int,
    loops: Mapping[int, int],
    registers: Mapping[str, int],
    config: CoreConfig,
) -> Iterator[Violation]:
    """What is wrong with a GATHER or a ``send`` by itself."""
    i = instructions[index]
    if i.op == Op.GATHER:
        end = i.dst + i.strips
        if not (i.words >= 1 and i.src + i.words <= i.strips and i.words < i.strips):
            yield (
                index,
                "rule 8",
                f"own strips {i.src} to {i.src + i.words - 1} must be within 0 to {i.strips - 1}, not all of them",
            )
        if end > config.new_key_base or i.dst % config.strips_per_word:
            yield (
                index,
                "rule 8",
                f"strips {i.dst} to {end - 1} must begin at a whole word and end before {config.new_key_base}",
            )
        behind = instructions[index + 1] if index + 1 < len(instructions) else None
        same = behind is not None and loops.get(index) == loops.get(index + 1)
        if i.decode_only or not same or behind.op in (Op.GATHER, Op.LOOP, Op.NEXT) or behind.decode_only:
            yield (
                index,
                "rule 8",
                "needs an MM, EMB, SC or AV behind it in the same loop, and neither may be decode_only",
            )
    elif i.send:
        product = i.op == Op.MM and i.last and i.path != Path.LOGITS and i.commit == Commit.NONE
        if not (product or i.op == Op.AV) or i.decode_only:
            yield index, "rule 9", "send belongs to AV or to an MM with last that writes activation strips in all steps"
        elif i.op == Op.MM and i.stats and i.path not in (Path.RESIDUAL, Path.PLAIN):
            yield index, "rule 9", f"stats with send need path RESIDUAL or PLAIN, not {Path(i.path).name}"


@dataclasses.dataclass
class _Gather:
    """A GATHER that was executed: its vector, own strips, how many of them were sent, strips of others not yet read."""

    instruction: Instruction
    unread: set[int]
    sent: int = 0
    sums: bool = False

    @property
    def strips(self) -> range:
        return range(self.instruction.dst, self.instruction.dst + self.instruction.strips)

    @property
    def own(self) -> range:
        start = self.instruction.dst + self.instruction.src
        return range(start, start + self.instruction.words)

    @property
    def complete(self) -> bool:
        return self.sent >= len(self.own)

    def announces(self) -> tuple[int, int, int, int]:
        i = self.instruction
        return i.dst, i.strips, i.src, i.words


class RingState:
    """Follows one board's gathers through its steps; ``execute`` yields what it finds wrong as (rule, text)."""

    def __init__(self, registers: Mapping[str, int], config: CoreConfig) -> None:
        self._registers = defaultdict(int, registers)
        self._config = config
        self._now: _Gather | None = None  # the latest
        self._before: _Gather | None = None  # the one before it
        self._vectors: dict[int, tuple[int, int, int, int]] = {}  # by strip: what was announced there
        self._announced: set[int] = set()  # strips of vectors that were gathered in this step
        self._left: set[int] = set()  # strips of the step before's last gather that nothing has read or written anew
        self._late: set[int] = set()  # strips used since the latest gather's own slice is complete
        self._met = False  # every other board has sent something in this step that was read
        self._sums: int | None = None  # scalar set whose sums nothing has waited for

    def execute(self, instruction: Instruction) -> Iterator[tuple[str, str]]:
        """Everything that is wrong about an instruction at this point."""
        if instruction.op in (Op.LOOP, Op.NEXT):
            return
        if instruction.op == Op.GATHER:
            yield from self._gather(instruction)
            return
        for strips in operand_strips(instruction, self._registers, self._config):
            yield from self._read(strips)
        uses_norm = instruction.op == Op.MM and instruction.last and instruction.params == Params.NORM
        if (uses_norm and instruction.norm == self._sums) or instruction.stats:
            self._sums = None
        results = result_strips(instruction, self._registers)
        if instruction.send:
            yield from self._send(instruction, results)
        else:
            self._late.update(addend_strips(instruction))
            self._late.update(results)
            self._left.difference_update(results)
            if not self._announced.isdisjoint(results):
                yield "rule 8", f"writes strips {results.start} to {results.stop - 1} of a gathered vector without send"
        if instruction.commit == Commit.TOKEN and not self._met:
            yield "rule 10", "commit TOKEN before every strip of one gather of this step was read"

    def end_step(self) -> Iterator[tuple[str, str]]:
        """What is wrong at NEXT, which waits for all sums."""
        if self._now is not None:
            yield from self._incomplete(self._now)
            self._left |= self._now.unread
            self._now.unread.clear()
        self._announced.clear()
        self._met = False
        self._sums = None

    def _incomplete(self, gather: _Gather) -> Iterator[tuple[str, str]]:
        if not gather.complete:
            missing = gather.own[gather.sent :]
            yield "rule 8", f"own strips {missing[0]} to {missing[-1]} of the gather before were not sent"
            gather.sent = len(gather.own)

    def _gather(self, instruction: Instruction) -> Iterator[tuple[str, str]]:
        gather = _Gather(instruction, set())
        gather.unread = set(gather.strips) - set(gather.own)
        if self._left:
            yield (
                "rule 10",
                f"strips {min(self._left)} to {max(self._left)} of the step before's last gather were not read in it, "
                "nor read or written anew before this GATHER: they may still be coming",
            )
            self._left.clear()
        if self._now is not None:
            yield from self._incomplete(self._now)
            if not set(self._now.strips).isdisjoint(gather.strips):
                yield "rule 10", f"strips {gather.strips.start} and on were also those of the gather before"
            elif late := self._late & gather.unread:
                yield (
                    "rule 10",
                    f"strips {min(late)} to {max(late)} of other boards were used after the own slice of the gather "
                    "before was sent: they may have been overwritten",
                )
        others = {self._vectors.get(strip, gather.announces()) for strip in gather.strips} - {gather.announces()}
        if others:
            dst, strips, src, words = min(others)
            yield (
                "rule 8",
                f"overlaps the vector of strips {dst} to {dst + strips - 1}, own {src} to {src + words - 1}; "
                "the same strips must always be gathered alike",
            )
        self._vectors |= dict.fromkeys(gather.strips, gather.announces())
        self._announced.update(gather.strips)
        self._before, self._now = self._now, gather

    def _read(self, strips: Iterable[int]) -> Iterator[tuple[str, str]]:
        self._late.update(strips)
        self._left.difference_update(strips)
        now = self._now
        if now is not None and not now.complete and not now.unread.isdisjoint(strips):
            foreign = sorted(now.unread.intersection(strips))
            yield (
                "rule 8",
                f"reads strips {foreign[0]} to {foreign[-1]} of other boards before the own slice is sent: "
                "all boards would wait for each other",
            )
        for gather in (self._before, now):
            if gather is not None and gather.unread:
                gather.unread.difference_update(strips)
                self._met |= not gather.unread

    def _send(self, instruction: Instruction, results: range) -> Iterator[tuple[str, str]]:
        now = self._now
        where = f"strips {results.start} to {results.stop - 1}"
        if now is None or now.complete or results.start != now.own.start + now.sent or results.stop > now.own.stop:
            left = f"{now.own.start + now.sent} to {now.own.stop - 1}" if now and not now.complete else "none"
            yield "rule 9", f"sends {where}; own strips of the latest gather that come next: {left}"
            return
        if now.sent == 0 and self._before is not None and self._before.unread:
            unread = self._before.unread
            yield (
                "rule 10",
                f"sends {where} before it has read strips {min(unread)} to {max(unread)} of the gather before",
            )
            self._before.unread.clear()
        if instruction.stats:
            yield from self._sends_sums(instruction, now)
        now.sent += len(results)
        if now.complete:
            self._late.clear()
            if self._sums is not None and not now.sums:
                yield "rule 10", f"nothing has used scalar set {self._sums}, whose sums the gather before exchanged"
                self._sums = None

    def _sends_sums(self, instruction: Instruction, now: _Gather) -> Iterator[tuple[str, str]]:
        width, columns = self._registers["width"], len(now.strips) * self._config.lanes
        if now.sent or instruction.strips != len(now.own) or width != columns:
            yield (
                "rule 9",
                f"stats with send need the whole own slice ({len(now.own)} strips) in one product and a vector of "
                f"width {width}; it has {columns} columns",
            )
        if self._before is not None and self._before.sums:
            yield "rule 10", "the gather before exchanges sums too: they could be taken for these"
        now.sums = True
        self._sums = instruction.stats_set
