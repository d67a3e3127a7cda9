"""Steps of a sequence against docs/rows.md section 2: which positions a step takes, which rows work on them."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from hw.gpt2 import row_steps

PLACES = [*range(40), 1022, 1023, 1024, 4090, 4091, 4092, 4093, 4094]  # contexts go up to 4095
AHEAD = [*range(1, 12), 16, 17, 64]


class Step(wiring.Component):
    """The two functions as a component."""

    def __init__(self, rows, last_position, sequence_rows):
        self.rows, self.last_position, self.sequence_rows = rows, last_position, sequence_rows
        super().__init__({"position": In(16), "prompt_end": In(16), "last": Out(16), "active": Out(rows)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [
            self.last.eq(self.last_position(self.position, self.prompt_end, self.rows)),
            self.active.eq(self.sequence_rows(self.position, self.last, self.rows)),
        ]
        return m


def step(p, prompt_end, rows):
    """The last position, and a bit for each row that works."""
    q = p if p + 1 >= prompt_end else min((p | (rows - 1)) + 1, prompt_end) - 1
    return q, sum(1 << position % rows for position in range(p, q + 1))


def differences(rows, last_position=row_steps.last_position, sequence_rows=row_steps.sequence_rows):
    """(position, prompt_end) at which gateware and model differ, of all positions and prompt ends near and far."""
    unit, wrong = Step(rows, last_position, sequence_rows), []

    async def bench(ctx):
        for position in PLACES:
            for prompt_end in {1, *(position + ahead for ahead in AHEAD)}:
                ctx.set(unit.position, position)
                ctx.set(unit.prompt_end, prompt_end)
                await ctx.delay(1e-9)
                if (ctx.get(unit.last), ctx.get(unit.active)) != step(position, prompt_end, rows):
                    wrong.append((position, prompt_end))

    simulator = Simulator(unit)
    simulator.add_testbench(bench)
    simulator.run()
    return wrong


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_every_step_follows_the_contract(rows):
    assert differences(rows) == []


def test_steps_of_a_prompt_by_hand():
    """Positions 3 to 12 of a prompt of 11 on four rows: 3; 4 5 6 7; 8 9 10; then one at a time."""
    assert [step(p, 11, 4) for p in (3, 4, 8, 11, 12)] == [
        (3, 0b1000), (7, 0b1111), (10, 0b0111), (11, 0b1000), (12, 0b0001),
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("group_end + 1 < prompt_end", "group_end + 2 < prompt_end"),
        ("position + 1 < prompt_end", "position + 2 < prompt_end"),
        ("(prompt_end - 1)[", "prompt_end["),
        ("position | (rows - 1)", "position + (rows - 1)"),
        ("(r >= position[:bits]) & ", ""),
        ("(r <= last[:bits])", "(r < last[:bits])"),
    ],
)
def test_faulty_steps_are_noticed(mutant, rows, before, after):
    faulty = mutant("hw.gpt2.row_steps", before, after)
    assert differences(rows, faulty["last_position"], faulty["sequence_rows"])
