"""Seeded faults of sampling on the board: random numbers, scores, the list of the largest logits (docs/sampling.md)."""

from __future__ import annotations

from sim.rtl.fault_patch import Fault

__all__ = ["SAMPLER_FAULTS"]

_FOUR_ROWS = (("rows", 4),)

SAMPLER_FAULTS = (
    Fault(
        "upper_seed_ignored",
        "hw.gpt2.sampler",
        "[base.eq(self.seed), numbers[0].eq(1),",
        "[base.eq(self.seed[:32]), numbers[0].eq(1),",
        "seeds that differ in their upper half alone draw the same text",
        "programs",
    ),
    Fault(
        "position_of_the_strips",
        "hw.gpt2.row",
        "sampler.position.eq(self.logits_position + 1),",
        "sampler.position.eq(self.logits_position),",
        "random words are those of the token before",
        "programs",
    ),
    Fault(
        "word_of_the_token_before",
        "hw.gpt2.sampler",
        "m.d.sync += [numbers[w].eq(rank_id(ranks[w]) + 1),",
        "m.d.sync += [numbers[w].eq(rank_id(ranks[w])),",
        "without top_k a token draws with the word of the id before it, and that id comes out",
        "programs",
    ),
    Fault(
        "third_mixing_step_left_out",
        "hw.numerics.splitmix",
        "m.d.comb += self.out.eq(word ^ (word >> _SHIFTS[-1]))",
        "m.d.comb += self.out.eq(word)",
        "the low half of every random word is another",
        "programs",
    ),
    Fault(
        "logarithm_left_out",
        "hw.numerics.gumbel",
        "base = Mux(large, log, multiples[zeros[:3]])",
        "base = multiples[zeros[:3]]",
        "Gumbel numbers of the upper half of all words lack their logarithm",
        "programs",
    ),
    Fault(
        "exponent_of_the_temperature_unsigned",
        "hw.gpt2.row",
        "sampler.inverse_exponent.eq(sampling.inverse_exponent),",
        "sampler.inverse_exponent.eq(sampling.inverse_exponent.as_unsigned()[:5]),",
        "temperatures above 1 count as below 1",
        "programs",
    ),
    Fault(
        "negative_logits_upside_down",
        "hw.gpt2.sampler_way",
        "scale.x.eq(Cat(key[:31] ^ (~key[31]).replicate(31), ~key[31])),",
        "scale.x.eq(Cat(key[:31], ~key[31])),",
        "of two negative logits the lower one has the better score",
        "programs",
    ),
    Fault(
        "best_score_kept",
        "hw.gpt2.sampler",
        "way.clear.eq(clear),",
        "way.clear.eq(0),",
        "the best score of the tokens before still counts",
        "programs",
    ),
    Fault(
        "list_kept",
        "hw.gpt2.sampler",
        "largest.clear.eq(clear),",
        "largest.clear.eq(0),",
        "the largest logits of the tokens before still stand in the list",
        "programs",
    ),
    Fault(
        "top_k_one_more",
        "hw.gpt2.sampler",
        "m.d.sync += wait.eq(self.top_k - 1)",
        "m.d.sync += wait.eq(self.top_k)",
        "one token more than top_k takes part",
        "programs",
    ),
    Fault(
        "equal_logits_by_higher_id",
        "hw.gpt2.sampler_list",
        "above[i].eq(coming > cell)",
        "above[i].eq(rank_key(coming) >= rank_key(cell))",
        "of equal logits the later one goes before the others in the list",
        "control",
    ),
    Fault(
        "columns_behind_the_vocabulary",
        "hw.gpt2.sampler_queue",
        "passes.append(oldest.mask[n] & (",
        "passes.append((",
        "columns that are no tokens take part",
        "programs",
    ),
    Fault(
        "token_of_a_row_not_kept",
        "hw.gpt2.core",
        "Mux(row.token_valid, row.token, kept)",
        "row.token",
        "the token of a row that has decided before the others is lost",
        "programs",
        _FOUR_ROWS,
    ),
    Fault(
        "decided_when_the_first_row_has",
        "hw.gpt2.core",
        "(answers != answered) & (answers == self._fetch.decides)",
        "(answers != answered) & (answered == 0)",
        "a batch goes on when its first row has decided",
        "programs",
        _FOUR_ROWS,
    ),
    Fault(
        "control_best_otherwise",
        "hw.gpt2.sampler_way",
        "with m.Elif(valid[-1] & (merit > self.best)):",
        "with m.Elif(valid[-1] & ~(merit <= self.best)):",
        "the same comparison, negated twice",
        "nothing",
    ),
)
