"""Least cycles and bytes of GPT-2's work: the design's limits, and what they are made of."""

from __future__ import annotations

import math

import pytest

from host.bench.streamed_work import (
    Work,
    even_split_cycles,
    key_value_bytes,
    limit_cycles,
    streamed_parameters,
    token_bytes,
)
from sw.models.gpt2 import GPT2
from sw.models.gpt2_config import GPT2Config
from sw.models.named_sizes import NAMED_SIZES

RATE = 1024  # fp16 weights a cycle of the 64x16 core
CYCLES_PER_MS = 200_000

# (work of the design's table, model, boards, bits of a weight, the limit that its section 8 prints, decimals of it)
DESIGN_LIMITS = [
    (Work.decode(128), "gpt2-345m", 1, 16, 1.757, 3),
    (Work.decode(1000), "gpt2-345m", 1, 16, 1.966, 3),
    (Work.decode(128), "gpt2-1.5b-dfx", 4, 16, 1.776, 3),
    (Work.decode(128), "gpt2-xl", 4, 16, 1.98, 2),
    (Work.decode(128), "gpt2-345m", 4, 16, 0.439, 3),
    (Work.decode(128), "gpt2-345m", 1, 8, 0.894, 3),
    (Work.prompt(64), "gpt2-345m", 1, 16, 95, 0),
    (Work.prompt(64, rows=2), "gpt2-345m", 1, 16, 48, 0),
    (Work.prompt(64, rows=4), "gpt2-345m", 1, 16, 24, 0),
    (Work.decode(128, requests=4), "gpt2-345m", 1, 16, 1.849, 3),
]


@pytest.mark.parametrize(("work", "model", "boards", "bits", "limit_ms", "digits"), DESIGN_LIMITS)
def test_the_designs_limits(work: Work, model: str, boards: int, bits: int, limit_ms: float, digits: int) -> None:
    config = NAMED_SIZES[model]
    least = limit_cycles(config, work, boards, products_per_cycle=RATE, weight_bits=bits)
    even = even_split_cycles(config, work, boards, products_per_cycle=RATE, weight_bits=bits)
    assert round(even / CYCLES_PER_MS, digits) == limit_ms
    assert least <= even
    slower = even_split_cycles(config, work, boards, products_per_cycle=RATE - 32, weight_bits=bits)
    assert round(slower / CYCLES_PER_MS, digits) != limit_ms  # twin


def test_uneven_heads_make_the_even_split_the_larger_limit() -> None:
    work, xl = Work.decode(128), NAMED_SIZES["gpt2-xl"]
    assert limit_cycles(xl, work, 4, products_per_cycle=RATE) < 0.98 * even_split_cycles(
        xl, work, 4, products_per_cycle=RATE
    )
    assert limit_cycles(xl, work, products_per_cycle=RATE) == even_split_cycles(xl, work, products_per_cycle=RATE)
    with pytest.raises(ValueError, match="heads"):
        even_split_cycles(GPT2Config(1, 3, 48, 64, 100), work, 4, products_per_cycle=RATE)


def test_work_by_counting_products() -> None:
    """Products of a tiny model counted one layer after the other."""
    config = GPT2Config(n_layer=3, n_head=2, n_embd=32, n_positions=64, vocab_size=100, n_inner=48)
    layer = 32 * 96 + 32 * 32 + 32 * 48 + 48 * 32
    step = 3 * layer + 32 * 100 + 3 * 2 * 32 * 7
    assert limit_cycles(config, Work.decode(7), products_per_cycle=1) == step
    prompt = 5 * 3 * layer + 32 * 100 + 3 * 2 * 32 * (1 + 2 + 3 + 4 + 5)
    assert limit_cycles(config, Work.prompt(5), products_per_cycle=1) == prompt
    # two rows: passes that end at positions 2, 4 and 5
    shared = 3 * 3 * layer + 32 * 100 + 3 * 2 * 32 * (2 + 4 + 5)
    assert limit_cycles(config, Work.prompt(5, rows=2), products_per_cycle=1) == shared


def test_bytes_are_those_of_the_parameters() -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=64, vocab_size=50)
    parameters = sum(math.prod(p.shape) for name, p in GPT2(config).named_parameters() if name != "wpe.weight")
    assert streamed_parameters(config) == parameters
    assert key_value_bytes(config, 10) == 2 * 2 * 16 * 10 * 2
    assert token_bytes(config, 10) == 2 * parameters + 1280
    assert token_bytes(config, 10, weight_bits=4, kv_bits=8) == parameters / 2 + 640
    # as published for DFX: 345M is 605 MB of decoder and 103 MB of head
    assert token_bytes(NAMED_SIZES["gpt2-345m"], 0) == pytest.approx(708e6, rel=2e-3)
