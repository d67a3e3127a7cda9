"""Way of the weights against a plain model: delays, what the patch replaces, by one row or by each."""

import random

import numpy as np
import pytest

from hw.gpt2.config import CoreConfig, core_config
from hw.gpt2.tags import Stages
from hw.gpt2.weight_path import WeightPath, patch_layout
from sim.rtl.unit import VerilatedUnit

SEED = 5
CYCLES = 600
CROSSED = CoreConfig(name="32x4r2", tile=32, lanes=4, channels=8, port_bits=256, context=64, rows=2, slr_stages=2)
CORES = [core_config("16x4"), core_config("16x4", 2), core_config("16x4", 4), CROSSED]


def halves(number, count):
    """The fp16 of a word, lowest first."""
    return [number >> 16 * i & 0xFFFF for i in range(count)]


def joined(values, bits):
    return sum(value << bits * i for i, value in enumerate(values))


def random_cycle(rng, config):
    """What stands at the inputs in a cycle: the weights of all lanes, the patch, each row's key and values."""
    patch = rng.choice(["none", "key", "value", "both"])
    few = rng.random() < 0.5  # as attention asks for it: a slot for each row
    lanes, elements = rng.getrandbits(config.lanes), rng.getrandbits(config.tile)
    if few:
        lanes, elements = 1 << rng.randrange(config.lanes), 1 << rng.randrange(config.tile)
    return {
        "row": [[rng.getrandbits(16) for _ in range(config.tile)] for _ in range(config.lanes)],
        "key": lanes if patch in ("key", "both") else 0,
        "value": elements if patch in ("value", "both") else 0,
        "single": rng.randrange(2) if config.rows > 1 else 0,
        "chosen": rng.randrange(config.rows),
        "keys": [[rng.getrandbits(16) for _ in range(config.tile)] for _ in range(config.rows)],
        "values": [[rng.getrandbits(16) for _ in range(config.lanes)] for _ in range(config.rows)],
    }


def patched(config, weights, patch, new):
    """docs/core.md section 4 and docs/rows.md sections 1 and 3: what each lane multiplies with.

    Lane n takes a new key from row n % R, element e a new value from row e % R; of a batch both from the row at work.
    """
    lanes = []
    for n, mine in enumerate(weights["row"]):
        by_key = patch["chosen"] if patch["single"] else n % config.rows
        word = list(new["keys"][by_key]) if patch["key"] >> n & 1 else list(mine)
        for e in range(config.tile):
            if patch["value"] >> e & 1:
                by_value = patch["chosen"] if patch["single"] else e % config.rows
                word[e] = new["values"][by_value][n]
        lanes.append(word)
    return lanes


def packed(numbers, bits):
    """Integers as rows of 32-bit words."""
    words = (bits + 31) // 32
    return np.frombuffer(b"".join(n.to_bytes(4 * words, "little") for n in numbers), np.uint32).reshape(-1, words)


def patch_number(cycle, config):
    fields = {"key": "key", "value": "value", "single": "single", "row": "chosen"}
    return sum(cycle[fields[name]] << field.offset for name, field in patch_layout(config))


def wrong_tiles(config, make=WeightPath):
    """Tiles whose weights differ from the model's."""
    print(f"seed {SEED}")
    rng, stages = random.Random(SEED), Stages(config)
    cycles = [random_cycle(rng, config) for _ in range(CYCLES)]
    unit = VerilatedUnit(make(config))
    weight_bits = 16 * config.tile
    out = unit.run(
        {
            "row": packed([joined([joined(w, 16) for w in c["row"]], weight_bits) for c in cycles], unit.inputs["row"]),
            "patch": packed([patch_number(c, config) for c in cycles], unit.inputs["patch"]),
            "keys": packed(
                [joined([joined(w, 16) for w in c["keys"]], weight_bits) for c in cycles], unit.inputs["keys"]
            ),
            "values": packed(
                [joined([joined(w, 16) for w in c["values"]], 16 * config.lanes) for c in cycles], unit.inputs["values"]
            ),
        }
    )
    unit.close()
    wrong = []
    for issued in range(CYCLES - stages.patched):  # a tile's parts come together from these cycles
        want = patched(config, cycles[issued + stages.operand], cycles[issued], cycles[issued + stages.lane])
        got = int.from_bytes(out["patched"][issued + stages.patched].tobytes(), "little")
        if halves(got, config.lanes * config.tile) != [half for lane in want for half in lane]:
            wrong.append(issued)
    return wrong


@pytest.mark.parametrize("config", CORES, ids=lambda config: config.name)
def test_weights_keys_and_values_come_together(config):
    assert wrong_tiles(config) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Mux(patch.single, each[patch.row], each[r])", "each[r]"),
        ("Mux(patch.single, each[patch.row], each[r])", "each[patch.row]"),
        ("keys[n % cfg.rows]", "keys[(n + 1) % cfg.rows]"),
        ("values[e % cfg.rows]", "values[e // cfg.lanes % cfg.rows]"),
        ("Stages(cfg).lane - Stages(cfg).operand - cfg", "Stages(cfg).lane - Stages(cfg).operand - 1 - cfg"),
        ("in range(Stages(cfg).lane):", "in range(Stages(cfg).lane + 1):"),
    ],
)
def test_faulty_path_is_noticed(mutant, before, after):
    assert wrong_tiles(core_config("16x4", 4), mutant("hw.gpt2.weight_path", before, after)["WeightPath"])
