"""Scoreboard against a set of strips under random marks and clears."""

import random

import numpy as np

from hw.gpt2.config import core_config
from hw.gpt2.scoreboard import Scoreboard
from sim.rtl.unit import VerilatedUnit

SEED = 5


def history(config, cycles):
    """Random legal marks and clears on a few hot words, with what must be seen in each cycle."""
    rng = random.Random(SEED)
    strips = config.strips_per_word
    keys, values = config.new_key_base // strips, config.new_value_base // strips
    words = [0, 1, keys, values + 3, config.strip_addresses // strips - 1]
    busy: set[int] = set()
    rows, seen = [], []
    for _ in range(cycles):
        strip = rng.choice(words) * strips + rng.randrange(strips)
        mark = strip not in busy and rng.random() < 0.5
        clear_strip = rng.choice(sorted(busy)) if busy else 0
        clear = bool(busy) and rng.random() < 0.4
        look = [rng.choice(words) for _ in range(2)]
        rows.append((mark, strip, clear, clear_strip, *look))
        seen.append([sum(1 << j for j in range(strips) if w * strips + j in busy) for w in look] + [int(strip in busy)])
        busy |= {strip} if mark else set()
        busy -= {clear_strip} if clear else set()
    return np.array(rows), np.array(seen)


def test_equals_a_set():
    config = core_config("16x4")
    rows, seen = history(config, 20_000)
    names = ("mark", "mark_strip", "clear", "clear_strip", "word_a", "word_b")
    out = VerilatedUnit(Scoreboard(config)).run({name: rows[:, i] for i, name in enumerate(names)})
    got = np.stack([out["busy_a"], out["busy_b"], out["mark_busy"]], axis=1)
    assert (got == seen).all()
    late = np.concatenate([seen[1:], seen[:1]])  # twin: a scoreboard one cycle early must differ
    assert (got != late).any()
