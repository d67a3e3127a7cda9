"""The measurement of late LayerNorm and late softmax: its numbers are the core's, and the relations that decide hold.

Everything at width 128 or 256 and few positions; the figures of gpt2-345m's shape are in
docs/decisions/0005-late-layernorm-and-softmax.md.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import host.bench.late_forms as late_forms
from host.bench.core_forms import (
    CENTRED,
    CENTRED_STREAM,
    CENTRED_WEIGHTS,
    EARLY,
    LATE,
    UNROUNDED_SUMS,
    Form,
    parameters_of,
    run,
    with_centred_stream,
)
from host.bench.form_errors import PYTORCH_FP16, PYTORCH_FP32, ErrorRow, Errors, model_errors
from host.bench.form_sweeps import STORAGE, UNEVEN, breaking_points, norm_sweep, softmax_sweep
from host.bench.late_forms import main, measure
from host.bench.outlier_models import WEIGHT_SETS, outlier_model
from host.compiler import compile_model
from host.runtime.accuracy import teacher_forced_logits
from host.runtime.board_executor import open_executor
from hw.gpt2.config import core_config
from sw.models.gpt2 import GPT2, GPT2Config
from sw.train.save import save_model

SMALL = GPT2Config(n_layer=2, n_head=2, n_embd=128, n_positions=20, vocab_size=192)
LONGER = dataclasses.replace(SMALL, n_positions=72)  # more than one tile of positions
_, _, LARGE_MEAN, BOTH = WEIGHT_SETS
PRODUCTS = ("QKV product", "FFN1 product")
SEEDS = (1, 2)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small take PyTorch longer on two threads than on one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def _errors() -> dict[tuple[str, str, str], ErrorRow]:
    rows = model_errors(SMALL, WEIGHT_SETS, SMALL.n_positions, SEEDS)
    return {(row.case, row.quantity, row.form): row for row in rows}


def _rms(case: str, quantity: str, form: str) -> float:
    return _errors()[case, quantity, form].rms


# The late forms have the bits of the functional executor.


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[GPT2, tuple[int, ...], np.ndarray]:
    """A hard model as it was saved, its tokens, and the 64x16 core's logits of every position."""
    folder = tmp_path_factory.mktemp("hard")
    made = outlier_model(BOTH, LONGER, LONGER.n_positions, 5)
    save_model(made.model, folder)
    program, image = compile_model(folder, core_config("64x16"), folder / "program")
    with open_executor("functional", [(program, image)]) as executor:
        logits = teacher_forced_logits(executor.appliance, [made.ids])
    return GPT2.from_directory(folder), made.ids, logits


def _ours(executed: tuple[GPT2, tuple[int, ...], np.ndarray], form: Form) -> np.ndarray:
    model, ids, _ = executed
    return run(form, parameters_of(model), LONGER, ids).logits


def test_late_logits_are_the_executors_bit_for_bit(executed: tuple[GPT2, tuple[int, ...], np.ndarray]) -> None:
    ours = _ours(executed, LATE)
    assert np.array_equal(ours.view(np.uint32), executed[2].view(np.uint32))


@pytest.mark.parametrize(
    "form",
    [EARLY, UNROUNDED_SUMS, CENTRED_WEIGHTS, CENTRED_STREAM, CENTRED, dataclasses.replace(LATE, guard_bits=3)],
    ids=lambda form: f"{form.name}, {form.guard_bits} guard bits",
)
def test_other_forms_have_other_bits(executed: tuple[GPT2, tuple[int, ...], np.ndarray], form: Form) -> None:
    assert not np.array_equal(_ours(executed, form), executed[2])


# Relations between the forms.


@pytest.mark.parametrize("quantity", [*PRODUCTS, "attention output"])
@pytest.mark.parametrize("case", [weights.name for weights in WEIGHT_SETS])
def test_late_is_not_worse_than_early_or_pytorch_where_each_form_stands_alone(case: str, quantity: str) -> None:
    late = _rms(case, quantity, LATE.name)
    print(case, quantity, late, _rms(case, quantity, EARLY.name), _rms(case, quantity, PYTORCH_FP16))
    assert late < _rms(case, quantity, EARLY.name)
    assert late < _rms(case, quantity, PYTORCH_FP16)


@pytest.mark.parametrize("case", [weights.name for weights in WEIGHT_SETS])
def test_logits_of_late_forms_are_within_the_accuracy_bar(case: str) -> None:
    late = _rms(case, "logits", LATE.name)
    assert late < 1.1 * _rms(case, "logits", EARLY.name)
    assert late < 1.1 * _rms(case, "logits", PYTORCH_FP16)
    assert _rms(case, "logits", PYTORCH_FP32) < 0.01 * late


@pytest.mark.parametrize("quantity", PRODUCTS)
def test_twin_sums_of_unrounded_weights_are_clearly_worse_under_a_large_mean(quantity: str) -> None:
    assert _rms(LARGE_MEAN.name, quantity, UNROUNDED_SUMS.name) > 3 * _rms(LARGE_MEAN.name, quantity, LATE.name)
    assert _rms(LARGE_MEAN.name, quantity, UNROUNDED_SUMS.name) > _rms(LARGE_MEAN.name, quantity, PYTORCH_FP16)


@pytest.mark.parametrize("case", [LARGE_MEAN.name, BOTH.name])
def test_a_centred_stream_removes_the_error_of_a_large_mean(case: str) -> None:
    for quantity in ("last block's x", "logits"):
        for form in (CENTRED_STREAM, CENTRED):
            assert 1.5 * _rms(case, quantity, form.name) < _rms(case, quantity, LATE.name)


