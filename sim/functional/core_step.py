"""Executes the instructions of one position, one after the other (docs/core.md, sections 2 to 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BoardError
from hw.board.gpt2_map import Flags
from hw.gpt2.access import weight_rows
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path
from hw.gpt2.strips import addend_strips, operand_strips, result_strips
from hw.numerics.fixed_sum import fixed_sums
from hw.numerics.fp32_max import max_tree
from hw.numerics.norm_scalars import norm_scalars

from .attention import SCORE_HEADS, VALUE_HEADS
from .channel_memory import ChannelMemory
from .exchange import Best, BoardExchange, Sums, Waits
from .lane_pool import for_ranges
from .memory_writer import MemoryWriter
from .product import PRODUCT_LANES, Operands, decode_words
from .row_stream import RowStream

__all__ = ["CoreStep", "IllegalInstructionError"]

_T = TypeVar("_T")
_FP16_ONE = 0x3C00
_MAX_HEADS = 128


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
    registers : mapping
        Register values by name, sampled at start.
    stream, memory
        Rows of the run and the memory that they lie in.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction | None],
        registers: Mapping[str, int],
        config: CoreConfig,
        stream: RowStream,
        memory: ChannelMemory,
    ) -> None:
        c = config
        self._instructions = instructions
        self._registers = registers
        self._config = c
        self._stream = stream
        self._memory = memory
        self._writer = MemoryWriter(memory, registers, c)
        self._quads = memory.halves.view(np.uint64)
        self._quads_per_row = c.port_bytes // 8
        self._strips = np.zeros((c.strip_addresses, c.lanes), np.uint16)
        new_keys_end = c.new_value_base * c.lanes
        flat = self._strips.reshape(-1)
        self._words = flat[: c.act_words * c.tile].reshape(-1, c.tile)
        self._new_keys = flat[c.new_key_base * c.lanes : new_keys_end].reshape(-1, c.tile)
        self._new_values = flat[new_keys_end:].reshape(-1, c.lanes)
        self._accumulators = np.zeros((c.acc_depth, c.lanes), np.uint32)
        self._biases = np.zeros((c.param_depth, c.lanes), np.uint32)
        self._column_sums = np.zeros((c.param_depth, c.lanes), np.uint32)
        self._probabilities = np.zeros(c.prob_words * c.tile, np.uint16)
        self._inverse = np.zeros(_MAX_HEADS, np.uint32)
        self._norm = np.zeros((2, 2), np.uint32)
        self._awaited_sums: list[Sums | None] = [None, None]  # those that a scalar set will be computed from
        self._exchange: BoardExchange | None = None
        self.committed = 0
        self._position = 0
        self._token = 0
        self._best = Best()

    def join(self, exchange: BoardExchange) -> None:
        """Work with other boards from here on."""
        self._exchange = exchange
        exchange.strips = self._strips

    def run(self, position: int, token: int, prompt: bool) -> Waits[Best]:
        """Execute one position; the result is the best logit, of all boards.

        Yields only when the core has joined other boards. Raises IllegalInstructionError, or BoardError for sizes
        beyond the core's and orders of gathers that are illegal.
        """
        self._position, self._token, self._best = position, token, Best()
        self._stream.begin_step(position, token, prompt)
        index = 0
        while True:
            instruction = self._at(index)
            index += 1
            if instruction.decode_only and prompt:
                continue
            if instruction.op == Op.NEXT:
                return (yield from self._end_step(index - 1, prompt))
            if instruction.op != Op.LOOP:
                yield from self._execute(index - 1, instruction, 0)
                continue
            for layer in range(instruction.strips):
                for inner in range(index, index + instruction.words):
                    body = self._at(inner)
                    if not (body.decode_only and prompt):
                        yield from self._execute(inner, body, layer)
            index += instruction.words

    def _at(self, index: int) -> Instruction:
        instruction = self._instructions[index] if index < len(self._instructions) else None
        if instruction is None:
            raise IllegalInstructionError(index)
        return instruction

    def _end_step(self, index: int, prompt: bool) -> Waits[Best]:
        if self._exchange is not None:
            if not prompt:
                self._best = yield from _named(index, Op.NEXT, self._exchange.decide(self._best))
            yield from _named(index, Op.NEXT, self._exchange.end_step())
        return self._best

    def _execute(self, index: int, instruction: Instruction, layer: int) -> Waits[None]:
        try:
            if self._exchange is not None:
                yield from _named(index, instruction.op, self._synchronise(instruction, self._exchange))
            elif instruction.op == Op.GATHER or instruction.send:
                raise BoardError("needs other boards, but register ring_boards says that there are none")
            if instruction.op == Op.MM:
                self._product(instruction, layer)
            elif instruction.op == Op.EMB:
                self._embed(instruction, layer)
            elif instruction.op == Op.SC:
                self._scores(instruction)
            elif instruction.op == Op.AV:
                self._attend(instruction)
            elif instruction.op != Op.GATHER:
                raise BoardError(f"{instruction.op.name} stands in a loop")
            if self._exchange is not None and instruction.send:
                self._exchange.send(result_strips(instruction, self._registers))
        except BoardError as error:
            raise type(error)(f"instruction {index} at position {self._position}: {error}") from None

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
                self._set_scalars(instruction.norm, *(yield from exchange.totals(sums)))

    def _set_scalars(self, which: int, sum1: int, sum2: int, nan: bool) -> None:
        r = self._registers
        self._norm[which] = norm_scalars(sum1, sum2, r["width"], r["eps_term"], nan)
        self._awaited_sums[which] = None

    def _decode(self, halves: NDArray[np.uint16], take: NDArray[np.bool_]) -> Operands:
        exponents, values = np.empty(halves.shape, np.int16), np.empty(halves.shape, np.float32)
        masks, bad = np.empty(halves.shape, np.uint16), np.empty(halves.shape[0], np.bool_)
        decode_words(halves, take, exponents, values, masks, bad)
        return exponents, values, masks.view(np.uint64), bad

    def _words_at(self, src: int, words: int, period: int, tail: int) -> Operands:
        """Decoded activation words; of every ``period``-th only ``tail`` elements take part."""
        _need(1 <= tail <= self._config.tile, "tail", tail, f"1 to {self._config.tile}")
        _need(src + words <= self._config.act_words, "source words end at", src + words, self._config.act_words)
        take = np.ones((words, self._config.tile), np.bool_)
        take[period - 1 :: period, tail:] = False
        return self._decode(self._words[src : src + words], take)

    def _product(self, mm: Instruction, layer: int) -> None:
        _need(mm.words >= 1, "words", mm.words, "1 or more")
        self._accumulate(mm, layer, self._words_at(mm.src, mm.words, mm.words, mm.tail), weight_rows(mm, self._config))

    def _embed(self, emb: Instruction, layer: int) -> None:
        index = self._token if emb.operand == Operand.TOKEN else self._position
        take = np.arange(self._config.tile)[None] == index % self._config.tile
        one_hot = np.full((1, self._config.tile), _FP16_ONE, np.uint16)
        self._accumulate(emb, layer, self._decode(one_hot, take), emb.strips)

    def _accumulate(self, mm: Instruction, layer: int, operands: Operands, row_count: int) -> None:
        c = self._config
        _need(mm.group >= 1, "group", mm.group, "1 or more")
        open_strips = min(mm.group, mm.strips)
        _need(mm.acc + open_strips <= c.acc_depth, "accumulators end at", mm.acc + open_strips, c.acc_depth)
        rows = self._stream.take(row_count)
        logits = np.empty((mm.strips if mm.path == Path.LOGITS else 0, c.lanes), np.uint32)
        if mm.last and mm.path != Path.LOGITS:
            _need(mm.dst + mm.strips <= c.strip_addresses, "destination ends at", mm.dst + mm.strips, c.strip_addresses)

        def work(lanes: tuple[int, int]) -> None:
            PRODUCT_LANES[c.tile](
                self._quads,
                self._quads_per_row,
                rows,
                lanes,
                operands,
                (mm.acc, mm.strips, mm.group, mm.dst),
                (mm.first, mm.last, int(mm.params), int(mm.path)),
                c.guard_bits,
                self._norm[mm.norm],
                self._accumulators,
                self._biases,
                self._column_sums,
                self._strips,
                logits,
            )

        for_ranges(work, c.lanes, rows.size * c.lanes * c.tile)
        if mm.last:
            self._finish(mm, layer, logits)

    def _finish(self, mm: Instruction, layer: int, logits: NDArray[np.uint32]) -> None:
        r = self._registers
        if mm.path == Path.LOGITS:
            self._best.take(_best(logits.reshape(-1), mm.dst * self._config.lanes, r["vocab"], r["token_offset"]))
            if r["flags"] & Flags.WRITE_LOGITS:
                self._writer.write_logits(logits, mm.dst, self._position)
        elif mm.stats:
            vector = self._strips[mm.dst : mm.dst + mm.strips].reshape(-1)[: r["width"]]
            if mm.send and self._exchange is not None:
                self._awaited_sums[mm.stats_set] = self._exchange.contribute(fixed_sums(vector))
            else:
                self._set_scalars(mm.stats_set, *fixed_sums(vector))
        if mm.commit == Commit.KEYS:
            keys = r["heads"] * r["key_words"]
            _need(keys <= self._config.new_key_words, "new key words", keys, self._config.new_key_words)
            self._writer.write_keys(self._new_keys, layer, self._position)
        elif mm.commit == Commit.VALUES:
            values = r["heads"] * r["value_strips"]
            _need(values <= self._config.new_value_strips, "new value strips", values, self._config.new_value_strips)
            self._writer.write_values(self._new_values, layer, self._position)
            self.committed += 1

    def _scores(self, sc: Instruction) -> None:
        c, key_words = self._config, self._registers["key_words"]
        groups = self._position // c.lanes + 1
        self._check_heads(sc)
        end = (sc.head0 + sc.heads) * key_words
        _need(key_words >= 1 and end <= c.new_key_words, "new key words end at", end, c.new_key_words)
        operands = self._words_at(sc.src, sc.heads * key_words, key_words, sc.tail)
        rows = self._stream.take(sc.heads * groups * key_words).reshape(sc.heads, groups, key_words)
        probabilities = self._probabilities[sc.prob * c.tile :]

        def work(heads: tuple[int, int]) -> None:
            SCORE_HEADS[c.tile](
                self._quads,
                self._quads_per_row,
                rows,
                heads,
                sc.head0,
                self._position,
                operands,
                self._new_keys.view(np.uint64),
                np.uint32(self._registers["score_scale"]),
                c.guard_bits,
                c.lanes,
                probabilities,
                sc.prob_stride * c.tile,
                self._inverse,
            )

        for_ranges(work, sc.heads, rows.size * c.lanes * c.tile)

    def _attend(self, av: Instruction) -> None:
        c, strips = self._config, self._registers["value_strips"]
        blocks = self._position // c.tile + 1
        self._check_heads(av)
        end = (av.head0 + av.heads) * strips
        _need(strips >= 1 and end <= c.new_value_strips, "new value strips end at", end, c.new_value_strips)
        dst_end = av.dst + av.heads * strips
        _need(dst_end <= c.new_key_base, "destination ends at", dst_end, c.new_key_base)
        rows = self._stream.take(av.heads * blocks * strips).reshape(av.heads, blocks, strips)

        def work(heads: tuple[int, int]) -> None:
            VALUE_HEADS[c.tile](
                self._quads,
                self._quads_per_row,
                rows,
                heads,
                av.head0,
                self._position,
                self._probabilities[av.prob * c.tile :],
                av.prob_stride * c.tile,
                self._inverse,
                self._new_values,
                c.guard_bits,
                self._strips[av.dst : dst_end],
            )

        for_ranges(work, av.heads, rows.size * c.lanes * c.tile)

    def _check_heads(self, at: Instruction) -> None:
        blocks = self._position // self._config.tile + 1
        end = at.prob + (at.heads - 1) * at.prob_stride + blocks
        _need(at.heads >= 1 and end <= self._config.prob_words, "probabilities end at", end, self._config.prob_words)
        _need(at.head0 + at.heads <= _MAX_HEADS, "heads end at", at.head0 + at.heads, _MAX_HEADS)


def _best(values: NDArray[np.uint32], first_column: int, vocab: int, token_offset: int) -> Best:
    """Best of some logits: fp32 bit patterns of this board's columns ``first_column`` and on."""
    valid = np.arange(first_column, first_column + values.size) < vocab
    value, index, found, nan = max_tree(values, valid)
    return Best(token_offset + first_column + int(index), bool(nan), bool(found), int(value))


def _named(index: int, op: Op, work: Waits[_T]) -> Waits[_T]:
    """Name the instruction in what ``work`` waits for."""
    try:
        while True:
            yield f"instruction {index} ({op.name}) waits for {next(work)}"
    except StopIteration as end:
        result: _T = end.value
        return result


def _need(holds: bool, what: str, value: int, limit: object) -> None:
    if not holds:
        raise BoardError(f"{what} {value}, this core has {limit}; see hw.gpt2.legality.check_program")
