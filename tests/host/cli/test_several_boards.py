"""`ringfly generate --boards` and `ringfly sim` of a ring folder: what they print, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from host.cli.main import main
from host.driver.sim_device import SimU280Device

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "checkpoints" / "gpt2-tiny"
GENERATE = ["generate", "--model", str(TINY), "--prompt", "And it", "--max-new-tokens", "3", "--context", "32"]
FUNCTIONAL = ["--executor", "functional"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RINGFLY_LOCKS", str(tmp_path))


def _json(arguments: list[str], capsys: Capture, code: int = 0) -> dict:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    assert SimU280Device._open == []
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint compiled for three boards."""
    folder = tmp_path_factory.mktemp("ring") / "ring"
    assert main(["compile", "--model", str(TINY), "--out", str(folder), "--boards", "3", "--context", "32"]) == 0
    return folder


@pytest.mark.parametrize("boards", [2, 3])
def test_generate(boards: int, capsys: Capture) -> None:
    alone = _json([*GENERATE, *FUNCTIONAL], capsys)
    answer = _json([*GENERATE, *FUNCTIONAL, "--boards", str(boards)], capsys)
    assert answer["boards"] == boards and alone["boards"] == 1
    assert answer["tokens"] == alone["tokens"] and answer["matches_reference"] == "equal"
    assert answer["conditions"]["check"]["rms_error"] < 0.01
    assert answer["link_counters"] is answer["board_counters"] is None  # no cycles, no cables: functional
    assert main([*GENERATE, *FUNCTIONAL, "--boards", str(boards)]) == 0
    assert f"functional, core 16x4 on {boards} boards" in capsys.readouterr().err


def test_drawing_is_the_same_on_any_number_of_boards(capsys: Capture) -> None:
    drawn = [*GENERATE, *FUNCTIONAL, "--temperature", "1.5", "--seed", "7"]
    alone = _json(drawn, capsys)["tokens"]
    assert _json([*drawn, "--boards", "2"], capsys)["tokens"] == alone
    assert _json([*drawn[:-1], "8", "--boards", "2"], capsys)["tokens"] != alone  # twin


