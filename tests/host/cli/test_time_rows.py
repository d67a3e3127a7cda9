"""``ringfly time`` and ``ringfly profile`` with ``--rows`` and ``--weights``: batches, prompts, int8, bad input."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from host.bench import step_time
from host.bench.timed_program import TimedProgram
from host.cli.main import main
from hw.gpt2.config import core_config
from sim.rtl.build import export_board
from sim.timing.run import run_batch_timing, run_timing
from sim.timing.run_start import Request

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "checkpoints" / "gpt2-tiny"
SMALL = ["--model", str(TINY), "--core", "16x4"]


def reported(command: str, arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict:
    assert main([command, *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def whole(part: dict) -> float:
    return part["useful_cycles"] + sum(part["lost_cycles"].values())


@pytest.mark.parametrize("rows", (2, 4))
def test_one_step_of_as_many_requests(rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    report = reported("time", [*SMALL, "--kv", "40", "--rows", str(rows)], capsys)
    alone = reported("time", [*SMALL, "--kv", "40"], capsys)
    assert (report["rows"], report["requests"], report["core"]) == (rows, rows, f"16x4r{rows}")
    assert (alone["rows"], alone["requests"]) == (1, 1)
    assert alone["lost_cycles"]["idle_rows"] == alone["lost_cycles"]["step_gap"] == 0
    # products a cycle are as many more, and so are the model's
    assert report["useful_cycles"] == alone["useful_cycles"] and whole(report) == report["cycles"]
    assert alone["cycles"] < report["cycles"] < 1.3 * alone["cycles"]
    assert report["lost_cycles"]["idle_rows"] > 0
    assert report["tokens_per_second_at_200mhz"] == pytest.approx(rows * 200e6 / report["cycles"])
    assert f"of a batch of {rows} requests" in report["conditions"]["step"]
    assert report["conditions"]["products_per_cycle"] == rows * 64
    assert report["verilog_sha256"] == export_board(core_config("16x4", rows)).sha256
    program = TimedProgram.of_model(str(TINY), "16x4", None, "u280", 0, rows=rows)
    requests = {row: Request(38, 39, 2) for row in range(rows)}
    run = run_batch_timing(program.program, requests, memory=program.memory)
    assert report["cycles"] == run.token_cycles[rows] - run.token_cycles[0]


@pytest.mark.parametrize("rows", (2, 4))
def test_a_prompt_so_many_tokens_at_a_time(rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    report = reported("time", [*SMALL, "--prompt", "21", "--rows", str(rows)], capsys)
    alone = reported("time", [*SMALL, "--prompt", "21"], capsys)
    program = TimedProgram.of_model(str(TINY), "16x4", None, "u280", 0, rows=rows)
    run = run_timing(program.program, position=0, prompt_end=21, max_new_tokens=1, memory=program.memory)
    assert report["prefill_cycles"] == run.token_cycles[0] < 1.3 * alone["prefill_cycles"] / rows
    assert (report["kv"], report["requests"]) == (22, 1) and whole(report) == report["cycles"]
    prefill = report["conditions"]["prefill"]
    assert prefill["method"] == "simulated whole" and prefill["simulated_positions"] == 21
    assert prefill["steps"] == prefill["simulated_steps"] == -(-21 // rows)


def test_a_long_prompt_says_which_steps_were_interpolated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*SMALL, "--prompt", "201", "--rows", "4"]
    simulated = reported("time", arguments, capsys)
    monkeypatch.setattr(step_time, "prefill", functools.partial(step_time.prefill, exact_rows=0))
    report = reported("time", arguments, capsys)
    prefill = report["conditions"]["prefill"]
    assert prefill["steps"] == 51 > prefill["simulated_steps"] and "steps of 4 positions simulated" in prefill["method"]
    proof = prefill["interpolated"][0]
    assert all(context % 4 == 0 for context in (proof["first"], *proof["between"], proof["last"]))
    assert report["prefill_cycles"] == pytest.approx(simulated["prefill_cycles"], rel=1e-3)


def test_int8_weights_on_several_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """A product of int8 takes half a slot: the same useful work in cycles that do twice as much."""
    for what in (["--kv", "40"], ["--prompt", "21"]):
        report = reported("time", [*SMALL, "--rows", "4", "--weights", "int8", *what], capsys)
        halves = reported("time", [*SMALL, "--rows", "4", *what], capsys)
        assert (report["core"], report["conditions"]["weight_format"]) == ("16x4r4i8", "int8")
        assert halves["conditions"]["weight_format"] == "fp16"
        assert report["conditions"]["products_per_cycle"] == 2 * halves["conditions"]["products_per_cycle"] == 512
        assert whole(report) == report["cycles"] < halves["cycles"]
        assert report["useful_cycles"] < halves["useful_cycles"] < 2 * report["useful_cycles"]
        if what[0] == "--prompt":
            assert report["prefill_cycles"] < halves["prefill_cycles"]


@pytest.mark.parametrize("rows", [1, 4])
def test_int8_weights_cost_the_gatewares_cycles(rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Twin: those of fp16."""
    reports = {
        weights: reported("time", [*SMALL, "--rows", str(rows), "--kv", "40", "--weights", weights], capsys)
        for weights in ("fp16", "int8")
    }
    program = TimedProgram.of_model(str(TINY), "16x4i8", None, "u280", 0, rows=rows)
    if rows > 1:
        requests = {row: Request(38, 39, 2) for row in range(rows)}
        run = run_batch_timing(program.program, requests, memory=program.memory)
    else:
        run = run_timing(program.program, position=38, prompt_end=39, max_new_tokens=2, memory=program.memory)
    cycles = run.token_cycles[rows] - run.token_cycles[0]
    assert reports["int8"]["cycles"] == cycles != reports["fp16"]["cycles"]


