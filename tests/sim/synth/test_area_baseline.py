"""What counts as grown against the committed figures, and the bars."""

from __future__ import annotations

import copy
import json

import pytest

from hw.board.part import SHELL, SLRS, U280
from sim.synth.baseline import BaselineError, baseline_file, grown, read_baseline, write_baseline
from sim.synth.limits import GPT2_64X16, exceeded, fits_card

MODULE = {"instances": 16, "lut": 1000, "ff": 2000, "dsp": 10, "bram": 1.5, "uram": 0, "levels": 9, "levels_joined": 3}
REPORT = {
    "totals": {"lut": 20_000, "ff": 40_000, "dsp": 160, "bram": 24, "uram": 0},
    "modules": {"lane": MODULE, "small": MODULE | {"instances": 1, "lut": 30}},
    "area_source": "estimated by yosys 0.70",
    "verilog_sha256": "00",
    "conditions": {},
}


def changed(module: str, **figures: float) -> dict:
    report = copy.deepcopy(REPORT)
    report["modules"][module] |= figures
    return report


def test_what_was_written_is_read_and_nothing_has_grown(tmp_path):
    path = baseline_file("gpt2", "64x16", tmp_path)
    assert path.name == "area_gpt2_64x16.json" and read_baseline(path) is None
    write_baseline(path, REPORT, "the command")
    kept = read_baseline(path)
    assert kept is not None and kept["command"] == "the command" and grown(REPORT, kept) == []


@pytest.mark.parametrize(
    "module, figures, told",
    [
        ("lane", {"lut": 1030}, False),  # 3 %
        ("lane", {"lut": 1031}, True),
        ("small", {"lut": 94}, False),  # 64 LUTs count for nothing
        ("small", {"lut": 95}, True),
        ("lane", {"dsp": 11}, True),
        ("lane", {"bram": 2}, True),
        ("lane", {"instances": 17}, True),
        ("lane", {"lut": 500}, False),
    ],
)
def test_growth_beyond_the_tolerance_is_told(tmp_path, module, figures, told):
    path = tmp_path / "kept.json"
    write_baseline(path, REPORT, "the command")
    kept = read_baseline(path)
    assert kept is not None
    lines = grown(changed(module, **figures), kept)
    assert bool(lines) == told and all(module in line for line in lines)


def test_a_new_module_is_told():
    now = copy.deepcopy(REPORT)
    now["modules"]["extra"] = MODULE
    assert grown(now, REPORT) == ["extra: a new module of 1,000 LUT, 2,000 FF"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": "other"}', json.dumps({"format": "ringfly-area/1", "modules": {"a": {}}})]
)
def test_a_damaged_baseline_is_an_error(tmp_path, text):
    path = tmp_path / "kept.json"
    path.write_text(text)
    with pytest.raises(BaselineError, match="--update"):
        read_baseline(path)


def test_bars():
    totals = {kind: 0.299 * amount for kind, amount in U280.amounts().items()} | {"dsp": 1000}
    assert exceeded(totals, {"lane": 12}, GPT2_64X16) == []
    assert exceeded(totals, {"lane": 13}, GPT2_64X16) == ["lane: 13 levels between registers, at most 12 allowed"]
    [line] = exceeded(totals | {"lut": 0.31 * U280.lut}, {}, GPT2_64X16)
    assert line == "lut: 31.0 % of the part, at most 30 % allowed"


def test_what_fits_a_card():
    part, shell = U280.amounts(), SHELL.amounts()
    fits = {kind: 0.7 * part[kind] - shell[kind] for kind in part}
    assert fits_card(fits) == {}
    assert list(fits_card(fits | {"lut": fits["lut"] + 1})) == ["lut"]


def test_the_dies_leave_no_more_than_the_part_has():
    for kind, amount in U280.amounts().items():
        assert 0.75 * amount < sum(slr.amounts()[kind] for slr in SLRS.values()) + SHELL.amounts()[kind] <= amount, kind
