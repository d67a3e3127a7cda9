"""`ringfly generate` and `ringfly sim` on Verilated gateware: figures, waves, time limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.cli.main import main
from host.driver.sim_device import SimU280Device

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
GENERATE = ["generate", "--model", str(TINY), "--prompt", "In the beginning", "--max-new-tokens", "8"]


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict:
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_generate_runs_on_gateware_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    rtl = _json(GENERATE, capsys)
    assert rtl["executor"] == rtl["cycles_source"] == "rtl" and rtl["boards"] == 1
    assert len(rtl["verilog_sha256"]) == 64
    assert rtl["matches_reference"] == "equal" or rtl["matches_reference"].startswith("near_tie")
    per_token = rtl["decode_cycles_per_token"]
    assert 14_880 < per_token < 17_500  # from the tiles of a token at position 0 to 15 % more
    assert rtl["ms_per_token_at_200mhz"] == pytest.approx(per_token / 200e3)
    counters = rtl["counters"]
    stalls = sum(value for name, value in counters.items() if name.startswith("stall_"))
    assert counters["tiles"] + stalls == counters["cycles"]
    assert rtl["prefill_cycles"] + 7 * per_token == pytest.approx(counters["cycles"])
    functional = _json([*GENERATE, "--executor", "functional"], capsys)
    assert functional["tokens"] == rtl["tokens"] and functional["decode_cycles_per_token"] is None


def test_sim_writes_waves_and_counts_every_cycle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program"
    assert main(["compile", "--model", str(TINY), "--out", str(program)]) == 0
    capsys.readouterr()
    waves = tmp_path / "run.fst"
    arguments = ["sim", str(program), "--tokens", "2", "--prompt-ids", "5,6"]
    traced = _json([*arguments, "--waves", str(waves), "--from-cycle", "500", "--cycles", "300"], capsys)
    assert waves.stat().st_size > 1000
    assert traced["cycles"] == traced["harness_ticks"] == traced["counters"]["cycles"]
    plain = _json(arguments, capsys)
    for key in ("tokens", "cycles", "kv_sha256", "verilog_sha256"):
        assert plain[key] == traced[key]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "at an assumed 200 MHz" in text and "tiles" in text


def test_a_time_limit_ends_a_run_on_gateware(capsys: pytest.CaptureFixture[str]) -> None:
    error = _json([*GENERATE[:-1], "200", "--timeout-s", "0.2"], capsys, code=3)["error"]
    assert error["kind"] == "time_limit" and "0.2 s" in error["message"]
    assert SimU280Device._open == []
