"""Softmax unit, with the lanes' part of it in Python, against the golden functions: probabilities, 1/sum, score ring,
and that a head is ready no earlier than it may be."""

import dataclasses
import random

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.softmax import Softmax
from hw.gpt2.tags import Stages
from hw.numerics.exponential import exp_negative
from hw.numerics.fixed_sum import fixed_sums
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_max import max_tree
from hw.numerics.fp_format import FP32_NAN
from hw.numerics.reciprocal import reciprocal_fixed
from sim.rtl.unit import VerilatedUnit

CONFIG = dataclasses.replace(core_config("16x4"), context=64, score_rows=16)
T, N, S = CONFIG.tile, CONFIG.lanes, CONFIG.strips_per_word
DRAIN = Stages(CONFIG).drain
NEGATIVE = 1 << 31
CYCLES = 900


@dataclasses.dataclass
class Head:
    """Scores (fp32 bits, strips x lanes) of a head at a position, for a core of so many rows; ``prob`` is its first
    probability word."""

    number: int
    position: int
    prob: int
    scores: np.ndarray
    rows: int = 1

    def valid(self, tile):
        return np.array([((n - self.rows * self.number) & (N - 1)) < self.position + 1 - tile * N for n in range(N)])

    def golden(self):
        """fp16 bits of the exponentials (strips x lanes), fp32 bits of 1/sum."""
        mask = np.concatenate([self.valid(tile) for tile in range(len(self.scores))])
        maximum, _, _, nan = max_tree(self.scores.ravel(), mask)
        maximum = FP32_NAN if nan else int(maximum)
        powers = np.array([exponential(score, maximum) for score in self.scores.ravel()], np.uint16)
        total, _, nan = fixed_sums(powers[mask])
        return powers.reshape(self.scores.shape), FP32_NAN if nan else int(reciprocal_fixed(total))


def exponential(score, maximum):
    return int(exp_negative(int(fp32_add(int(score), maximum ^ NEGATIVE))))


