"""``ringfly time``: the figures, their sources and conditions, and every bad input."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

import host.compiler.model_choice as model_choice
from host.cli.main import main
from hw.gpt2.config import core_config
from sim.rtl.build import export_board
from sim.timing.run import TimingError, run_timing
from sim.timing.steady_step import DecodeRun
from sw.models.named_sizes import NAMED_SIZES

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "checkpoints" / "gpt2-tiny"
SMALL = ["--model", str(TINY), "--core", "16x4"]
KEYS = {
    "ms_per_token_at_200mhz", "cycles", "prefill_ms_at_200mhz", "prefill_cycles", "useful_cycles", "useful_fraction",
    "lost_cycles", "exposed_sync_fraction", "cycles_source", "verilog_sha256", "conditions",
}  # fmt: skip
CAUSES = {
    "parameters", "embedding", "refresh", "memory", "padding", "dependency", "drain", "link", "token_gap",
    "instruction",
}  # fmt: skip


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more name: a model beyond a card."""
    huge = dataclasses.replace(NAMED_SIZES["gpt2-xl"], n_layer=140)
    monkeypatch.setattr(model_choice, "NAMED_SIZES", MappingProxyType({**NAMED_SIZES, "gpt2-huge-test": huge}))


def timed(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict:
    assert main(["time", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_step_of_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    report = timed([*SMALL, "--kv", "128"], capsys)
    assert set(report) >= KEYS and set(report["lost_cycles"]) >= CAUSES and "other" not in report["lost_cycles"]
    assert report["useful_cycles"] + sum(report["lost_cycles"].values()) == report["cycles"] * report["boards"]
    assert report["ms_per_token_at_200mhz"] == report["cycles"] / 200e3
    assert report["useful_fraction"] == report["useful_cycles"] / report["cycles"]
    assert report["prefill_cycles"] is report["prefill_ms_at_200mhz"] is report["prompt"] is None
    assert report["exposed_sync_fraction"] == report["lost_cycles"]["link"] == 0
    assert report["cycles_source"] == "timing"
    assert report["verilog_sha256"] == export_board(core_config("16x4")).sha256
    conditions = report["conditions"]
    assert conditions["positions_attended"] == report["kv"] == 128 and conditions["core_digest"]
    assert (conditions["core_clock_mhz"], conditions["port_clock_mhz"], conditions["assumed_clock_mhz"]) == (
        200,
        225,
        200,
    )
    assert (
        conditions["memory_parameters"]["refresh_interval_ns"] == 3900 and "placed and routed" in conditions["clocks"]
    )
    assert conditions["model_sizes"]["n_layer"] == 4 and "2 decode steps" in conditions["step"]


def test_text_has_every_lost_cycle(capsys: pytest.CaptureFixture[str]) -> None:
    report = timed([*SMALL, "--kv", "77"], capsys)
    assert main(["time", *SMALL, "--kv", "77"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split()[0]: float(line.split()[1].replace(",", "")) for line in lines if line.startswith("  ")}
    assert shown.pop("useful") == pytest.approx(report["useful_cycles"], abs=0.005)
    assert shown.pop("sum") == report["cycles"]
    assert shown == pytest.approx({name: lost for name, lost in report["lost_cycles"].items() if lost}, abs=0.005)


@pytest.mark.parametrize("memory", ["ideal", "u280"])
def test_a_prompt_and_the_step_behind_it(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = timed([*SMALL, "--prompt", "20", "--memory", memory], capsys)
    step = timed([*SMALL, "--kv", "21", "--memory", memory], capsys)
    same = (KEYS | {"kv"}) - {"prefill_cycles", "prefill_ms_at_200mhz", "conditions"}
    assert {name: report[name] for name in same} == {name: step[name] for name in same}
    from host.bench.timed_program import TimedProgram

    program = TimedProgram.of_model(str(TINY), "16x4", None, memory, 0)
    run = run_timing(program.program, position=0, prompt_end=20, max_new_tokens=1, memory=program.memory)
    assert report["prefill_cycles"] == run.token_cycles[0]
    assert report["prefill_ms_at_200mhz"] == report["prefill_cycles"] / 200e3
    assert report["conditions"]["prefill"]["method"] == "simulated whole"


def test_a_long_prompt_says_what_was_interpolated(capsys: pytest.CaptureFixture[str]) -> None:
    report = timed(["--model", "gpt2-124m", "--prompt", "500", "--memory", "ideal"], capsys)
    prefill = report["conditions"]["prefill"]
    assert prefill["simulated_positions"] < 500 and "interpolated" in prefill["method"] and prefill["interpolated"]
    assert 500 * 85_000 < report["prefill_cycles"] < 500 * 105_000  # 86,000 tiles of weights a position


def test_a_long_prompt_shows_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import host.cli.progress as progress

    arguments = ["--model", "gpt2-124m", "--prompt", "200", "--memory", "ideal"]
    monkeypatch.setattr(progress, "LINE_PERIOD_S", 0.0)
    monkeypatch.setattr(progress, "PATIENCE_S", 1000.0)
    assert main(["time", *arguments]) == 0
    assert "position" not in capsys.readouterr().err
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    assert main(["time", *arguments, "--json"]) == 0
    text = capsys.readouterr()
    shown = [line for line in text.err.splitlines() if line.startswith("timing a prompt, position ")]
    assert len(shown) == json.loads(text.out)["conditions"]["prefill"]["simulated_positions"]
    assert "of 200: 0 %" in shown[0]


def test_a_prompt_that_fills_the_cache_has_no_step_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    report = timed([*SMALL, "--prompt", "12", "--context", "12", "--memory", "ideal"], capsys)
    assert report["kv"] == 12 and report["conditions"]["context"] == 12


@pytest.mark.parametrize("hop", [[], ["--hop-ns", "0"], ["--hop-ns", "350"]])
def test_several_boards(hop: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    report = timed([*SMALL, "--kv", "40", "--boards", "4", *hop], capsys)
    alone = timed([*SMALL, "--kv", "40"], capsys)
    hop_ns = float(hop[1]) if hop else 500.0
    assert (report["boards"], report["hop_ns"]) == (4, hop_ns) and len(report["board_cycles"]) == 4
    assert report["cycles"] == max(report["board_cycles"]) < alone["cycles"]
    assert report["useful_cycles"] == alone["useful_cycles"]
    assert report["useful_cycles"] + sum(report["lost_cycles"].values()) == 4 * report["cycles"]
    assert report["useful_fraction"] == report["useful_cycles"] / (4 * report["cycles"])
    exposed = {one["hop_ns"]: one for one in report["exposed_sync"]}
    assert set(exposed) == {200.0, 500.0, 1000.0, hop_ns}
    assert report["exposed_sync_fraction"] == exposed[hop_ns]["exposed_sync_fraction"]
    without = exposed[500.0]["cycles"] - exposed[500.0]["exposed_cycles"]
    assert all(one["cycles"] - one["exposed_cycles"] == without for one in exposed.values())
    assert exposed[1000.0]["exposed_cycles"] > exposed[200.0]["exposed_cycles"]
    assert exposed[hop_ns]["cycles"] == report["cycles"]
    assert len(report["conditions"]["slices"]) == 4 and report["conditions"]["link_parameters"]["hop_ns"] == hop_ns


def test_text_of_several_boards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time", *SMALL, "--kv", "40", "--boards", "2", "--hop-ns", "350"]) == 0
    text = capsys.readouterr().out
    assert "2 boards, 350 ns a hop" in text and "of 2 boards" in text
    hops = [line.split(" ns a hop")[0].split()[-1] for line in text.splitlines() if line.startswith("exposed")]
    assert hops == ["200", "350", "500", "1,000"]


def test_a_prompt_on_several_boards(capsys: pytest.CaptureFixture[str]) -> None:
    report = timed([*SMALL, "--prompt", "12", "--boards", "2"], capsys)
    alone = timed([*SMALL, "--prompt", "12"], capsys)
    assert alone["prefill_cycles"] / 2 < report["prefill_cycles"] < alone["prefill_cycles"]
    assert report["kv"] == 13 and report["exposed_sync_fraction"] > 0


def test_one_position(capsys: pytest.CaptureFixture[str]) -> None:
    report = timed([*SMALL, "--kv", "1"], capsys)
    assert report["lost_cycles"]["run_start"] > 0 and "the only step" in report["conditions"]["step"]
    assert report["useful_cycles"] + sum(report["lost_cycles"].values()) == report["cycles"]


def test_the_seed_moves_refreshes_only(capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other, ideal, ideal_other = (
        timed([*SMALL, "--kv", "60", *more], capsys)
        for more in ([], [], ["--seed", "9"], ["--memory", "ideal"], ["--memory", "ideal", "--seed", "9"])
    )
    assert first == again
    assert other["useful_cycles"] == first["useful_cycles"] and other["conditions"] != first["conditions"]
    assert ideal["cycles"] == ideal_other["cycles"]
    assert ideal["lost_cycles"]["refresh"] == 0


@pytest.mark.parametrize("model", ["gpt2-124m", "gpt2-345m", "gpt2-774m", "gpt2-xl", "gpt2-1.5b-dfx"])
def test_every_known_size(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = timed(["--model", model, "--kv", "128", "--memory", "ideal"], capsys)
    assert report["useful_cycles"] + sum(report["lost_cycles"].values()) == report["cycles"]
    assert report["useful_fraction"] > 0.98 and report["conditions"]["products_per_cycle"] == 1024


def test_a_directory_needs_no_weights_and_no_torch(tmp_path: Path) -> None:
    shutil.copy(TINY / "config.json", tmp_path)
    arguments = ["time", "--model", str(tmp_path), "--core", "16x4", "--kv", "3", "--json"]
    code = f"import sys; from host.cli.main import main; assert not main({arguments!r}); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "False" and '"cycles"' in done.stdout


BAD: dict[str, tuple[list[str], str, list[str]]] = {
    "unknown model": (["--model", "gpt2-345M", "--kv", "8"], "missing_path", ["gpt2-345M", *NAMED_SIZES]),
    "model is a file": (["--model", str(TINY / "config.json"), "--kv", "8"], "not_a_directory", ["config.json"]),
    "kv over the context": (["--model", "gpt2-345m", "--kv", "1025"], "bad_input", ["1025", "1 to 1024"]),
    "kv over a shorter context": ([*SMALL, "--kv", "33", "--context", "32"], "bad_input", ["33", "1 to 32"]),
    "kv of nothing": ([*SMALL, "--kv", "0"], "bad_input", ["got 0"]),
    "prompt over the context": ([*SMALL, "--prompt", "257"], "bad_input", ["257", "1 to 256"]),
    "neither": ([*SMALL], "bad_input", ["--kv", "--prompt"]),
    "both": ([*SMALL, "--kv", "2", "--prompt", "3"], "bad_input", ["--kv", "--prompt"]),
    "nine boards": ([*SMALL, "--kv", "2", "--boards", "9"], "bad_input", ["boards must be 1 to 8", "9"]),
    "more boards than heads": (["--model", "gpt2-124m", "--kv", "2", "--boards", "0"], "bad_input", ["got 0"]),
    "a hop of one board": ([*SMALL, "--kv", "2", "--hop-ns", "200"], "bad_input", ["--hop-ns", "--boards"]),
    "a hop back in time": ([*SMALL, "--kv", "2", "--boards", "2", "--hop-ns", "-1"], "bad_input", ["hop_ns", "-1"]),
    "unknown memory": ([*SMALL, "--kv", "2", "--memory", "ddr"], "unknown_memory", ["ddr", "u280", "ideal"]),
    "unknown core": (["--model", str(TINY), "--kv", "2", "--core", "big"], "bad_core", ["big", "16x4", "64x16"]),
    "sizes that do not divide": (["--model", str(TINY), "--kv", "2", "--core", "16x5"], "bad_core", ["power of two"]),
    "negative seed": ([*SMALL, "--kv", "2", "--seed", "-1"], "bad_input", ["seed"]),
    "context over the limit": (
        ["--model", "gpt2-345m", "--kv", "2", "--context", "1025"], "does_not_fit", ["1025", "1 to 1024"],
    ),
    "beyond 8 GB": (
        ["--model", "gpt2-huge-test", "--kv", "128"],
        "does_not_fit",
        ["bytes per memory channel", "too many in each of 32 channels", "8.59"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, kind, words = BAD[name]
    assert main(["time", *arguments]) == 2
    text = capsys.readouterr()
    assert text.err.startswith("error: ") and not text.out
    error = timed(arguments, capsys, 2)["error"]
    assert error["kind"] == kind, error
    for word in words:
        assert word in text.err and word in error["message"] + error["hint"], error


def test_channels_that_do_not_divide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "core.json"
    path.write_text(json.dumps({**json.loads(core_config("64x16").to_json()), "channels": 24}))
    error = timed(["--model", "gpt2-345m", "--kv", "8", "--core", str(path)], capsys, 2)["error"]
    assert error["kind"] == "bad_core" and "lanes (16) must divide channels (24)" in error["message"]


def test_a_run_that_makes_no_progress_is_the_machines_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(*_: object, **__: object) -> None:
        raise TimingError("run stopped after 20000 cycles")

    monkeypatch.setattr(DecodeRun, "time", stuck)
    error = timed([*SMALL, "--kv", "2"], capsys, 3)["error"]
    assert error["kind"] == "timing_failed" and "20000" in error["message"]
