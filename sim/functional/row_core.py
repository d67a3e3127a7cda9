"""One row of the core: its memories, and what MM, EMB, SC and AV do to them (docs/core.md, sections 3 to 6)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hw.board.board_model import BoardError
from hw.board.gpt2_map import Flags
from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Path
from hw.numerics.fixed_sum import fixed_sums
from hw.numerics.norm_scalars import norm_scalars

from .attention import SCORE_HEADS, VALUE_HEADS
from .channel_memory import ChannelMemory
from .exchange import Best
from .lane_pool import for_ranges
from .memory_writer import MemoryWriter
from .product import PRODUCT_LANES, Operands, decode_words
from .product_int8 import INT8_PRODUCT_LANES
from .requests import RowWork
from .row_choice import RowChoice

__all__ = ["RowCore"]

_FP16_ONE = 0x3C00
_MAX_HEADS = 128


class RowCore:
    """State of one row during a run, and the operations on it.

    Parameters
    ----------
    registers : mapping
        Register values by name, sampled at start; bases are those of the row's keys, values and logits.
    memory : ChannelMemory

    ``strips`` (strip addresses, lanes) is its memory of strips. Each operation gets the memory rows that it streams,
    in order, and raises BoardError for sizes beyond the core's.
    """

    def __init__(self, registers: Mapping[str, int], config: CoreConfig, memory: ChannelMemory) -> None:
        c = config
        self._registers = registers
        self._config = c
        self._writer = MemoryWriter(memory, registers, c)
        self._quads = memory.halves.view(np.uint64)
        self._quads_per_row = c.port_bytes // 8
        self.strips = np.zeros((c.strip_addresses, c.lanes), np.uint16)
        new_keys_end = c.new_value_base * c.lanes
        flat = self.strips.reshape(-1)
        self._words = flat[: c.act_words * c.tile].reshape(-1, c.tile)
        self._new_keys = flat[c.new_key_base * c.lanes : new_keys_end].reshape(-1, c.tile)
        self._new_values = flat[new_keys_end:].reshape(-1, c.lanes)
        self._accumulators = np.zeros((c.acc_depth, c.lanes), np.uint32)
        self._biases = np.zeros((c.param_depth, c.lanes), np.uint32)
        self._column_sums = np.zeros((c.param_depth, c.lanes), np.uint32)
        self._scales = np.zeros((c.param_depth, c.lanes), np.uint32)  # of int8 weights
        self._probabilities = np.zeros(c.prob_words * c.tile, np.uint16)
        self._inverse = np.zeros(_MAX_HEADS, np.uint32)
        self._norm = np.zeros((2, 2), np.uint32)
        self._work = RowWork(0, 0, 0, False)
        self._choice = RowChoice(registers)

    def begin(self, work: RowWork) -> None:
        """Take the next position."""
        self._work = work
        self._choice.begin()

    def decided(self) -> Best:
        """What the logits of the step decide."""
        return self._choice.decided(self._work.position)

    def set_scalars(self, which: int, sum1: int, sum2: int, nan: bool) -> None:
        """Compute LayerNorm's scalars of a set from the sums of a whole vector."""
        r = self._registers
        self._norm[which] = norm_scalars(sum1, sum2, r["width"], r["eps_term"], nan)

    def sums(self, mm: Instruction) -> tuple[int, int, bool]:
        """Sum of x, sum of x^2, NaN seen; of a product's results that count in the statistics."""
        vector = self.strips[mm.dst : mm.dst + mm.strips].reshape(-1)[: self._registers["width"]]
        sum1, sum2, nan = fixed_sums(vector)
        return sum1, sum2, nan

    def product(self, mm: Instruction, rows: NDArray[np.int64]) -> None:
        """MM."""
        _need(mm.words >= 1, "words", mm.words, "1 or more")
        if mm.path == Path.LOGITS and not self._work.decides:
            return  # nothing reads what it would leave in the accumulators
        self._accumulate(mm, self._words_at(mm.src, mm.words, mm.words, mm.tail), rows)

    def embed(self, emb: Instruction, rows: NDArray[np.int64]) -> None:
        """EMB."""
        index = self._work.token if emb.operand == Operand.TOKEN else self._work.position
        take = np.arange(self._config.tile)[None] == index % self._config.tile
        one_hot = np.full((1, self._config.tile), _FP16_ONE, np.uint16)
        self._accumulate(emb, self._decode(one_hot, take), rows)

    def commit(self, kind: int, layer: int) -> None:
        """Write the new keys or values of a layer to memory."""
        r, c, position = self._registers, self._config, self._work.position
        if kind == Commit.KEYS:
            keys = r["heads"] * r["key_words"]
            _need(keys <= c.new_key_words, "new key words", keys, c.new_key_words)
            self._writer.write_keys(self._new_keys, layer, position)
        else:
            values = r["heads"] * r["value_strips"]
            _need(values <= c.new_value_strips, "new value strips", values, c.new_value_strips)
            self._writer.write_values(self._new_values, layer, position)

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

    def _accumulate(self, mm: Instruction, operands: Operands, rows: NDArray[np.int64]) -> None:
        c = self._config
        _need(mm.group >= 1, "group", mm.group, "1 or more")
        open_strips = min(mm.group, mm.strips)
        _need(mm.acc + open_strips <= c.acc_depth, "accumulators end at", mm.acc + open_strips, c.acc_depth)
        logits = np.empty((mm.strips if mm.path == Path.LOGITS else 0, c.lanes), np.uint32)
        if mm.last and mm.path != Path.LOGITS:
            _need(mm.dst + mm.strips <= c.strip_addresses, "destination ends at", mm.dst + mm.strips, c.strip_addresses)

        int8 = mm.op == Op.MM and c.has_int8
        if int8:
            for what in ("strips", "group", "acc", *(("dst",) if mm.last else ())):
                _need(getattr(mm, what) % 2 == 0, what, getattr(mm, what), "int8 weights, two strips a row: even")
        kernel = (INT8_PRODUCT_LANES if int8 else PRODUCT_LANES)[c.tile]

        def work(lanes: tuple[int, int]) -> None:
            kernel(
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
                *((self._scales,) if int8 else ()),
                self._biases,
                self._column_sums,
                self.strips,
                logits,
            )

        for_ranges(work, c.lanes, rows.size * c.lanes * c.tile)
        if mm.last and mm.path == Path.LOGITS:
            self._take_logits(mm, logits)

    def _take_logits(self, mm: Instruction, logits: NDArray[np.uint32]) -> None:
        r = self._registers
        self._choice.take(logits.reshape(-1), mm.dst * self._config.lanes)
        if r["flags"] & Flags.WRITE_LOGITS:
            self._writer.write_logits(logits, mm.dst, self._work.position)

    def scores(self, sc: Instruction, rows: NDArray[np.int64]) -> None:
        """SC."""
        c, position, key_words = self._config, self._work.position, self._registers["key_words"]
        self._check_heads(sc)
        end = (sc.head0 + sc.heads) * key_words
        _need(key_words >= 1 and end <= c.new_key_words, "new key words end at", end, c.new_key_words)
        operands = self._words_at(sc.src, sc.heads * key_words, key_words, sc.tail)
        by_head = rows.reshape(sc.heads, -1, key_words)
        probabilities = self._probabilities[sc.prob * c.tile :]

        def work(heads: tuple[int, int]) -> None:
            SCORE_HEADS[c.tile](
                self._quads,
                self._quads_per_row,
                by_head,
                heads,
                sc.head0,
                position,
                operands,
                self._new_keys.view(np.uint64),
                np.uint32(self._registers["score_scale"]),
                c.guard_bits,
                c.lanes,
                c.rows,
                probabilities,
                sc.prob_stride * c.tile,
                self._inverse,
            )

        for_ranges(work, sc.heads, rows.size * c.lanes * c.tile)

    def attend(self, av: Instruction, rows: NDArray[np.int64]) -> None:
        """AV."""
        c, position, strips = self._config, self._work.position, self._registers["value_strips"]
        self._check_heads(av)
        end = (av.head0 + av.heads) * strips
        _need(strips >= 1 and end <= c.new_value_strips, "new value strips end at", end, c.new_value_strips)
        dst_end = av.dst + av.heads * strips
        _need(dst_end <= c.new_key_base, "destination ends at", dst_end, c.new_key_base)
        by_head = rows.reshape(av.heads, -1, strips)

        def work(heads: tuple[int, int]) -> None:
            VALUE_HEADS[c.tile](
                self._quads,
                self._quads_per_row,
                by_head,
                heads,
                av.head0,
                position,
                self._probabilities[av.prob * c.tile :],
                av.prob_stride * c.tile,
                self._inverse,
                self._new_values,
                c.guard_bits,
                c.rows,
                self.strips[av.dst : dst_end],
            )

        for_ranges(work, av.heads, rows.size * c.lanes * c.tile)

    def _check_heads(self, at: Instruction) -> None:
        blocks = self._work.position // self._config.tile + 1
        end = at.prob + (at.heads - 1) * at.prob_stride + blocks
        _need(at.heads >= 1 and end <= self._config.prob_words, "probabilities end at", end, self._config.prob_words)
        _need(at.head0 + at.heads <= _MAX_HEADS, "heads end at", at.head0 + at.heads, _MAX_HEADS)


def _need(holds: bool, what: str, value: int, limit: object) -> None:
    if not holds:
        raise BoardError(f"{what} {value}, this core has {limit}; see hw.gpt2.legality.check_program")
