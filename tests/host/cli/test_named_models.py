"""Sizes known by name on the command line: compile, sim behind seeded keys and values, and every bad input."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import MappingProxyType

import pytest

import host.compiler.model_choice as model_choice
from host.cli.main import main
from hw.gpt2.config import core_config
from sw.models.gpt2_config import GPT2Config
from sw.models.named_sizes import NAMED_SIZES

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny"
SMALL = GPT2Config(n_layer=2, n_head=3, n_embd=48, n_positions=64, vocab_size=101)
HUGE = dataclasses.replace(NAMED_SIZES["gpt2-xl"], n_layer=140)


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more names: one that compiles at once, one beyond a card."""
    known = {**NAMED_SIZES, "gpt2-small-test": SMALL, "gpt2-huge-test": HUGE}
    monkeypatch.setattr(model_choice, "NAMED_SIZES", MappingProxyType(known))


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict:
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_compile_and_sim_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "program")
    compile_ = ["compile", "--model", "gpt2-small-test", "--seed", "1", "--out", out]
    plain = _json(compile_, capsys)
    assert plain["weights"] == "gpt2-small-test (seed 1)" and plain["cached_positions"] == 0
    other = _json([*compile_, "--seed", "2"], capsys)
    assert other["model_digest"] != plain["model_digest"] and other["image_sha256"] != plain["image_sha256"]
    seeded = _json([*compile_, "--seeded-kv", "20"], capsys)
    assert seeded["model_digest"] == plain["model_digest"] and seeded["cached_positions"] == 20
    assert seeded["image_bytes_per_channel"] > plain["image_bytes_per_channel"]
    sim = ["sim", out, "--executor", "functional", "--tokens", "2", "--prompt-ids", "7,8"]
    run = _json(sim, capsys)
    assert run["first_position"] == 20 and run["positions"] == 3 and run["run_seconds"] > 0
    again = _json([*compile_, "--seeded-kv", "20", "--kv-seed", "1"], capsys)  # twin: other keys and values
    assert again["image_sha256"] != seeded["image_sha256"]
    assert _json(sim, capsys)["kv_sha256"] != run["kv_sha256"]


BAD: dict[str, tuple[list[str], str, list[str]]] = {
    "beyond 8 GB": (
        ["--model", "gpt2-huge-test", "--core", "64x16"],
        "does_not_fit",
        ["bytes per memory channel", "too many in each of 32 channels", "8.59"],
    ),
    "beyond a small core": (
        ["--model", "gpt2-xl", "--core", "16x4"], "does_not_fit", ["bytes per memory channel", "activation words"],
    ),
    "context over the limit": (
        ["--model", "gpt2-345m", "--core", "64x16", "--context", "1025"], "does_not_fit", ["1025", "1 to 1024"],
    ),
    "unknown size": (["--model", "gpt2-345M"], "missing_path", ["gpt2-345M", "gpt2-345m"]),
    "seed beside a directory": (["--model", str(TINY), "--seed", "1"], "bad_seed", ["gpt2-tiny"]),
    "negative seed": (["--model", "gpt2-small-test", "--seed", "-1"], "bad_seed", ["-1"]),
    "no position left": (
        ["--model", "gpt2-small-test", "--seeded-kv", "64"], "does_not_fit", ["is 64, must be at most 63"],
    ),
    "negative seeded positions": (["--model", "gpt2-small-test", "--seeded-kv", "-2"], "bad_position", ["-2"]),
    "negative seed of keys and values": (
        ["--model", "gpt2-small-test", "--seeded-kv", "2", "--kv-seed", "-3"], "bad_seed", ["-3"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_of_compile(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, kind, words = BAD[name]
    _expect(["compile", *arguments, "--out", str(tmp_path / "out")], kind, words, capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("channels,words", [(24, "lanes (16) must divide channels (24)"), (16, "16 x 512 = 8192")])
def test_channels_that_do_not_divide(
    channels: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "core.json"
    fields = json.loads(core_config("64x16").to_json())
    path.write_text(json.dumps({**fields, "channels": channels}))
    arguments = ["compile", "--model", "gpt2-xl", "--core", str(path), "--out", str(tmp_path / "out")]
    _expect(arguments, "bad_core", [words], capsys)


def test_text_needs_a_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    for executor in ("functional", "torch"):
        arguments = ["generate", "--model", "gpt2-xl", "--prompt", "In the beginning", "--executor", executor]
        _expect(arguments, "no_tokenizer", ["gpt2-xl (seed 0) has no tokenizer", "ringfly sim"], capsys)


def _expect(arguments: list[str], kind: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    text = capsys.readouterr()
    assert text.err.startswith("error: ") and not text.out
    error = _json(arguments, capsys, 2)["error"]
    assert error["kind"] == kind, error
    for word in words:
        assert word in text.err and word in error["message"] + error["hint"], error
