"""`ringfly compile --boards`: plan and programs of a ring, what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.cli.main import main
from host.compiler import CompiledRing
from hw.board.program import Program

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny"


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, object]:
    assert main([*arguments, "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def test_json_has_the_ring_and_every_board(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", "--model", str(TINY), "--boards", "3", "--out", str(tmp_path / "p"), "--explain"]
    answer = _json(arguments, capsys)
    ring = CompiledRing.load(tmp_path / "p")
    assert answer["boards"] == 3 and answer["ring_key"] == f"{ring.plan.key:016x}"
    boards = answer["board"]
    assert isinstance(boards, list) and len(boards) == 3
    for board, facts in enumerate(boards):
        assert f"board {board} of 3" in facts["explanation"] and len(facts["image_sha256"]) == 4
        assert facts["instructions"] == len(ring.boards[board][0].instructions)
    assert answer["slices"]["heads"] == list(ring.plan.partition.heads)  # type: ignore[index]
    # twin: one board has the old form
    single = _json(["compile", "--model", str(TINY), "--out", str(tmp_path / "one")], capsys)
    assert "board" not in single and single["instructions"] == len(Program.load(tmp_path / "one")[0].instructions)


def test_text_names_the_folder_of_every_board(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--model", str(TINY), "--boards", "2", "--out", str(tmp_path / "p"), "--explain"]) == 0
    text = capsys.readouterr().out
    assert f"{tmp_path}/p/board1: " in text and "2 boards; a decode step with 128 positions" in text
    assert text.count("instructions; rows streamed a token") == 2


def test_slices_can_be_chosen_by_simulated_cycles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", "--model", str(TINY), "--boards", "3", "--planner", "timing", "--context", "32"]
    answer = _json([*arguments, "--out", str(tmp_path / "p")], capsys)
    assert "sim.timing" in answer["decode_step"]["source"]  # type: ignore[index]
    assert answer["decode_step"]["positions"] == 32  # type: ignore[index]


@pytest.mark.parametrize(
    "options,text",
    [
        (["--boards", "9"], "boards is 9, must be 1 to 8"),
        (["--boards", "0"], "boards is 0, must be 1 to 8"),
        (["--boards", "two"], "valid integer"),
        (["--planner", "luck"], "rows or timing, got 'luck'"),
        (["--boards", "2", "--planner", "luck"], "rows or timing, got 'luck'"),
        (["--boards", "2", "--seeded-kv", "256"], "positions with keys and values is 256"),
    ],
)
def test_bad_input(options: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = _json(["compile", "--model", str(TINY), "--out", str(tmp_path / "p"), *options], capsys, code=2)
    assert text in answer["error"]["message"]  # type: ignore[index]
    assert not (tmp_path / "p").exists()
