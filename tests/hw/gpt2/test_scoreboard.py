"""Scoreboard against a set of strips under random marks and clears."""

import random

import numpy as np
import pytest

from hw.gpt2.config import core_config
from hw.gpt2.scoreboard import Scoreboard
from sim.rtl.unit import VerilatedUnit

CONFIG = core_config("16x4")
SEED = 5
CYCLES = 8_000
NAMES = (
    *("mark", "mark_strip", "mark_a", "mark_b", "clear", "clear_strip"),
    *("word_a", "word_b", "needed_a", "needed_b"),
)


def history(config, cycles):
    """Random legal marks and clears on a few hot words, with what must be seen in each cycle.

    A mark is of any strips of a word.
    """
    rng = random.Random(SEED)
    strips = config.strips_per_word
    keys, values = config.new_key_base // strips, config.new_value_base // strips
    words = [0, 1, keys, values + 3, config.strip_addresses // strips - 1]
    busy: set[int] = set()
    rows, seen = [], []
    for _ in range(cycles):
        strip = rng.choice(words) * strips + rng.randrange(strips)
        bits = rng.randrange(1 << strips)
        marked = {strip // strips * strips + j for j in range(strips) if bits >> j & 1}
        masks = (0, bits) if strip >= config.act_words * strips else (bits, 0)
        mark = not marked & busy and rng.random() < 0.5
        clear_strip = rng.choice(sorted(busy)) if busy else 0
        clear = bool(busy) and rng.random() < 0.5
        look = [rng.choice(words[:2]), rng.choice(words[2:])]  # activations, new keys and values
        needed = [rng.randrange(1 << strips) for _ in look]
        rows.append((mark, strip, *masks, clear, clear_strip, *look, *needed))
        looked = [
            any(w * strips + j in busy for j in range(strips) if bits >> j & 1)
            for w, bits in zip(look, needed, strict=True)
        ]
        seen.append([*looked, int(bool(marked & busy))])
        busy |= marked if mark else set()
        busy -= {clear_strip} if clear else set()
    return np.array(rows), np.array(seen)


def differs(config, make=Scoreboard, late=0):
    """Whether the scoreboard says anything else than the set, ``late`` cycles later."""
    rows, seen = history(config, CYCLES)
    unit = VerilatedUnit(make(config))
    out = unit.run({name: rows[:, i] for i, name in enumerate(NAMES)})
    unit.close()
    got = np.stack([out["busy_a"], out["busy_b"], out["mark_busy"]], axis=1)
    return bool((got != np.roll(seen, -late, axis=0)).any())


def test_equals_a_set():
    assert not differs(CONFIG)
    assert differs(CONFIG, late=1)  # twin: a scoreboard one cycle early must differ


FAULTY = {
    "lowest strip alone is looked at": ("self.mark_busy.eq(busy.any())", "self.mark_busy.eq(busy[0])"),
    "other strips than the lowest are never busy": ("(looked & getattr", "(looked[:1] & getattr"),
    "a mark reaches the other region": (
        "self.mark & marked.any(), mark_word, marked",
        "self.mark, mark_word, Const(1, self._strips)",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_scoreboards_are_noticed(mutant, name):
    assert differs(CONFIG, mutant("hw.gpt2.scoreboard", *FAULTY[name])["Scoreboard"])
