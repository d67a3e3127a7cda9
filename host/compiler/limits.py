"""What of a model and its parts does not fit a core: everything at once, with what would help."""

from __future__ import annotations

import bisect
import dataclasses

from host.compiler.errors import Problem
from host.compiler.shape import GROUP, Shape
from host.planner.partition import Partition, slice_limits
from hw.board.board_model import BANK_BYTES
from hw.board.gpt2_map import MAX_BOARDS
from hw.gpt2.config import ROWS

__all__ = ["all_problems", "fitting_boards", "size_problems"]

MAX_WIDTH = (1 << 13) - 1  # count of hw.numerics.norm_scalars
MAX_K_WORDS = (1 << 10) - 1  # field `words`
MAX_STRIPS = (1 << 16) - 1  # field `strips`
MAX_HEADS = (1 << 7) - 1  # field `heads`
MAX_LAYERS = (1 << 8) - 1  # the key/value path counts layers in 8 bits
MAX_EPS = 2.0**32  # epsilon * d^2: 80 bits with the 48 of the fraction
MAX_PROB_STRIDE = (1 << 8) - 1  # field `prob_stride`
MAX_OWN_STRIPS = (1 << 10) - 1  # field `words` of GATHER
_OF_A_REQUEST = ("keys", "values", "logits")  # regions that each request of a batch has


def all_problems(shape: Shape, channel_bytes: int = BANK_BYTES) -> list[Problem]:
    """Everything that does not fit or is not supported, in one list; empty if the model can be built."""
    missing = shape.channel_bytes_used > channel_bytes
    return [*size_problems(shape), *([_too_large(shape, channel_bytes)] if missing else [])]


def size_problems(shape: Shape) -> list[Problem]:
    """As `all_problems`, but for the memory of the channels."""
    core, model = shape.core, shape.model
    found: list[Problem] = []

    def most(what: str, value: int, limit: int, hint: str = "") -> None:
        if value > limit:
            found.append(Problem(what, value, f"at most {limit}", hint))

    larger = "use a core with larger memories or a smaller model"
    if model.head_size % core.lanes:
        lanes = f"a multiple of the core's {core.lanes} lanes"
        found.append(Problem("head size", model.head_size, lanes, "use another core"))
    if not 1 <= shape.context <= min(model.n_positions, core.context):
        limit = min(model.n_positions, core.context)
        found.append(
            Problem(
                "context",
                shape.context,
                f"1 to {limit}",
                f"the model has {model.n_positions} positions, the core holds {core.context}",
            )
        )
    most("width", shape.width, MAX_WIDTH, "LayerNorm's sums are made for this width")
    most("strips of the residual vector", shape.x_strips, core.residual_strips, larger)
    most("activation words", shape.act_words, core.act_words, larger)
    most("words of the new keys", shape.heads * shape.key_words, core.new_key_words, larger)
    most("strips of the new values", shape.values_strips, core.new_value_strips, larger)
    most("probability words of one head", shape.prob_stride, core.prob_words, "ask for a shorter context")
    most("probability words of one head", shape.prob_stride, MAX_PROB_STRIDE, "ask for a shorter context")
    most("accumulators of one head's values", shape.value_strips, core.acc_depth, larger)
    most("open output strips", GROUP, core.acc_depth, larger)
    most("strips of parameters", max(GROUP, core.param_strips), core.param_depth, larger)
    epsilon = model.layer_norm_epsilon * shape.width**2
    if epsilon >= MAX_EPS:
        found.append(Problem("layer_norm_epsilon x width^2", epsilon, "below 2^32"))
    most("heads", shape.heads, MAX_HEADS)
    most("layers", model.n_layer, MAX_LAYERS)
    most("k words of a product", max(shape.x_words, shape.inner_words), MAX_K_WORDS)
    most("strips of the feed-forward vector", shape.inner_strips, MAX_STRIPS)
    if shape.boards > 1:
        for kind, what in (("heads", "the attention result"), ("x", "x"), ("inner", "the feed-forward vector")):
            most(f"the board's strips of {what}", len(shape.own_strips(kind)), MAX_OWN_STRIPS, "use more boards")
        for kind, what in (("x", "x"), ("inner", "the feed-forward vector")):
            first = shape.own(kind).start // core.lanes
            if first % core.mm_strips:
                hint = "a row of int8 weights serves two strips; use fp16 weights or another number of boards"
                found.append(Problem(f"first strip of {what}", first, "an even number", hint))
    most("strips of the logits", shape.vocab_strips, MAX_STRIPS)
    instructions, descriptors = shape.program_sizes()
    most("instructions", instructions, core.instructions, "ask for a shorter context")
    most("access descriptors", descriptors, core.descriptors, "ask for a shorter context")
    return found


def _too_large(shape: Shape, channel_bytes: int) -> Problem:
    """By how much the regions exceed the channels, and what context would fit."""
    used, channels = shape.channel_bytes_used, shape.core.channels
    shorter = range(1, min(shape.context, shape.core.context))
    fitting = bisect.bisect_right(
        shorter, channel_bytes, key=lambda n: dataclasses.replace(shape, context=n).channel_bytes_used
    )
    weights = f"weights and embeddings take {shape.image_rows * shape.core.port_bytes:,}"
    advice = f"a context of {shorter[fitting - 1]} would fit" if fitting else "no context is short enough"
    if shape.requests == 1:
        advice += f"; {_boards_text(fitting_boards(shape, channel_bytes))}"
    else:
        caches = sum(size for name, (_, size) in shape.region_rows.items() if name.startswith(_OF_A_REQUEST))
        weights += f", keys, values and logits of {shape.requests} requests {caches * shape.core.port_bytes:,}"
        advice += f"; {_rows_text(_fitting_rows(shape, channel_bytes))}"
    return Problem(
        "bytes per memory channel",
        used,
        f"at most {channel_bytes}",
        f"{used - channel_bytes:,} too many in each of {channels} channels, {used * channels / 1e9:.2f} GB of "
        f"{channel_bytes * channels / 1e9:.2f} in all; {weights}; {advice}",
    )


def fitting_boards(shape: Shape, channel_bytes: int) -> int | None:
    """The fewest boards, more than these, whose channels would hold an even partition; None if no number does."""
    most = min(MAX_BOARDS, *(limit for limit, _ in slice_limits(shape.model).values()))
    for boards in range(shape.boards + 1, most + 1):
        partition = Partition.even(shape.model, boards)
        parts = (dataclasses.replace(shape, partition=partition, board=board) for board in range(boards))
        if all(part.channel_bytes_used <= channel_bytes for part in parts):
            return boards
    return None


def _fitting_rows(shape: Shape, channel_bytes: int) -> int | None:
    """The most rows, fewer than the core's, with which the channels would hold it; None if they never would."""
    for rows in sorted(ROWS, reverse=True):
        smaller = dataclasses.replace(shape, core=dataclasses.replace(shape.core, rows=rows))
        if rows < shape.core.rows and smaller.channel_bytes_used <= channel_bytes:
            return rows
    return None


def _rows_text(rows: int | None) -> str:
    if rows is None:
        return "fewer rows would not hold it either"
    return f"a core with {rows} {'row' if rows == 1 else 'rows'} would hold it"


def _boards_text(boards: int | None) -> str:
    return "no number of boards would hold it" if boards is None else f"{boards} boards would hold it"
