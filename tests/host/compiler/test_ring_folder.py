"""The folder of a ring: complete or absent, read as written, refused when its parts do not belong together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from host.compiler import CompiledRing, CompileError, compile_model, compile_ring, explain
from host.compiler.explain import ring_summary
from hw.board.program import Program, ProgramError
from hw.gpt2.config import core_config
from hw.gpt2.isa import Instruction, Op
from sw.models.gpt2_config import GPT2Config
from sw.models.seeded_weights import SeededCheckpoint

CORE = core_config("16x4")
MODEL = GPT2Config(2, 5, 60, 40, 140)
WEIGHTS = SeededCheckpoint(MODEL, 4)


def test_what_was_returned_is_what_is_read(tmp_path: Path) -> None:
    ring = compile_ring(WEIGHTS, CORE, tmp_path / "out", 3, seeded_positions=7)
    again = CompiledRing.load(tmp_path / "out")
    assert again.plan == ring.plan and len(again.boards) == 3
    for board, ((program, image), (wanted, wanted_image)) in enumerate(zip(again.boards, ring.boards, strict=True)):
        image.verify()
        assert image == wanted_image and program.instructions == wanted.instructions
        assert (program.board, program.boards) == (board, 3)
        assert program.registers["ring_boards"] == 3 and program.registers["ring_board"] == board
        assert program.registers["ring_key"] == ring.plan.key
        assert program.model_digest == ring.plan.model_digest == WEIGHTS.digest()
        ends = {region.name: region.offset + region.bytes for region in program.regions}
        assert max(ends.values()) == ring.plan.boards[board].bytes_per_channel
    assert ring.plan.cache == "7 positions, seed 0"


def test_compiling_twice_gives_the_same_bytes_and_replaces(tmp_path: Path) -> None:
    first = compile_ring(WEIGHTS, CORE, tmp_path / "out", 2)
    (tmp_path / "out" / "stray").write_text("from before")
    second = compile_ring(WEIGHTS, CORE, tmp_path / "out", 2)
    assert first == second and not (tmp_path / "out" / "stray").exists()
    compile_ring(WEIGHTS, CORE, tmp_path / "out", 3)  # another number of boards
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["board0", "board1", "board2", "plan.json"]
    compile_model(WEIGHTS, CORE, tmp_path / "out")  # one board, and back
    Program.load(tmp_path / "out")
    compile_ring(WEIGHTS, CORE, tmp_path / "out", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_another_plan_of_the_same_model_has_another_key(tmp_path: Path) -> None:
    keys = {
        compile_ring(weights, CORE, tmp_path / "out", boards, **options).plan.key
        for weights, boards, options in (
            (WEIGHTS, 2, {}),
            (WEIGHTS, 3, {}),
            (SeededCheckpoint(MODEL, 5), 2, {}),
            (WEIGHTS, 2, {"context": 20}),
            (WEIGHTS, 2, {"seeded_positions": 3}),
            (WEIGHTS, 2, {"seeded_positions": 3, "kv_seed": 1}),
        )
    }
    assert len(keys) == 6


@pytest.mark.parametrize("damage", ["missing board", "other plan", "boards exchanged", "no plan"])
def test_parts_that_do_not_belong_together(damage: str, tmp_path: Path) -> None:
    compile_ring(WEIGHTS, CORE, tmp_path / "out", 3)
    CompiledRing.load(tmp_path / "out")  # twin
    out = tmp_path / "out"
    if damage == "missing board":
        shutil.rmtree(out / "board2")
        message = "board2 is no program folder"
    elif damage == "other plan":
        compile_ring(SeededCheckpoint(MODEL, 5), CORE, tmp_path / "other", 3)
        shutil.rmtree(out / "board1")
        (tmp_path / "other" / "board1").rename(out / "board1")
        message = "board1 was not compiled with"
    elif damage == "boards exchanged":
        (out / "board0").rename(out / "kept")
        (out / "board1").rename(out / "board0")
        (out / "kept").rename(out / "board1")
        message = "board0 holds the program of board 1 of 3"
    else:
        (out / "plan.json").unlink()
        message = "no plan.json"
    with pytest.raises(ProgramError, match=message):
        CompiledRing.load(out)


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def full(what: str, done: int, total: int) -> None:
        if what == "token embedding" and done > 0.7 * total:
            raise OSError(28, "No space left on device")

    with pytest.raises(CompileError, match="No space left"):
        compile_ring(WEIGHTS, CORE, tmp_path / "out", 3, progress=full)
    assert list(tmp_path.iterdir()) == []


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plan.json").write_text("{}")
    with pytest.raises(CompileError, match="holds no program of this Ringfly"):
        compile_ring(WEIGHTS, CORE, tmp_path / "out", 2)
    assert (tmp_path / "out" / "plan.json").read_text() == "{}"


def test_explain_says_which_board_and_counts_its_rows(tmp_path: Path) -> None:
    ring = compile_ring(WEIGHTS, CORE, tmp_path / "out", 2)
    for board, (program, _) in enumerate(ring.boards):
        text = explain(program)
        assert f"board {board} of 2: heads" in text and "GATHER" in text and "own words" in text
        gathers = [i for i in map(Instruction.decode, program.instructions) if i.op == Op.GATHER]
        assert len(gathers) == 4
    assert ring_summary(ring.plan)["slices"] == {
        "heads": list(ring.plan.partition.heads),
        "x": list(ring.plan.partition.x),
        "inner": list(ring.plan.partition.inner),
        "vocabulary": list(ring.plan.partition.vocabulary),
    }
