"""Write arbiters one behind the other, as the rows' logits writers and the key/value writer are joined: every command
once and in order, none taken back, the urgent one first."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.board.write_arbiter import WriteArbiter, WriteSignature, connect_write
from hw.gpt2.config import CoreConfig
from sim.rtl.pysim import run_testbench

CONFIG = CoreConfig(name="16x2", tile=16, lanes=2, channels=2, port_bits=256, context=64, fifo_words=32)
SEED = 12
COUNT = 60  # commands of each writer
FIELDS = ("write_row", "write_channels", "write_word", "write_spread", "write_values", "write_strobe")


class Chain(wiring.Component):
    """``writers`` commands in, the first one the most urgent; each further arbiter joins one more patient writer."""

    def __init__(self, writers, make=WriteArbiter):
        self.make = make
        self.names = [f"writer_{i}" for i in range(writers)]
        signature = WriteSignature(CONFIG)
        super().__init__({**dict.fromkeys(self.names, In(signature)), "memory": Out(signature)})

    def elaborate(self, platform):
        m = Module()
        # as in the core: row 0's writer before row 1's, what comes of that before row 2's; at last the most urgent
        joined = getattr(self, self.names[1])
        for name in self.names[2:]:
            m.submodules[name] = arbiter = self.make(CONFIG)
            connect_write(m, joined, arbiter.urgent)
            connect_write(m, getattr(self, name), arbiter.patient)
            joined = arbiter.memory
        m.submodules.last = arbiter = self.make(CONFIG)
        connect_write(m, getattr(self, self.names[0]), arbiter.urgent)
        connect_write(m, joined, arbiter.patient)
        connect_write(m, arbiter.memory, self.memory)
        return m


def traffic(writers, pause, ready_pause, make=WriteArbiter):
    """Random commands of all writers to a memory that pauses; AssertionError if a rule is broken."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    chain = Chain(writers, make)
    waiting = [
        [{name: rng.getrandbits(len(getattr(chain.memory, name))) for name in FIELDS} for _ in range(COUNT)]
        for _ in range(writers)
    ]
    sent = [list(commands) for commands in waiting]
    got, shown, held = [], [None] * writers, None
    overtaken = most = 0  # commands of others that the urgent writer waited for

    async def bench(ctx):
        nonlocal held, overtaken, most
        while any(waiting) or any(shown):
            for i, name in enumerate(chain.names):
                port = getattr(chain, name)
                if shown[i] is None and waiting[i] and rng.random() >= pause:
                    shown[i] = waiting[i].pop(0)
                ctx.set(port.write_valid, shown[i] is not None)
                for field in FIELDS:
                    ctx.set(getattr(port, field), shown[i][field] if shown[i] else rng.getrandbits(8))
            ctx.set(chain.memory.write_ready, rng.random() >= ready_pause)
            valid, ready = ctx.get(chain.memory.write_valid), ctx.get(chain.memory.write_ready)
            command = {field: ctx.get(getattr(chain.memory, field)) for field in FIELDS}
            assert held is None or (valid and command == held), "a command was taken back"
            held = command if valid and not ready else None
            taken = [i for i, name in enumerate(chain.names) if shown[i] and ctx.get(getattr(chain, name).write_ready)]
            assert len(taken) == (valid and ready), f"{len(taken)} writers were answered, memory took {valid and ready}"
            assert valid or not any(shown), "nobody's command is shown"
            overtaken = (
                overtaken + 1 if shown[0] and taken and taken != [0] else 0 if not shown[0] or taken else overtaken
            )
            most = max(most, overtaken)
            for i in taken:
                assert command == shown[i], "memory took another command than it answered"
                got.append((i, command))
                shown[i] = None
            await ctx.tick()

    run_testbench(chain, bench, cycles=20_000)
    for i, commands in enumerate(sent):
        assert [command for writer, command in got if writer == i] == commands, f"commands of writer {i}"
    assert most <= 1, f"the urgent writer waited for {most} commands"
    return [writer for writer, _ in got]


@pytest.mark.parametrize("writers", [2, 3, 5])
@pytest.mark.parametrize(("pause", "ready_pause"), [(0.0, 0.0), (0.0, 0.5), (0.7, 0.0), (0.7, 0.5)])
def test_every_command_arrives_once(writers, pause, ready_pause):
    order = traffic(writers, pause, ready_pause)
    assert len(order) == writers * COUNT
    if pause == ready_pause == 0:
        assert order == sorted(order), "whoever always has a command goes before all behind it"


FAULTY = {
    "urgent at once": ("with m.If(self.urgent.write_valid & ~shown):", "with m.If(self.urgent.write_valid):"),
    "patient first": (
        "with m.If(self.urgent.write_valid & ~shown):",
        "with m.If(self.urgent.write_valid & ~self.patient.write_valid):",
    ),
    "shown is taken": ("shown.eq(self.patient.write_valid & ~self.memory.write_ready)", "shown.eq(0)"),
    "shown for ever": ("shown.eq(self.patient.write_valid & ~self.memory.write_ready)", "shown.eq(1)"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_arbiters_are_noticed(mutant, name):
    make = mutant("hw.board.write_arbiter", *FAULTY[name])["WriteArbiter"]
    with pytest.raises(AssertionError):
        for pauses in ((0.0, 0.5), (0.7, 0.5)):
            traffic(5, *pauses, make)
