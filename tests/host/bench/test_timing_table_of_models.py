"""The timing table's rows of models: the shipped checkpoint, and a decode step behind seeded keys and values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.bench.timing_table import main

TINY = str(Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny")


def test_a_model_step_and_its_twins(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--programs", "0", "--seed", "2026", "--model", TINY, "--model-core", "16x4", "--twins", "--json"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    checkpoint, step = report["rows"]
    assert (checkpoint["run"], step["run"]) == ("gpt2-tiny 16x4 0..10+6", "gpt2-tiny 16x4 127..128+1")
    assert set(step["large_buckets"]) >= {"parameters", "layernorm"}
    # each notices what the other does not
    unnoticed = {name: twin["unnoticed"] for name, twin in report["twins"].items()}
    assert unnoticed["fifo_words=128"] == {}
    assert list(unnoticed["accumulator_latency=+4"].values()) == [["gpt2-tiny 16x4 0..10+6 hbm"]]


def test_a_model_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--programs", "0", "--model", "gpt2-345M", "--model-core", "16x4"]) == 2
    assert "gpt2-345M does not exist" in capsys.readouterr().err


def test_rows_of_a_core_with_rows(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--programs", "0", "--core", "16x4r2", "--model", TINY, "--model-core", "16x4r2", "--json"]
    assert main([*arguments, "--twin", "written=+1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in report["rows"]] == [
        "gpt2-tiny 16x4r2 0..10+6",
        "gpt2-tiny 16x4r2 0..3+6 0..5+5",
        "gpt2-tiny 16x4r2 127..128+1 127..128+1",
    ]
    assert report["missed"] == 0 and all(row["twins"]["written=+1"]["misses"] for row in report["rows"])
    assert all(row["buckets"]["idle_rows"][0] > 0 for row in report["rows"])
