"""A decode step behind seeded keys and values: the gateware gives the functional executor's bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.cli.main import main

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"


def test_rtl_equals_functional_behind_seeded_keys_and_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(executor: str, kv_seed: int) -> dict:
        out = str(tmp_path / "program")
        options = ["--seeded-kv", "40", "--kv-seed", str(kv_seed), "--out", out]
        assert main(["compile", "--model", str(TINY), *options]) == 0
        capsys.readouterr()
        sim = ["sim", out, "--executor", executor, "--tokens", "2", "--prompt-ids", "5,9"]
        assert main([*sim, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    rtl, functional, other = run("rtl", 3), run("functional", 3), run("functional", 4)
    for key in ("tokens", "kv_sha256", "first_position", "positions"):
        assert rtl[key] == functional[key]
    assert rtl["first_position"] == 40 and rtl["positions"] == 3 and rtl["cycles"] > 0
    assert other["kv_sha256"] != rtl["kv_sha256"]  # twin
