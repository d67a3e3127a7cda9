"""`--weights int8` of `ringfly generate`, `compile`, `sim`'s folders and `time`: what they print and refuse."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import host.runtime.board_executor as board_executor
from host.cli.main import main
from host.driver.sim_device import SimU280Device
from host.errors import BadInput
from host.runtime.board_models import BoardModels
from host.runtime.generate import generate
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny"
TEXT = ["--prompt", "And it came to pass"]
GENERATE = ["generate", "--model", str(TINY), "--context", "32", "--max-new-tokens", "6", "--executor", "functional"]
COMPILE = ["compile", "--model", str(TINY), "--context", "32"]
IDS = ["--executor", "functional", "--prompt-ids", "3,1,4,1,5", "--tokens", "3"]
_HEAD_BYTES = 32 * 512  # a channel's share of the tiles of gpt2-tiny's head
Capture = pytest.CaptureFixture[str]


def _json(arguments: list[str], capsys: Capture, code: int = 0) -> dict:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    assert SimU280Device._open == []
    return json.loads(capsys.readouterr().out)


def test_generate_judges_the_core_by_what_rounded_weights_may_differ(capsys: Capture) -> None:
    answer = _json([*GENERATE, *TEXT, "--weights", "int8"], capsys)
    assert answer["schema"] == "ringfly-generate/1" and answer["core"] == "16x4i8"
    assert answer["matches_reference"] == "equal" or answer["matches_reference"].startswith("near_tie")
    by_name = _json([*GENERATE, *TEXT, "--core", "16x4i8"], capsys)
    assert by_name["tokens"] == answer["tokens"] and by_name["core"] == "16x4i8"
    half = _json([*GENERATE, *TEXT, "--weights", "fp16"], capsys)
    assert half["core"] == "16x4" == _json([*GENERATE, *TEXT], capsys)["core"]
    assert half["conditions"]["check"]["near_tie_threshold"] < answer["conditions"]["check"]["near_tie_threshold"]


def test_generate_with_rows(capsys: Capture) -> None:
    texts = ["And it came to pass", "In the beginning"]
    prompts = [word for text in texts for word in ("--prompt", text)]
    answer = _json([*GENERATE, *prompts, "--weights", "int8", "--rows", "2"], capsys)
    assert answer["rows"] == 2 and [result["core"] for result in answer["results"]] == ["16x4r2i8"] * 2
    alone = [generate(TINY, text, 6, executor="functional", core="16x4i8", context=32, check=False) for text in texts]
    assert [result["tokens"] for result in answer["results"]] == [one.tokens for one in alone]


class FlippedBoard(FunctionalBoard):
    """A board in whose head one lane's weights of even strips have the other sign."""

    def load(self, program: Program, image: MemoryImage) -> None:
        super().load(program, image)
        if program.regions:
            weights = next(region for region in program.regions if region.kind == "weights" and region.channel == 0)
            last = weights.offset + weights.bytes - _HEAD_BYTES
            data = np.frombuffer(self.read_memory(0, last, _HEAD_BYTES), np.uint16) ^ 0x80
            self.write_memory(0, last, data.tobytes())


def test_twin_wrong_weights_are_judged_wrong(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    boards = BoardModels((FlippedBoard(),), None)
    monkeypatch.setattr(board_executor, "open_boards", lambda *_, **__: nullcontext(boards))
    assert _json([*GENERATE, *TEXT, "--weights", "int8"], capsys, code=4)["matches_reference"] == "wrong"


def test_compile_and_sim(tmp_path: Path, capsys: Capture) -> None:
    compiled = {
        weights: _json([*COMPILE, "--out", str(tmp_path / weights), "--weights", weights, "--explain"], capsys)
        for weights in ("fp16", "int8")
    }
    assert [one["core"] for one in compiled.values()] == ["16x4", "16x4i8"]
    assert "16x4i8" in compiled["int8"]["explanation"]
    sizes = {weights: one["region_bytes"]["weights"] for weights, one in compiled.items()}
    assert 0.5 < sizes["int8"] / sizes["fp16"] < 0.6  # parameters stay as long, and scales join them
    assert compiled["int8"]["region_bytes"]["keys"] == compiled["fp16"]["region_bytes"]["keys"]
    ran = _json(["sim", str(tmp_path / "int8"), *IDS], capsys)
    assert ran["core"] == "16x4i8" and len(ran["tokens"]) == 3
    named = _json([*COMPILE, "--out", str(tmp_path / "named"), "--core", "16x4i8"], capsys)
    assert named["region_bytes"] == compiled["int8"]["region_bytes"]
    assert _json(["sim", str(tmp_path / "named"), *IDS], capsys)["kv_sha256"] == ran["kv_sha256"]
    assert _json(["sim", str(tmp_path / "fp16"), *IDS], capsys)["kv_sha256"] != ran["kv_sha256"]  # twin


def test_time(capsys: Capture) -> None:
    step = ["time", "--model", str(TINY), "--kv", "32", "--core", "16x4", "--memory", "ideal"]
    reports = {weights: _json([*step, "--weights", weights], capsys) for weights in ("fp16", "int8")}
    assert [report["core"] for report in reports.values()] == ["16x4", "16x4i8"]
    assert 0.5 < reports["int8"]["cycles"] / reports["fp16"]["cycles"] < 0.75
    named = _json([*step[:-4], "--core", "16x4i8", "--memory", "ideal"], capsys)
    assert named["cycles"] == reports["int8"]["cycles"]


BAD: dict[str, tuple[list[str], str, list[str]]] = {
    "another format": (["--weights", "int4"], "bad_core", ["weights must be fp16 or int8, got 'int4'"]),
    "two answers": (
        ["--core", "16x4i8", "--weights", "fp16"], "bad_core", ["16x4i8 has int8 weights, asked for fp16"],
    ),
    "a name that is none": (["--core", "16x4i4"], "bad_core", ["unknown core '16x4i4'", "16x4i8", "64x16r4i8"]),
    "rows on a ring": (
        ["--weights", "int8", "--rows", "2", "--boards", "2"], "rows_on_ring", ["no ring", "2 boards"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("command", ["generate", "compile"])
def test_bad_input(name: str, command: str, tmp_path: Path, capsys: Capture) -> None:
    options, kind, words = BAD[name]
    out = tmp_path / "p"
    arguments = [*GENERATE, *TEXT, *options] if command == "generate" else [*COMPILE, "--out", str(out), *options]
    error = _json(arguments, capsys, code=2)["error"]
    assert not out.exists() and (error["kind"] == kind or command == "compile"), error
    assert main(arguments) == 2
    text = capsys.readouterr()
    assert not text.out and "Traceback" not in text.err
    if command == "generate":
        assert all(word in error["message"] + error["hint"] and word in text.err for word in words), error


def test_torch_has_no_core(capsys: Capture) -> None:
    error = _json([*GENERATE[:-1], "torch", *TEXT, "--weights", "int8"], capsys, code=2)["error"]
    assert error["kind"] == "bad_input" and "torch has no core whose weights could be int8" in error["message"]
    assert "--weights" in error["hint"]


def test_a_core_description_is_not_overruled() -> None:
    with pytest.raises(BadInput, match="core 16x4 has fp16 weights, asked for int8"):
        generate(TINY, "He", 1, executor="functional", core=core_config("16x4"), weights="int8")


def test_sim_takes_the_weights_of_the_folder(tmp_path: Path, capsys: Capture) -> None:
    error = _json(["sim", str(tmp_path), "--weights", "int8"], capsys, code=2)["error"]
    assert error["kind"] == "usage" and "--weights" in error["message"]
