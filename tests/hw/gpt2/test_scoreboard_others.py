"""Scoreboard: strips of other boards, announced by GATHER and arriving in any order, against a set of strips."""

import random

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.scoreboard import Scoreboard
from sim.rtl.unit import VerilatedUnit

CONFIG = core_config("16x4")
STRIPS = CONFIG.strips_per_word
SEED = 11


@pytest.fixture(scope="module")
def unit():
    return VerilatedUnit(Scoreboard(CONFIG))


def vector(rng):
    """First strip, end, own first, own end: a vector of up to five words that may begin and end inside a word."""
    first = rng.randrange(0, 40)
    strips = rng.randrange(1, 5 * STRIPS)
    own = rng.randrange(strips)
    return first, first + strips, first + own, first + own + rng.randrange(1, strips - own + 1)


def foreign(first, end, own_first, own_end):
    return {s for s in range(first, end) if not own_first <= s < own_end}


def history(rounds):
    """Vectors one after the other; their strips arrive in random order, some before the GATHER, some behind it.

    Returns inputs by name, and per cycle what is awaited of the word looked at: None while nobody can know.
    """
    rng = random.Random(SEED)
    rows, expected = [], []
    awaited: set[int] = set()
    for _ in range(rounds):
        bounds = vector(rng)
        first, end = bounds[:2]
        left = sorted(foreign(*bounds))
        rng.shuffle(left)
        announced_at, walked, cycle = rng.randrange(6), None, 0
        while left or walked is None or cycle < walked:
            row = {"gather": 0, "arrive": 0, "arrive_word": 0, "word_a": rng.randrange(16)}
            row["needed_a"] = rng.randrange(1 << STRIPS)
            if cycle == announced_at:
                row["gather"], walked = 1, cycle + 2 + (end - 1) // STRIPS - first // STRIPS
            word = row["word_a"]
            mid_walk = cycle <= announced_at + 1 or (walked is not None and cycle < walked)
            inside = first // STRIPS <= word <= (end - 1) // STRIPS
            known = not (inside and (mid_walk or cycle <= announced_at))
            expected.append(sum(1 << s % STRIPS for s in awaited if s // STRIPS == word) if known else None)
            if left and rng.random() < 0.5:
                word = left[-1] // STRIPS
                now = [s for s in left if s // STRIPS == word and (s == left[-1] or rng.random() < 0.5)]
                row |= {"arrive": sum(1 << s % STRIPS for s in now), "arrive_word": word}
                left = [s for s in left if s not in now]
                awaited ^= set(now)
            if row["gather"]:
                awaited ^= foreign(*bounds)
            row["gathered"] = sum(bound << 16 * i for i, bound in enumerate(bounds))
            rows.append(row)
            cycle += 1
    names = rows[0].keys()
    columns = {name: np.array([row[name] for row in rows], np.uint64) for name in names}
    wide = columns["gathered"]
    columns["gathered"] = np.stack([wide & 0xFFFFFFFF, wide >> np.uint64(32)], axis=1).astype(np.uint32)
    return columns, expected


def test_equals_a_set(unit):
    columns, expected = history(400)
    columns["mark_strip"] = columns["word_a"] * STRIPS
    columns["mark_a"] = 1 << np.arange(len(expected), dtype=np.uint64) % STRIPS
    out = unit.run(columns)
    got, needed = out["awaited_a"], columns["needed_a"].astype(int)
    known = np.array([e is not None for e in expected])
    want = np.array([e or 0 for e in expected])
    assert known.mean() > 0.3 and (want[known] != 0).sum() > 50, "the history must show strips that are awaited"
    assert (got[known] == ((want & needed) != 0)[known]).all()
    one = want >> np.arange(len(want)) % STRIPS & 1
    assert (out["mark_awaited"][known] == one[known]).all(), "the same of the strip that is to be written"
    assert (got[known] != ((np.roll(want, 1) & needed) != 0)[known]).any(), "twin: a cycle late"


def test_soon_says_that_a_word_is_not_yet_announced(unit):
    """Between GATHER and the walk over a word, ``soon_a`` holds whoever reads it."""
    words = 8
    bounds = (0, words * STRIPS, 0, STRIPS)
    wide = sum(bound << 16 * i for i, bound in enumerate(bounds))
    cycles = words + 3
    columns = {name: np.zeros(cycles, np.uint64) for name in ("gather", "arrive", "arrive_word", "word_a")}
    columns["gather"][0], columns["word_a"][:] = 1, words - 1
    columns["needed_a"] = 1 << np.arange(cycles, dtype=np.uint64) % STRIPS
    columns["gathered"] = np.array([[wide & 0xFFFFFFFF, wide >> 32]] * cycles, np.uint32)
    out = unit.run(columns)
    assert out["soon_a"].tolist() == [0] + [1] * words + [0, 0]
    assert (out["gather_ready"] == (np.arange(cycles) == 0) | (np.arange(cycles) > words)).all()
    assert out["awaited_a"][-1] == 1


def test_levelling_forgets_what_a_broken_run_left():
    unit = VerilatedUnit(Scoreboard(CONFIG))
    wide = sum(bound << 16 * i for i, bound in enumerate((0, 40, 0, 4)))
    cycles = CONFIG.act_words + 60
    columns = {name: np.zeros(cycles, np.uint64) for name in ("gather", "arrive", "arrive_word", "word_a", "level")}
    columns["gather"][0], columns["word_a"][:] = 1, 5
    columns["arrive"][20], columns["arrive_word"][20] = 0b0101, 5
    columns["needed_a"] = np.full(cycles, 0b1010, np.uint64)
    columns["needed_a"][26] = 0b0101
    columns["level"][30:] = 1
    columns["gathered"] = np.array([[wide & 0xFFFFFFFF, wide >> 32]] * cycles, np.uint32)
    out = unit.run(columns)
    assert out["awaited_a"][25:28].tolist() == [1, 0, 1] and out["awaited_a"][-1] == 0
    assert out["levelled"].argmax() == 30 + CONFIG.act_words + 1
