"""The table of timing model and gateware: what misses, which twins are noticed, what the exit code says."""

from __future__ import annotations

import dataclasses
import json

import pytest

import sim.timing.comparison as comparison_module
import sim.timing.table as table
from hw.board.gpt2_map import STALL_CAUSES
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.timing.comparison import Comparison
from sim.timing.overrides import TimingOverrides
from sim.timing.run import run_timing
from sim.timing.twins import TWINS, Twin

FEW = ["--programs", "2", "--seed", "2026"]
COUNTERS = dict.fromkeys((f"stall_{cause}" for cause in STALL_CAUSES), 0) | {
    "cycles": 10_000,
    "tiles": 9_000,
    "stall_softmax": 1_000,
    "refresh_stalls": 0,
    "first_token_cycles": 9_990,
}
EQUAL = Comparison("run", "hbm", COUNTERS, COUNTERS, {"softmax": (1000.0, 1000.0), "link": (0.0, 0.0)})


def with_timing(**counters: int) -> Comparison:
    return dataclasses.replace(EQUAL, timing={**COUNTERS, **counters})


def with_bucket(name: str, rtl: float, timing: float) -> Comparison:
    return dataclasses.replace(EQUAL, buckets={name: (rtl, timing)})


def test_every_row_is_exact() -> None:
    assert not EQUAL.misses()
    for name, value in COUNTERS.items():
        changed = with_timing(**{name: value + 1})
        assert changed.misses() == [f"{name}: gateware {value}, timing {value + 1}"]
        assert not changed.misses(0.01)


def test_a_limit_allows_cycles_but_not_other_causes() -> None:
    assert not with_timing(cycles=10_099).misses(0.01)
    assert with_timing(cycles=10_101).misses(0.01) == ["cycles differ by +1.010 %"]
    assert with_timing(cycles=9_899).misses(0.01) == ["cycles differ by -1.010 %"]
    assert not with_timing(stall_softmax=1_099).misses(0.01)
    assert with_timing(stall_softmax=899).misses(0.01) == ["stall_softmax differs by -10.1 %"]
    assert with_timing(stall_norm=51).misses(0.01) == ["stall_norm differs by +5100.0 %"]
    assert not with_timing(stall_norm=49).misses(0.01)


def test_large_buckets_are_judged() -> None:
    assert EQUAL.large_buckets() == {"softmax": 0.0} and EQUAL.large_causes() == {"stall_softmax": 0.0}
    for limit in (0.0, 0.01):
        assert with_bucket("drain", 100.0, 111.0).misses(limit) == ["bucket drain differs by +11.0 %"]
        assert with_bucket("drain", 100.0, 89.0).misses(limit) == ["bucket drain differs by -11.0 %"]
        assert not with_bucket("drain", 100.0, 109.0).misses(limit)
        assert not with_bucket("drain", 10.0, 49.0).misses(limit)  # less than 0.5 % of the run
        assert with_bucket("drain", 0.0, 51.0).misses(limit) and with_bucket("drain", 51.0, 0.0).misses(limit)
        assert dataclasses.replace(EQUAL, unattributed="cycles are missing").misses(limit) == ["cycles are missing"]


def test_the_table_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main([*FEW, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = report["rows"]
    assert [row["memory"] for row in rows] == ["fixed", "random", "hbm"] * 2
    assert report["held"] and report["missed"] == 0 and report["twins"] == {}
    assert report["buckets_judged"] == sum(len(row["large_buckets"]) for row in rows) > 30
    for row in rows:
        own = {name: value for name, value in row["rtl"].items() if name in row["timing"]}
        assert own == row["timing"] and all(rtl == timing for rtl, timing in row["buckets"].values())
        assert set(row["large_buckets"]) >= {"padding", "softmax", "layernorm"}


def test_twins_are_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main([*FEW, "--twins", "--json"]) == 0
    twins = json.loads(capsys.readouterr().out)["twins"]
    assert tuple(twins) == TWINS and all(twin["noticed"] for twin in twins.values())
    assert twins["refresh=off"]["unnoticed"]["its memory has no refresh"] == [
        f"random {seed} {memory}" for seed in (2026, 2027) for memory in ("fixed", "random")
    ]
    assert table.main([*FEW, "--twins"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert "6 rows, 0 missed, " in lines[-1] and all(f"{name} noticed by " in lines[-1] for name in TWINS)
    for name in TWINS:
        assert sum(line.startswith(f"  {name} ") for line in lines) == 6
        assert f"twin {name}: noticed by {twins[name]['noticed']} of 6 rows" in lines


def test_a_twin_that_no_row_notices_is_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    one = ["--programs", "1", "--seed", "2026"]
    assert table.main([*one, "--twin", "context=+1"]) == 1
    text = capsys.readouterr().out
    assert "  not by 3, it changes no counter: random 2026 fixed, random 2026 random, random 2026 hbm" in text
    assert "3 rows, 0 missed" in text
    assert table.main([*one, "--twin", "report=+1"]) == 0
    # one that changes cycles by less than the limit is not noticed within it
    assert table.main([*one, "--twin", "report=+1", "--limit", "100"]) == 1
    assert "within the limit of 100 %" in capsys.readouterr().out


def test_a_timing_model_that_differs_is_a_miss(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slower(program: object, **options: object) -> object:
        return run_timing(program, **{**options, "overrides": TimingOverrides(extra_cycles={"report": 1})})  # type: ignore[arg-type]

    monkeypatch.setattr(comparison_module, "run_timing", slower)
    assert table.main([*FEW, "--twins"]) == 1  # although twins are noticed
    assert "6 rows, 6 missed" in capsys.readouterr().out


def test_a_crash_is_no_miss(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def twin_breaks(program: object, **options: object) -> object:
        if options["overrides"] is not None:
            raise RuntimeError("the twin broke down")
        return run_timing(program, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(comparison_module, "run_timing", twin_breaks)
    assert table.main([*FEW, "--twin", "report=+1"]) == 2
    assert "the twin broke down" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (["--twin", "speed=+1"], "cannot change 'speed=+1'"),
        (["--twin", "lanes=+4"], "cannot change 'lanes=+4'"),
        (["--twin", "refresh=on"], "cannot change 'refresh=on'"),
        (["--twin", "accumulator_latency=8"], "cannot change"),
        (["--limit", "-1"], "--limit must be 0 to 100"),
        (["--limit", "nan"], "--limit must be 0 to 100"),
        (["--programs", "-1"], "--programs must be 0 or more"),
        (["--programs", "0"], "the table has no rows"),
        (["--core", "nope"], "unknown core 'nope'"),
        (["--programs", "0", "--folder", "/does/not/exist"], "is no program folder"),
    ),
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = table.main(arguments)
    except SystemExit as end:
        code = end.code
    assert code == 2 and message in capsys.readouterr().err


def test_why_a_twin_is_not_noticed() -> None:
    core, hbm = core_config("16x4"), HbmTiming()
    why = {name: Twin.parse(name).why_unnoticed(core, hbm) for name in (*TWINS, "fifo_words=512", "report=+1")}
    assert why == {
        "fifo_words=128": "FIFOs of 128 rows are enough for it",
        "refresh=off": "no refresh delays it",
        "accumulator_latency=+4": "no two of its tiles on one accumulator are closer than 8 cycles",
        "fifo_words=512": "core 16x4 has that value",
        "report=+1": "it changes no counter",
    }
    assert Twin.parse("refresh=off").why_unnoticed(core, MemoryTiming()) == "its memory has no refresh"
