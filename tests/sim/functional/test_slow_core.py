"""The executor against a second reading of docs/core.md: the same programs, written down as slowly and as literally.

So are several boards (docs/ring.md): a thread a board, and a queue for every strip on its way to another board.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path
from hw.numerics.convert import fp16_to_fp32, fp32_to_fp16
from hw.numerics.dot import dot_tile
from hw.numerics.exponential import exp_negative
from hw.numerics.fixed_sum import fixed_sums
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_max import fp32_less
from hw.numerics.fp32_mul import fp32_mul
from hw.numerics.gelu import gelu
from hw.numerics.norm_scalars import norm_scalars
from hw.numerics.reciprocal import reciprocal_fixed
from sim.functional import FunctionalBoard, FunctionalRing
from sim.programs import RandomCase, random_case, run_case
from sim.programs.ring_case import RingCase, random_ring_case, run_ring_case

NAN = 0x7FC00000
ONE = 0x3F800000


def negative(x: int) -> int:
    return int(x) ^ 0x80000000


class SlowCore:
    """One run of a case; faults may be planted by overriding methods."""

    def __init__(self, case: RandomCase) -> None:
        self.c = c = case.program.core
        self.case = case
        self.r = {**case.program.registers, **case.run_registers}
        self.strips_per_word = c.tile // c.lanes
        rows = case.channel_bytes // c.port_bytes
        per_row = c.port_bytes // 2
        self.memory = np.full((c.channels, rows * per_row), 0x7E00, np.uint16)
        self.memory[:, : case.channels.shape[1]] = case.channels
        self.strips = np.zeros((c.strip_addresses, c.lanes), np.uint16)
        self.acc = np.zeros((c.acc_depth, c.lanes), np.int64)
        self.param: dict[tuple[str, int, int], int] = {}
        self.norm = [(0, 0), (0, 0)]
        self.prob = np.zeros((c.prob_words, c.tile), np.uint16)
        self.inverse: dict[int, int] = {}
        self.tokens = dict(enumerate(case.tokens))

    # memory of docs/core.md, section 1

    def lane(self, row: int, n: int) -> np.ndarray:
        per_lane = self.c.channels // self.c.lanes
        per_row = self.c.port_bytes // 2
        parts = [self.memory[n * per_lane + j, row * per_row : (row + 1) * per_row] for j in range(per_lane)]
        return np.concatenate(parts)

    def store(self, row: int, n: int, element: int, value: int) -> None:
        per_lane = self.c.channels // self.c.lanes
        per_row = self.c.port_bytes // 2
        self.memory[n * per_lane + element // per_row, row * per_row + element % per_row] = value

    def slot(self, p: int, h: int) -> int:
        mask = self.c.lanes - 1
        return (p & ~mask) | ((p + h) & mask)

    def valid(self, slot: int, h: int) -> bool:
        t, n = divmod(slot, self.c.lanes)
        return ((n - h) & (self.c.lanes - 1)) < self.p + 1 - t * self.c.lanes

    def tile(self, a: np.ndarray, b: np.ndarray, take: np.ndarray) -> int:
        return int(dot_tile(np.ascontiguousarray(a), np.ascontiguousarray(b), take, self.c.guard_bits))

    def word(self, w: int) -> np.ndarray:
        s = self.strips_per_word
        return self.strips[w * s : (w + 1) * s].reshape(-1)

    # section 2

    def run(self) -> tuple[tuple[int, ...], str, str]:
        r = self.r
        self.p = r["position"]
        made = 0
        while True:
            self.prompt = self.p + 1 < r["prompt_end"]
            self.pointer = r["weight_base"]
            self.best: tuple[int, int] | None = None
            self.step()
            if not self.prompt:
                assert self.best is not None
                token = self.best[1]
                self.tokens[self.p + 1] = token
                made += 1
                stops = [r[f"stop_{i}"] for i in range(r["stop_count"])]
                if made == r["max_new_tokens"] or token in stops or self.p + 1 == r["context_limit"]:
                    break
            self.p += 1
        return tuple(self.tokens[i] for i in range(self.p + 2)), self.hash("logits"), self.hash("keys", "values")

    def hash(self, *kinds: str) -> str:
        digest = hashlib.sha256()
        regions = [region for region in self.case.program.regions if region.kind in kinds]
        for region in sorted(regions, key=lambda region: (region.channel, region.offset)):
            data = self.memory[region.channel].view(np.uint8)[region.offset : region.offset + region.bytes]
            digest.update(data.tobytes())
        return digest.hexdigest()

    def order(self) -> Iterator[tuple[Instruction, int]]:
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
        for instruction, layer in self.order():
            if not (instruction.decode_only and self.prompt):
                self.execute(instruction, layer)

    def execute(self, instruction: Instruction, layer: int) -> None:
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
        self.pointer += 1
        return self.pointer - 1

    def take_params(self, what: str, row: int, first: int) -> None:
        for n in range(self.c.lanes):
            for k, value in enumerate(self.lane(row, n).view(np.uint32)):
                self.param[what, (first + k) % self.c.param_depth, n] = int(value)

    def product(self, i: Instruction, layer: int) -> None:
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
                    if i.first and k == 0 and i.params and s % c.param_strips == 0:
                        self.take_params("bias", self.next_row(), i.acc + s)
                        if i.params == Params.NORM:
                            self.take_params("sum", self.next_row(), i.acc + s)
                    row = rows[s] if i.op == Op.EMB else self.next_row()
                    for n in range(c.lanes):
                        slot = (i.acc + s) % c.param_depth
                        at = i.acc + s - (g0 if i.first and i.last else 0)
                        before = self.acc[at, n]
                        if i.first and k == 0:
                            before = self.param["bias", slot, n] if i.params == Params.BIAS else 0
                        self.acc[at, n] = fp32_add(before, self.tile(a, self.lane(row, n), take))
                        if i.last and k == len(operands) - 1:
                            results[s, n] = self.drain(i, s, n, int(self.acc[at, n]), slot)
        if i.last:
            self.finish(i, layer, results)

    def drain(self, i: Instruction, s: int, n: int, acc: int, slot: int) -> int:
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
        c, r = self.c, self.r
        if i.path == Path.LOGITS:
            for column, value in enumerate(results.reshape(-1), start=i.dst * c.lanes):
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


SEEDS = [0, 1, 3, 5, 8, 13, 21, 34]


def _short(seed: int, core: str, steps: int) -> RandomCase:
    case = random_case(seed, core_config(core))
    return dataclasses.replace(case, run_registers={**case.run_registers, "max_new_tokens": steps})


def _same(slow: SlowCore, folder: pathlib.Path) -> bool:
    result = run_case(slow.case, FunctionalBoard(), folder)
    assert result.error == 0
    return slow.run() == (result.tokens, result.logits, result.keys_values)


@pytest.mark.parametrize("seed", SEEDS)
def test_same_bits_16x4(seed: int, tmp_path: pathlib.Path) -> None:
    assert _same(SlowCore(_short(seed, "16x4", 3)), tmp_path)


@pytest.mark.parametrize("seed", [2, 7])
def test_same_bits_64x16(seed: int, tmp_path: pathlib.Path) -> None:
    assert _same(SlowCore(_short(seed, "64x16", 2)), tmp_path)


class RotationLost(SlowCore):
    """Fault: keys of all heads go to the slot of head 0."""

    def slot(self, p: int, h: int) -> int:
        return p


class MaskOffByOne(SlowCore):
    """Fault: the newest position is left out of attention from the second position on."""

    def valid(self, slot: int, h: int) -> bool:
        t, n = divmod(slot, self.c.lanes)
        return ((n - h) & (self.c.lanes - 1)) < max(self.p, 1) - t * self.c.lanes


class BiasTwice(SlowCore):
    """Fault: LayerNorm's shift is added before the scalar, not after."""

    def drain(self, i: Instruction, s: int, n: int, acc: int, slot: int) -> int:
        if i.params == Params.NORM:
            acc = int(fp32_add(acc, self.param["bias", slot, n]))
        return super().drain(i, s, n, acc, slot)


