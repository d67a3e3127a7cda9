"""Executes the instructions of one step, one after the other, each for all rows that it concerns.

docs/core.md says what an instruction does, docs/rows.md, section 3, for which rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from hw.board.board_model import BoardError
from hw.gpt2.access import weight_rows
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path
from hw.gpt2.strips import addend_strips, operand_strips, result_strips

from .channel_memory import ChannelMemory
from .exchange import Best, BoardExchange, Sums, Waits
from .requests import RowWork, StepWork
from .row_core import RowCore
from .row_stream import RowStream

__all__ = ["CoreStep", "IllegalInstructionError"]

_T = TypeVar("_T")


class IllegalInstructionError(Exception):
    """The core met a word that is no instruction; ``index`` is its place."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class CoreStep:
    """State of the core during a run, and the instructions on it.

    Parameters
    ----------
    instructions : sequence of Instruction or None
        None where the instruction memory holds no legal word.
    registers : sequence of mapping
        For each row, its register values by name, sampled at start: in a sequence all are row 0's.
    stream, memory
        Rows of the run and the memory that they lie in.

    ``committed`` counts layer instances of steps whose keys and values are in memory.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction | None],
        registers: Sequence[Mapping[str, int]],
        config: CoreConfig,
        stream: RowStream,
        memory: ChannelMemory,
    ) -> None:
        self._instructions = instructions
        self._registers = registers[0]
        self._config = config
        self._stream = stream
        self._rows = [RowCore(own, config, memory) for own in registers]
        self._awaited_sums: list[Sums | None] = [None, None]  # those that a scalar set will be computed from
        self._exchange: BoardExchange | None = None
        self.committed = 0
        self._step = StepWork((), prompt=False, batch=False)

    @property
    def tiles(self) -> int:
        """Rows taken from the stream so far."""
        return self._stream.rows_taken

    def join(self, exchange: BoardExchange) -> None:
        """Work with other boards from here on."""
        self._exchange = exchange
        exchange.strips = self._rows[0].strips

    def run(self, step: StepWork) -> Waits[dict[int, Best]]:
        """Execute one step; the result is the best logit, of all boards, of each row that is active.

        Yields only when the core has joined other boards. Raises IllegalInstructionError, or BoardError for sizes
        beyond the core's and orders of gathers that are illegal.
        """
        self._step = step
        for work in step.rows:
            self._rows[work.row].begin(work)
        self._stream.begin_step(step)
        index = 0
        while True:
            instruction = self._at(index)
            index += 1
            if instruction.decode_only and step.prompt:
                continue
            if instruction.op == Op.NEXT:
                return (yield from self._end_step(index - 1))
            if instruction.op != Op.LOOP:
                yield from self._execute(index - 1, instruction, 0)
                continue
            for layer in range(instruction.strips):
                for inner in range(index, index + instruction.words):
                    body = self._at(inner)
                    if not (body.decode_only and step.prompt):
                        yield from self._execute(inner, body, layer)
            index += instruction.words

    def _at(self, index: int) -> Instruction:
        instruction = self._instructions[index] if index < len(self._instructions) else None
        if instruction is None:
            raise IllegalInstructionError(index)
        return instruction

    def _end_step(self, index: int) -> Waits[dict[int, Best]]:
        best = {work.row: self._rows[work.row].decided() for work in self._step.rows}
        if self._exchange is not None:
            if not self._step.prompt:
                best[0] = yield from _named(index, Op.NEXT, self._exchange.decide(best[0]))
            yield from _named(index, Op.NEXT, self._exchange.end_step())
        return best

    def _execute(self, index: int, instruction: Instruction, layer: int) -> Waits[None]:
        try:
            if self._exchange is not None:
                yield from _named(index, instruction.op, self._synchronise(instruction, self._exchange))
            elif instruction.op == Op.GATHER or instruction.send:
                raise BoardError("needs other boards, but register ring_boards says that there are none")
            if instruction.op == Op.MM:
                self._product(instruction, layer)
            elif instruction.op == Op.EMB:
                self._embed(instruction)
            elif instruction.op in (Op.SC, Op.AV):
                self._attention(instruction)
            elif instruction.op != Op.GATHER:
                raise BoardError(f"{instruction.op.name} stands in a loop")
            if self._exchange is not None and instruction.send:
                self._exchange.send(result_strips(instruction, self._registers))
        except BoardError as error:
            raise type(error)(f"instruction {index} at {self._step.text()}: {error}") from None

    def _synchronise(self, instruction: Instruction, exchange: BoardExchange) -> Waits[None]:
        """Wait until all that an instruction uses has come from the other boards."""
        exchange.begin()
        if instruction.op == Op.GATHER:
            exchange.gather(instruction)
            return
        for strips in operand_strips(instruction, self._registers, self._config):
            yield from exchange.access(strips)
        yield from exchange.access(addend_strips(instruction))
        yield from exchange.access(result_strips(instruction, self._registers))
        if instruction.op == Op.MM and instruction.last and instruction.params == Params.NORM:
            sums = self._awaited_sums[instruction.norm]
            if sums is not None:
                self._rows[0].set_scalars(instruction.norm, *(yield from exchange.totals(sums)))
                self._awaited_sums[instruction.norm] = None

    def _product(self, mm: Instruction, layer: int) -> None:
        """One pass over the weights for all rows."""
        rows = self._stream.take(weight_rows(mm, self._config))
        for work in self._step.rows:
            self._rows[work.row].product(mm, rows)
            self._statistics(mm, self._rows[work.row])
        if mm.last and mm.commit in (Commit.KEYS, Commit.VALUES):
            for work in self._step.rows:
                self._rows[work.row].commit(mm.commit, layer)
            self.committed += mm.commit == Commit.VALUES

    def _embed(self, emb: Instruction) -> None:
        """Positions of a sequence lie in one block of the table; tokens, and positions of a batch, do not."""
        shared = emb.operand == Operand.POSITION and not self._step.batch
        for works in self._shares(shared):
            rows = self._stream.take(emb.strips)
            for work in works:
                self._rows[work.row].embed(emb, rows)
                self._statistics(emb, self._rows[work.row])

    def _attention(self, instruction: Instruction) -> None:
        """The rows of a sequence attend to the same memory, those of a batch each to its own."""
        r, c = self._registers, self._config
        for works in self._shares(not self._step.batch):
            position = works[-1].position
            if instruction.op == Op.SC:
                rows = self._stream.take(instruction.heads * (position // c.lanes + 1) * r["key_words"])
                for work in works:
                    self._rows[work.row].scores(instruction, rows)
            else:
                rows = self._stream.take(instruction.heads * (position // c.tile + 1) * r["value_strips"])
                for work in works:
                    self._rows[work.row].attend(instruction, rows)

    def _shares(self, shared: bool) -> list[tuple[RowWork, ...]]:
        """Rows that work on the same memory rows together: all, or each by itself, one after the other."""
        return [self._step.rows] if shared else [(work,) for work in self._step.rows]

    def _statistics(self, mm: Instruction, row: RowCore) -> None:
        if not (mm.last and mm.stats) or mm.path == Path.LOGITS:
            return
        sums = row.sums(mm)
        if mm.send and self._exchange is not None:
            self._awaited_sums[mm.stats_set] = self._exchange.contribute(sums)
        else:
            row.set_scalars(mm.stats_set, *sums)
            self._awaited_sums[mm.stats_set] = None


def _named(index: int, op: Op, work: Waits[_T]) -> Waits[_T]:
    """Name the instruction in what ``work`` waits for."""
    try:
        while True:
            yield f"instruction {index} ({op.name}) waits for {next(work)}"
    except StopIteration as end:
        result: _T = end.value
        return result
