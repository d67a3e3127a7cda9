"""The accuracy record of the core with int8 weights: it is of this checkpoint, close to fp16's, and can be remade."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.compiler import chosen_model
from host.runtime.accuracy import bits_per_byte, measure
from host.runtime.comparison import ACCURACY_FORMAT, stored_rms_error
from hw.gpt2.config import core_config

ROOT = Path(__file__).resolve().parents[3]
TINY, TEXT = ROOT / "checkpoints" / "gpt2-tiny", ROOT / "checkpoints" / "gpt2-tiny" / "heldout.txt"
INT8, HALF = core_config("16x4i8"), core_config("16x4")
MOST_ABOVE = 0.01  # of bits per byte
SHORT = 48  # positions that are measured again
AGAIN = "measure again: python -m host.runtime.accuracy (its arguments are in the record's `command`)"


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return record


@pytest.fixture(scope="module")
def int8() -> dict[str, Any]:
    return _record("accuracy_gpt2_tiny_int8")


@pytest.fixture(scope="module")
def half() -> dict[str, Any]:
    return _record("accuracy_gpt2_tiny")


def test_the_records_are_of_this_checkpoint_text_and_cores(int8: dict[str, Any], half: dict[str, Any]) -> None:
    for record, core in ((int8, INT8), (half, HALF)):
        assert record["format"] == ACCURACY_FORMAT and record["executor"] == "functional", AGAIN
        assert record["core_digest"] == core.digest and record["model_digest"] == chosen_model(TINY).digest(), AGAIN
        assert record["text_sha256"] == hashlib.sha256(TEXT.read_bytes()).hexdigest(), AGAIN
        assert record["positions"] >= 2000 and record["boards"] == 1
    assert int8["predicted_bytes"] == half["predicted_bytes"]
    stored = stored_rms_error(int8["model_digest"], INT8.digest)
    assert stored is not None and stored[0] == int8["core"]["rms_error"]


def _close(int8_bits: float, half_bits: float) -> bool:
    return abs(int8_bits / half_bits - 1) <= MOST_ABOVE


def test_int8_weights_take_no_more_than_one_percent_more_bits(int8: dict[str, Any], half: dict[str, Any]) -> None:
    ours, theirs = int8["bits_per_byte"]["core"], half["bits_per_byte"]["core"]
    print(f"bits per byte: int8 {ours:.5f}, fp16 {theirs:.5f} ({ours / theirs - 1:+.4%}), 16x4 functional")
    assert 1.0 < theirs < 2.2 and _close(ours, theirs)
    assert not _close(1.011 * theirs, theirs)  # twin
    assert int8["core"]["rms_error"] > 4 * half["core"]["rms_error"]  # int8 weights were used


def test_the_record_can_be_remade(int8: dict[str, Any]) -> None:
    """Over the text's first positions; the whole is the slow test below."""
    again = measure(TINY, TEXT, INT8.name, SHORT)
    assert again["core"] != int8["core"]
    assert again["core"]["rms_error"] == pytest.approx(int8["core"]["rms_error"], rel=0.4)  # type: ignore[index]
    half = measure(TINY, TEXT, HALF.name, SHORT)  # twin: the figure of other weights is another
    assert half["core"]["rms_error"] != pytest.approx(int8["core"]["rms_error"], rel=0.4)  # type: ignore[index]


@pytest.mark.slow
def test_the_whole_record_can_be_remade(int8: dict[str, Any]) -> None:
    again = measure(TINY, TEXT, INT8.name, int8["positions"])
    for name in ("core", "bits_per_byte"):
        assert again[name] == pytest.approx(int8[name], rel=1e-3)
    assert again["predicted_bytes"] == int8["predicted_bytes"]


def test_bits_of_known_logits() -> None:
    """Of 8 equally likely tokens each takes 3 bits; one that is e times as likely as each other takes fewer."""
    windows = [[1, 2, 3], [4, 5]]
    logits = np.zeros((5, 8), np.float32)
    assert bits_per_byte(logits, windows, 6) == pytest.approx(3 * 3 / 6)
    logits[3, 5] = 1.0
    wanted = 2 * 3 + math.log2((7 + math.e) / math.e)
    assert bits_per_byte(logits, windows, 6) == pytest.approx(wanted / 6)
    logits[2, 4] = logits[4, 0] = 50.0  # behind a window's last token nothing is predicted
    assert bits_per_byte(logits + 1000, windows, 6) == pytest.approx(wanted / 6, rel=1e-6)
    logits[0, 1] = 1.0  # twin: it is the token behind that counts
    assert bits_per_byte(logits, windows, 6) > wanted / 6 + 0.01
