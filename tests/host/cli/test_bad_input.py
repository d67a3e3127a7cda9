"""Every bad input of the first issue: one clear line, the right exit code, nothing half written, JSON with `--json`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import host.driver.gpt2_kernel as gpt2_kernel
import host.runtime.board_executor as board_executor
from host.cli.main import main
from host.driver.sim_device import SimU280Device
from host.driver.xclbin import write_xclbin
from host.driver.xclbin_info import version_text
from host.runtime.board_models import BoardModels
from hw.board.gpt2_map import INTERFACE_VERSION
from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard
from sw.models.checkpoint import Checkpoint

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny"
GENERATE = ["generate", "--prompt", "And it came", "--max-new-tokens", "2", "--executor", "functional"]


def _copy(folder: Path) -> Path:
    shutil.copytree(TINY, folder / "model")
    return folder / "model"


def _config(folder: Path, **fields: object) -> Path:
    model = _copy(folder)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **fields}))
    return model


def _truncated(folder: Path) -> Path:
    model = _copy(folder)
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])
    return model


def _without(folder: Path, name: str) -> Path:
    model = _copy(folder)
    (model / name).unlink()
    return model


def _wrong_shape(folder: Path) -> Path:
    model = _copy(folder)
    tensors = load_file(model / "model.safetensors")
    key = "transformer.h.1.attn.c_attn.weight"
    tensors[key] = torch.zeros(384, 128, dtype=torch.float16)
    save_file(tensors, model / "model.safetensors")
    return model


def _not_utf8(folder: Path) -> Path:
    model = _copy(folder)
    (model / "config.json").write_bytes(b'{"n_layer": 4, "note": "\xff\xfe"}')
    return model


def _file(folder: Path) -> Path:
    path = folder / "model.bin"
    path.write_text("not a folder")
    return path


MODELS: dict[str, tuple[Callable[[Path], Path], str, list[str]]] = {
    "missing safetensors": (lambda f: _without(f, "model.safetensors"), "missing_weights", ["model.safetensors"]),
    "truncated safetensors": (_truncated, "truncated", ["100000 bytes"]),
    "wrong shape": (_wrong_shape, "wrong_shape", ["h.1.attn.c_attn.weight", "[384, 128]", "[128, 384]"]),
    "unsupported architecture": (
        lambda f: _config(f, architectures=["LlamaForCausalLM"], model_type="llama"), "unsupported", ["llama"],
    ),
    "model path is a file": (_file, "not_a_directory", ["model.bin"]),
    "model path is missing": (lambda f: f / "nowhere", "missing_path", ["nowhere"]),
    "no config.json": (lambda f: _without(f, "config.json"), "missing_config", ["config.json"]),
    "no tokenizer.json": (lambda f: _without(f, "tokenizer.json"), "missing_tokenizer", ["tokenizer.json"]),
    "config.json is not UTF-8": (_not_utf8, "bad_json", ["not UTF-8"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_cannot_be_used(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, kind, words = MODELS[name]
    model = make(tmp_path)
    _expect([*GENERATE, "--model", str(model)], 2, kind, words, capsys)
    if "tokenizer" not in name:
        out = tmp_path / "out"
        _expect(["compile", "--model", str(model), "--out", str(out)], 2, kind, words, capsys)
        assert not out.exists()


ARGUMENTS: dict[str, tuple[list[str], str, list[str]]] = {
    "prompt longer than the cache": (["--prompt", "sheep " * 300], "prompt_too_long", ["256"]),
    "empty prompt": (["--prompt", ""], "empty_prompt", ["empty"]),
    "prompt is not UTF-8": (["--prompt", "And \udcff"], "bad_text", ["Unicode"]),
    "unknown executor": (["--executor", "fpga"], "unknown_executor", ["fpga", "rtl, functional, torch"]),
    "unknown core": (["--core", "32x32x2"], "bad_core", ["32x32x2", "known cores: 16x4, ", ", 64x16"]),
    "lanes that do not divide the tile": (["--core", "16x32"], "bad_core", ["lanes (32) must divide tile (16)"]),
    "tile that is no power of two": (["--core", "48x4"], "bad_core", ["tile must be 8, 16, 32 or 64, got 48"]),
    "core description is missing": (["--core", "nowhere.json"], "bad_core", ["nowhere.json"]),
    "no tokens wanted": (["--max-new-tokens", "0"], "bad_input", ["1 or more, got 0"]),
    "negative temperature": (["--temperature", "-1"], "bad_input", ["-1"]),
    "temperature is no number": (["--temperature", "nan"], "bad_input", ["nan"]),
    "negative top-k": (["--top-k", "-3"], "bad_input", ["-3"]),
    "negative seed": (["--seed", "-3"], "bad_input", ["-3"]),
    "context of the model exceeded": (["--context", "257"], "bad_input", ["257", "256"]),
    "time limit of zero": (["--timeout-s", "0"], "bad_input", ["timeout"]),
    "an option that does not exist": (["--tokens", "3"], "usage", ["--tokens"]),
    "a number that is none": (["--max-new-tokens", "many"], "usage", ["--max-new-tokens"]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_cannot_be_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, kind, words = ARGUMENTS[name]
    others = [*GENERATE[:1], *GENERATE[3:]] if "--prompt" in arguments else GENERATE
    _expect([*others, "--model", str(TINY), *arguments], 2, kind, words, capsys)


def test_both_numbers_of_a_long_prompt_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*GENERATE[:1], *GENERATE[3:], "--model", str(TINY), "--prompt", "sheep " * 300, "--json"]
    assert main(arguments) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["expected"] == 256 and error["value"] > 256
    assert str(error["value"]) in error["message"] and "256" in error["message"]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CXX", "no-such-g++")
    arguments = [*GENERATE[:-2], "--executor", "rtl", "--model", str(TINY)]
    _expect(arguments, 2, "missing_tool", ["no-such-g++", "apt-get install g++"], capsys)
    code = main(["doctor", "--json"])
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert code == 2 and not findings["C++ compiler"]["ok"] and "g++" in findings["C++ compiler"]["how"]


def test_an_xclbin_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_xclbin(core_config("16x4"), tmp_path / "old.xclbin", interface_version=0x0009_0000)
    arguments = [*GENERATE, "--model", str(TINY), "--xclbin", str(path)]
    _expect(arguments, 2, "version_mismatch", ["9.0", version_text(INTERFACE_VERSION)], capsys)
    (tmp_path / "text.xclbin").write_text("hello")
    arguments = [*GENERATE, "--model", str(TINY), "--xclbin", str(tmp_path / "text.xclbin")]
    _expect(arguments, 2, "bad_xclbin", ["text.xclbin"], capsys)


class StuckBoard(FunctionalBoard):
    """Takes a start and then does nothing."""

    def advance(self, max_cycles: int) -> int:
        return max_cycles


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_a_stuck_kernel(temperature: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpt2_kernel, "CANCEL_S", 0.1)
    monkeypatch.setattr(board_executor, "open_boards", lambda *_, **__: nullcontext(BoardModels((StuckBoard(),), None)))
    arguments = [*GENERATE, "--model", str(TINY), "--timeout-s", "0.2", "--temperature", temperature]
    _expect(arguments, 3, "stuck_kernel", ["stuck", "without a tile or token", "state run"], capsys)
    assert SimU280Device._open == []


def test_a_run_that_takes_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*GENERATE, "--max-new-tokens", "200", "--model", str(TINY), "--timeout-s", "0.001"]
    _expect(arguments, 3, "time_limit", ["0.001 s"], capsys, after_text=True)
    assert SimU280Device._open == []


@pytest.mark.parametrize(
    "waves,more,words",
    [
        ("", [], "is a folder"),
        ("nowhere/run.fst", [], "does not exist"),
        ("run.fst", ["--cycles", "0"], "cycles >= 1"),
        ("run.fst", ["--from-cycle", "-1"], "from-cycle must be >= 0"),
        ("taken.fst", [], "taken.fst.names.json is a folder"),
    ],
)
def test_waves_that_cannot_be_written(
    waves: str, more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken.fst.names.json").mkdir()
    arguments = ["sim", str(tmp_path / "program"), "--waves", str(tmp_path / waves), *more]
    _expect(arguments, 2, "bad_input", [words], capsys)


@pytest.mark.parametrize("what", ["a file in its place", "a file above it", "another folder"])
def test_an_output_that_cannot_be_written(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    out = {"a file in its place": "file", "a file above it": "file/out", "another folder": "folder"}[what]
    before = sorted(tmp_path.rglob("*"))
    _expect(["compile", "--model", str(TINY), "--out", str(tmp_path / out)], 2, "output", [out], capsys)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("out", ["/proc/out", "/proc/out/below"])
def test_an_output_that_cannot_be_written_is_refused_before_the_weights_are_read(
    out: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tensor", "digest"):
        monkeypatch.setattr(Checkpoint, name, lambda *_: pytest.fail("weights are read"))
    _expect(["compile", "--model", str(TINY), "--out", out], 2, "output", [f"{out} cannot be written"], capsys)


def test_everything_that_does_not_fit_is_listed_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = dataclasses.replace(core_config("16x4"), name="small", act_words=16, residual_strips=16, instructions=8)
    (tmp_path / "small.json").write_text(core.to_json())
    arguments = [
        "compile",
        "--model",
        str(TINY),
        "--core",
        str(tmp_path / "small.json"),
        "--out",
        str(tmp_path / "out"),
    ]
    words = ["activation words", "strips of the residual vector", "instructions"]
    _expect(arguments, 2, "does_not_fit", words, capsys)
    assert not (tmp_path / "out").exists()


PROGRAMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no program": (lambda folder: shutil.rmtree(folder), "no program folder"),
    "not UTF-8": (lambda folder: _overwrite(folder / "program.json", b"\xff"), "not JSON"),
    "another format": (lambda folder: _overwrite(folder / "program.json", b'{"format": "x/9"}'), "x/9"),
    "damaged words": (lambda folder: _overwrite(folder / "program.bin", b"0" * 32), "program.bin is damaged"),
    "missing channel": (lambda folder: (folder / "ch01.bin").unlink(), "ch01.bin is missing"),
    "short channel": (lambda folder: _overwrite(folder / "ch01.bin", b"0" * 32), "ch01.bin has 32 bytes"),
}


def _overwrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_folder_that_cannot_be_used(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, words = PROGRAMS[name]
    assert main(["compile", "--model", str(TINY), "--out", str(tmp_path / "program")]) == 0
    damage(tmp_path / "program")
    capsys.readouterr()
    _expect(["sim", str(tmp_path / "program"), "--executor", "functional"], 2, "bad_program", [words], capsys)


@pytest.mark.parametrize(
    "arguments,kind,words",
    [
        (["--prompt-ids", "1,x"], "bad_input", "1,x"),
        (["--prompt-ids", "5000"], "bad_input", "5000"),
        (["--executor", "torch"], "unknown_executor", "torch"),
        (["--waves", "a.fst"], "bad_input", "waves"),
        (["--tokens", "0"], "bad_input", "0"),
        (["--flat"], "bad_input", "--flat is for the gateware"),
        (["--memory", "ideal"], "bad_input", "--memory is for the gateware"),
        (["--from-cycle", "0"], "bad_input", "--from-cycle chooses a part of the waves"),
        (["--cycles", "9"], "bad_input", "--cycles chooses a part of the waves"),
        (["--executor", "rtl", "--memory", "ddr"], "unknown_memory", "ddr"),
        (["--executor", "rtl", "--waves", "/tmp/a.fst", "--flat"], "bad_input", "no --flat beside --waves"),
    ],
)
def test_sim_arguments(
    arguments: list[str], kind: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "--model", str(TINY), "--out", str(tmp_path / "program")]) == 0
    capsys.readouterr()
    _expect(["sim", str(tmp_path / "program"), "--executor", "functional", *arguments], 2, kind, [words], capsys)


def _expect(
    arguments: list[str],
    code: int,
    kind: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    *,
    after_text: bool = False,
) -> None:
    """Run twice: as text (an error line, standard output empty unless `after_text`) and with `--json` (one object)."""
    assert main(arguments) == code
    text = capsys.readouterr()
    assert text.err.startswith("error: ") or "\nerror: " in text.err
    assert "Traceback" not in text.err
    assert after_text or not text.out
    assert main([*arguments, "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "ringfly-error/1"
    assert answer["command"] == arguments[0] and answer["ringfly_version"]
    error = answer["error"]
    assert set(error) == {"kind", "message", "value", "expected", "hint"}
    assert error["kind"] == kind, error
    for word in words:
        assert word in error["message"] + error["hint"], error
        assert word in text.err
