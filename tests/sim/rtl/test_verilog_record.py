"""The recorded hashes of the kernels' Verilog are those of the gateware as it is."""

from __future__ import annotations

import json
import pathlib

import pytest

import sim.rtl.verilog_record as verilog_record
from hw.gpt2.config import CORE_CONFIGS, core_config
from sim.rtl.build import export_board
from sim.rtl.verilog_record import RECORD, recipe_sha256, verilog_sha256, write_record

AGAIN = "run `python -m sim.rtl.verilog_record`"


@pytest.mark.parametrize("name", ["16x4", pytest.param("64x16", marks=pytest.mark.slow)])
def test_the_record_is_of_this_gateware(name: str) -> None:
    entry = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    assert entry["recipe_sha256"] == recipe_sha256(core_config(name)), AGAIN
    assert entry["verilog_sha256"] == export_board(core_config(name)).sha256, AGAIN


def test_the_record_holds_every_named_core() -> None:
    assert set(json.loads(RECORD.read_text(encoding="utf-8"))) == set(CORE_CONFIGS)


def test_a_true_entry_saves_the_elaboration(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = core_config("16x4")
    record = tmp_path / "verilog.json"
    record.write_text(json.dumps({"16x4": {"recipe_sha256": recipe_sha256(config), "verilog_sha256": "0123"}}))
    monkeypatch.setattr(verilog_record, "export_board", lambda config: pytest.fail("elaborated"))
    assert verilog_sha256(config, record) == "0123" and not capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ['{"16x4": {"recipe_sha256": "of other sources", "verilog_sha256": "0123"}}', "[]", "{", None]
)
def test_any_other_entry_does_not(text: str | None, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, record = core_config("16x4"), tmp_path / "verilog.json"
    if text is not None:
        record.write_text(text)
    assert verilog_sha256(config, record) == export_board(config).sha256
    assert "does not hold this gateware of core 16x4" in capsys.readouterr().err


def test_writing_the_record(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verilog_record, "CORE_CONFIGS", {"16x4": core_config("16x4")})
    record = tmp_path / "results" / "verilog.json"
    write_record(record)
    assert json.loads(record.read_text()) == {
        "16x4": {
            "recipe_sha256": recipe_sha256(core_config("16x4")),
            "verilog_sha256": export_board(core_config("16x4")).sha256,
        }
    }
