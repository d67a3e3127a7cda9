"""Scores of single tokens, and the best of them."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.numerics.cubic_table import UNIT_BITS
from hw.numerics.gumbel import Gumbel
from hw.numerics.pipeline import delayed, registered
from hw.numerics.scaled_logit import FRACTION_BITS, MANTISSA_BITS, SCALED_BITS, ScaledLogit
from hw.numerics.splitmix import NUMBER_BITS, SplitMix

__all__ = ["MERIT_BITS", "SamplerWay", "merit_number"]

_SCORE_BITS = SCALED_BITS + 1

MERIT_BITS = NUMBER_BITS + _SCORE_BITS + 1
"""Bits of a merit: order of scores, equal ones by lower number; 0 is none."""


def merit_number(merit):
    """The number whose merit it is."""
    return ~merit[:NUMBER_BITS]


class SamplerWay(wiring.Component):
    """Random words, Gumbel numbers and scores, a token a cycle, and the best score so far.

    Members
    -------
    ``inverse_mantissa``, ``inverse_exponent`` : 1/temperature (``hw.numerics.scaled_logit``), constant.
    ``base``, ``number`` : of the random word, ``word``, ``word_latency`` cycles later.
    ``valid``, ``key`` (``hw.numerics.fp32_max``) : the word is that of a token with id ``number - 1`` and this logit,
        which takes part with its score logit/temperature + gumbel.
    ``clear`` : forgets ``best``; no token may be on its way.
    ``best`` : merit of the best score; has seen a token ``latency`` cycles after it.

    Timing: a token a cycle. Numerics: docs/sampling.md; golden model ``hw.gpt2.sampled_token``.
    """

    word_latency = SplitMix.latency
    latency = SplitMix.latency + Gumbel.latency + 2

    def __init__(self):
        super().__init__(
            {
                "inverse_mantissa": In(MANTISSA_BITS),
                "inverse_exponent": In(signed(6)),
                "base": In(64),
                "number": In(NUMBER_BITS),
                "valid": In(1),
                "key": In(32),
                "clear": In(1),
                "word": Out(64),
                "best": Out(MERIT_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.words = words = SplitMix()
        m.submodules.gumbel = gumbel = Gumbel()
        m.submodules.scale = scale = ScaledLogit()
        beside = words.latency + gumbel.latency - scale.latency
        key = delayed(m, self.key, beside, "key")
        m.d.comb += [
            words.base.eq(self.base),
            words.number.eq(self.number),
            self.word.eq(words.out),
            gumbel.word.eq(words.out),
            scale.x.eq(Cat(key[:31] ^ (~key[31]).replicate(31), ~key[31])),
            scale.mantissa.eq(self.inverse_mantissa),
            scale.exponent.eq(self.inverse_exponent),
        ]
        total = (scale.out + (gumbel.out >> UNIT_BITS - FRACTION_BITS))[:_SCORE_BITS]
        score = registered(m, total, "score")
        number = delayed(m, self.number, words.latency + gumbel.latency + 1, "number")
        valid = Signal(words.latency + gumbel.latency + 1)
        m.d.sync += valid.eq(Cat(self.valid, valid[:-1]))
        merit = Cat(~number, score[:-1], ~score[-1], Const(1, 1))
        with m.If(self.clear):
            m.d.sync += self.best.eq(0)
        with m.Elif(valid[-1] & (merit > self.best)):
            m.d.sync += self.best.eq(merit)
        return m
