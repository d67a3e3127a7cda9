"""Seeded sampling of the next token: Gumbel-max over all logits of a step or over the largest of them."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.gpt2.config import CoreConfig
from hw.gpt2.sampled_token import TOP_K_LIMIT
from hw.gpt2.sampler_list import RANK_BITS, LargestList, rank_id, rank_key
from hw.gpt2.sampler_queue import SamplerQueue
from hw.gpt2.sampler_way import SamplerWay, merit_number
from hw.numerics.pipeline import reduced_pairs, registered
from hw.numerics.scaled_logit import MANTISSA_BITS
from hw.numerics.splitmix import NUMBER_BITS

__all__ = ["HOLD_CYCLES", "Sampler"]

HOLD_CYCLES = 128
"""From a step's last strip to the end of choosing with ``top_k``, in a core."""


class Sampler(wiring.Component):
    """The token with the best score logit/temperature + gumbel(seed, position, id) of a step (docs/sampling.md).

    Parameters
    ----------
    config : CoreConfig
    ways : int
        Tokens that are scored a cycle without ``top_k``; a power of two up to ``lanes``.
    depth : int
        Strips that can wait.
    margin : int
        Strips for which ``ready_soon`` promises room; at most ``depth``.
    hold : int
        Cycles from a step's last strip to the end of choosing with ``top_k``, if it is done by then. So a token's time
        does not depend on the logits unless they come in an order that lets more than ``hold`` tokens wait at the end.

    Members
    -------
    ``enable`` : when low, strips are ignored. ``inverse_mantissa``, ``inverse_exponent`` : 1/temperature
        (``hw.numerics.scaled_logit``). ``top_k`` : 0, or only the 1 to 64 largest logits take part, equal ones by lower
        id. ``seed``. All constant during a run.
    ``position`` : of the token that is chosen, the strips' own plus one; stable from a step's first strip to its token.
    ``strip_valid``, ``strip`` (N fp32), ``strip_mask`` (columns that take part), ``strip_index``, ``strip_commit``
        (last strip of the step) : without back-pressure, in any order of index. The next step's first strip must come
        behind the token.
    ``ready_soon`` : ``margin`` strips fit from this cycle on. ``overflow`` : a strip was lost; stays until reset.
    ``token_valid`` strobe with ``token`` : equal scores go to the lowest id; meaningless if no column took part.
    ``nan`` strobe instead of ``token_valid`` if any logit that took part was NaN.
    ``busy`` : from the cycle after a step's first strip to its strobe.

    Timing: docs/sampling.md, section 5. Numerics: golden model ``hw.gpt2.sampled_token``.
    Source: the Gumbel-max trick as in Maddison et al., A* sampling, NeurIPS 2014, section 2.
    """

    def __init__(self, config: CoreConfig, ways: int = 1, depth: int = 128, margin: int = 64, hold: int = HOLD_CYCLES):
        self.config = config
        self.hold = hold
        self._queue = SamplerQueue(config, ways, depth, margin)
        self._ways = [SamplerWay() for _ in range(ways)]
        self._largest = LargestList(TOP_K_LIMIT)
        super().__init__(
            {
                "enable": In(1),
                "inverse_mantissa": In(MANTISSA_BITS),
                "inverse_exponent": In(signed(6)),
                "top_k": In(range(TOP_K_LIMIT + 1)),
                "seed": In(64),
                "position": In(16),
                "strip_valid": In(1),
                "strip": In(32 * config.lanes),
                "strip_mask": In(config.lanes),
                "strip_index": In(16),
                "strip_commit": In(1),
                "ready_soon": Out(1),
                "overflow": Out(1),
                "token_valid": Out(1),
                "token": Out(32),
                "nan": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = self._queue
        m.submodules.largest = largest = self._largest
        for name in ("enable", "strip_valid", "strip", "strip_mask", "strip_index", "strip_commit"):
            m.d.comb += getattr(queue, name).eq(getattr(self, name))
        for w, way in enumerate(self._ways):
            m.submodules[f"way_{w}"] = way
            m.d.comb += [
                way.inverse_mantissa.eq(self.inverse_mantissa),
                way.inverse_exponent.eq(self.inverse_exponent),
            ]
        chooses, clear, decide = Signal(), Signal(), Signal()
        m.d.comb += [
            self.ready_soon.eq(queue.ready_soon),
            self.overflow.eq(queue.overflow),
            chooses.eq(self.top_k != 0),
            queue.choose.eq(chooses),
            queue.least.eq(largest.last),
            queue.clear.eq(clear),
            largest.clear.eq(clear),
        ]
        idle = self._sequence(m, chooses, clear, decide)
        deciding = self._decide(m, decide)
        m.d.comb += self.busy.eq(~idle | queue.waiting | deciding)
        return m

    def _sequence(self, m: Module, chooses: Signal, clear: Signal, decide: Signal) -> Value:
        """Seed, position, then the tokens: all as they come, or the list's first ones when it is complete.

        Returns whether nothing is going on.
        """
        queue, largest, first_way = self._queue, self._largest, self._ways[0]
        base = Signal(64, reset_less=True)
        wait = Signal(range(max(TOP_K_LIMIT, SamplerWay.latency) + 1), reset_less=True)
        held = Signal(range(self.hold + 1))
        with m.If(self.strip_valid & self.enable & self.strip_commit):
            m.d.sync += held.eq(self.hold)
        with m.Elif(held != 0):
            m.d.sync += held.eq(held - 1)

        ranks = [queue.ranks.word_select(w, RANK_BITS) for w in range(len(self._ways))]
        chosen = [rank & queue.valid[w].replicate(RANK_BITS) for w, rank in enumerate(ranks)]
        [rank] = reduced_pairs(chosen, lambda a, b: a | b, len(chosen).bit_length())
        m.d.comb += [largest.insert.eq(queue.valid.any() & chooses), largest.rank.eq(rank)]

        numbers = [Signal(NUMBER_BITS, name=f"number_{w}", reset_less=True) for w in range(len(self._ways))]
        keys = [Signal(32, name=f"key_{w}", reset_less=True) for w in range(len(self._ways))]
        valid = Signal(len(self._ways))
        m.d.sync += valid.eq(Mux(chooses, 0, queue.valid))
        for w, way in enumerate(self._ways):
            m.d.sync += [numbers[w].eq(rank_id(ranks[w]) + 1), keys[w].eq(rank_key(ranks[w]))]
            m.d.comb += [
                way.base.eq(base),
                way.number.eq(numbers[w]),
                way.key.eq(keys[w]),
                way.valid.eq(valid[w]),
                way.clear.eq(clear),
            ]

        m.d.sync += wait.eq(wait - 1)
        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.comb += clear.eq(1)
                m.d.sync += [base.eq(self.seed), numbers[0].eq(1), wait.eq(SamplerWay.word_latency)]
                with m.If(queue.waiting):
                    m.next = "SEED"
            with m.State("SEED"):
                with m.If(wait == 0):
                    m.d.sync += [base.eq(first_way.word), numbers[0].eq(self.position)]
                    m.d.sync += wait.eq(SamplerWay.word_latency)
                    m.next = "POSITION"
            with m.State("POSITION"):
                with m.If(wait == 0):
                    m.d.sync += base.eq(first_way.word)
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += queue.take.eq(1)
                with m.If(queue.end):
                    m.d.sync += wait.eq(Mux(chooses, largest.settle, SamplerWay.latency))
                    m.next = "SCORE"
                    with m.If(chooses):
                        m.next = "SETTLE"
            with m.State("SETTLE"):
                with m.If(wait == 0):
                    m.d.sync += wait.eq(0)
                    with m.If(held == 0):
                        m.d.sync += wait.eq(self.top_k - 1)
                        m.next = "READ"
            with m.State("READ"):
                m.d.comb += largest.shift.eq(1)
                m.d.sync += [
                    numbers[0].eq(rank_id(largest.first) + 1),
                    keys[0].eq(rank_key(largest.first)),
                    valid[0].eq(largest.first != 0),
                ]
                with m.If(wait == 0):
                    m.d.sync += wait.eq(SamplerWay.latency)
                    m.next = "SCORE"
            with m.State("SCORE"):
                with m.If(wait == 0):
                    m.d.comb += decide.eq(1)
                    m.next = "IDLE"
        return fsm.ongoing("IDLE")

    def _decide(self, m: Module, decide: Signal) -> Value:
        """The best of all ways, a level of comparisons a cycle. Returns whether that is going on."""
        merits = [way.best for way in self._ways]
        levels = exact_log2(len(merits))
        for level in range(levels):
            better = reduced_pairs(merits, lambda a, b: Mux(b > a, b, a), 1)
            merits = [registered(m, merit, f"merit{level}_{i}") for i, merit in enumerate(better)]
        [merit] = merits
        under_way, nan = Signal(levels + 1), Signal()
        m.d.sync += [under_way.eq(Cat(decide, under_way[:-1])), self.token.eq(merit_number(merit) - 1)]
        with m.If(decide):
            m.d.sync += nan.eq(self._queue.nan)
        m.d.comb += [self.token_valid.eq(under_way[-1] & ~nan), self.nan.eq(under_way[-1] & nan)]
        return under_way.any()
