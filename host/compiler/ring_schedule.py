"""The layer and the head of a GPT-2 on one of several boards (docs/ring.md, section 2).

Every product over a vector that was gathered begins with the board's own slice, of which no word is under way, and goes
on with the other boards' words in the order in which they arrive; only its last run is grouped, so that results leave
early. K, Q and V open their own-slice runs together: that much work hides the arrival of x.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from host.compiler.shape import GROUP, Shape
from host.compiler.steps import ATTENTION_NORM, FEED_FORWARD_NORM, Step, attention_steps, group_of
from host.compiler.word_runs import WordRun, word_runs
from hw.gpt2.isa import Commit, Instruction, Op, Params, Path

__all__ = ["ring_head", "ring_layer"]


@dataclasses.dataclass(frozen=True)
class _Vector:
    """A vector that all boards have: `kind` of its slices, first strip, words, valid elements of the last word."""

    kind: str
    first_strip: int
    strips: int
    words: int
    tail: int


@dataclasses.dataclass(frozen=True)
class _Product:
    """The board's columns of a product: `weights` they stream, `source` vector, output `strips`.

    `fields` are those of every run, `result` those of the run with `last`. `whole`: its results have to end in one
    run (a commit, sums), so if its strips exceed the accumulators it is one run over all words.
    """

    weights: str
    name: str
    source: _Vector
    strips: int
    fields: dict[str, Any]
    result: dict[str, Any]
    whole: bool = True

    def part(self, first: int, strips: int) -> _Product:
        """The product of strips `first` .. `first + strips - 1`; a commit belongs to the last part."""
        result = {**self.result, "dst": self.result["dst"] + first}
        if first + strips < self.strips:
            result.pop("commit", None)
        return dataclasses.replace(self, strips=strips, result=result)


class _Runs:
    """Makes the steps of products on one board."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        strips = shape.core.strips_per_word
        self.x = _Vector("x", 0, shape.x_strips, shape.x_words, shape.x_tail)
        self.attention = _Vector("heads", shape.av_word * strips, shape.x_strips, shape.x_words, shape.x_tail)
        self.inner = _Vector("inner", shape.mid_word * strips, shape.inner_strips, shape.inner_words, shape.inner_tail)

    def order(self, vector: _Vector) -> tuple[WordRun, ...]:
        """Runs over a vector in arrival order."""
        shape = self.shape
        slices = shape.slices(vector.kind)
        if vector.kind == "heads":
            size = shape.model.head_size
            slices = tuple(range(heads.start * size, heads.stop * size) for heads in slices)
        return word_runs(slices, shape.core.tile, shape.board)

    def gather(self, vector: _Vector, name: str) -> Step:
        """Announce `vector`."""
        own = self.shape.own_strips(vector.kind)
        instruction = Instruction(
            Op.GATHER, first=0, last=0, dst=vector.first_strip, strips=vector.strips, src=own.start, words=len(own)
        )
        return Step(instruction, f"{name}: own strips {own.start} to {own.stop - 1} of {vector.strips}")

    def steps(self, product: _Product) -> Iterator[Step]:
        """All of a product, one after the other; as much of it as accumulators allow in arrival order."""
        split = product.strips
        if not self.shape.can_open(product.strips):
            block, depth = self.shape.core.param_strips, self.shape.core.acc_depth
            split = 0 if product.whole else depth // block * block
        if split:
            first = product if split == product.strips else product.part(0, split)
            yield from self.split(first, self.order(product.source), 0)
        if split < product.strips:
            rest = product.part(split, product.strips - split)
            yield from self.split(rest, (WordRun(-1, 0, product.source.words),), 0, first_strip=split)

    def split(self, product: _Product, order: tuple[WordRun, ...], acc: int, first_strip: int = 0) -> list[Step]:
        """A product in runs of the given order on the accumulators from `acc` on."""
        vector, core = product.source, self.shape.core
        base = vector.first_strip // core.strips_per_word
        steps, whole = [], len(order) == 1
        for place, run in enumerate(order):
            last = place == len(order) - 1
            instruction = Instruction(
                Op.MM,
                first=int(place == 0),
                last=int(last),
                src=base + run.first,
                words=run.words,
                tail=vector.tail if run.first + run.words == vector.words else core.tile,
                strips=product.strips,
                group=product.strips
                if not last
                else group_of(product.strips)
                if whole
                else _even_group(product.strips, core.mm_strips),
                acc=acc,
                **product.fields,
                **(product.result if last else {}),
            )
            name = f"{product.name}, {self._words(run)}" + (f", from strip {first_strip}" if first_strip else "")
            steps.append(Step(instruction, name, product.weights, run.first, first_strip))
        return steps

    def _words(self, run: WordRun) -> str:
        if run.board < 0:
            return "all words"
        whose = "own words" if run.board == self.shape.board else f"words of board {run.board}"
        return f"{whose} {run.first} to {run.first + run.words - 1}"


