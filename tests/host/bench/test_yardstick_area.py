"""Rows of area: the committed estimate against the bars, and what is said without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import host.bench.yardstick_area as yardstick_area
from host.bench.yardstick_area import area_rows
from host.cli.bench_text import yardstick_lines
from host.errors import BadInput
from sim.synth.baseline import FORMAT

BARS = {"LUTs": 30.0, "DSPs": 20.0, "block RAMs": 30.0}  # the design's section 8


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """A baseline as `ringfly synth` writes it, of the gateware of today."""
    monkeypatch.setattr(yardstick_area, "verilog_of", lambda core: "ab" * 32)
    totals = {"lut": 300_000, "lut_pct": 23.0, "dsp": 1200, "dsp_pct": 13.3, "bram": 700.5, "bram_pct": 34.75}
    facts = {
        "format": FORMAT,
        "command": "ringfly synth gpt2 --core 64x16 --update",
        "area_source": "estimated by Yosys 0.70",
        "verilog_sha256": "ab" * 32,
        "conditions": {"part": "xcu280"},
        "totals": totals,
        "modules": {},
    }
    path = tmp_path / "area_gpt2_64x16.json"
    path.write_text(json.dumps(facts))
    return path, facts


def test_figures_against_bars(kept: tuple[Path, dict[str, Any]]) -> None:
    rows = area_rows(path=kept[0])
    assert {row["work"].rsplit(", ", 1)[1]: row["bar"] for row in rows} == BARS
    assert [(row["value"], row["unit"], row["met"]) for row in rows] == [
        (23.0, "%", True),
        (13.3, "%", True),
        (34.75, "%", False),
    ]
    assert [row["best_published"]["value"] for row in rows] == [0.3993, 0.3915, 0.5913]  # of DFX
    for row in rows:
        assert row["ms"] is row["cycles_source"] is None and row["area_source"] == "estimated by Yosys 0.70"
        assert row["conditions"]["of_this_gateware"] is True and row["conditions"]["part"] == "xcu280"


def test_an_estimate_of_other_gateware_says_so(kept: tuple[Path, dict[str, Any]]) -> None:
    path, facts = kept
    path.write_text(json.dumps(facts | {"verilog_sha256": "cd" * 32}))
    assert all(row["conditions"]["of_this_gateware"] is False for row in area_rows(path=path))


def test_without_an_estimate_nothing_is_met(tmp_path: Path) -> None:
    rows = area_rows(path=tmp_path / "area_gpt2_64x16.json")
    assert all(row["value"] is row["met"] is row["area_source"] is None and row["bar"] for row in rows)
    assert "ringfly synth gpt2 --core 64x16 --update" in rows[0]["conditions"]["missing"]


def test_a_damaged_estimate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "area_gpt2_64x16.json"
    path.write_text("{}")
    with pytest.raises(BadInput, match="is not a baseline"):
        area_rows(path=path)


def test_text_of_missing_and_kept_estimates(kept: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    timed = {
        "work": "a step",
        "value": 1.0,
        "unit": "ms",
        "ms": 1.0,
        "bar": 2.0,
        "limit": 0.5,
        "met": True,
        "cycles_source": "timing",
        "best_published": None,
        "verilog_sha256": "ef" * 32,
        "conditions": {
            "core": "64x16",
            "bar_source": "design",
            "assumed_clock_mhz": 200,
            "clocks": "x",
            "limit_meaning": "y",
        },
    }
    text = "\n".join(yardstick_lines([timed, *area_rows(path=kept[0])]))
    assert "34.75" in text and "MISSED" in text and "DFX 59.13 % of the block RAMs" in text
    assert "area: estimated by Yosys 0.70, kept in results/area_gpt2_64x16.json, of this gateware" in text
    text = "\n".join(yardstick_lines([timed, *area_rows(path=tmp_path / "none.json")]))
    assert "none.json does not exist: `ringfly synth gpt2" in text and "4 rows, 0 missed" in text