class StaleStatistics(SlowCore):
    """Fault: elements behind ``width`` count in the statistics."""

    def finish(self, i: Instruction, layer: int, results: np.ndarray) -> None:
        keep = self.r["width"]
        self.r["width"] = -(-keep // self.c.lanes) * self.c.lanes - 1 if i.stats else keep
        super().finish(i, layer, results)
        self.r["width"] = keep


@pytest.mark.parametrize("fault", [RotationLost, MaskOffByOne, BiasTwice, StaleStatistics])
def test_twin_a_fault_is_seen(fault: Callable[[RandomCase], SlowCore], tmp_path: pathlib.Path) -> None:
    assert not all(_same(fault(_short(seed, "16x4", 3)), tmp_path) for seed in SEEDS[:3])


class Post:
    """What boards send each other: strips by receiver and address, sums and bests by sender and receiver."""

    def __init__(self, boards: int) -> None:
        self.boards = range(boards)
        self.queues: dict[tuple, SimpleQueue] = defaultdict(SimpleQueue)
        self.lock = threading.Lock()

    def queue(self, *key: object) -> SimpleQueue:
        with self.lock:
            return self.queues[key]

    def exchange(self, what: str, board: int, part: object) -> list:
        """Parts of all boards, in their order."""
        for other in self.boards:
            self.queue(what, board, other).put(part)
        return [self.queue(what, other, board).get(timeout=60) for other in self.boards]


class SlowBoard(SlowCore):
    """One board of several; strips of other boards are fetched when they are read, and at the end of a step."""

    def __init__(self, case: RandomCase, post: Post) -> None:
        super().__init__(case)
        self.post, self.board = post, case.program.board
        self.awaited: set[int] = set()

    def fetch(self, strips: range) -> None:
        for strip in sorted(self.awaited.intersection(strips)):
            self.strips[strip] = self.post.queue("strip", self.board, strip).get(timeout=60)
            self.awaited.remove(strip)

    def step(self) -> None:
        super().step()
        self.fetch(range(self.c.new_key_base))
        if not self.prompt:
            value, column = self.best  # type: ignore[misc]
            bests = self.post.exchange("best", self.board, (value, column + self.r["token_offset"]))
            self.best = bests[0]
            for best in bests[1:]:
                if fp32_less(self.best[0], best[0]) or (not fp32_less(best[0], self.best[0]) and best < self.best):
                    self.best = best

    def execute(self, i: Instruction, layer: int) -> None:
        if i.op == Op.GATHER:
            own = range(i.dst + i.src, i.dst + i.src + i.words)
            self.awaited.update(strip for strip in range(i.dst, i.dst + i.strips) if strip not in own)
            return
        if i.op == Op.MM:
            self.fetch(range(i.src * self.strips_per_word, (i.src + i.words) * self.strips_per_word))
        super().execute(i, layer)
        if i.send:
            count = i.heads * self.r["value_strips"] if i.op == Op.AV else i.strips
            for strip in range(i.dst, i.dst + count):
                for other in self.post.boards:
                    if other != self.board:
                        self.post.queue("strip", other, strip).put(self.strips[strip].copy())

    def finish(self, i: Instruction, layer: int, results: np.ndarray) -> None:
        super().finish(i, layer, results)
        if i.send and i.stats:
            own = fixed_sums(self.strips[i.dst : i.dst + i.strips].reshape(-1))
            parts = self.post.exchange("sums", self.board, own)
            sum1, sum2, nan = sum(p[0] for p in parts), sum(p[1] for p in parts), any(p[2] for p in parts)
            self.norm[i.stats_set] = norm_scalars(sum1, sum2, self.r["width"], self.r["eps_term"], nan)


def _ring_is_same(case: RingCase, folder: pathlib.Path, kind: type[SlowBoard] = SlowBoard) -> bool:
    got = run_ring_case(case, FunctionalRing(len(case.boards)).boards, folder)
    assert {result.error for result in got} == {0}
    post = Post(len(case.boards))
    slow = [kind(board, post) for board in case.boards]
    results: dict[int, tuple] = {}
    threads = [
        threading.Thread(target=lambda n=n, board=board: results.update({n: board.run()}), daemon=True)
        for n, board in enumerate(slow)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    want = [results[n] for n in range(len(slow))]
    return want == [(result.tokens, result.logits, result.keys_values) for result in got]


@pytest.mark.parametrize(("seed", "boards"), [(0, 2), (1, 3), (2, 4), (3, 2), (4, 5), (5, 8)])
def test_same_bits_on_several_boards(seed: int, boards: int, tmp_path: pathlib.Path) -> None:
    assert _ring_is_same(random_ring_case(seed, core_config("16x4"), boards), tmp_path)


class SumsOfOneBoard(SlowBoard):
    """Fault: LayerNorm takes this board's sums for all."""

    def finish(self, i: Instruction, layer: int, results: np.ndarray) -> None:
        SlowCore.finish(self, i, layer, results)


class LastRunAtGroup(SlowBoard):
    """Fault: a grouped last run takes accumulators as a whole product does."""

    def execute(self, i: Instruction, layer: int) -> None:
        grouped = i.op == Op.MM and not i.first and i.last and i.group < i.strips
        super().execute(dataclasses.replace(i, group=i.strips) if grouped else i, layer)


class TokenOfTheBoard(SlowBoard):
    """Fault: columns are not offset by the board's first token id."""

    def step(self) -> None:
        offset, self.r["token_offset"] = self.r["token_offset"], 0
        super().step()
        self.r["token_offset"] = offset


@pytest.mark.parametrize("fault", [SumsOfOneBoard, LastRunAtGroup, TokenOfTheBoard])
def test_twin_a_fault_of_a_ring_is_seen(fault: type[SlowBoard], tmp_path: pathlib.Path) -> None:
    cases = [random_ring_case(seed, core_config("16x4"), 2) for seed in (0, 3, 6)]
    assert not all(_ring_is_same(case, tmp_path, fault) for case in cases)
