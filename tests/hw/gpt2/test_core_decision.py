"""What the core tells fetch when rows decide: the tokens of all of them, when the last one has answered."""

import random
import types

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.gpt2.core import Gpt2Core
from sim.rtl.pysim import run_testbench

STEPS = 60
LATEST = 12  # cycles between the first answer of a step and the last one


class Decision(wiring.Component):
    """The part of a core with ``rows`` rows between its arg-maxes and fetch."""

    def __init__(self, rows, core=Gpt2Core):
        self.rows, self.core = rows, core
        tokens = data.ArrayLayout(32, rows)
        super().__init__(
            {
                "decides": In(rows),
                "token_valid": In(rows),
                "nan": In(rows),
                "token": In(tokens),
                "decided": Out(1),
                "failed": Out(1),
                "nan_rows": Out(rows),
                "tokens": Out(tokens),
            }
        )

    def elaborate(self, platform):
        m = Module()
        rows = [
            types.SimpleNamespace(token_valid=self.token_valid[r], nan=self.nan[r], token=self.token[r])
            for r in range(self.rows)
        ]
        part = types.SimpleNamespace(
            config=types.SimpleNamespace(rows=self.rows),
            _rows=rows,
            _fetch=types.SimpleNamespace(decides=self.decides, tokens=self.tokens),
            _nan_rows=self.nan_rows,
            _own_nan=self.failed,
            _own_decided=self.decided,
        )
        self.core._decision(part, m)
        clock = Signal()
        m.d.sync += clock.eq(~clock)  # with one row nothing else needs the domain
        return m


def play(rows, core=Gpt2Core, seed=7, together=False):
    """Steps in which rows answer at random times, some with a NaN; a token stands at its row for two cycles only, as a
    drawn one does. Rows that do not decide answer, too, as those of a sequence do."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    unit = Decision(rows, core)

    async def bench(ctx):
        for _ in range(STEPS):
            decides = rng.randrange(1, 1 << rows)
            nan = rng.getrandbits(rows) if rng.random() < 0.3 else 0
            tokens = [rng.getrandbits(20) for _ in range(rows)]
            at = [3 if together else rng.randrange(LATEST) for _ in range(rows)]
            last = max(at[r] for r in range(rows) if decides >> r & 1)
            ctx.set(unit.decides, decides)
            for cycle in range(LATEST + 3):
                now = sum(1 << r for r in range(rows) if at[r] == cycle)
                ctx.set(unit.token_valid, now & ~nan)
                ctx.set(unit.nan, now & nan)
                for r in range(rows):
                    ctx.set(unit.token[r], tokens[r] if cycle in (at[r], at[r] + 1) else rng.getrandbits(20))
                failed, decided = ctx.get(unit.failed), ctx.get(unit.decided)
                assert failed == (cycle == last and nan & decides != 0), "a NaN is told with the last answer"
                assert decided == (cycle == last and nan & decides == 0), "decided with the last answer"
                if failed:
                    assert ctx.get(unit.nan_rows) == nan & decides
                if decided:
                    got = [ctx.get(unit.tokens[r]) for r in range(rows) if decides >> r & 1]
                    assert got == [tokens[r] for r in range(rows) if decides >> r & 1], "tokens"
                await ctx.tick()
                if cycle == last:
                    break  # fetch goes on; rows that do not decide are done by then
            ctx.set(unit.token_valid, 0)
            ctx.set(unit.nan, 0)
            await ctx.tick().repeat(3)

    run_testbench(unit, bench, cycles=STEPS * (LATEST + 9))


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("together", [True, False])
def test_the_last_answer_decides(rows, together):
    play(rows, together=together)


FAULTY = {
    "a token is not kept": ("Mux(row.token_valid, row.token, kept)", "row.token"),
    "the first answer decides": ("(answers != answered) & (answers == self._fetch.decides)", "answers != answered"),
    "every row is waited for": (
        "answers == self._fetch.decides)",
        "answers == (1 << self.config.rows) - 1)",
    ),
    "an old answer counts": ("answered.eq(Mux(done, 0, answers))", "answered.eq(answers)"),
    "a NaN is forgotten": ("failed.eq(Mux(done, 0, self._nan_rows))", "failed.eq(0)"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_decisions_are_noticed(mutant, name):
    core = mutant("hw.gpt2.core", *FAULTY[name])["Gpt2Core"]
    with pytest.raises(AssertionError):
        play(4, core)
