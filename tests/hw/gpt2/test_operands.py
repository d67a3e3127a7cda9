"""Operand memories against a model of dicts: words, masks, new keys and values; strips stored up to the cycle of the
read."""

import random

import numpy as np
import pytest

from hw.gpt2.config import CoreConfig, core_config
from hw.gpt2.operands import Operands
from hw.gpt2.tags import Stages
from hw.gpt2.walk import Source, source_layout
from sim.rtl.unit import VerilatedUnit

SEED = 8
ONE = 0x3C00
SMALL = core_config("16x4")
CROSSED = CoreConfig(name="32x4", tile=32, lanes=4, channels=8, port_bits=256, context=64, slr_stages=2)
CYCLES = 2000


class Model:
    """What the memories hold, strip by strip, and what a tile reads of them."""

    def __init__(self, config):
        self.config = config
        self.strips = {}  # address of a strip or ("prob", word, strip): N fp16 as an integer

    def word(self, kind, index):
        """T fp16, or None if a strip of it was never stored."""
        s = self.config.strips_per_word
        base = index * s + (self.config.new_key_base if kind == "key" else 0)
        names = [("prob", index, j) if kind == "probability" else base + j for j in range(s)]
        if any(name not in self.strips for name in names):
            return None
        return sum(self.strips[name] << 16 * self.config.lanes * j for j, name in enumerate(names))


def history(config, rng, at_once):
    """Random stores and questions on a few hot words: the inputs of each cycle, and what the lanes must see of the
    question of each cycle. ``at_once`` : a strip can be read in the cycle of its store, which is wrong."""
    t, s = config.tile, config.strips_per_word
    hot = {
        "activation": [0, 1, config.act_words - 1],
        "probability": [0, config.prob_words - 1],
        "key": [0, config.new_key_words - 1],
        "value": [0, 1, config.new_value_strips - 1],
    }
    model, at_read = Model(config), []
    operand, layout = Stages(config).operand, source_layout(config)
    rows = []
    for cycle in range(CYCLES):
        kind = rng.choice(["activation", "probability", "one_hot"])
        question = {
            "kind": Source[kind],
            "word": rng.choice(hot.get(kind, [5])),
            "key_word": rng.choice(hot["key"]),
            "value_strip": rng.choice(hot["value"]),
        }
        elements = rng.getrandbits(t)
        asked = kind, question, elements
        store = rng.random() < 0.6
        where = rng.choice(["activation", "key", "value"])
        index = rng.choice(hot[where])
        address = {
            "activation": index * s + rng.randrange(s),
            "key": config.new_key_base + index * s + rng.randrange(s),
            "value": config.new_value_base + index,
        }[where]
        data, prob = rng.getrandbits(16 * config.lanes), rng.getrandbits(16 * config.lanes)
        prob_write, prob_word, prob_strip = rng.random() < 0.4, rng.choice(hot["probability"]), rng.randrange(s)
        key_addr, value_addr = rng.choice(hot["key"]), rng.choice(hot["value"])
        inputs = {
            "source": sum(question[name] << field.offset for name, field in layout),
            "elements": elements,
            "store": store,
            "store_strip": address,
            "store_data": data,
            "prob_write": prob_write,
            "prob_word": prob_word,
            "prob_strip": prob_strip,
            "prob_data": prob,
            "key_addr": key_addr,
            "value_addr": value_addr,
        }
        # this cycle's memories belong to the tile that was issued `operand` cycles ago
        rows.append((inputs, asked))
        stores = [(address, data)] * store + [(("prob", prob_word, prob_strip), prob)] * prob_write
        model.strips |= dict(stores if at_once else [])
        if cycle >= operand:
            kind, question, elements = rows[cycle - operand][1]
            word = ONE * sum(1 << 16 * i for i in range(t)) if kind == "one_hot" else model.word(kind, question["word"])
            at_read.append(
                {
                    "word": word,
                    "mask": elements,
                    "key": model.word("key", question["key_word"]),
                    "values": model.strips.get(config.new_value_base + question["value_strip"]),
                    "key_data": model.word("key", key_addr),
                    "value_data": model.strips.get(config.new_value_base + value_addr),
                }
            )
        model.strips |= dict(stores)
    return [inputs for inputs, _ in rows], at_read


def packed(values, bits):
    """Integers as rows of 32-bit words."""
    words = (bits + 31) // 32
    data = b"".join(int(value).to_bytes(4 * words, "little") for value in values)
    return np.frombuffer(data, np.uint32).reshape(len(values), words)


def number(row):
    return int.from_bytes(np.atleast_1d(row).astype(np.uint64 if row.ndim == 0 else np.uint32).tobytes(), "little")


def differences(config, late=0, at_once=False):
    """Cycles in which an output differs from the model, by name; ``late`` and ``at_once`` make the model wrong."""
    print(f"seed {SEED}")
    unit = Operands(config)
    inputs, want = history(config, random.Random(SEED), at_once)
    verilated = VerilatedUnit(unit)
    arrays = {name: packed([cycle[name] for cycle in inputs], verilated.inputs[name]) for name in inputs[0]}
    out = verilated.run(arrays)
    verilated.close()
    stages = Stages(config)
    found, compared = {}, {}
    for read, expected in enumerate(want):  # the tile was issued in this cycle, and read `operand` later
        for name, value in expected.items():
            host_port = name in ("key_data", "value_data")
            cycle = read + stages.operand + 1 if host_port else read + stages.lane
            cycle += late
            if value is None or cycle >= CYCLES:
                continue
            compared[name] = compared.get(name, 0) + 1
            found[name] = found.get(name, 0) + (number(out[name][cycle]) != value)
    assert all(count > CYCLES // 2 for count in compared.values()), compared
    return found


@pytest.mark.parametrize("config", [SMALL, CROSSED], ids=lambda config: config.name)
def test_equals_the_model(config):
    assert not any(differences(config).values())


def test_twin_that_looks_a_cycle_later_differs():
    assert all(differences(SMALL, late=1).values())


def test_twin_that_sees_strips_in_the_cycle_of_their_store_differs():
    found = differences(SMALL, at_once=True)
    assert all(found[name] for name in ("word", "key", "values", "key_data", "value_data"))
    assert not found["mask"]