def test_int8_weights_on_several_boards(capsys: pytest.CaptureFixture[str]) -> None:
    report = reported("time", [*SMALL, "--kv", "40", "--boards", "2", "--weights", "int8"], capsys)
    alone = reported("time", [*SMALL, "--kv", "40", "--weights", "int8"], capsys)
    assert (report["core"], report["boards"]) == ("16x4i8", 2) and whole(report) == 2 * report["cycles"]
    assert report["useful_cycles"] == alone["useful_cycles"] and report["cycles"] < alone["cycles"]
    assert report["exposed_sync_fraction"] > 0


def test_the_name_of_a_core_may_say_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    named = reported("time", ["--model", str(TINY), "--core", "16x4r2", "--kv", "9"], capsys)
    assert named == reported("time", [*SMALL, "--rows", "2", "--kv", "9"], capsys)


def test_text_says_how_many_requests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time", *SMALL, "--rows", "4", "--kv", "40"]) == 0
    text = capsys.readouterr().out
    assert "core 16x4r4" in text and "step of 4 requests, positions attended by each 40: " in text
    assert "tokens a second of all requests" in text and "  idle_rows " in text
    assert main(["time", *SMALL, "--rows", "4", "--prompt", "12"]) == 0
    text = capsys.readouterr().out
    assert "prompt of 12, 4 tokens a step: " in text and "step, positions attended 13: " in text
    assert "of all requests" not in text


def test_a_profile_of_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, "--rows", "4", "--kv", "40"]
    trace, png = tmp_path / "trace.json", tmp_path / "step.png"
    report = reported("profile", [*arguments, "--trace", str(trace), "--png", str(png)], capsys)
    time = reported("time", arguments, capsys)
    assert (report["rows"], report["requests"], report["kv"]) == (4, 4, 40)
    names = ("cycles", "useful_cycles", "lost_cycles")
    assert {name: report["step"][name] for name in names} == {name: time[name] for name in names}
    for part in (report["step"], report["run"], *report["layers"], *report["instructions"]):
        assert whole(part) == part["cycles"]
    assert sum(part["cycles"] for part in report["layers"]) == report["step"]["cycles"]
    tracks = {event["args"].get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "softmax: exponential" in tracks and png.stat().st_size > 10_000
    assert main(["profile", *arguments]) == 0
    assert "step of 4 requests, positions attended by each 40: " in capsys.readouterr().out


def test_a_folder_of_a_core_with_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch on the timing model, one sequence on the gateware, whose counters are the timing model's."""
    out = str(tmp_path / "program")
    assert main(["compile", *SMALL, "--rows", "2", "--out", out]) == 0
    capsys.readouterr()
    report = reported("profile", [out], capsys)
    assert (report["core"], report["requests"], report["kv"]) == ("16x4r2", 2, 128)
    gateware = reported("profile", [out, "--executor", "rtl"], capsys)
    assert (gateware["requests"], gateware["kv"]) == (1, 2)
    assert gateware["run"] == gateware["timing_run"] and set(gateware["difference"].values()) == {0}


BAD: dict[str, tuple[list[str], str, list[str]]] = {
    "three rows": (["time", *SMALL, "--kv", "8", "--rows", "3"], "bad_core", ["rows must be 1, 2 or 4", "3"]),
    "no rows": (["time", *SMALL, "--prompt", "8", "--rows", "0"], "bad_core", ["rows must be 1, 2 or 4", "0"]),
    "weights of another format": (
        ["time", *SMALL, "--kv", "8", "--weights", "int4"],
        "bad_core",
        ["weights must be fp16 or int8", "int4"],
    ),
    "weights twice": (
        ["time", "--model", str(TINY), "--core", "16x4r2i8", "--kv", "8", "--weights", "fp16"],
        "bad_core",
        ["16x4r2i8 has int8 weights, asked for fp16"],
    ),
    "int8 rows on boards": (
        ["time", *SMALL, "--kv", "8", "--weights", "int8", "--rows", "2", "--boards", "2"],
        "rows_on_ring",
        ["a core with 2 rows has no ring", "2 boards"],
    ),
    "rows on boards": (
        ["time", *SMALL, "--kv", "8", "--rows", "4", "--boards", "2"],
        "rows_on_ring",
        ["a core with 4 rows has no ring", "2 boards"],
    ),
    "rows twice": (
        ["time", "--model", str(TINY), "--core", "16x4r2", "--kv", "8", "--rows", "4"],
        "bad_core",
        ["16x4r2 has 2 rows, asked for 4"],
    ),
    "rows on boards, profiled": (
        ["profile", *SMALL, "--kv", "8", "--rows", "2", "--boards", "4"],
        "rows_on_ring",
        ["a core with 2 rows has no ring", "4 boards"],
    ),
    "rows of a folder": (["profile", "somewhere", "--rows", "2"], "bad_input", ["no --rows beside it"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, kind, words = BAD[name]
    assert main(arguments) == 2
    text = capsys.readouterr()
    assert text.err.startswith("error: ") and not text.out
    error = reported(arguments[0], arguments[1:], capsys, 2)["error"]
    assert error["kind"] == kind, error
    for word in words:
        assert word in text.err and word in error["message"] + error["hint"], error
