"""Result queue against a plain queue: order, places, the tags of the two results of an entry, and its depth."""

import collections
import random

import numpy as np
import pytest
from amaranth.hdl import Shape

from hw.gpt2.config import core_config
from hw.gpt2.isa import Commit
from hw.gpt2.result_queue import RESULT_QUEUE, ResultQueue
from hw.gpt2.tags import Destination, Operation, tag_layout
from sim.rtl.int8_faults import INT8_FAULTS
from sim.rtl.unit import VerilatedUnit

CORES = [core_config("16x4i8"), core_config("16x4r2i8")]
SEED = 8
CYCLES = 3000
STRIP_LAST, FLUSH, COMMIT = "strip_last", "flush", "commit"


def fields(config):
    """Name, offset and bits of each field of a tag."""
    return [(name, field.offset, Shape.cast(field.shape).width) for name, field in tag_layout(config)]


def random_tag(rng, config, result):
    """A tag with or without a result; what has two results has an even strip address."""
    tag = {name: rng.getrandbits(bits) for name, _, bits in fields(config)}
    kinds = [kind for kind in Destination if kind != Destination.NONE]
    tag["destination"] = rng.choice(kinds).value if result else Destination.NONE.value
    tag["operation"] = rng.choice(list(Operation)).value
    tag["param_kind"], tag[COMMIT] = rng.randrange(3), rng.choice(list(Commit)).value
    if tag["two"]:
        tag["dst"] &= ~1
    return tag


def results(tag, config):
    """The tags of an entry's results, by docs/int8.md section 3; the tag itself if it has one."""
    if not tag["two"]:
        return [tag]
    even = tag | {STRIP_LAST: 0, FLUSH: 0, COMMIT: Commit.NONE.value}
    masks = sum(tag["mask_odd"] << r * config.lanes for r in range(config.rows))
    odd = tag | {"dst": tag["dst"] + 1, "index": (tag["index"] + 1) & 0xFFFF, "strip_first": 0, "mask": masks}
    return [even, odd]


def history(config, rng):
    """A tag for each cycle, and what is to be seen in it: result or None, place, which one, place of a new entry.

    Bursts of tags with two results fill the queue; an entry is only made where there is room.
    """
    waiting, tags, seen = collections.deque(), [], []
    made, owed, most = 0, 0, 0
    burst = 0
    for _ in range(CYCLES):
        burst = rng.randrange(400) if burst == 0 else burst - 1
        wanted = owed < RESULT_QUEUE - 1 and rng.random() < (0.95 if burst > 150 else 0.3)
        tag = random_tag(rng, config, wanted)
        if burst > 150:
            tag["two"], tag["dst"] = 1, tag["dst"] & ~1
        tags.append(tag)
        result, place, odd, last = waiting.popleft() if waiting else (None, made % RESULT_QUEUE, 0, False)
        seen.append((result, place, odd, last, made % RESULT_QUEUE))
        owed -= last
        if wanted:
            parts = results(tag, config)
            waiting += [(part, made % RESULT_QUEUE, i, part is parts[-1]) for i, part in enumerate(parts)]
            made, owed = made + 1, owed + 1
        most = max(most, owed)
    assert most == RESULT_QUEUE - 1 and made > 2 * RESULT_QUEUE
    return tags, seen


def wrong_cycles(config, make=ResultQueue, expected=lambda part: part):
    """Cycles in which the queue says anything else than the model."""
    print(f"seed {SEED}")
    tags, seen = history(config, random.Random(SEED))
    unit = VerilatedUnit(make(config))
    width = -(-tag_layout(config).size // 32)
    numbers = [sum(tag[name] << offset for name, offset, _ in fields(config)) for tag in tags]
    rows = np.frombuffer(b"".join(n.to_bytes(4 * width, "little") for n in numbers), np.uint32).reshape(-1, width)
    out = unit.run({"tag": rows})
    unit.close()
    wrong = []
    for cycle, (result, place, odd, last, write_at) in enumerate(seen):
        number = int.from_bytes(out["out"][cycle].tobytes(), "little")
        got = {name: number >> offset & (1 << bits) - 1 for name, offset, bits in fields(config)}
        if result is None:
            fine = (got["destination"], got["operation"]) == (Destination.NONE.value, Operation.NONE.value)
        else:
            fine = got == expected(result) and (out["read_at"][cycle], out["odd"][cycle]) == (place, odd)
        if not fine or (out["freed"][cycle], out["write_at"][cycle]) != (last, write_at):
            wrong.append(cycle)
    return wrong


@pytest.mark.parametrize("config", CORES, ids=lambda config: config.name)
def test_results_leave_in_order_with_their_tags(config):
    assert wrong_cycles(config) == []


def test_twin_another_tag_is_noticed():
    assert wrong_cycles(CORES[0], expected=lambda part: part | {"layer": part["layer"] ^ 1})


FAULTY = {fault.name: (fault.before, fault.after) for fault in INT8_FAULTS if fault.module == "hw.gpt2.result_queue"}
FAULTY |= {
    "entry at the odd result": ("self.read_at + self.freed", "self.read_at + self.odd"),
    "two strips to one address": ("out.dst.eq(entry.dst + 1)", "out.dst.eq(entry.dst)"),
    "first strip twice": ("out.index.eq(entry.index + 1), out.strip_first.eq(0)", "out.index.eq(entry.index + 1)"),
    "an empty queue speaks": ("some.eq(self.write_at != self.read_at)", "some.eq(1)"),
}
EQUIVALENT = {fault.name for fault in INT8_FAULTS if fault.equivalent}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_queues_are_noticed(mutant, name):
    make = mutant("hw.gpt2.result_queue", *FAULTY[name])["ResultQueue"]
    assert (wrong_cycles(CORES[1], make) == []) == (name in EQUIVALENT)
