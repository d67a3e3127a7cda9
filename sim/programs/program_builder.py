"""Appends random legal instructions, with as much of each fixed by the caller as a dependency needs."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from hw.gpt2.config import CoreConfig
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path

__all__ = ["ProgramBuilder", "Region", "Shape", "paired"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes that a whole program shares (registers of the same names; ``vector_strips``: strips of ``width``)."""

    layers: int
    heads: int
    key_words: int
    value_strips: int
    width: int
    vector_strips: int
    context_limit: int


def paired(strips: int, config: CoreConfig) -> int:
    """So many strips, or the next number that rows of an MM's weights can serve."""
    return strips + -strips % config.mm_strips


@dataclasses.dataclass(frozen=True)
class Region:
    """Whole activation words that a snippet owns."""

    word: int
    words: int


@dataclasses.dataclass
class _Reserved:
    """What fillers must leave alone while a snippet is under way."""

    accumulators: set[int] = dataclasses.field(default_factory=set)
    norms: set[int] = dataclasses.field(default_factory=set)


class ProgramBuilder:
    """A program under construction.

    Every method appends legal instructions (docs/core.md, section 5) if it is called where its operation is allowed.
    ``rng`` decides all that the caller does not.
    """

    def __init__(self, config: CoreConfig, shape: Shape, rng: random.Random) -> None:
        self.config = config
        self.shape = shape
        self.rng = rng
        self.code: list[Instruction] = []
        self.decode_only = 0
        self.reserved = _Reserved()
        s = config.strips_per_word
        self._low_words = min(config.residual_strips // s, config.act_words // 2)
        self._x_words = -(-shape.vector_strips // s)
        self._next = {True: self._x_words, False: self._low_words}
        self.sources: list[Region] = []
        self.hidden: list[Region] = []  # written in decode steps only
        self.norms: list[int] = []
        self.scores: tuple[int, int, int, int] | None = None  # head0, heads, prob, prob_stride of the latest SC
        self._blocks = -(-shape.context_limit // config.tile)

    # Operands

    def region(self, words: int, low: bool | None = None) -> Region:
        """Words nobody uses yet, ``low`` ones for RESIDUAL; when all of those are taken, words written before."""
        wanted = self.rng.random() < 0.2 if low is None else low
        if self._next[wanted] + words <= (self._low_words if wanted else self.config.act_words):
            region = Region(self._next[wanted], words)
            self._next[wanted] += words
            return region
        if low is None:
            return self.region(words, not wanted)
        written = [r for r in self.sources if r.words >= words and (r.word < self._low_words) == low]
        return Region(self.rng.choice(written).word, words)

    def source(self) -> tuple[int, int, int]:
        """``src``, ``words``, ``tail`` of something written."""
        c, rng = self.config, self.rng
        if not self.sources or rng.random() < 0.3:
            elements = self.shape.vector_strips * c.lanes
            words = rng.randint(1, self._x_words)
            most = min(c.tile, elements - (words - 1) * c.tile)
            return 0, words, most if rng.random() < 0.5 else rng.randint(1, most)
        region = rng.choice(self.sources[-6:])
        words = rng.randint(1, region.words)
        return region.word + rng.randint(0, region.words - words), words, self.tail()

    def tail(self) -> int:
        """Mostly whole words."""
        return self.config.tile if self.rng.random() < 0.7 else self.rng.randint(1, self.config.tile)

    def accumulator(self, count: int, unit: int = 1) -> int:
        """First of ``count`` accumulators, a multiple of ``unit``, away from reserved ones and their parameters."""
        margin = self.config.param_strips
        while True:
            first = self.rng.randrange(self.config.acc_depth - count + 1)
            first -= first % unit
            near = range(first - margin, first + count + margin)
            if not self.reserved.accumulators.intersection(near):
                return first

    def reserve(self, acc: int, count: int) -> None:
        """Keep fillers away from accumulators."""
        self.reserved.accumulators.update(range(acc, acc + count))

    def release(self, *regions: Region) -> None:
        """End of a snippet: nothing is reserved any more, ``regions`` may be read."""
        self.reserved = _Reserved()
        (self.hidden if self.decode_only else self.sources).extend(regions)

    # Instructions

    def append(self, op: Op, **fields: int) -> None:
        """Append an instruction as it is."""
        decode_only = self.decode_only if op in (Op.MM, Op.EMB) else 0
        self.code.append(Instruction(op=op, decode_only=decode_only, **fields))

    def mm(self, dst: int, strips: int, *, source: tuple[int, int, int] | None = None, **fixed: Any) -> None:
        """MM of ``strips`` strips to strip address ``dst``; ``fixed`` are fields of the instruction."""
        fields: dict[str, int] = {"path": Path.PLAIN, "group": self.paired(self.group(strips)), **fixed}
        src, words, tail = self._apart(dst, strips, fields) if source is None else source
        if "params" not in fields:
            fields["params"] = self._params(fields["path"])
        if fields["params"] == Params.NORM and "norm" not in fixed:
            fields["norm"] = self.rng.choice([n for n in self.norms if n not in self.reserved.norms])
        if "acc" not in fields:
            # parameters lie at (acc + strip), so products with parameters keep as many accumulators clear as strips
            held = fields["params"] != Params.NONE or self.config.has_int8
            fields["acc"] = self.accumulator(strips if held else fields["group"], self.config.mm_strips)
        self.append(Op.MM, src=src, words=words, tail=tail, dst=dst, strips=strips, **fields)
        if fields.get("stats") and fields["stats_set"] not in self.norms:
            self.norms.append(fields["stats_set"])

    def emb(self, dst: int, strips: int, **fixed: int) -> None:
        """EMB of ``strips`` strips to strip address ``dst``."""
        offset = self.rng.randint(0, self.shape.vector_strips - strips)
        fields: dict[str, int] = {"operand": self.rng.choice(list(Operand)), "group": self.group(strips), **fixed}
        if "acc" not in fields:
            fields["acc"] = self.accumulator(fields["group"])
        self.append(Op.EMB, src=offset, words=1, tail=self.config.tile, dst=dst, strips=strips, **fields)
        if fields.get("stats") and fields["stats_set"] not in self.norms:
            self.norms.append(fields["stats_set"])

    def sc(self, src: int, heads: int, tail: int, *, acc: int | None = None, same_words: bool = False) -> None:
        """SC of random heads; ``same_words``: into the probabilities of the SC before."""
        rng, shape = self.rng, self.shape
        head0 = rng.randint(0, shape.heads - heads)
        stride = self._blocks + rng.randint(0, 2)
        end = self.config.prob_words - (heads - 1) * stride - self._blocks
        prob = rng.randint(0, end)
        if same_words and self.scores is not None:
            prob, stride = self.scores[2], max(self.scores[3], self._blocks)
        if acc is None:
            acc = self.accumulator(1)
        self.append(Op.SC, src=src, tail=tail, acc=acc, head0=head0, heads=heads, prob=prob, prob_stride=stride)
        self.scores = (head0, heads, prob, stride)

    def av(self, dst: int, heads: int, *, acc: int | None = None) -> None:
        """AV of ``heads`` of the heads that the latest SC left."""
        assert self.scores is not None
        head0, have, prob, stride = self.scores
        skip = self.rng.randint(0, have - heads)
        if acc is None:
            acc = self.accumulator(self.shape.value_strips)
        self.append(
            Op.AV, dst=dst, acc=acc, head0=head0 + skip, heads=heads, prob=prob + skip * stride, prob_stride=stride
        )

    def keys(self, **fixed: Any) -> None:
        """The product that commits the keys of a layer."""
        strips = self.shape.heads * self.shape.key_words * self.config.strips_per_word
        path = self.rng.choice([Path.PLAIN, Path.PLAIN, Path.GELU])
        self.mm(self.config.new_key_base, strips, path=path, commit=Commit.KEYS, **fixed)

    def values(self, **fixed: Any) -> None:
        """The product that commits the values of a layer."""
        strips = self.paired(self.shape.heads * self.shape.value_strips)
        path = self.rng.choice([Path.PLAIN, Path.PLAIN, Path.GELU])
        self.mm(self.config.new_value_base, strips, path=path, commit=Commit.VALUES, **fixed)

    def fill(self, region: Region, **fixed: Any) -> None:
        """MM that writes a region whole."""
        s = self.config.strips_per_word
        self.mm(region.word * s, region.words * s, **fixed)

    def complete(self, region: Region, strips: int) -> None:
        """Write a region of which a later instruction will only write the first ``strips`` strips."""
        if strips < region.words * self.config.strips_per_word:
            self.fill(region)

    def filler(self) -> None:
        """An instruction that touches nothing reserved and leaves something to read."""
        s = self.config.strips_per_word
        region = self.region(self.rng.choice([1, 1, 2]), low=False)
        kind = self.rng.random()
        if kind < 0.25 and self.shape.vector_strips >= region.words * s:
            self.emb(region.word * s, region.words * s, path=self.rng.choice([Path.PLAIN, Path.GELU]))
        else:
            self.fill(region, path=Path.GELU if kind > 0.8 else Path.PLAIN)
        (self.hidden if self.decode_only else self.sources).append(region)

    def query(self, heads: int) -> Region:
        """A fresh region with q words for ``heads`` heads."""
        region = self.region(heads * self.shape.key_words)
        self.fill(region)
        return region

    def ensure_scores(self, heads: int) -> None:
        """SC of at least ``heads`` heads, unless the latest one will do."""
        if self.scores is None or self.scores[1] < heads:
            region = self.query(heads)
            self.sc(region.word, heads, self.tail())
            self.sources.append(region)

    def group(self, strips: int) -> int:
        """One strip at a time, all together, or something between."""
        most = min(strips, self.config.acc_depth // 2)
        return self.rng.choice([1, most, self.rng.randint(1, most)])

    def paired(self, strips: int) -> int:
        """So many strips of an MM, or the next number that the core's rows of weights can serve."""
        return paired(strips, self.config)

    def written_words(self) -> list[Region]:
        """The two spans of words that regions were cut from."""
        spans = ((self._x_words, self._next[True]), (self._low_words, self._next[False]))
        return [Region(start, end - start) for start, end in spans if end > start]

    def vector(self) -> tuple[int, int, int]:
        """``src``, ``words``, ``tail`` of the residual vector at word 0."""
        c = self.config
        return 0, self._x_words, self.shape.vector_strips * c.lanes - (self._x_words - 1) * c.tile

    def _params(self, path: int) -> Params:
        free = [n for n in self.norms if n not in self.reserved.norms]
        norm = [Params.NORM] if free and path != Path.RESIDUAL else []
        return self.rng.choice([Params.NONE, Params.BIAS, *norm, *norm])

    def _apart(self, dst: int, strips: int, fields: dict[str, int]) -> tuple[int, int, int]:
        """A source that does not overlap the destination."""
        s = self.config.strips_per_word
        while True:
            src, words, tail = self.source()
            if dst >= (src + words) * s or dst + strips <= src * s or fields["path"] == Path.LOGITS:
                return src, words, tail