def _even_group(strips: int, unit: int) -> int:
    """Groups of at most GROUP strips, as equal as multiples of `unit` can be: a short last one would wait for its
    accumulators.

    Only for the last of several runs, which takes no parameters: groups that do must not straddle blocks of them.
    """
    group = -(-strips // -(-strips // GROUP))
    return group + -group % unit


def ring_layer(shape: Shape) -> list[Step]:
    """The steps of a layer."""
    runs, strips = _Runs(shape), shape.core.strips_per_word
    residual: dict[str, Any] = {"path": Path.RESIDUAL, "stats": 1, "send": 1, "dst": shape.own_strips("x").start}
    own_x = len(shape.own_strips("x"))
    projection = _Product(
        "projection",
        "attention projection -> x",
        runs.attention,
        own_x,
        {"params": Params.BIAS},
        {**residual, "stats_set": FEED_FORWARD_NORM},
    )
    inner = shape.own_strips("inner")
    feed_in = _Product(
        "feed_in",
        "feed-forward in, GELU",
        runs.x,
        len(inner),
        {"params": Params.NORM, "norm": FEED_FORWARD_NORM},
        {"path": Path.GELU, "send": 1, "dst": shape.mid_word * strips + inner.start},
        whole=False,
    )
    feed_out = _Product(
        "feed_out",
        "feed-forward out -> x",
        runs.inner,
        own_x,
        {"params": Params.BIAS},
        {**residual, "stats_set": ATTENTION_NORM},
    )
    return [
        *_attention(shape, runs),
        runs.gather(runs.x, "x behind attention"),
        *runs.steps(projection),
        runs.gather(runs.inner, "feed-forward vector"),
        *runs.steps(feed_in),
        runs.gather(runs.x, "x behind feed-forward"),
        *runs.steps(feed_out),
    ]


def ring_head(shape: Shape) -> list[Step]:
    """The language-model head over the board's own part of the vocabulary."""
    runs = _Runs(shape)
    head = _Product(
        "head",
        "language-model head",
        runs.x,
        shape.vocab_strips,
        {"params": Params.NORM, "norm": ATTENTION_NORM, "decode_only": 1},
        {"path": Path.LOGITS, "commit": Commit.TOKEN, "dst": 0},
        whole=False,
    )
    return list(runs.steps(head))


def _attention(shape: Shape, runs: _Runs) -> Iterator[Step]:
    """K, Q, V, scores and averages; the attention result is gathered."""
    core, late = shape.core, {"params": Params.NORM, "norm": ATTENTION_NORM}
    keys = _Product("keys", "keys", runs.x, shape.key_strips, late, {"dst": core.new_key_base, "commit": Commit.KEYS})
    queries = _Product(
        "queries",
        "queries",
        runs.x,
        shape.key_strips,
        late,
        {"dst": shape.q_word * core.strips_per_word},
        whole=False,
    )
    values = _Product(
        "values",
        "values",
        runs.x,
        shape.values_strips,
        late,
        {"dst": core.new_value_base, "commit": Commit.VALUES},
    )
    order = runs.order(runs.x)
    own = 1 if order[0].board == shape.board and len(order) > 1 else 0
    after_scores: list[Step] = []
    if own and shape.can_open(keys.strips, queries.strips, values.strips):
        value_acc, score_acc = keys.strips + queries.strips, 0
        opened = [runs.split(keys, order, 0), runs.split(queries, order, keys.strips)]
        cut_order, cut = _cut(order, own)
        value_steps = runs.split(values, cut_order, value_acc)
        for steps in (*opened, value_steps):
            yield from steps[:own]
        for steps in opened:
            yield from steps[own:]
        yield from value_steps[own:cut]
        after_scores = value_steps[cut:]
    else:
        yield from runs.steps(keys)
        yield from runs.steps(queries)
        score_acc = 0
        if values.strips < core.acc_depth and shape.can_open(values.strips):
            score_acc = values.strips
            cut_order, cut = _cut(order, own)
            value_steps = runs.split(values, cut_order, 0)
            yield from value_steps[:cut]
            after_scores = value_steps[cut:]
        else:
            yield from runs.steps(values)
    own_strips = shape.own_strips("heads")
    scores, averages = attention_steps(shape, score_acc, runs.attention.first_strip + own_strips.start, send=1)
    yield scores[0]
    yield from after_scores
    yield runs.gather(runs.attention, "attention result")
    yield averages[0]
    for score, average in zip(scores[1:], averages[1:], strict=True):
        yield score
        yield average


def _cut(order: tuple[WordRun, ...], own: int) -> tuple[tuple[WordRun, ...], int]:
    """The order with half of the words behind the own runs ending a run, and the number of runs up to there.

    Cutting a run in two changes no bit: the words keep their order. The scores stand at the cut.
    """
    half = sum(run.words for run in order[own:]) // 2
    before = list(order[:own])
    for run in order[own:]:
        if half < run.words:
            break
        before.append(run)
        half -= run.words
    behind = order[len(before) :]
    if half:
        run = behind[0]
        before.append(dataclasses.replace(run, words=half))
        behind = (WordRun(run.board, run.first + half, run.words - half), *behind[1:])
    return (*before, *behind), len(before)
