"""Rows of an int8 product: each read back by the order of docs/int8.md, written down here a second time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import host.compiler.stream_order as stream_order
from host.compiler.int8_rows import int8_product_rows
from host.compiler.int8_weights import Int8Weights
from host.compiler.stream_order import ordered_rows
from hw.gpt2.access import weight_rows
from hw.gpt2.config import core_config
from hw.gpt2.isa import Instruction, Op, Params

CORE = core_config("16x4", weights="int8")
T, N = CORE.tile, CORE.lanes
Rows = np.ndarray


def _weights(words: int, strips: int, late: bool = True) -> Int8Weights:
    rng = np.random.default_rng(words * 100 + strips)
    columns = strips * N
    scales, bias, sums = rng.standard_normal((3, columns)).astype(np.float32)
    matrix = rng.integers(-127, 128, (words * T, columns)).astype(np.int8)
    return Int8Weights(matrix, np.abs(scales), bias, sums if late else None)


def _read_back(rows: Rows, instruction: Instruction, weights: Int8Weights, first_word: int) -> Iterator[str]:
    """What differs from the weights, row by row."""
    at, block = 0, CORE.param_strips
    kinds = [weights.scales, weights.bias, weights.column_sums][: 1 + int(instruction.params)]

    def column(s: int, n: int) -> int:
        return s * N + n

    for g0 in range(0, instruction.strips, instruction.group):
        end = min(g0 + instruction.group, instruction.strips)
        for i in range(instruction.words):
            for s in range(g0, end, 2):
                if instruction.first and i == 0 and s % block == 0:
                    for kind, values in enumerate(kinds):
                        assert values is not None
                        found = rows[at].copy().view(np.float32)
                        for k in range(min(block, instruction.strips - s)):
                            for n in range(N):
                                if found[n, k] != values[column(s + k, n)]:
                                    yield f"row {at}: parameter {kind} of strip {s + k}, lane {n}"
                        at += 1
                bytes_ = rows[at].copy().view(np.uint8).reshape(N, T, 2)
                signed = np.where(bytes_ & 0x80, -1, 1) * (bytes_ & 0x7F).astype(int)
                for n in range(N):
                    for k in range(T):
                        k_row = (first_word + i) * T + k
                        for which in range(2):
                            if signed[n, k, which] != weights.matrix[k_row, column(s + which, n)]:
                                yield f"row {at}: word {i}, strip {s + which}, lane {n}, element {k}"
                at += 1
    if at != len(rows):
        yield f"{len(rows)} rows, {at} expected"


def _instruction(words: int, strips: int, group: int, params: Params, first: int = 1) -> Instruction:
    return Instruction(Op.MM, words=words, tail=T, strips=strips, group=group, params=params, first=first)


CASES = [
    (3, 16, 8, Params.NORM, 1, 0),
    (2, 10, 4, Params.BIAS, 1, 1),  # a last group of two strips
    (1, 6, 8, Params.NORM, 1, 0),
    (2, 24, 24, Params.NORM, 0, 2),  # the second run of a split product takes no parameters
    (2, 6, 2, Params.NONE, 1, 0),
]


@pytest.mark.parametrize(("words", "strips", "group", "params", "first", "first_word"), CASES)
@pytest.mark.parametrize("at_once", [1 << 12, 8])
def test_rows_hold_the_weights_in_order(
    words: int,
    strips: int,
    group: int,
    params: Params,
    first: int,
    first_word: int,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_order, "ROWS_AT_ONCE", at_once)
    instruction, weights = _instruction(words, strips, group, params, first), _weights(first_word + words, strips)
    parts = list(int8_product_rows(instruction, weights, first_word, CORE))
    rows = np.concatenate(parts)
    assert rows.dtype == np.uint16 and rows.shape[1:] == (N, T)
    assert list(_read_back(rows, instruction, weights, first_word)) == []
    assert len(rows) == weight_rows(instruction, CORE)
    assert len(parts) > 1 or at_once > 8 or strips <= group


def test_twins_are_seen() -> None:
    """Exchanged strips, another first word, parameters in another order."""
    instruction, weights = _instruction(2, 16, 8, Params.NORM), _weights(3, 16)
    rows = np.concatenate(list(int8_product_rows(instruction, weights, 0, CORE)))
    tiles = rows.copy()
    tiles[3:] = (rows[3:] << 8) | (rows[3:] >> 8)
    assert any("strip" in text for text in _read_back(tiles, instruction, weights, 0))
    assert any("word" in text for text in _read_back(rows, instruction, weights, 1))
    exchanged = Int8Weights(weights.matrix, weights.bias, weights.scales, weights.column_sums)
    found = list(_read_back(rows, instruction, exchanged, 0))
    assert found and all("parameter" in text for text in found)
    assert list(_read_back(rows[:-1].repeat(2, axis=0)[: len(rows)], instruction, weights, 0))


@pytest.mark.parametrize(("strips", "group"), [(8, 3), (7, 8)])
def test_half_a_row_is_refused(strips: int, group: int) -> None:
    with pytest.raises(ValueError, match=f"strips and group must be multiples of 2, got {strips} and {group}"):
        list(int8_product_rows(_instruction(1, strips, group, Params.NONE), _weights(1, strips), 0, CORE))


def test_products_without_column_sums_have_none() -> None:
    instruction, weights = _instruction(1, 8, 8, Params.BIAS), _weights(1, 8, late=False)
    rows = np.concatenate(list(int8_product_rows(instruction, weights, 0, CORE)))
    assert list(_read_back(rows, instruction, weights, 0)) == [] and len(rows) == 6


@pytest.mark.parametrize(("strips", "group"), [(9, 4), (7, 7), (16, 3)])
def test_rows_of_one_strip_keep_the_order_too(strips: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is that of fp16 products as well: rows named by (word, strip), parameters by their block."""
    monkeypatch.setattr(stream_order, "ROWS_AT_ONCE", 8)
    words, block = 3, CORE.param_strips
    names = (1000 + np.arange(words)[:, None] * strips + np.arange(strips)).astype(np.uint16)
    params = np.arange(2 * -(-strips // block), dtype=np.uint16).reshape(-1, 2)

    def as_rows(named: np.ndarray) -> Rows:
        return np.broadcast_to(named[..., None, None], (*named.shape, N, T))

    instruction = _instruction(words, strips, group, Params.NORM)
    found = ordered_rows(instruction, lambda a, b: as_rows(names[:, a:b]), as_rows(params), core_config("16x4"))
    wanted = []
    for g0 in range(0, strips, group):
        for i in range(words):
            for s in range(g0, min(g0 + group, strips)):
                if i == 0 and s % block == 0:
                    wanted += params[s // block].tolist()
                wanted.append(names[i, s])
    assert np.concatenate(list(found))[:, 0, 0].tolist() == wanted
