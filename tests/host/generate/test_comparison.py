"""The verdict: equal, near tie, wrong; and where the RMS error comes from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from host.errors import BadInput
from host.generate.comparison import ACCURACY_FORMAT, compare, stored_rms_error

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


def test_the_error_is_measured_on_our_logits_if_there_is_no_figure() -> None:
    ours = ROWS[1:] + np.array([[0.3, -0.3, 0.3, -0.3]], np.float32)
    found = compare(_reference, PROMPT, TOKENS, logits=ours)
    assert found.rms_error == pytest.approx(0.3) and "this run, 3 positions" in found.rms_source
    with pytest.raises(BadInput):
        compare(_reference, PROMPT, TOKENS)


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
