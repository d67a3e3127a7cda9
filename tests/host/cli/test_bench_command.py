"""``ringfly bench``: JSON, text, pictures, exit codes, and every bad input."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import host.bench.gpt2_report as gpt2_report
import host.bench.yardstick_area as yardstick_area
import host.bench.yardstick_table as yardstick_table
from host.bench.yardsticks import Case, Yardstick
from host.cli.bench_text import yardstick_lines
from host.cli.main import main

TINY = str(Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny")
GPT2 = ["bench", "gpt2", "--model", TINY, "--core", "16x4", "--memory", "ideal"]
GPU = ["bench", "gpu", "--model", TINY, "--device", "cpu", "--threads", "1", "--warm-ups", "0", "--repeats", "1"]
Capture = pytest.CaptureFixture[str]


def _json(arguments: list[str], capsys: Capture, code: int = 0) -> dict:
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def tiny_yardsticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of the design's table: a step that is met, the same with a bar that it misses, one without a bar."""
    case = Case(TINY, attended=40, core="16x4")
    table = (Yardstick(case, 1.0), Yardstick(case, 1e-3), Yardstick(case, None))
    monkeypatch.setattr(yardstick_table, "YARDSTICKS", table)
    monkeypatch.setattr(yardstick_table, "RTL_YARDSTICKS", table[:1])
    monkeypatch.setattr(yardstick_table, "RTL_SECONDS_BAR", {case: 600.0})


@pytest.mark.usefixtures("tiny_yardsticks")
def test_a_missed_bar_is_exit_code_1_with_all_rows(capsys: Capture) -> None:
    report = _json(["bench", "yardsticks"], capsys, code=1)
    assert report["schema"] == "ringfly-bench-yardsticks/1" and report["met"] is False
    timed = [row for row in report["rows"] if row["cycles_source"] == "timing"]
    assert [row["met"] for row in timed] == [True, False, None]
    assert len(report["rows"]) == len(timed) + 3 and all("area of" in row["work"] for row in report["rows"][3:])
    keys = {"work", "value", "unit", "ms", "bar", "limit", "met", "cycles_source", "conditions"}
    assert all(set(row) >= keys for row in report["rows"])
    assert main(["bench", "yardsticks"]) == 1
    text = capsys.readouterr().out
    assert "MISSED" in text and "6 rows, " in text and "section 8" in text


