"""A second reading of docs/core.md: one position after the other, as slowly and as literally.

It judges the functional executor: nothing is shared with it but the units' golden models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from hw.board.gpt2_map import ROW_REGISTERS, SAMPLING_REGISTERS, row_register
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path
from hw.gpt2.sampled_token import BoardSampling, sampled_token
from hw.numerics.convert import fp16_to_fp32, fp32_to_fp16
from hw.numerics.dot import dot_tile
from hw.numerics.dot_dual import dot_tile_int8
from hw.numerics.exponential import exp_negative
from hw.numerics.fixed_sum import fixed_sums
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_max import fp32_less
from hw.numerics.fp32_mul import fp32_mul
from hw.numerics.gelu import gelu
from hw.numerics.norm_scalars import norm_scalars
from hw.numerics.reciprocal import reciprocal_fixed

from .random_case import RandomCase

__all__ = ["SlowCore", "fresh_memory"]

NAN = 0x7FC00000
ONE = 0x3F800000


def negative(x: int) -> int:
    """An fp32 bit pattern with the other sign."""
    return int(x) ^ 0x80000000


def fresh_memory(case: RandomCase) -> np.ndarray:
    """Half words (channels, any) as they are before a run."""
    memory = np.full((case.program.core.channels, case.channel_bytes // 2), 0x7E00, np.uint16)
    memory[:, : case.channels.shape[1]] = case.channels
    return memory


class SlowCore:
    """A case, or one request of a batch, on a core that has one position at a time; faults are planted by overriding.

    Parameters
    ----------
    case : RandomCase
    row : int
        Whose registers and tokens it takes.
    memory : uint16 array (channels, half words) or None
        Memory that it shares with other rows; None: the case's image, NaN behind it.

    ``p`` is the next position; ``nan`` tells that its logits had a NaN.
    """

    def __init__(self, case: RandomCase, row: int = 0, memory: np.ndarray | None = None) -> None:
        self.c = c = case.program.core
        self.case = case
        self.r = {**case.program.registers, **case.run_registers}
        own = (*ROW_REGISTERS, *SAMPLING_REGISTERS)
        self.r |= {name: self.r.get(row_register(name, row), 0) for name in own}
        self.strips_per_word = c.tile // c.lanes
        self.memory = fresh_memory(case) if memory is None else memory
        self.strips = np.zeros((c.strip_addresses, c.lanes), np.uint16)
        self.acc = np.zeros((c.acc_depth, c.lanes), np.int64)
        self.param: dict[tuple[str, int, int], int] = {}
        self.norm = [(0, 0), (0, 0)]
        self.prob = np.zeros((c.prob_words, c.tile), np.uint16)
        self.inverse: dict[int, int] = {}
        self.tokens = dict(enumerate((case.tokens, *case.row_tokens)[row]))
        self.valid_tokens = self.r["prompt_end"]
        self.made = 0
        self.p = self.r["position"]

    # memory of docs/core.md, section 1

    def lane(self, row: int, n: int) -> np.ndarray:
        """What lane n holds of a memory row."""
        per_lane = self.c.channels // self.c.lanes
        per_row = self.c.port_bytes // 2
        parts = [self.memory[n * per_lane + j, row * per_row : (row + 1) * per_row] for j in range(per_lane)]
        return np.concatenate(parts)

    def store(self, row: int, n: int, element: int, value: int) -> None:
        """Write one element of a lane's share of a memory row."""
        per_lane = self.c.channels // self.c.lanes
        per_row = self.c.port_bytes // 2
        self.memory[n * per_lane + element // per_row, row * per_row + element % per_row] = value

    def slot(self, p: int, h: int) -> int:
        """Slot of a position of a head."""
        mask = self.c.lanes - 1
        return (p & ~mask) | ((p + self.c.rows * h) & mask)

    def valid(self, slot: int, h: int) -> bool:
        """Whether a slot holds a position that attention may see."""
        t, n = divmod(slot, self.c.lanes)
        return ((n - self.c.rows * h) & (self.c.lanes - 1)) < self.p + 1 - t * self.c.lanes

    def tile(self, a: np.ndarray, b: np.ndarray, take: np.ndarray) -> int:
        """One tile product, fp32 bit pattern."""
        return int(dot_tile(np.ascontiguousarray(a), np.ascontiguousarray(b), take, self.c.guard_bits))

    def tile_int8(self, a: np.ndarray, b: np.ndarray, take: np.ndarray) -> int:
        """One tile product of int8 weights, fp32 bit pattern."""
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        return int(dot_tile_int8(a, b, take, self.c.guard_bits))

    def word(self, w: int) -> np.ndarray:
        """A word of the strip memories."""
        s = self.strips_per_word
        return self.strips[w * s : (w + 1) * s].reshape(-1)

    # section 2

    def run(self) -> tuple[tuple[int, ...], str, str]:
        """Tokens and hashes of logits, keys and values at the end."""
        while True:
            self.begin()
            if self.next():
                return tuple(self.tokens[i] for i in range(self.valid_tokens)), *self.hashes()

    def begin(self) -> None:
        """Everything of a position but what NEXT does."""
        self.prompt = self.p + 1 < self.r["prompt_end"]
        self.pointer = self.r["weight_base"]
        self.best: tuple[int, int] | None = None
        self.logits: list[int] = []
        self.sampling_position = self.p + 1
        self.nan = False
        self.step()

    def next(self) -> bool:
        """NEXT: the next position; True if this one was the last."""
        r, p = self.r, self.p
        self.p += 1
        if self.prompt:
            return False
        assert self.best is not None
        sampling = BoardSampling.of_registers(r["seed"], r["sampling"])
        at = self.sampling_position
        drawn = None if sampling is None else sampled_token(np.array(self.logits, np.uint32), sampling, at)
        token = self.best[1] if drawn is None else drawn
        self.tokens[p + 1] = token
        self.valid_tokens = p + 2
        self.made += 1
        stops = [r[f"stop_{i}"] for i in range(r["stop_count"])]
        return self.made == r["max_new_tokens"] or token in stops or p + 1 == r["context_limit"]

    def hashes(self) -> tuple[str, str]:
        """Of all logits, and of all keys and values."""
        return self.hash("logits"), self.hash("keys", "values")

    def hash(self, *kinds: str) -> str:
        """SHA-256 of the regions of some kinds, whole, in order of channel and offset."""
        digest = hashlib.sha256()
        regions = [region for region in self.case.program.regions if region.kind in kinds]
        for region in sorted(regions, key=lambda region: (region.channel, region.offset)):
            data = self.memory[region.channel].view(np.uint8)[region.offset : region.offset + region.bytes]
            digest.update(data.tobytes())
        return digest.hexdigest()

    def order(self) -> Iterator[tuple[Instruction, int]]:
        """Instructions of a step with their layers."""
        code, index = self.case.instructions, 0
        while code[index].op != Op.NEXT:
            if code[index].op == Op.LOOP:
                loop = code[index]
                for layer in range(loop.strips):
                    for inner in code[index + 1 : index + 1 + loop.words]:
                        yield inner, layer
                index += loop.words
            else:
                yield code[index], 0
            index += 1

    def step(self) -> None:
        """Execute the instructions of one position."""
        for instruction, layer in self.order():
            if not (instruction.decode_only and self.prompt):
                self.execute(instruction, layer)

    def execute(self, instruction: Instruction, layer: int) -> None:
        """Execute one instruction."""
        if instruction.op in (Op.MM, Op.EMB):
            self.product(instruction, layer)
        elif instruction.op == Op.SC:
            for j in range(instruction.heads):
                self.scores(instruction, layer, j)
        else:
            for j in range(instruction.heads):
                self.attend(instruction, layer, j)

    # section 3

    def next_row(self) -> int:
        """Next row of the weight stream."""
        self.pointer += 1
        return self.pointer - 1

    def take_params(self, what: str, row: int, first: int) -> None:
        """Store a parameter row."""
        for n in range(self.c.lanes):
            for k, value in enumerate(self.lane(row, n).view(np.uint32)):
                self.param[what, (first + k) % self.c.param_depth, n] = int(value)

    def product(self, i: Instruction, layer: int) -> None:
        """MM or EMB."""
        c, rows = self.c, range(0)
        everything = np.arange(c.tile)
        if i.op == Op.EMB:
            index = self.tokens[self.p] if i.operand == Operand.TOKEN else self.p
            base = self.r["token_base"] if i.operand == Operand.TOKEN else self.r["position_base"]
            first = base + index // c.tile * self.r["embed_strips"] + i.src
            rows = range(first, first + i.strips)
            operands = [(np.full(c.tile, 0x3C00, np.uint16), everything == index % c.tile)]
        else:
            words = [self.word(i.src + k).copy() for k in range(i.words)]
            takes = [everything < (i.tail if k == i.words - 1 else c.tile) for k in range(i.words)]
            operands = list(zip(words, takes, strict=True))
        results = np.zeros((i.strips, c.lanes), np.int64)
        for g0 in range(0, i.strips, i.group):
            for k, (a, take) in enumerate(operands):
                for s in range(g0, min(g0 + i.group, i.strips)):
                    int8 = i.op == Op.MM and c.has_int8
                    if i.first and k == 0 and int8 and s % c.param_strips == 0:
                        self.take_params("scale", self.next_row(), i.acc + s)
                    if i.first and k == 0 and i.params and s % c.param_strips == 0:
                        self.take_params("bias", self.next_row(), i.acc + s)
                        if i.params == Params.NORM:
                            self.take_params("sum", self.next_row(), i.acc + s)
                    if not int8 or s % 2 == 0:  # a row of int8 weights serves two strips
                        row = rows[s] if i.op == Op.EMB else self.next_row()
                    for n in range(c.lanes):
                        slot = (i.acc + s) % c.param_depth
                        at = i.acc + s - (g0 if i.first and i.last else 0)
                        before = self.acc[at, n]
                        if i.first and k == 0:
                            before = self.param["bias", slot, n] if i.params == Params.BIAS else 0
                        tile = self.tile_int8 if int8 else self.tile
                        weights = self.lane(row, n).view(np.uint8)[s % 2 :: 2] if int8 else self.lane(row, n)
                        self.acc[at, n] = total = fp32_add(before, tile(a, weights, take))
                        if i.last and k == len(operands) - 1:
                            total = fp32_mul(total, self.param["scale", slot, n]) if int8 else total
                            results[s, n] = self.drain(i, s, n, int(total), slot)
        if i.last:
            self.finish(i, layer, results)

    def drain(self, i: Instruction, s: int, n: int, acc: int, slot: int) -> int:
        """What the drain unit makes of an accumulator."""
        if i.params == Params.NORM:
            r, rm = self.norm[i.norm]
            shift = fp32_add(self.param["bias", slot, n], negative(fp32_mul(rm, self.param["sum", slot, n])))
            y = fp32_add(fp32_mul(acc, r), shift)
        elif i.path == Path.RESIDUAL:
            y = fp32_add(fp32_mul(acc, ONE), fp16_to_fp32(self.strips[i.dst + s, n]))
        else:
            y = fp32_add(fp32_mul(acc, ONE), 0)
        return int(gelu(y)) if i.path == Path.GELU else int(y)

    def finish(self, i: Instruction, layer: int, results: np.ndarray) -> None:
        """Where the results of a product go."""
        c, r = self.c, self.r
        if i.path == Path.LOGITS:
            for column, value in enumerate(results.reshape(-1), start=i.dst * c.lanes):
                if column < r["vocab"]:
                    self.logits.append(int(value))
                self.nan |= bool(column < r["vocab"] and value & 0x7FFFFFFF > 0x7F800000)
                if column < r["vocab"] and (self.best is None or fp32_less(self.best[0], value)):
                    self.best = (int(value), column)
            flat = results.reshape(-1).astype(np.uint32)
            per_word = c.port_bytes // 4
            for column, value in enumerate(flat, start=i.dst * c.lanes):
                j = column // per_word
                at = (r["logits_base"] + self.p * r["logits_rows"] + j // c.channels) * per_word + column % per_word
                self.memory[j % c.channels].view(np.uint32)[at] = value
            while (column + 1) % per_word:  # a partial last port word is filled with zeros
                column += 1
                j = column // per_word
                at = (r["logits_base"] + self.p * r["logits_rows"] + j // c.channels) * per_word + column % per_word
                self.memory[j % c.channels].view(np.uint32)[at] = 0
            return
        for s in range(i.strips):
            self.strips[i.dst + s] = [fp32_to_fp16(value) for value in results[s]]
        if i.stats:
            vector = self.strips[i.dst : i.dst + i.strips].reshape(-1)[: r["width"]]
            sum1, sum2, nan = fixed_sums(vector)
            self.norm[i.stats_set] = norm_scalars(sum1, sum2, r["width"], r["eps_term"], nan)
        if i.commit in (Commit.KEYS, Commit.VALUES):
            self.commit(i.commit, layer)

    def commit(self, kind: int, layer: int) -> None:
        """Write new keys or values to memory."""
        c, r = self.c, self.r
        for h in range(r["heads"]):
            slot = self.slot(self.p, h)
            if kind == Commit.KEYS:
                base = r["key_base"] + layer * r["key_layer_rows"] + h * r["key_head_rows"]
                for w in range(r["key_words"]):
                    word = self.word(c.act_words + h * r["key_words"] + w)
                    for e in range(c.tile):
                        self.store(base + slot // c.lanes * r["key_words"] + w, slot % c.lanes, e, word[e])
            else:
                base = r["value_base"] + layer * r["value_layer_rows"] + h * r["value_head_rows"]
                for s in range(r["value_strips"]):
                    strip = self.strips[c.new_value_base + h * r["value_strips"] + s]
                    for n in range(c.lanes):
                        self.store(base + slot // c.tile * r["value_strips"] + s, n, slot % c.tile, strip[n])

    # section 4; keys and values of the current position were just written, which the core replaces on the way

    def scores(self, i: Instruction, layer: int, j: int) -> None:
        """SC of one head."""
        c, r = self.c, self.r
        h, kw = i.head0 + j, r["key_words"]
        base = r["key_base"] + layer * r["key_layer_rows"] + h * r["key_head_rows"]
        everything = np.arange(c.tile)
        scores: dict[int, int] = {}
        for t in range(-(-(self.p + 1) // c.lanes)):
            for n in range(c.lanes):
                acc = 0
                for w in range(kw):
                    take = everything < (i.tail if w == kw - 1 else c.tile)
                    acc = fp32_add(acc, self.tile(self.word(i.src + j * kw + w), self.lane(base + t * kw + w, n), take))
                if self.valid(t * c.lanes + n, h):
                    scores[t * c.lanes + n] = int(fp32_add(fp32_mul(acc, r["score_scale"]), 0))
        top = next(iter(scores.values()))
        for value in scores.values():
            top = NAN if NAN in (top, value) else value if fp32_less(top, value) else top
        total = 0
        for slot, value in scores.items():
            p = int(exp_negative(fp32_add(value, negative(top))))
            self.prob[i.prob + j * i.prob_stride + slot // c.tile, slot % c.tile] = p
            total += fixed_sums(np.array([p], np.uint16))[0]
        self.inverse[h] = int(reciprocal_fixed(total))

    def attend(self, i: Instruction, layer: int, j: int) -> None:
        """AV of one head."""
        c, r = self.c, self.r
        h = i.head0 + j
        base = r["value_base"] + layer * r["value_layer_rows"] + h * r["value_head_rows"]
        for s in range(r["value_strips"]):
            for n in range(c.lanes):
                acc = 0
                for b in range(-(-(self.p + 1) // c.tile)):
                    take = np.array([self.valid(b * c.tile + e, h) for e in range(c.tile)])
                    word = self.prob[i.prob + j * i.prob_stride + b]
                    acc = fp32_add(acc, self.tile(word, self.lane(base + b * r["value_strips"] + s, n), take))
                value = fp32_to_fp16(fp32_add(fp32_mul(acc, self.inverse[h]), 0))
                self.strips[i.dst + j * r["value_strips"] + s, n] = value
