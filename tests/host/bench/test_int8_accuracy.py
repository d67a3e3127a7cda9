"""The measurement of int8 weights: its arithmetic is the golden models', and int8 is as near to fp16 as is promised."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import host.bench.int8_accuracy as int8_accuracy
from host.bench.core_arithmetic import Single
from host.bench.core_forms import INT8, LATE, Form, parameters_of, run
from host.bench.core_int8 import int8_product
from host.bench.int8_accuracy import CHECKPOINT, CLIPPED, CoreModel, clipped, main, outlier_rows, text_rows
from host.compiler import compile_model
from host.compiler.int8_weights import quantised
from host.runtime.accuracy import teacher_forced_logits
from host.runtime.board_executor import open_executor
from hw.gpt2.config import core_config
from hw.numerics.dot_dual import dot_tile_int8, sign_magnitude
from hw.numerics.fp32_add import fp32_add
from hw.numerics.fp32_mul import fp32_mul
from sw.models.gpt2 import GPT2, GPT2Config
from sw.models.tokenizer import Tokenizer
from sw.train.evaluate import total_nats

SMALL = GPT2Config(n_layer=2, n_head=2, n_embd=128, n_positions=12, vocab_size=193)
TEXT_BYTES = 1200


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small take PyTorch longer on two threads than on one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The arithmetic.


def _operands() -> tuple[np.ndarray, np.ndarray, Single, Single]:
    """Activations of several scales, one word with a NaN; an odd number of columns."""
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((3, 128)) * 2.0 ** rng.integers(-9, 6, (3, 128))).astype(np.float16)
    x[1, 70] = np.nan
    matrix = rng.integers(-127, 128, (128, 7)).astype(np.int8)
    scales, start = np.exp(rng.standard_normal((2, 7))).astype(np.float32)
    return x, matrix, scales, start


def _golden(x: np.ndarray, matrix: np.ndarray, scales: Single, start: Single, guard: int) -> np.ndarray:
    bytes_, halves = sign_magnitude(matrix), x.view(np.uint16)
    out = np.empty((len(x), matrix.shape[1]), np.uint32)
    for p, n in np.ndindex(*out.shape):
        total = start[n].view(np.uint32)
        for w in range(0, 128, 64):
            tile = dot_tile_int8(halves[p, w : w + 64], bytes_[w : w + 64, n].copy(), None, guard)
            total = fp32_add(total, tile)
        out[p, n] = fp32_mul(total, scales[n].view(np.uint32))
    return out


@pytest.mark.parametrize("guard", [4, 6])
def test_products_have_the_bits_of_the_golden_models(guard: int) -> None:
    operands = _operands()
    found = int8_product(*operands, guard_bits=guard)
    assert np.array_equal(found, _golden(*operands, guard))
    assert np.isnan(found[1].view(np.float32)).all() and np.isfinite(found[0].view(np.float32)).all()


def test_twins_of_products_are_seen() -> None:
    x, matrix, scales, start = _operands()
    wanted = _golden(x, matrix, scales, start, 4)
    assert not np.array_equal(int8_product(x, matrix, scales, start, guard_bits=3), wanted)
    assert not np.array_equal(int8_product(x, matrix, scales, np.roll(start, 1)), wanted)
    assert not np.array_equal(int8_product(x, np.roll(matrix, 1, axis=1), scales, start), wanted)


def test_products_of_no_whole_word_are_refused() -> None:
    with pytest.raises(ValueError, match="k is 100 for x and 100 for the weights, need one multiple of 64"):
        int8_product(np.zeros((1, 100), np.float16), np.zeros((100, 2), np.int8), np.ones(2, np.float32))


def test_fp16_form_of_small_heads_is_the_executors(tmp_path: Path) -> None:
    """Heads of 16, as the shipped checkpoint has them: padded to a word in the core, with zeros here."""
    tokens = 20
    ids = np.random.default_rng(3).integers(0, 1024, tokens).tolist()
    program, image = compile_model(CHECKPOINT, core_config("64x16"), tmp_path / "program")
    with open_executor("functional", [(program, image)]) as executor:
        logits = teacher_forced_logits(executor.appliance, [ids])
    model = GPT2.from_directory(CHECKPOINT)
    found = run(LATE, parameters_of(model), model.config, ids).logits
    assert np.array_equal(found.view(np.uint32), logits.view(np.uint32))
    assert not np.array_equal(run(INT8, parameters_of(model), model.config, ids).logits, logits)


# What is measured.


def _bits_per_byte(form: Form) -> float:
    model, tokenizer = GPT2.from_directory(CHECKPOINT), Tokenizer(CHECKPOINT)
    text = (CHECKPOINT / "heldout.txt").read_bytes()[:TEXT_BYTES].decode()
    nats = total_nats(CoreModel(form, model), tokenizer.encode(text), start=0)
    return nats / np.log(2) / TEXT_BYTES


def _three_bits(weights: Single) -> tuple[np.ndarray, Single]:
    scales = np.abs(weights).max(axis=0) / np.float32(3)
    return np.rint(weights / scales).astype(np.int8), scales


def test_int8_needs_no_more_bits_than_one_percent_above_fp16() -> None:
    """On the first bytes of the held-out text; the whole is `python -m host.bench.int8_accuracy --only text`."""
    half = _bits_per_byte(LATE)
    assert 1.0 < half < 2.2
    assert abs(_bits_per_byte(INT8) / half - 1) < 0.01
    assert _bits_per_byte(dataclasses.replace(INT8, quantiser=_three_bits)) / half - 1 > 0.01  # twin


def test_int8_keeps_close_on_models_with_outliers_and_guard_bits_suffice() -> None:
    rms = {(row.case, row.form): row.rms for row in outlier_rows(SMALL, (1,), lambda line: None)}
    for case in {case for case, _ in rms}:
        assert rms[case, LATE.name] < rms[case, INT8.name] < 0.1
        assert rms[case, INT8.name] < 1.05 * rms[case, int8_accuracy.MORE_GUARD.name]


def test_clipping_never_has_a_larger_error() -> None:
    weights = np.random.default_rng(1).standard_normal((1024, 30)).astype(np.float32)
    weights[5] *= 8

    def error(found: tuple[np.ndarray, Single]) -> np.ndarray:
        square: np.ndarray = ((found[0] * found[1].astype(np.float64) - weights) ** 2).sum(axis=0)
        return square

    plain, best = error(quantised(weights)), error(clipped(weights))
    assert (best <= plain * (1 + 1e-6)).all() and (best < 0.97 * plain).any()
    assert np.abs(clipped(weights)[0]).max() == 127


# The command.


def test_command_prints_every_figure_with_its_conditions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("In the beginning")
    monkeypatch.setattr(int8_accuracy, "shape_345m", lambda layers, positions: SMALL)
    monkeypatch.setitem(int8_accuracy.__dict__, "NAMED_SIZES", {"gpt2-124m": SMALL, "gpt2-345m": SMALL})
    assert main(["--text", str(text), "--positions", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["form"] for row in found["text"]] == ["PyTorch fp32", LATE.name, INT8.name, CLIPPED.name]
    assert {row["samples"] for row in found["checkpoint"]} == {
        1024 * len(Tokenizer(CHECKPOINT).encode(text.read_text()))
    }
    assert {row["case"] for row in found["sizes"]} == {"gpt2-124m", "gpt2-345m"}
    assert len(found["outliers"]) == 16 and found["conditions"]["guard_bits"] == 4
    assert all(row["rms"] < row["p999"] < row["largest"] for row in found["sizes"])
    assert main(["--only", "sizes", "--layers", "1", "--positions", "3"]) == 0
    out = capsys.readouterr().out
    assert "gpt2-345m, n_layer 1" in out and "RMS / 99.9th percentile / largest" in out
    assert main(["--only", "text", "--text", str(text)]) == 0
    out = capsys.readouterr().out
    assert "late, int8 weights" in out and "reference: PyTorch" in out and "outlier" not in out


def test_fp16_is_its_own_measure() -> None:
    rows = {row.form: row for row in text_rows(CHECKPOINT, "And it came to pass", lambda line: None)}
    assert rows[LATE.name].above_fp16 == 0
    assert rows[INT8.name].above_fp16 == rows[INT8.name].bits_per_byte / rows[LATE.name].bits_per_byte - 1


@pytest.mark.parametrize(
    "arguments", [["--positions", "0"], ["--layers", "0"], ["--only", "nothing"], ["--model", "gpt2-9b"]]
)
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2 and "error" in capsys.readouterr().err


def test_missing_text_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--only", "text", "--text", str(tmp_path / "none.txt")]) == 2
    assert "cannot be read as UTF-8 text" in capsys.readouterr().err