def test_bars_that_are_met_are_exit_code_0(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(TINY, attended=40, boards=2, core="16x4")
    table = (Yardstick(case, 1.0), Yardstick(case, 0.9, share=True), Yardstick(case, None, share=True))
    monkeypatch.setattr(yardstick_table, "YARDSTICKS", table)
    monkeypatch.setattr(yardstick_area, "area_rows", list)  # of the committed estimate, whatever it says
    report = _json(["bench", "yardsticks"], capsys)
    assert report["met"] is True and [row["met"] for row in report["rows"]] == [True, True, None]
    text = "\n".join(yardstick_lines(report["rows"]))
    assert "synchronisation exposed at 500 ns a hop" in text and "% of the step" in text and "0 missed" in text


@pytest.mark.usefixtures("tiny_yardsticks")
def test_rows_of_the_gateware(capsys: Capture) -> None:
    rows = _json(["bench", "yardsticks", "--rtl"], capsys, code=1)["rows"]
    assert [row["cycles_source"] for row in rows] == ["timing"] * 3 + ["rtl"] * 2 + [None] * 3
    assert rows[3]["verilog_sha256"] == rows[0]["verilog_sha256"]
    assert rows[3]["conditions"]["equal_to_timing_model"] and rows[3]["met"] and rows[4]["met"]
    assert "through the gateware" in "\n".join(yardstick_lines(rows))


def test_gpt2_json(capsys: Capture, tmp_path: Path) -> None:
    pictures = [tmp_path / "beside.png", tmp_path / "latency.png"]
    lengths = ["--length", "8:4", "--length", "6:1", "--length", "8:4"]
    boards = ["--boards", "1", "--boards", "2"]
    report = _json([*GPT2, *lengths, *boards, "--png", str(pictures[0]), "--latency-png", str(pictures[1])], capsys)
    assert report["schema"] == "ringfly-bench-gpt2/1" and report["command"] == "bench gpt2"
    assert [(row["boards"], row["in"], row["out"]) for row in report["rows"]] == [
        (1, 8, 4),
        (1, 6, 1),
        (2, 8, 4),
        (2, 6, 1),
    ]
    for row in report["rows"]:
        assert row["cycles_source"] == "timing" and row["precision"] == "fp16"
        assert row["total_ms"] == row["total_cycles"] / 200e3
        assert "simulated" in row["conditions"]["method"] and row["conditions"]["prompt_included"]
    assert all(len(one["verilog_sha256"]) == 64 and one["conditions"]["method"] for one in report["machines"])
    assert all(one["citation"] and one["conditions"] for one in report["published"])
    for picture in pictures:
        data = picture.read_bytes()
        assert data[:4] == b"\x89PNG" and min(struct.unpack(">II", data[16:24])) > 500
    assert report["png"] == str(pictures[0]) and report["latency_png"] == str(pictures[1])


def test_gpt2_text(capsys: Capture) -> None:
    assert main([*GPT2, "--length", "8:4", "--boards", "1"]) == 0
    text = capsys.readouterr().out
    assert "8:4" in text and "simulated, fp16" in text and "assumed 200 MHz" in text
    assert "total time, prompt included: DFX's definition of throughput" in text
    assert "65.9 %  claimed" in text and "45 W" in text and "Hong et al., DFX, MICRO 2022" in text


def test_gpt2_of_a_model_with_published_figures(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a table where DFX and others stand beside ours, with cycles of a small model for speed."""
    real = gpt2_report.compared
    monkeypatch.setattr(gpt2_report, "compared", lambda row, **rest: real({**row, "model": "gpt2-345m"}, **rest))
    assert main([*GPT2, "--length", "64:64", "--boards", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (dfx,) = [line for line in lines if "DFX, Alveo U280, fp16" in line and "total ms" in line]
    (stream,) = [line for line in lines if "StreamTensor" in line and "first token ms" in line]
    assert "694.7" in dfx and dfx.rstrip().endswith("]") and "measured" in dfx
    assert "(W4A8 against fp16)" in stream


def test_gpu_json_and_text(capsys: Capture) -> None:
    arguments = [*GPU, "--length", "4:3", "--dtype", "fp32"]
    report = _json(arguments, capsys)
    assert report["schema"] == "ringfly-bench-gpu/1"
    (row,) = report["rows"]
    assert row["source"] == "measured" and row["dtype"] == "fp32" and row["device"] == "cpu"
    assert row["total_ms"] > row["first_token_ms"] > 0 and row["decode_gb_s"] > 0
    assert report["conditions"]["threads"] == 1 and report["conditions"]["torch"]
    assert not any("published" in str(value) for value in row.values())  # measured and published stand apart
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "measured here" in text and "published GPU figures (cited, not measured here):" in text and "13.01" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*GPT2, "--model", "gpt2-99m"], "gpt2-99m does not exist"),
        ([*GPT2, "--boards", "9", "--length", "4:4"], "boards must be 1 to 8, got 9"),
        ([*GPT2, "--boards", "0", "--length", "4:4"], "boards must be 1 to 8, got 0"),
        ([*GPT2, "--length", "64"], "is not IN:OUT"),
        ([*GPT2, "--length", "5000:2"], "length 5000:2 must be 1 to"),
        ([*GPT2, "--boards", "1", "--hop-ns", "200"], "one board has no cables"),
        ([*GPT2, "--length", "4:1", "--png", "x.png"], "one token of output has none"),
        ([*GPT2, "--png", "/nowhere/x.png"], "folder /nowhere"),
        ([*GPT2, "--core", "7x7"], "7x7"),
        ([*GPT2, "--core", "16x4r2", "--length", "4:4", "--boards", "2"], "has no ring"),
        (["bench", "gpt2", "--memory", "ddr9"], "unknown memory 'ddr9'"),
        (["bench", "gpu", "--model", "gpt2-99m"], "gpt2-99m does not exist"),
        ([*GPU, "--length", "5000:2"], "takes 5001 positions"),
        ([*GPU, "--dtype", "fp8"], "unknown dtype 'fp8'"),
        ([*GPU, "--device", "tpu"], "unknown device 'tpu'"),
        (["bench", "nothing"], "No such command 'nothing'"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: Capture) -> None:
    error = _json(arguments, capsys, code=2)["error"]
    assert message in error["message"]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and "Traceback" not in printed.err


def test_more_boards_than_heads(capsys: Capture, tmp_path: Path) -> None:
    sizes = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 64, "n_positions": 64, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    asked = ["bench", "gpt2", "--model", str(tmp_path), "--core", "16x4", "--memory", "ideal", "--length", "4:4"]
    error = _json([*asked, "--boards", "3"], capsys, code=2)["error"]
    assert "2 heads" in json.dumps(error) and "3" in json.dumps(error)
    assert [row["boards"] for row in _json(asked, capsys)["rows"]] == [1, 2]  # the default: as many as it has heads for


def test_help_names_the_group(capsys: Capture) -> None:
    assert main(["bench", "-h"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("yardsticks", "gpt2", "gpu", "docs/benchmarks.md"))
