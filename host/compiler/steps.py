"""One instruction of a program with its name and weights, and the steps that are alike on one board and on several."""

from __future__ import annotations

import dataclasses

from host.compiler.shape import GROUP, Shape
from hw.gpt2.isa import Instruction, Op

__all__ = ["ATTENTION_NORM", "FEED_FORWARD_NORM", "Step", "attention_steps", "group_of"]

ATTENTION_NORM, FEED_FORWARD_NORM = 0, 1  # scalar sets; the final LayerNorm uses the first again


@dataclasses.dataclass(frozen=True)
class Step:
    """One instruction of the program.

    Members: `instruction`; `name`: what it computes; `product`: key of the weights it streams (`host.compiler.weights`)
    or ""; `first_word`, `first_strip`: the first k word and strip of those weights; `in_loop`: whether it runs once a
    layer.
    """

    instruction: Instruction
    name: str
    product: str = ""
    first_word: int = 0
    first_strip: int = 0
    in_loop: bool = False


def group_of(strips: int) -> int:
    """Strips that are open together in a grouped run."""
    return min(GROUP, strips)


def attention_steps(shape: Shape, score_acc: int, first_strip: int, send: int = 0) -> tuple[list[Step], list[Step]]:
    """Scores and averages, one pair for every pass of heads whose probabilities fit together.

    `score_acc`: an accumulator that is free during the scores; `first_strip`: where the first head's result goes.
    """
    scores, averages = [], []
    for head0 in range(0, shape.heads, shape.heads_per_pass):
        heads = min(shape.heads_per_pass, shape.heads - head0)
        group = {"head0": head0, "heads": heads, "prob": 0, "prob_stride": shape.prob_stride}
        score = Instruction(
            Op.SC, **group, src=shape.q_word + head0 * shape.key_words, tail=shape.key_tail, acc=score_acc
        )
        average = Instruction(Op.AV, **group, acc=0, dst=first_strip + head0 * shape.value_strips, send=send)
        names = f"heads {head0} to {head0 + heads - 1}"
        scores.append(Step(score, f"scores, softmax, {names}"))
        averages.append(Step(average, f"probabilities x values, {names}"))
    return scores, averages
