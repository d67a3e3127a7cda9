"""Programs with int8 weights: their size in memory, padded products, slices of a ring, ranges, and the core's name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from host.compiler import CompileError, Shape, chosen_core, plan_program, plan_ring
from host.compiler.explain import explain, ideal_cycles
from host.compiler.schedule import schedule
from host.compiler.weights import WeightSource
from host.planner.partition import Partition
from hw.gpt2.access import weight_rows
from hw.gpt2.config import ConfigError, core_config
from hw.gpt2.isa import Op
from sw.models.checkpoint import Checkpoint
from sw.models.gpt2_config import GPT2Config
from sw.models.named_sizes import NAMED_SIZES

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny"


@dataclasses.dataclass(frozen=True)
class _Sizes:
    config: GPT2Config
    label: str = "a model"


def _config(**sizes: int) -> GPT2Config:
    return GPT2Config(**{"n_layer": 1, "n_positions": 64, "vocab_size": 203, **sizes})


def test_ideal_cycles_of_345m_are_half_but_for_attention_and_parameters() -> None:
    program = plan_program(Shape(NAMED_SIZES["gpt2-345m"], core_config("64x16i8"), 1024))
    cycles = ideal_cycles(program, 128)
    # a layer: K, Q and V 512+6 each; scores, averages 128 each; projection 512+4; feed-forward 2,048+24, 2,048+4
    layer = 3 * 518 + 256 + 516 + 2072 + 2052
    head = 1571 * 16 + 3 * 99
    assert cycles == 24 * layer + head + 2 * 64
    assert 0.894 <= cycles / 200e3 <= 0.91
    assert "weights int8" in explain(program)


@pytest.mark.parametrize("vocab", [203, 208])
@pytest.mark.parametrize(("heads", "width"), [(3, 12), (5, 20), (3, 24)])
def test_products_are_padded_to_pairs(heads: int, width: int, vocab: int) -> None:
    """Odd numbers of strips of x, of the values and of the logits; the rows of the region are those of the program."""
    shape = Shape(_config(n_head=heads, n_embd=width, vocab_size=vocab), core_config("16x4i8"), 32)
    program = plan_program(shape)  # legal, or it raises
    steps = [step.instruction for step in schedule(shape)]
    products = [i for i in steps if i.op == Op.MM]
    assert all(i.strips % 2 == i.group % 2 == 0 for i in products)
    assert sum(weight_rows(i, shape.core) for i in products) == shape.weight_rows
    assert program.registers["embed_strips"] == shape.x_strips and shape.x_strips % 2 == 0


def test_a_ring_cuts_x_at_even_strips() -> None:
    sizes = _Sizes(_config(n_head=6, n_embd=96))
    planned = plan_ring(sizes, core_config("64x16i8"), 2)
    assert all(part % 32 == 0 for part in planned.plan.partition.x[:-1] + planned.plan.partition.inner[:-1])
    assert plan_ring(sizes, core_config("64x16"), 2).plan.partition.x == (48, 48)


def test_a_ring_that_cannot_is_refused() -> None:
    sizes = _Sizes(_config(n_head=6, n_embd=96))
    odd = Partition((3, 3), (48, 48), (192, 192), (112, 91))
    plan_ring(sizes, core_config("64x16"), 2, partition=odd)
    with pytest.raises(CompileError) as caught:
        plan_ring(sizes, core_config("64x16i8"), 2, partition=odd)
    [problem] = caught.value.problems
    assert (problem.what, problem.value) == ("first strip of x of board 1", 3) and "int8" in problem.hint
    with pytest.raises(CompileError):
        plan_ring(sizes, core_config("64x16i8"), 6)  # six boards have a strip of x each


class _Scaled(Checkpoint):
    """gpt2-tiny with one tensor multiplied."""

    def __init__(self, name: str, factor: float) -> None:
        super().__init__(TINY)
        self._name, self._factor = name, np.float32(factor)

    largest_magnitude = None

    def tensor(self, name: str) -> np.ndarray:
        found = super().tensor(name)
        return found * self._factor if name == self._name else found


@pytest.mark.parametrize(
    ("name", "factor", "fp16", "int8"),
    [
        ("h.0.mlp.c_proj.weight", 1e6, True, False),
        ("wpe.weight", 1e6, True, True),
        ("h.0.mlp.c_proj.bias", 1e33, False, True),
        ("h.0.mlp.c_proj.bias", 1e20, False, False),
    ],
)
def test_what_is_out_of_range(name: str, factor: float, fp16: bool, int8: bool) -> None:
    source = WeightSource(_Scaled(name, factor))
    assert (bool(source.range_problems()), bool(source.range_problems(int8=True))) == (fp16, int8)


@pytest.mark.parametrize(
    ("text", "rows", "weights", "name"),
    [
        ("16x4", None, "int8", "16x4i8"),
        ("16x4i8", None, None, "16x4i8"),
        ("16x4i8", None, "int8", "16x4i8"),
        ("16x4", 4, "int8", "16x4r4i8"),
        ("16x4i8", 4, None, "16x4r4i8"),
        ("16x4r4", None, "int8", "16x4r4i8"),
        ("16x4r4i8", 4, None, "16x4r4i8"),
        ("16x4", None, "fp16", "16x4"),
    ],
)
def test_names(text: str, rows: int | None, weights: str | None, name: str) -> None:
    core = chosen_core(text, rows, weights)
    assert core == core_config(name) and core.name == name


def test_wrong_names() -> None:
    for text, weights, words in (
        ("16x4i8", "fp16", "has int8 weights, asked for fp16"),
        ("16x4", "int4", "weights must be fp16 or int8, got 'int4'"),
        ("8x8i8", None, "unknown core '8x8i8'"),
    ):
        with pytest.raises(ConfigError, match=words):
            chosen_core(text, None, weights)
