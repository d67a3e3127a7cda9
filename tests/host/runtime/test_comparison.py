"""The verdict: equal, near tie, wrong; and where the RMS error comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from host.errors import BadInput
from host.runtime.comparison import ACCURACY_FORMAT, compare, stored_rms_error
from host.runtime.torch_executor import half_precision_logits, reference_logits
from sw.models.gpt2 import GPT2, GPT2Config

PROMPT, TOKENS = [5, 6], [1, 2, 3]
# Reference logits of the positions of prompt + tokens[:-1]; rows 1, 2 and 3 choose the tokens.
ROWS = np.array([[9, 0, 0, 0], [0, 5, 1, 1], [0, 1, 5, 4.99], [0, 1, 1, 5]], np.float32)


def _reference(ids: Sequence[int]) -> npt.NDArray[np.float32]:
    assert list(ids) == [*PROMPT, *TOKENS[:-1]]
    return ROWS


def test_equal() -> None:
    found = compare(_reference, PROMPT, TOKENS, rms_error=1e-3)
    assert found.verdict == "equal" and found.near_ties == found.wrong == ()


@pytest.mark.parametrize("rms_error,verdict", [(0.01 / 4 + 1e-6, "near_tie(1)"), (0.01 / 4 - 1e-6, "wrong")])
def test_a_gap_is_a_tie_up_to_four_rms_errors(rms_error: float, verdict: str) -> None:
    def reference(ids: Sequence[int]) -> npt.NDArray[np.float32]:
        return ROWS

    found = compare(reference, PROMPT, [1, 3, 3], rms_error=rms_error)
    assert found.verdict == verdict
    tie = (*found.near_ties, *found.wrong)[0]
    assert (tie.position, tie.ours, tie.reference) == (3, 3, 2) and tie.gap == pytest.approx(0.01, rel=1e-4)


def test_a_tie_does_not_end_the_check() -> None:
    found = compare(lambda ids: ROWS, PROMPT, [1, 3, 0], rms_error=0.01)
    assert found.verdict == "wrong" and len(found.near_ties) == 1 and found.wrong[0].position == 4


def _half(error: float) -> Callable[[Sequence[int]], npt.NDArray[np.float32]]:
    """PyTorch in half precision with this RMS error."""
    return lambda ids: ROWS + np.array([[error, -error, -error, error]], np.float32)


def _ours(error: float) -> npt.NDArray[np.float32]:
    return ROWS[1:] + np.array([[error, -error, error, -error]], np.float32)


@pytest.mark.parametrize("own,half,used", [(0.01, 0.02, 0.01), (0.03, 0.01, 0.01)])
def test_without_a_figure_the_smaller_of_our_error_and_fp16s_counts(own: float, half: float, used: float) -> None:
    found = compare(_reference, PROMPT, TOKENS, logits=_ours(own), half=_half(half))
    assert found.verdict == "equal" and found.suspicion is None
    assert found.rms_error == pytest.approx(used, rel=1e-3) and found.threshold == pytest.approx(4 * used, rel=1e-3)
    assert "this run's 3 positions" in found.rms_source and f"PyTorch fp16: {half:.3g}" in found.rms_source
    for arguments in ({}, {"logits": _ours(own)}, {"half": _half(half)}):
        with pytest.raises(BadInput):
            compare(_reference, PROMPT, TOKENS, **arguments)


@pytest.mark.parametrize("own,verdict", [(0.039, "equal"), (0.041, "wrong")])
def test_an_error_above_four_times_fp16s_is_wrong_whatever_the_tokens(own: float, verdict: str) -> None:
    found = compare(_reference, PROMPT, TOKENS, logits=_ours(own), half=_half(0.01))
    assert found.verdict == verdict and not found.wrong
    assert (found.suspicion is not None) == (verdict == "wrong")


def test_twin_random_logits_cannot_widen_their_own_tolerance() -> None:
    random = np.random.default_rng(20261130)
    reference = random.normal(0, 6, (20, 512)).astype(np.float32)
    half = reference + random.normal(0, 3e-3, reference.shape).astype(np.float32)
    ours = random.normal(0, 6, reference.shape).astype(np.float32)
    tokens = [int(token) for token in ours.argmax(axis=1)]
    found = compare(lambda ids: reference, [7], tokens, logits=ours, half=lambda ids: half)
    assert found.verdict == "wrong" and len(found.wrong) == 20 and found.threshold < 0.02
    assert found.suspicion is not None and "4 times" in found.suspicion
    sound = reference.argmax(axis=1).tolist()  # twin: the reference's own tokens, from logits as good as fp16's
    assert compare(lambda ids: reference, [7], sound, logits=half, half=lambda ids: half).verdict == "equal"


def test_logits_that_are_no_numbers_are_wrong() -> None:
    ours = _ours(0.0)
    ours[1, 0] = np.nan
    found = compare(_reference, PROMPT, TOKENS, logits=ours, half=_half(0.01))
    assert found.verdict == "wrong" and found.rms_error == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("own,verdict", [(0.01, "equal"), (0.02, "wrong")])
def test_where_fp16_overflows_a_stated_constant_stands_for_it(own: float, verdict: str) -> None:
    found = compare(_reference, PROMPT, TOKENS, logits=_ours(own), half=_half(float("inf")))
    bound = float(np.sqrt(np.mean(np.square(ROWS[1:], dtype=np.float64)))) * 2.0**-10
    assert found.verdict == verdict and found.rms_error == pytest.approx(min(own, bound), rel=1e-3)
    assert "overflows" in found.rms_source


def test_half_precision_leaves_the_model_as_it_is() -> None:
    torch.manual_seed(20261130)
    model = GPT2(GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=16, vocab_size=64))
    before = reference_logits(model, [1, 2, 3])
    half = half_precision_logits(model, [1, 2, 3])
    assert 1e-6 < np.abs(half - before).max() < 1e-2
    np.testing.assert_array_equal(reference_logits(model, [1, 2, 3]), before)
    copy = reference_logits(model.to(torch.float16), [1, 2, 3])
    np.testing.assert_array_equal(half, copy)


def test_a_stored_figure_belongs_to_one_model_and_one_core(tmp_path: Path) -> None:
    record = {
        "format": ACCURACY_FORMAT,
        "model_digest": "m",
        "core_digest": "c",
        "positions": 2048,
        "core": {"rms_error": 0.00095},
    }
    (tmp_path / "accuracy_x.json").write_text(json.dumps(record))
    (tmp_path / "accuracy_broken.json").write_bytes(b"\xff")
    found = stored_rms_error("m", "c", tmp_path)
    assert found is not None and found[0] == 0.00095 and "2048" in found[1]
    assert stored_rms_error("m", "other", tmp_path) is None and stored_rms_error("other", "c", tmp_path) is None
