"""The executor against a second reading of docs/core.md: the same programs on ``sim.programs.slow_core``.

So are several boards (docs/ring.md): a thread a board, and a queue for every strip on its way to another board.
"""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.isa import Instruction, Op, Params
from hw.numerics.fixed_sum import fixed_sums
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_max import fp32_less
from hw.numerics.norm_scalars import norm_scalars
from sim.functional import FunctionalBoard, FunctionalRing
from sim.programs import RandomCase, random_case, run_case
from sim.programs.ring_case import RingCase, random_ring_case, run_ring_case
from sim.programs.slow_core import SlowCore

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
