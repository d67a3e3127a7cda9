"""The instruction list of a GPT-2 on one board, each instruction with its name and the weights that it streams.

The order K, Q, half of V, scores, other half of V, scores x V hides the drain of Q behind V's first half and the last
head's softmax behind its second (gpt2_core_sketch.md, section 1). On one board the k words stand in natural order.
"""

from __future__ import annotations

import dataclasses

from host.compiler.shape import GROUP, Shape
from hw.gpt2.isa import Commit, Instruction, Op, Operand, Params, Path

__all__ = ["Step", "schedule"]

ATTENTION_NORM, FEED_FORWARD_NORM = 0, 1  # scalar sets; the final LayerNorm uses the first again


@dataclasses.dataclass(frozen=True)
class Step:
    """One instruction of the program.

    Members: `instruction`; `name`: what it computes; `product`: key of the weights it streams (`host.compiler.weights`)
    or ""; `first_word`: the first k word of those weights; `in_loop`: whether it runs once a layer.
    """

    instruction: Instruction
    name: str
    product: str = ""
    first_word: int = 0
    in_loop: bool = False


def schedule(shape: Shape) -> list[Step]:
    """The program of `shape`, which has no problems."""
    layer = _layer(shape)
    loop = Step(Instruction(Op.LOOP, strips=shape.model.n_layer, words=len(layer)), "loop over the layers")
    return [
        *_embedding(shape),
        loop,
        *(dataclasses.replace(step, in_loop=True) for step in layer),
        _head(shape),
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
    keys = {**x, "strips": shape.key_strips, "group": _group(shape.key_strips)}
    strips = core.strips_per_word
    late = {"params": Params.NORM, "norm": ATTENTION_NORM}
    first_half, second_half = _values(shape, late)
    scores, averages = _attention(shape)
    residual = {
        "params": Params.BIAS,
        "path": Path.RESIDUAL,
        "stats": 1,
        "dst": 0,
        "strips": shape.x_strips,
        "group": _group(shape.x_strips),
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
        group=_group(shape.inner_strips),
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
        whole = Instruction(Op.MM, **target, words=words, tail=shape.x_tail, group=_group(strips), commit=Commit.VALUES)
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


def _attention(shape: Shape) -> tuple[list[Step], list[Step]]:
    """Scores and averages, one pair for every pass of heads whose probabilities fit together."""
    scores, averages = [], []
    strips = shape.core.strips_per_word
    open_strips = shape.x_strips if shape.splits_v else 0  # V's first half keeps these accumulators
    for head0 in range(0, shape.heads, shape.heads_per_pass):
        heads = min(shape.heads_per_pass, shape.heads - head0)
        group = {"head0": head0, "heads": heads, "prob": 0, "prob_stride": shape.prob_stride}
        score = Instruction(
            Op.SC, **group, src=shape.q_word + head0 * shape.key_words, tail=shape.key_tail, acc=open_strips
        )
        average = Instruction(Op.AV, **group, acc=0, dst=shape.av_word * strips + head0 * shape.value_strips)
        names = f"heads {head0} to {head0 + heads - 1}"
        scores.append(Step(score, f"scores, softmax, {names}"))
        averages.append(Step(average, f"probabilities x values, {names}"))
    return scores, averages


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
        group=_group(shape.vocab_strips),
    )
    return Step(instruction, "language-model head, arg-max", "head")


def _group(strips: int) -> int:
    return min(GROUP, strips)