def test_a_centred_stream_is_the_same_model() -> None:
    made = outlier_model(BOTH, SMALL, SMALL.n_positions, 3)
    centred = with_centred_stream(parameters_of(made.model))
    head = torch.from_numpy(centred.pop("head.weight")).double()
    twin = GPT2(SMALL).double()
    twin.load_state_dict({name: torch.from_numpy(value) for name, value in centred.items()})
    exact = made.model.double()
    finals = []
    with torch.inference_mode():
        for model in (exact, twin):
            model.ln_f.register_forward_hook(lambda module, inputs, out: finals.append((inputs[0], out)))
            model(torch.tensor([made.ids]))
    (x, wanted), (centred_x, found) = finals
    assert float(x.mean(-1).abs().min()) > 1.0
    assert float(centred_x.mean(-1).abs().max()) < 1e-6
    torch.testing.assert_close(found @ head.T, wanted @ head.T, rtol=1e-5, atol=1e-5)


# Sweeps.


def test_late_layer_norm_breaks_only_where_fp16_cannot_hold_x_anyway() -> None:
    rows = norm_sweep(
        256, 128, SEEDS, means=(0, 16, 1024), sparse_means=(8192,), uneven_means=(0, 1024), outliers=(4096,)
    )
    rms = {(row.case, row.form): row.rms for row in rows}
    for case in ("mean 0", "mean 16", "mean 1024", "outlier 4096"):
        assert rms[case, LATE.name] < rms[case, EARLY.name]
        assert rms[case, LATE.name] < rms[case, PYTORCH_FP16]
    assert rms["mean 1024", STORAGE] > 100 * rms["mean 1024", LATE.name]
    assert rms["mean 1024", UNROUNDED_SUMS.name] > 100 * rms["mean 1024", LATE.name]
    breaks = breaking_points(rows)
    assert breaks[EARLY.name] == "mean 8192, sparse"
    # columns with a mean need the remedy sooner, and it works
    assert breaks[EARLY.name + UNEVEN] == "mean 1024, uneven columns"
    for case in ("mean 0, uneven columns", "mean 1024, uneven columns"):
        assert rms[case, CENTRED_WEIGHTS.name] < 0.9 * min(rms[case, LATE.name], rms[case, EARLY.name])


def test_late_softmax_is_not_worse_at_any_context_or_spread() -> None:
    rows = softmax_sweep(2, SEEDS, contexts=(16, 200), spreads=(0.25, 4.0), tails=(12,))
    rms = {(row.case, row.form): row.rms for row in rows}
    for case in dict.fromkeys(row.case for row in rows):
        assert rms[case, LATE.name] < 1.05 * rms[case, EARLY.name]
        assert rms[case, LATE.name] < 1.05 * rms[case, PYTORCH_FP16]
    around_zero = [case for case, form in rms if form == LATE.name and case.endswith("around 0")]
    assert all(rms[case, LATE.name] < 0.95 * rms[case, EARLY.name] for case in around_zero)


# The measuring itself.


def test_errors_are_in_units_of_the_reference() -> None:
    errors = Errors()
    reference = np.full((10, 100), 4.0)
    found = reference.copy()
    found[0, 0] += 2.0
    errors.add("case", "quantity", "form", found, reference)
    errors.add("case", "quantity", "form", 10 * reference, 10 * reference)
    (row,) = errors.rows()
    assert row.rms == pytest.approx(np.sqrt(0.25 / 2000)) and row.samples == 2000
    assert 0 <= row.p999 < 0.5 and row.median == 0.0


def test_hard_models_are_as_hard_as_they_say() -> None:
    made = outlier_model(BOTH, SMALL, SMALL.n_positions, 1)
    model = made.model
    with torch.inference_mode():
        x = (model.wte(torch.tensor(made.ids)) + model.wpe.weight).numpy()
    ordinary = np.delete(x, made.outlier_channels, axis=1)
    assert np.median(x.mean(axis=1) / x.std(axis=1)) == pytest.approx(BOTH.mean, rel=0.2)
    away = np.abs(np.median(x[:, list(made.outlier_channels)], axis=0) - ordinary.mean()) / ordinary.std(axis=1).mean()
    assert 10 < away.min() < 30 and 120 < away.max() < 300
    assert outlier_model(BOTH, SMALL, SMALL.n_positions, 1).ids == made.ids
    assert outlier_model(BOTH, SMALL, SMALL.n_positions, 2).ids != made.ids


def test_command_prints_every_figure_with_its_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = dataclasses.replace(SMALL, n_layer=1, n_positions=4)
    monkeypatch.setattr(late_forms, "shape_345m", lambda layers, positions: tiny)
    assert main(["--only", "models", "--seeds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["form"] for row in found["models"]} == set(found["sources"])
    assert found["conditions"]["width"] == 128 and not found["norm_sweep"]
    assert main(["--only", "norm", "--seeds", "1"]) == 0
    text = capsys.readouterr().out
    assert "late LayerNorm clearly worse than 'early': from mean" in text and "cpu:" in text


def test_the_default_shape_is_that_of_345m() -> None:
    shape = late_forms.shape_345m(2, 3)
    assert (shape.n_embd, shape.n_head, shape.head_size, shape.n_inner) == (1024, 16, 64, 4096)


@pytest.mark.parametrize("arguments", [["--layers", "0"], ["--positions", "2000"], ["--only", "nothing"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "error" in capsys.readouterr().err


def test_parts_not_asked_for_are_empty(tmp_path: Path) -> None:
    found = measure(SMALL, (1,), parts=())
    assert not (found.models or found.norm_sweep or found.softmax_sweep or found.late_norm_breaks_at)
