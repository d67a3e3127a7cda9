"""The instruction list of a board of a GPT-2, each instruction with its name and the weights that it streams.

The order K, Q, half of V, scores, other half of V, scores x V hides the drain of Q behind V's first half and the last
head's softmax behind its second (gpt2_core_sketch.md, section 1). Here the k words stand in natural order;
`host.compiler.ring_schedule` has the layer and head of one board of several.
"""

from __future__ import annotations

import dataclasses

from host.compiler.ring_schedule import ring_head, ring_layer
from host.compiler.shape import GROUP, Shape
from host.compiler.steps import ATTENTION_NORM, FEED_FORWARD_NORM, Step, attention_steps, group_of
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path

__all__ = ["schedule"]


def schedule(shape: Shape) -> list[Step]:
    """The program of `shape`, which has no problems."""
    layer, head = (_layer(shape), [_head(shape)]) if shape.boards == 1 else (ring_layer(shape), ring_head(shape))
    loop = Step(Instruction(Op.LOOP, strips=shape.model.n_layer, words=len(layer)), "loop over the layers")
    return [
        *_embedding(shape),
        loop,
        *(dataclasses.replace(step, in_loop=True) for step in layer),
        *head,
        Step(Instruction(Op.NEXT), "next position"),
    ]


def _embedding(shape: Shape) -> list[Step]:
    """x = position embedding + token embedding; LayerNorm scalars of the first layer."""
    strips, tile = shape.x_strips, shape.core.tile
    both = {"words": 1, "tail": tile, "strips": strips, "acc": 0, "dst": 0}
    statistics = {"stats": 1, "stats_set": ATTENTION_NORM}
    if shape.embeds_in_one:
        position = Instruction(Op.EMB, first=1, last=0, operand=Operand.POSITION, group=strips, **both)
        token = Instruction(Op.EMB, first=0, last=1, operand=Operand.TOKEN, group=strips, **both, **statistics)
    else:
        position = Instruction(Op.EMB, operand=Operand.POSITION, group=GROUP, **both)
        token = Instruction(Op.EMB, operand=Operand.TOKEN, path=Path.RESIDUAL, group=GROUP, **both, **statistics)
    return [Step(position, "position embedding"), Step(token, "token embedding -> x, LayerNorm scalars")]


def _layer(shape: Shape) -> list[Step]:
    core = shape.core
    x = {"src": 0, "words": shape.x_words, "tail": shape.x_tail}
    keys = {**x, "strips": shape.key_strips, "group": group_of(shape.key_strips)}
    strips = core.strips_per_word
    late = {"params": Params.NORM, "norm": ATTENTION_NORM}
    first_half, second_half = _values(shape, late)
    open_strips = shape.x_strips if shape.splits_v else 0  # V's first half keeps these accumulators
    scores, averages = attention_steps(shape, open_strips, shape.av_word * strips)
    residual = {
        "params": Params.BIAS,
        "path": Path.RESIDUAL,
        "stats": 1,
        "dst": 0,
        "strips": shape.x_strips,
        "group": group_of(shape.x_strips),
    }
    new_keys = Instruction(Op.MM, **keys, **late, dst=core.new_key_base, commit=Commit.KEYS)
    queries = Instruction(Op.MM, **keys, **late, dst=shape.q_word * strips)
    projection = Instruction(
        Op.MM, src=shape.av_word, words=shape.x_words, tail=shape.x_tail, **residual, stats_set=FEED_FORWARD_NORM
    )
    feed_in = Instruction(
        Op.MM,
        **x,
        strips=shape.inner_strips,
        group=group_of(shape.inner_strips),
        params=Params.NORM,
        norm=FEED_FORWARD_NORM,
        path=Path.GELU,
        dst=shape.mid_word * strips,
    )
    feed_out = Instruction(
        Op.MM, src=shape.mid_word, words=shape.inner_words, tail=shape.inner_tail, **residual, stats_set=ATTENTION_NORM
    )
    return [
        Step(new_keys, "keys", "keys"),
        Step(queries, "queries", "queries"),
        *first_half,
        scores[0],
        *second_half,
        averages[0],
        *(step for later in zip(scores[1:], averages[1:], strict=True) for step in later),
        Step(projection, "attention projection -> x, LayerNorm scalars", "projection"),
        Step(feed_in, "feed-forward in, GELU", "feed_in"),
        Step(feed_out, "feed-forward out -> x, LayerNorm scalars", "feed_out"),
    ]


def _values(shape: Shape, late: dict[str, int]) -> tuple[list[Step], list[Step]]:
    """V's product: (before the scores, after them). Cut in two if all its strips can be open together."""
    strips, words, tile = shape.x_strips, shape.x_words, shape.core.tile
    target = {**late, "strips": strips, "dst": shape.core.new_value_base}
    if not shape.splits_v:
        whole = Instruction(
            Op.MM, **target, words=words, tail=shape.x_tail, group=group_of(strips), commit=Commit.VALUES
        )
        return [Step(whole, "values", "values")], []
    half = words // 2
    before = Instruction(Op.MM, **target, words=half, tail=tile, group=strips, first=1, last=0)
    after = Instruction(
        Op.MM,
        **target,
        src=half,
        words=words - half,
        tail=shape.x_tail,
        group=strips,
        first=0,
        last=1,
        commit=Commit.VALUES,
    )
    return (
        [Step(before, "values, first half of the k words", "values")],
        [Step(after, "values, second half of the k words", "values", first_word=half)],
    )


def _head(shape: Shape) -> Step:
    instruction = Instruction(
        Op.MM,
        decode_only=1,
        params=Params.NORM,
        norm=ATTENTION_NORM,
        path=Path.LOGITS,
        commit=Commit.TOKEN,
        words=shape.x_words,
        tail=shape.x_tail,
        strips=shape.vocab_strips,
        group=group_of(shape.vocab_strips),
    )
    return Step(instruction, "language-model head, arg-max", "head")
