"""`ringfly generate`, `compile` and `sim` on cores with rows, and several prompts: what they print and refuse."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

import host.runtime.board_executor as board_executor
from host.cli.main import main
from host.driver.sim_device import SimU280Device
from host.runtime.board_models import BoardModels
from hw.board.program import MemoryImage, Program
from sim.functional import FunctionalBoard

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny"
COMMON = ["generate", "--model", str(TINY), "--context", "32", "--max-new-tokens", "5"]
FUNCTIONAL = [*COMMON, "--executor", "functional"]
TEXTS = ["And it came to pass", "He", "In the beginning", "The LORD", "Go"]
Capture = pytest.CaptureFixture[str]


def _prompts(count: int) -> list[str]:
    return [word for text in TEXTS[:count] for word in ("--prompt", text)]


def _json(arguments: list[str], capsys: Capture, code: int = 0) -> dict:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    assert SimU280Device._open == []
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """Tokens of each text by itself on the core with one row."""
    from host.runtime.generate import generate

    return [generate(TINY, text, 5, executor="functional", context=32, check=False).tokens for text in TEXTS]


@pytest.mark.parametrize("rows", [2, 4])
def test_one_prompt_has_the_form_and_tokens_of_a_core_with_one_row(
    rows: int, alone: list[list[int]], capsys: Capture
) -> None:
    single = _json([*FUNCTIONAL, *_prompts(1)], capsys)
    answer = _json([*FUNCTIONAL, *_prompts(1), "--rows", str(rows)], capsys)
    assert answer.keys() == single.keys() and answer["schema"] == "ringfly-generate/1"
    assert answer["core"] == f"16x4r{rows}" and (answer["conditions"]["rows"], single["conditions"]["rows"]) == (
        rows,
        1,
    )
    assert answer["tokens"] == single["tokens"] == alone[0] and answer["matches_reference"] == "equal"
    assert _json([*FUNCTIONAL, *_prompts(1), "--core", f"16x4r{rows}"], capsys)["tokens"] == alone[0]


@pytest.mark.parametrize(("rows", "count", "batches"), [(2, 2, [[0, 1]]), (4, 5, [[0, 1, 2, 3]]), (1, 2, [])])
def test_several_prompts(
    rows: int, count: int, batches: list[list[int]], alone: list[list[int]], capsys: Capture
) -> None:
    answer = _json([*FUNCTIONAL, *_prompts(count), "--rows", str(rows)], capsys)
    assert answer["schema"] == "ringfly-generate-batch/1" and answer["rows"] == rows
    assert [result["prompt"] for result in answer["results"]] == TEXTS[:count]
    assert [result["tokens"] for result in answer["results"]] == alone[:count]
    for number, result in enumerate(answer["results"]):
        assert result["matches_reference"] == "equal" or result["matches_reference"].startswith("near_tie")
        together = next((len(batch) for batch in batches if number in batch), 1)
        assert result["conditions"]["batch"] == together and result["conditions"]["rows"] == rows
    assert [batch["requests"] for batch in answer["batches"]] == batches
    assert all((batch["steps"], batch["tokens"]) == (4, 4 * len(batch["requests"])) for batch in answer["batches"])


def test_prompts_of_a_file(tmp_path: Path, alone: list[list[int]], capsys: Capture) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\r\n", encoding="utf-8")
    answer = _json([*FUNCTIONAL, "--rows", "2", "--prompts", str(path)], capsys)
    assert [result["tokens"] for result in answer["results"]] == alone[:2]
    path.write_text(TEXTS[1])
    assert _json([*FUNCTIONAL, "--rows", "2", "--prompts", str(path)], capsys)["tokens"] == alone[1]  # one: as ever


def test_several_texts_are_printed_one_after_the_other(capsys: Capture) -> None:
    arguments = [*FUNCTIONAL, *_prompts(2), "--rows", "2"]
    texts = [result["text"] for result in _json(arguments, capsys)["results"]]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out == f"--- 0: {TEXTS[0]}\n{texts[0]}\n--- 1: {TEXTS[1]}\n{texts[1]}\n"
    assert (
        "2 prompts, functional, core 16x4r2" in printed.err
        and "prompts 0, 1 together: 8 tokens in 4 steps" in printed.err
    )
    assert printed.err.count("compared with PyTorch fp32") == 2


def test_torch_takes_several_prompts_one_after_the_other(alone: list[list[int]], capsys: Capture) -> None:
    answer = _json([*COMMON, "--executor", "torch", *_prompts(2)], capsys)
    assert [result["tokens"] for result in answer["results"]] == alone[:2]
    assert answer["batches"] == [] and answer["rows"] is None


def test_drawn_texts_are_those_of_a_core_with_one_row(capsys: Capture) -> None:
    drawn = ["--temperature", "0.8", "--seed", "3"]
    answer = _json([*FUNCTIONAL, *_prompts(2), "--rows", "2", *drawn], capsys)
    one_by_one = [_json([*FUNCTIONAL, "--prompt", text, *drawn], capsys)["tokens"] for text in TEXTS[:2]]
    assert [result["tokens"] for result in answer["results"]] == one_by_one
    assert [result["matches_reference"] for result in answer["results"]] == [None, None]


class SpoiltBoard(FunctionalBoard):
    """A board whose second request finds a wrong key: element 0 of position 0, head 0, layer 0, times 2^16."""

    def write_register(self, offset: int, value: int, bytes: int = 4) -> None:
        if offset == 0 and value & 1 and self.read_register(0x10C) & 2:  # a batch starts
            region = next(r for r in self._loaded().regions if r.name == "keys_1" and r.channel == 0)
            word = int.from_bytes(self.read_memory(0, region.offset, 2), "little") ^ 0x4000
            self.write_memory(0, region.offset, word.to_bytes(2, "little"))
        super().write_register(offset, value, bytes)


class FlippedBoard(FunctionalBoard):
    """A board whose memory has one weight word of the head changed."""

    def load(self, program: Program, image: MemoryImage) -> None:
        super().load(program, image)
        if program.regions:
            head = next(region for region in program.regions if region.kind == "weights" and region.channel == 0)
            self.write_memory(0, head.offset + head.bytes - 32 * 64, b"\x00\x78")


def test_twin_a_wrong_key_of_one_request_is_found_in_its_text_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    arguments = [*FUNCTIONAL, *_prompts(2), "--rows", "2"]
    right = [result["tokens"] for result in _json(arguments, capsys)["results"]]
    monkeypatch.setattr(
        board_executor, "open_boards", lambda *_, **__: nullcontext(BoardModels((SpoiltBoard(),), None))
    )
    results = _json(arguments, capsys, code=4)["results"]
    assert [result["matches_reference"] == "wrong" for result in results] == [False, True]
    assert results[0]["tokens"] == right[0]
    monkeypatch.setattr(
        board_executor, "open_boards", lambda *_, **__: nullcontext(BoardModels((FlippedBoard(),), None))
    )
    assert main(arguments) == 4
    assert capsys.readouterr().err.count("compared with PyTorch fp32: wrong") == 2


def test_compile_and_sim(tmp_path: Path, capsys: Capture) -> None:
    out = str(tmp_path / "p")
    compiling = ["compile", "--model", str(TINY), "--context", "32", "--out", out]
    compiled = _json([*compiling, "--rows", "4", "--seeded-kv", "7", "--explain"], capsys)
    assert (compiled["core"], compiled["rows"]) == ("16x4r4", 4) and compiled["cached_positions"] == 7
    assert compiled["region_bytes"]["keys_3"] == compiled["region_bytes"]["keys"]
    assert "4 rows x 4 lanes" in compiled["explanation"]
    ran = _json(["sim", out, "--executor", "functional", "--prompt-ids", "3,1,4,1,5,9", "--tokens", "3"], capsys)
    assert ran["core"] == "16x4r4" and ran["first_position"] == 7 and len(ran["tokens"]) == 3
    assert main([*compiling, "--rows", "2"]) == 0
    assert "2 caches of 32 positions" in capsys.readouterr().out
    several = _json(["sim", out, "--executor", "functional", "--prompt-ids", "3,1,4,1,5,9", "--tokens", "3"], capsys)
    assert _json([*compiling], capsys)["rows"] == 1  # the same tokens on the core with one row
    one = _json(["sim", out, "--executor", "functional", "--prompt-ids", "3,1,4,1,5,9", "--tokens", "3"], capsys)
    assert one["tokens"] == several["tokens"] and one["kv_sha256"] != several["kv_sha256"]


BAD: dict[str, tuple[list[str], str, list[str]]] = {
    "three rows": (["--rows", "3", *_prompts(1)], "bad_core", ["rows must be 1, 2 or 4, got 3"]),
    "rows that are none": (["--rows", "many", *_prompts(1)], "usage", ["--rows"]),
    "two answers": (["--core", "16x4r2", "--rows", "4", *_prompts(1)], "bad_core", ["has 2 rows, asked for 4"]),
    "rows on a ring": (
        ["--rows", "2", "--boards", "2", *_prompts(1)], "rows_on_ring", ["no ring", "2 boards", "--boards"],
    ),
    "rows of torch": (["--executor", "torch", "--rows", "2", *_prompts(1)], "bad_input", ["torch has no rows"]),
    "no prompt": ([], "no_prompt", ["--prompt", "--prompts"]),
    "both kinds": ([*_prompts(1), "--prompts", "x.txt"], "bad_input", ["either --prompt or --prompts"]),
    "no file": (["--prompts", "none.txt"], "bad_input", ["none.txt cannot be read"]),
    "a folder": (["--prompts", "."], "bad_input", ["cannot be read"]),
    "empty file": (["--prompts", "empty.txt"], "no_prompt", ["empty.txt has no prompt"]),
    "not UTF-8": (["--prompts", "latin.txt"], "bad_text", ["latin.txt", "0xe4"]),
    "one is empty": (["--rows", "2", *_prompts(1), "--prompt", ""], "empty_prompt", ["prompt 1: the prompt is empty"]),
    "one is too long": (
        ["--rows", "2", "--prompt", "sheep " * 300, *_prompts(1)], "prompt_too_long", ["prompt 0: the prompt", "32"],
    ),
    "one is no text": (["--rows", "2", *_prompts(1), "--prompt", "a\udcff"], "bad_text", ["Unicode"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    arguments, kind, words = BAD[name]
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n\n")
    Path("latin.txt").write_bytes(b"Ger\xe4t\n")
    error = _json([*FUNCTIONAL, *arguments], capsys, code=2)["error"]
    assert error["kind"] == kind, error
    assert main([*FUNCTIONAL, *arguments]) == 2
    text = capsys.readouterr()
    assert not text.out and "Traceback" not in text.err
    for word in words:
        assert word in error["message"] + error["hint"] and word in text.err


@pytest.mark.parametrize(
    "options", [["--rows", "3"], ["--rows", "2", "--boards", "2"], ["--core", "16x4r4", "--rows", "2"]]
)
def test_compile_refuses(options: list[str], tmp_path: Path, capsys: Capture) -> None:
    error = _json(["compile", "--model", str(TINY), "--out", str(tmp_path / "p"), *options], capsys, code=2)["error"]
    assert "rows" in error["message"] and not (tmp_path / "p").exists()


def test_a_batch_that_takes_too_long(capsys: Capture) -> None:
    arguments = [*FUNCTIONAL, *_prompts(2), "--rows", "2", "--max-new-tokens", "24", "--timeout-s", "0.001"]
    error = _json(arguments, capsys, code=3)["error"]
    assert error["kind"] == "time_limit" and "0.001 s" in error["message"]


def test_an_interrupt_releases_the_board(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(self: FunctionalBoard, max_cycles: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(FunctionalBoard, "advance", interrupted)
    assert _json([*FUNCTIONAL, *_prompts(4), "--rows", "4"], capsys, code=130)["error"]["kind"] == "interrupted"