def heads(seed, rows=1):
    rng = np.random.default_rng(seed)
    print(f"seed {seed}")
    made = []
    for number, position in enumerate((0, 37, 36, 3, 63, 12, 50, 18)):
        scores = (rng.normal(size=(position // N + 1, N)) * 4).astype(np.float32).view(np.uint32)
        made.append(Head(number, position, 4 * number + 1, scores, rows))
    made[5].scores[1, 1] = FP32_NAN
    return made


@pytest.fixture(scope="module")
def unit():
    return VerilatedUnit(Softmax(CONFIG))


class Play:
    """Sends heads through the unit, a strip a cycle where the ring has room, and records what it does."""

    def __init__(self, unit, sent, seed=1, gap=0.2, rows=CONFIG.score_rows, drain=DRAIN):
        self.rng = random.Random(seed)
        self.memory = {}  # row: scores, as in the lanes
        self.probabilities = {}  # head: [(cycle, word, strip, fp16 bits)]
        self.ready, self.inverse = {}, {}  # head: cycle; head: 1/sum at the drain stage of the first tile after it
        strips = [(head, tile) for head in sent for tile in range(len(head.scores))]
        stages, used, written, reading, answers = Stages(CONFIG), 0, 0, None, {}
        of_word = {head.prob: head.number for head in sent}
        for cycle in range(CYCLES):
            inputs = {"exponentials": answers.pop(cycle, 0)}
            for head, at in self.ready.items():
                if cycle == at + 1 + drain:
                    inputs["inverse_head"] = head
            sending = written < len(strips) and used < rows and self.rng.random() >= gap
            if sending:
                inputs |= self.strip(*strips[written], written)
            out = self.step(unit, inputs)
            if reading is not None:  # the maximum comes one cycle after the address
                scores, maximum = reading, int(out["score_max"])
                bits = sum(exponential(score, maximum) << 16 * n for n, score in enumerate(scores))
                answers[cycle - 1 + stages.exponential] = bits
            reading = self.memory[int(out["score_read"])] if out["row_free"] else None
            if out["prob_write"]:
                word = int(out["prob_word"])
                head = of_word[max(first for first in of_word if first <= word)]
                data = [int(out["prob_data"]) >> 16 * n & 0xFFFF for n in range(N)]
                self.probabilities.setdefault(head, []).append((cycle, word, int(out["prob_strip"]), data))
            if out["ready"]:
                assert int(out["ready_head"]) not in self.ready, "ready twice"
                self.ready[int(out["ready_head"])] = cycle
            if "inverse_head" in inputs:
                self.inverse[inputs["inverse_head"]] = int(out["inverse"])
            if sending:
                head, tile = strips[written]
                self.memory[written % CONFIG.score_rows] = head.scores[tile]
                written += 1
            used += sending - int(out["row_free"])
        self.left = used
        self.busy = int(out["busy"])

    def strip(self, head, tile, number):
        return {
            "score_valid": 1,
            "scores": sum(int(score) << 32 * n for n, score in enumerate(head.scores[tile])),
            "score_mask": sum(1 << n for n in range(N) if head.valid(tile)[n]),
            "score_first": tile == 0,
            "score_last": tile == len(head.scores) - 1,
            "score_tile": tile,
            "score_row": number % CONFIG.score_rows,
            "score_head": head.number,
            "score_position": head.position,
            "score_prob": head.prob,
        }

    @staticmethod
    def step(unit, inputs):
        rows = {}
        for name, value in inputs.items():
            words = max(1, (unit.inputs[name] + 31) // 32)
            rows[name] = np.array([[int(value) >> 32 * k & 0xFFFFFFFF for k in range(words)]], np.uint32)
        return {name: column[0] for name, column in unit.run(rows).items()}


def check(sent, play):
    assert set(play.ready) == {head.number for head in sent}, "heads that are ready"
    assert play.left == 0 and not play.busy, "rows that are never freed"
    for head in sent:
        powers, inverse = head.golden()
        got = play.probabilities[head.number]
        places = [(word - head.prob, strip) for _, word, strip, _ in got]
        assert places == [divmod(tile, S) for tile in range(len(powers))]
        for tile, (_, _, _, data) in enumerate(got):
            assert data == powers[tile].tolist(), f"probabilities of head {head.number}, tile {tile}"
        assert got[-1][0] <= play.ready[head.number], "ready before the probabilities are in place"
        assert play.inverse[head.number] == inverse, f"1/sum of head {head.number}"


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_equals_golden(unit, gap):
    sent = heads(1)
    check(sent, Play(unit, sent, gap=gap))


@pytest.mark.parametrize("rows", [2, 4])
def test_slots_turn_by_the_rows(unit, rows):
    """The unit of a core with one row, the twin, adds up other slots."""
    sent, of_rows = heads(6, rows), VerilatedUnit(Softmax(dataclasses.replace(CONFIG, rows=rows)))
    check(sent, Play(of_rows, sent))
    of_rows.close()
    with pytest.raises(AssertionError, match="1/sum of head"):
        check(sent, Play(unit, sent))


def test_twin_that_needs_the_sum_earlier_fails(unit):
    """`ready` comes before 1/sum is there: only the way to the drain unit makes up for it. A reciprocal is written 16
    cycles after its start, `ready` comes one cycle after that, and a tile issues one cycle after `ready` at best."""
    least = 15
    assert least <= DRAIN
    sent = heads(2)
    check(sent, Play(unit, sent, drain=least))
    sent = heads(5)
    with pytest.raises(AssertionError, match="1/sum of head"):
        check(sent, Play(unit, sent, drain=least - 1))


def test_twin_with_more_scores_than_the_ring_holds_fails(unit):
    sent = [head for head in heads(3) if head.position > 30]
    check(sent, Play(unit, sent, gap=0.0))
    with pytest.raises(AssertionError, match="probabilities of head"):
        check(sent, Play(unit, sent, gap=0.0, rows=CONFIG.score_rows + 8))


def test_another_scale_differs(unit):
    sent = heads(4)
    play = Play(unit, sent)
    sent[1].scores[0, 0] ^= 1 << 22
    with pytest.raises(AssertionError, match="probabilities of head 1"):
        check(sent, play)