def test_sim(ring: Path, capsys: Capture) -> None:
    arguments = ["sim", str(ring), *FUNCTIONAL, "--prompt-ids", "3,1,4", "--tokens", "3"]
    ran = _json(arguments, capsys)
    assert ran["boards"] == 3 and len(ran["tokens"]) == 3 and ran["kv_sha256"] is None
    assert [entry["board"] for entry in ran["by_board"]] == [0, 1, 2]
    hashes = [entry["kv_sha256"] for entry in ran["by_board"]]
    assert len(set(hashes)) == 3
    again = _json(arguments, capsys)
    assert [entry["kv_sha256"] for entry in again["by_board"]] == hashes
    other = _json([*arguments[:4], "--prompt-ids", "3,1,5", "--tokens", "3"], capsys)  # twin
    assert all(a["kv_sha256"] != b for a, b in zip(other["by_board"], hashes, strict=True))
    assert main(arguments) == 0
    assert f"keys and values of board 2 sha256 {hashes[2]}" in capsys.readouterr().out


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a board is missing": (lambda f: shutil.rmtree(f / "board1"), "board1 is no program folder"),
    "plan.json is missing": (lambda f: (f / "plan.json").unlink(), "is no program folder"),
    "plan.json is no JSON": (lambda f: (f / "plan.json").write_text("{"), "plan.json is not JSON"),
    "plan.json of another format": (lambda f: _edit(f / "plan.json", "ringfly-plan/", "x/"), "plan.json has format"),
    "plan.json was changed": (lambda f: _edit(f / "plan.json", '"context": 32', '"context": 33'), "board0"),
    "two boards exchanged": (
        lambda f: [(f / "board0").rename(f / "b"), (f / "board1").rename(f / "board0"), (f / "b").rename(f / "board1")],
        "board0 holds the program of board 1 of 3",
    ),
    "words of one board": (lambda f: (f / "board2" / "program.bin").write_bytes(b"0" * 32), "program.bin is damaged"),
    "image of one board": (
        lambda f: (f / "board2" / "ch01.bin").write_bytes(bytes((f / "board2" / "ch01.bin").stat().st_size)),
        "board 2 (sim-u280-2): memory image file",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_ring_folder(name: str, ring: Path, tmp_path: Path, capsys: Capture) -> None:
    damage, words = DAMAGE[name]
    folder = shutil.copytree(ring, tmp_path / "copy")
    arguments = ["sim", str(folder), *FUNCTIONAL, "--tokens", "1"]
    _json(arguments, capsys)  # twin
    damage(folder)
    error = _json(arguments, capsys, code=2)["error"]
    assert error["kind"] == "bad_program" and words in error["message"], error


def test_one_board_of_a_ring_alone(ring: Path, capsys: Capture) -> None:
    error = _json(["sim", str(ring / "board0"), *FUNCTIONAL], capsys, code=2)["error"]
    assert error["kind"] == "bad_program" and "board 0 of 3" in error["message"]
    assert "the folder that holds the programs of all boards" in error["hint"]


REFUSED: dict[str, tuple[list[str], str, list[str]]] = {
    "no boards": (["--boards", "0"], "bad_input", ["boards must be 1 to 8, got 0"]),
    "nine boards": (["--boards", "9"], "bad_input", ["boards must be 1 to 8, got 9"]),
    "boards of torch": (["--executor", "torch", "--boards", "2"], "bad_input", ["torch has no boards"]),
    "cables of one board": (["--executor", "rtl", "--hop-ns", "200"], "bad_input", ["no cables", "--boards"]),
    "cables of functional": (
        ["--boards", "2", "--hop-ns", "200"],
        "bad_input",
        ["only several boards of executor rtl"],
    ),
    "negative hop": (["--executor", "rtl", "--boards", "2", "--hop-ns", "-1"], "bad_input", ["hop_ns", "-1.0"]),
    "error rate": (["--executor", "rtl", "--boards", "2", "--frame-error-rate", "2"], "bad_input", ["from 0 to 1"]),
    "link seed": (["--executor", "rtl", "--boards", "2", "--link-seed", "-1"], "bad_input", ["seed", "-1"]),
    "one card for two boards": (["--boards", "2", "--card", "a"], "bad_input", ["2 boards need", "got a"]),
    "one card twice": (["--boards", "2", "--card", "a", "--card", "a"], "bad_input", ["different cards, got a, a"]),
    "a card's name": (["--card", "../a"], "bad_input", ["'../a' is no name of a card"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, capsys: Capture) -> None:
    more, kind, words = REFUSED[name]
    error = _json([*GENERATE, *FUNCTIONAL, *more], capsys, code=2)["error"]
    assert error["kind"] == kind
    for word in words:
        assert word in error["message"] + error["hint"], error


def test_more_boards_than_heads(tmp_path: Path, capsys: Capture) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "n_head": 4}))
    arguments = [*GENERATE, *FUNCTIONAL, "--model", str(model), "--no-check"]
    error = _json([*arguments, "--boards", "5"], capsys, code=2)["error"]
    assert error["kind"] == "does_not_fit" and "4 heads" in error["message"], error
    assert _json([*arguments, "--boards", "4"], capsys)["boards"] == 4  # twin


def test_waves_are_of_one_board(ring: Path, tmp_path: Path, capsys: Capture) -> None:
    error = _json(["sim", str(ring), "--waves", str(tmp_path / "run.fst")], capsys, code=2)["error"]
    assert error["kind"] == "bad_input" and "programs of 3" in error["message"]


def test_a_board_that_is_busy_with_another_process(capsys: Capture) -> None:
    hold = "import sys, time; from host.driver.card_lock import CardLock; CardLock('b').acquire(); print('held', "
    hold += "flush=True); time.sleep(60)"
    arguments = [*GENERATE, *FUNCTIONAL, "--boards", "2", "--card", "a", "--card", "b"]
    with subprocess.Popen([sys.executable, "-c", hold], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        try:
            error = _json(arguments, capsys, code=2)["error"]
            assert error["kind"] == "device_busy"
            for word in ("board 1 (b): card b is in use", f"process {process.pid}", "since"):
                assert word in error["message"], error
        finally:
            process.kill()
            process.wait()
    assert _json(arguments, capsys)["boards"] == 2  # its holder is gone
