"""`ringfly generate` and `ringfly sim` on Verilated gateware: figures, waves, time limits."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import host.compiler
from host.cli.main import main
from host.compiler import compile_model
from host.driver.sim_device import SimU280Device
from host.runtime.board_executor import BoardExecutor
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import core_config
from hw.gpt2.isa import Access, AccessKind

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
    names = tmp_path / "run.fst.names.json"
    assert traced["waves"] == str(waves) and traced["wave_names"] == str(names)
    assert "core" in json.dumps(json.loads(names.read_text()))
    assert traced["cycles"] == traced["harness_ticks"] == traced["counters"]["cycles"]
    plain = _json(arguments, capsys)
    for key in ("tokens", "cycles", "kv_sha256", "verilog_sha256"):
        assert plain[key] == traced[key]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "at an assumed 200 MHz" in text and "tiles" in text


def test_waves_behind_the_end_of_the_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, waves = tmp_path / "program", tmp_path / "run.fst"
    assert main(["compile", "--model", str(TINY), "--out", str(program)]) == 0
    capsys.readouterr()
    arguments = ["sim", str(program), "--tokens", "1", "--waves", str(waves), "--cycles", "10"]
    cycles = _json([*arguments, "--from-cycle", "0"], capsys)["cycles"]
    before = {path: path.read_bytes() for path in (waves, tmp_path / "run.fst.names.json")}
    error = _json([*arguments, "--from-cycle", str(cycles)], capsys, code=2)["error"]
    assert f"the run has {cycles} cycles" in error["message"] and error["expected"] == f"0 to {cycles - 1}"
    assert {path: path.read_bytes() for path in before} == before
    for path in before:
        path.unlink()
    assert main([*arguments, "--from-cycle", str(cycles)]) == 2
    assert not any(path.exists() for path in before)
    assert main([*arguments, "--from-cycle", str(cycles - 1)]) == 0  # twin: the last cycle can be seen
    assert "run.fst.names.json" in capsys.readouterr().out and all(path.exists() for path in before)


@pytest.mark.parametrize("tokens,line", [(1, "first token              after"), (2, "cycles a token")])
def test_the_demo_ends_well_with_few_tokens(tokens: int, line: str) -> None:
    command = [sys.executable, "-m", "examples.demo", "--tokens", str(tokens)]
    done = subprocess.run(command, cwd=TINY.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout and f"{tokens} of {tokens} tokens equal" in done.stdout


STUCK_WORDS = ("nothing moved for 20000 cycles", "issue waits for", "at instruction", "is at descriptor", "memory ")


def _starved(program: Program) -> Program:
    """The access program without its last weights and what follows: compute waits for rows that nobody reads."""
    kinds = [Access.decode(word).kind for word in program.descriptors]
    last = max(index for index, kind in enumerate(kinds) if kind == AccessKind.WEIGHTS)
    return dataclasses.replace(program, descriptors=program.descriptors[:last])


def test_a_starved_program_is_stuck_and_every_unit_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, image = compile_model(TINY, core_config("16x4"), tmp_path / "program")
    _starved(program).save(tmp_path / "program", image)
    error = _json(["sim", str(tmp_path / "program"), "--tokens", "2"], capsys, code=3)["error"]
    assert error["kind"] == "stuck_kernel"
    assert all(words in error["message"] for words in STUCK_WORDS), error["message"]


@pytest.mark.parametrize("where", ["while the prompt is read", "while tokens are waited for"])
def test_generate_keeps_the_watchdogs_own_words(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def starved(*arguments: Any, **options: Any) -> tuple[Program, MemoryImage]:
        program, image = compile_model(*arguments, **options)
        return _starved(program), image

    monkeypatch.setattr(host.compiler, "compile_model", starved)
    if where == "while tokens are waited for":
        monkeypatch.setattr(BoardExecutor, "_read_prompt", lambda self, job, deadline: None)
    error = _json(GENERATE, capsys, code=3)["error"]
    assert error["kind"] == "stuck_kernel"
    assert all(words in error["message"] for words in STUCK_WORDS), error["message"]
    assert SimU280Device._open == []


def test_a_time_limit_ends_a_run_on_gateware(capsys: pytest.CaptureFixture[str]) -> None:
    error = _json([*GENERATE[:-1], "200", "--timeout-s", "0.2"], capsys, code=3)["error"]
    assert error["kind"] == "time_limit" and "0.2 s" in error["message"]
    assert SimU280Device._open == []
