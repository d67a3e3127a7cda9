"""``ringfly profile``: tables, trace, picture, the gateware's own counters, and every bad input."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from host.bench.profile import chosen_run
from host.bench.profile_figure import steady_layer, write_figure
from host.bench.timed_program import TimedProgram
from host.cli.main import main
from sim.timing.attribution import LOST
from sim.timing.units import UNIT_LOSSES, UNIT_MEANINGS

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "checkpoints" / "gpt2-tiny"
SMALL = ["--model", str(TINY), "--core", "16x4"]


def profiled(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict:
    assert main(["profile", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def compiled(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Path:
    out = folder / "program"
    assert main(["compile", "--model", str(TINY), "--core", "16x4", "--out", str(out), *more]) == 0
    capsys.readouterr()
    return out


def whole(part: dict) -> float:
    return part["useful_cycles"] + sum(part["lost_cycles"].values())


def test_sums_are_exact_at_every_level(capsys: pytest.CaptureFixture[str]) -> None:
    report = profiled([*SMALL, "--kv", "100"], capsys)
    step = report["step"]
    assert (report["kv"], report["tokens"], report["first_position"]) == (100, 2, 98)
    assert report["cycles_source"] == "timing" and len(report["verilog_sha256"]) == 64
    for part in (step, report["run"], *report["layers"], *report["instructions"]):
        assert whole(part) == part["cycles"] and set(part["lost_cycles"]) == set(LOST)
    for parts in (report["layers"], report["instructions"]):
        assert sum(part["cycles"] for part in parts) == step["cycles"]
        assert sum(part["useful_cycles"] for part in parts) == step["useful_cycles"]
        for name in LOST:
            assert sum(part["lost_cycles"][name] for part in parts) == step["lost_cycles"][name]
    assert [unit["unit"] for unit in report["units"]] == list(UNIT_LOSSES)
    for part, by_unit in (
        (step, {unit["unit"]: unit["lost_cycles"] for unit in report["units"]}),
        *((layer, layer["lost_by_unit"]) for layer in report["layers"]),
    ):
        shares = [cycles for causes in by_unit.values() for cycles in causes.values()]
        assert sum(shares) == sum(part["lost_cycles"].values()) == part["cycles"] - part["useful_cycles"]
    assert [layer["name"] for layer in report["layers"]][1:-1] == [f"layer {n}" for n in range(4)]
    assert main(["time", *SMALL, "--kv", "100", "--json"]) == 0
    time = json.loads(capsys.readouterr().out)
    assert {name: step[name] for name in ("cycles", "useful_cycles", "lost_cycles")} == {
        name: time[name] for name in ("cycles", "useful_cycles", "lost_cycles")
    }


def test_text_names_buckets_layers_instructions_and_units(capsys: pytest.CaptureFixture[str]) -> None:
    report = profiled([*SMALL, "--kv", "100"], capsys)
    assert main(["profile", *SMALL, "--kv", "100"]) == 0
    text = capsys.readouterr().out
    buckets = text[text.index("  useful ") : text.index("  sum ")]
    for name, cycles in report["step"]["lost_cycles"].items():
        assert (f"  {name} " in buckets) == bool(cycles)
    for part in report["instructions"]:
        assert f"{part['name']} " in text and f"{part['cycles']:,}" in text
    assert "layer 0" in text and all(unit in text for unit in {*UNIT_MEANINGS, *UNIT_LOSSES})
    units = {line.split()[0]: line for line in text[text.index("\nunits, ") :].splitlines() if line.startswith("  ")}
    lost = report["step"]["lost_cycles"]
    assert list(units) == list(UNIT_LOSSES)
    assert f"parameters {lost['parameters']:,}, embedding {lost['embedding']:,}" in units["matrix_unit"]
    assert lost["token_gap"] > 0 and units["token_path"].endswith(f"token_gap {lost['token_gap']:,}")
    assert f"{report['step']['cycles']:,} cycles" in text


def test_several_boards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, png = tmp_path / "trace.json", tmp_path / "step.png"
    arguments = [*SMALL, "--kv", "40", "--boards", "3"]
    report = profiled([*arguments, "--board", "2", "--trace", str(trace), "--png", str(png)], capsys)
    step, own = report["step"], report["board_step"]
    assert whole(step) == 3 * step["cycles"] and step["boards"] == 3 and step["cycles"] == max(report["board_cycles"])
    assert (report["board"], own["cycles"]) == (2, report["board_cycles"][2])
    for part in (own, *report["layers"], *report["instructions"]):
        assert whole(part) == part["cycles"]
    assert sum(part["cycles"] for part in report["instructions"]) == own["cycles"]
    assert own["lost_cycles"]["link"] > 0 < report["exposed_sync_fraction"]
    assert any("words of board 1" in part["name"] for part in report["instructions"])
    assert json.loads(trace.read_text())["otherData"]["board"] == 2 and png.stat().st_size > 10_000
    assert main(["time", *arguments, "--json"]) == 0
    time = json.loads(capsys.readouterr().out)
    assert {name: step[name] for name in ("cycles", "useful_cycles", "lost_cycles")} == {
        name: time[name] for name in ("cycles", "useful_cycles", "lost_cycles")
    }
    assert report["exposed_sync_fraction"] == time["exposed_sync_fraction"]
    assert main(["profile", *arguments]) == 0
    text = capsys.readouterr().out
    assert "exposed synchronisation at   500 ns a hop" in text and "what follows is board 0" in text


def test_trace_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, png = tmp_path / "trace.json", tmp_path / "step.png"
    report = profiled([*SMALL, "--kv", "40", "--tokens", "3", "--trace", str(trace), "--png", str(png)], capsys)
    assert report["trace"] == str(trace) and report["png"] == str(png) and report["tokens"] == 3
    events = json.loads(trace.read_text())
    matrix = [event for event in events["traceEvents"] if event.get("cat") == "matrix_unit"]
    assert {event["args"]["position"] for event in matrix} == {37, 38, 39}
    assert events["otherData"]["kv"] == 40 and events["otherData"]["cycles_source"] == "timing"
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and png.stat().st_size > 10_000


def test_the_picture_shows_a_steady_layer(tmp_path: Path) -> None:
    from host.bench.profile import profile_step

    timed = TimedProgram.of_model(str(TINY), "16x4", None, "ideal", 0)
    profile = profile_step(timed, chosen_run(timed, 30, None, on_gateware=False))
    assert steady_layer(profile) == 2
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    write_figure(profile, first)
    later = dataclasses.replace(profile, run=dataclasses.replace(profile.run, attended=29, steps=1))
    write_figure(later, second)  # twin: another step is another picture
    assert first.read_bytes() != second.read_bytes()


def test_gateware_beside_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fixed delays: not a cycle of difference in any bucket. The run starts where seeded keys and values end."""
    folder = compiled(tmp_path, capsys, "--seeded-kv", "30")
    arguments = [str(folder), "--executor", "rtl", "--memory", "ideal"]
    report = profiled(arguments, capsys)
    assert (report["kv"], report["tokens"], report["first_position"], report["prompt_end"]) == (31, 2, 29, 30)
    assert report["executor"] == report["cycles_source"] == "rtl" and len(report["verilog_sha256"]) == 64
    assert whole(report["run"]) == report["run"]["cycles"] > 0
    assert set(report["difference"].values()) == {0}
    assert report["run"]["lost_cycles"]["run_start"] == 0  # counters cannot tell
    assert main(["profile", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("  cycles")] == [
        ["cycles", *[f"{report['run']['cycles']:,}"] * 2, "0"]
    ]
    longer = profiled([*arguments, "--kv", "34", "--tokens", "1"], capsys)
    assert (longer["first_position"], longer["prompt_end"], longer["tokens"]) == (30, 34, 1)
    assert set(longer["difference"].values()) == {0}
    assert longer["run"]["cycles"] != report["run"]["cycles"]


def test_gateware_of_several_boards_beside_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = compiled(tmp_path, capsys, "--boards", "2")
    assert profiled([str(folder), "--kv", "9"], capsys)["boards"] == 2
    arguments = [str(folder), "--executor", "rtl", "--memory", "ideal", "--hop-ns", "304"]
    report = profiled(arguments, capsys)
    assert report["boards"] == 2 and whole(report["run"]) == 2 * report["run"]["cycles"] > 0
    assert set(report["difference"].values()) == {0}
    assert report["run"]["lost_cycles"]["link"] > 0
    assert main(["profile", *arguments]) == 0
    assert "2 boards, 304 ns a hop" in capsys.readouterr().out


def test_a_difference_between_gateware_and_timing_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: a longer accumulator in the timing model alone."""
    import host.bench.profile as profile
    from sim.timing.overrides import TimingOverrides

    folder = compiled(tmp_path, capsys)
    compare = profile.compare

    def broken(*arguments: object, **options: object) -> object:
        return compare(*arguments, **options, overrides=TimingOverrides(extra_cycles={"norm_latency": 9}))  # type: ignore[arg-type]

    monkeypatch.setattr(profile, "compare", broken)
    report = profiled([str(folder), "--executor", "rtl", "--memory", "ideal"], capsys)
    assert report["difference"]["layernorm"] > 0 and report["difference"]["cycles"] > 0


def test_which_run_is_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = TimedProgram.of_folder(compiled(tmp_path, capsys), "ideal", 0)
    seeded = dataclasses.replace(
        plain, programs=(dataclasses.replace(plain.program, notes={**plain.program.notes, "cached_positions": 50}),)
    )

    def run(timed: TimedProgram, kv: int | None, tokens: int | None, on_gateware: bool) -> tuple[int, int, int]:
        one = chosen_run(timed, kv, tokens, on_gateware=on_gateware)
        return one.position, one.first, one.last

    assert run(plain, None, None, False) == (126, 126, 127)
    assert run(plain, None, None, True) == (0, 0, 1)
    assert run(plain, 9, 3, True) == (0, 6, 8)
    assert run(seeded, None, None, False) == run(seeded, None, None, True) == (49, 49, 50)
    assert run(seeded, 60, 4, True) == (50, 56, 59) and run(seeded, 60, 4, False) == (56, 56, 59)
    assert run(plain, 1, None, False) == (0, 0, 0)


BAD: dict[str, tuple[list[str], str, list[str]]] = {
    "nothing": ([], "bad_input", ["program folder", "--model"]),
    "both": (["build", *SMALL], "bad_input", ["program folder", "--model"]),
    "no program folder": ([str(ROOT / "docs")], "bad_program", ["docs", "ringfly compile"]),
    "unknown model": (["--model", "gpt2-2b"], "missing_path", ["gpt2-2b", "gpt2-345m"]),
    "unknown executor": ([*SMALL, "--executor", "card"], "unknown_executor", ["card", "timing, rtl"]),
    "gateware of a model": ([*SMALL, "--executor", "rtl"], "bad_input", ["program folder"]),
    "trace of gateware": (["build", "--executor", "rtl", "--trace", "t.json"], "bad_input", ["--trace"]),
    "core of a folder": (["build", "--core", "16x4"], "bad_input", ["--core", "16x4"]),
    "boards of a folder": (["build", "--boards", "2"], "bad_input", ["--boards", "2"]),
    "no such board": ([*SMALL, "--kv", "9", "--boards", "2", "--board", "2"], "bad_input", ["board must be 0 to 1"]),
    "nine boards": ([*SMALL, "--boards", "9"], "bad_input", ["1 to 8", "9"]),
    "context of a folder": (["build", "--context", "64", "--executor", "rtl"], "bad_input", ["--context", "64"]),
    "kv over the context": ([*SMALL, "--kv", "257"], "bad_input", ["257", "1 to 256"]),
    "more tokens than positions": ([*SMALL, "--kv", "3", "--tokens", "4"], "bad_input", ["4 tokens", "attends to 3"]),
    "no tokens": ([*SMALL, "--tokens", "0"], "bad_input", ["tokens", "got 0"]),
    "unknown memory": ([*SMALL, "--memory", "ddr"], "unknown_memory", ["ddr", "u280"]),
    "trace in no folder": ([*SMALL, "--trace", "/nowhere/t.json"], "bad_input", ["/nowhere", "does not exist"]),
    "picture is a folder": ([*SMALL, "--png", str(ROOT)], "bad_input", ["is a folder", "step.png"]),
    "beyond a small core": (["--model", "gpt2-xl", "--core", "16x4"], "does_not_fit", ["bytes per memory channel"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, kind, words = BAD[name]
    assert main(["profile", *arguments]) == 2
    text = capsys.readouterr()
    assert text.err.startswith("error: ") and not text.out
    error = profiled(arguments, capsys, 2)["error"]
    assert error["kind"] == kind, error
    for word in words:
        assert word in text.err and word in error["message"] + error["hint"], error


@pytest.mark.parametrize("option", ["--trace", "--png"])
@pytest.mark.parametrize("path", ["/proc/out", "pipe"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    option: str, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write all by its permissions, and /proc still takes no file. A pipe without a reader is no wait."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(TimedProgram, "of_model", lambda *_: pytest.fail("the work has begun"))
    error = profiled([*SMALL, option, str(tmp_path / path)], capsys, 2)["error"]
    assert error["kind"] == "bad_input" and "cannot be written" in error["message"]


def test_the_check_of_an_output_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, new, link = tmp_path / "kept", tmp_path / "new", tmp_path / "link"
    kept.write_text("kept")
    link.symlink_to(tmp_path / "target")
    before = kept.stat().st_mtime_ns
    for path in (kept, new, link):
        profiled([*SMALL, "--kv", "257", "--png", str(path)], capsys, 2)  # refused after the check
    assert kept.read_text() == "kept" and kept.stat().st_mtime_ns == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "link"] and link.is_symlink()
