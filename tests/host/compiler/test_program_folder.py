"""The program folder: complete or absent, verified on reading, and explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from host.compiler import CompileError, compile_model, explain
from host.compiler.explain import summary
from hw.board.program import Program, ProgramError
from hw.gpt2.config import core_config
from sw.models.gpt2 import GPT2, GPT2Config
from sw.train.save import save_model

CORE = core_config("16x4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(5)
    save_model(GPT2(GPT2Config(n_layer=2, n_head=3, n_embd=48, n_positions=40, vocab_size=101)), folder)
    return folder


def test_what_was_returned_is_what_is_read(model: Path, tmp_path: Path) -> None:
    program, image = compile_model(model, CORE, tmp_path / "out")
    again, image_again = Program.load(tmp_path / "out")
    image_again.verify()
    assert image_again == image
    for field in ("core", "model_digest", "instructions", "descriptors", "regions"):
        assert getattr(again, field) == getattr(program, field)
    assert dict(again.registers) == dict(program.registers)
    assert image.image_bytes == image.files[0].stat().st_size


def test_twin_one_flipped_byte_is_found(model: Path, tmp_path: Path) -> None:
    compile_model(model, CORE, tmp_path / "out")
    path = tmp_path / "out" / "ch02.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ProgramError, match=r"ch02\.bin is damaged"):
        Program.load(tmp_path / "out")[1].verify()


def test_compiling_twice_gives_the_same_bytes_and_replaces(model: Path, tmp_path: Path) -> None:
    _, first = compile_model(model, CORE, tmp_path / "out")
    (tmp_path / "out" / "stray").write_text("from before")
    _, second = compile_model(model, CORE, tmp_path / "out")
    assert first.sha256 == second.sha256
    assert not (tmp_path / "out" / "stray").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_shorter_cache_takes_fewer_rows(model: Path, tmp_path: Path) -> None:
    long, _ = compile_model(model, CORE, tmp_path / "long")
    short, _ = compile_model(model, CORE, tmp_path / "short", context=16)
    assert short.registers["context_limit"] == 16
    assert sum(r.bytes for r in short.regions) < sum(r.bytes for r in long.regions)
    assert short.instructions != long.instructions  # stride of the probabilities


@pytest.mark.parametrize("kind", ["file", "other folder", "under a file"])
def test_output_that_cannot_be_made(model: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    if kind == "file":
        target.write_text("mine")
    elif kind == "other folder":
        target.mkdir()
        (target / "thesis.tex").write_text("mine")
    else:
        (tmp_path / "file").write_text("mine")
        target = tmp_path / "file" / "out"
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    with pytest.raises(CompileError) as caught:
        compile_model(model, CORE, target)
    assert caught.value.kind == "output" and caught.value.exit_code == 2
    assert str(target) in caught.value.message
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def test_a_failure_while_writing_leaves_nothing(model: Path, tmp_path: Path) -> None:
    def full(what: str, done: int, total: int) -> None:
        if what == "token embedding":
            raise OSError(28, "No space left on device")

    with pytest.raises(CompileError, match="No space left"):
        compile_model(model, CORE, tmp_path / "out", progress=full)
    assert list(tmp_path.iterdir()) == []


def test_explain_names_regions_instructions_and_cycles(model: Path, tmp_path: Path) -> None:
    program, _ = compile_model(model, CORE, tmp_path / "out")
    text = explain(program)
    for word in ("position_embedding", "scores, softmax", "language-model head", "MM first=1", "KEYS heads=3", "MHz"):
        assert word in text
    facts = summary(program)
    # a position of the cache: 2 layers x (48 keys + 48 values) x 2 bytes
    assert facts["kv_bytes_per_position"] == 2 * (48 + 48) * 2
    tiles = sum(r.bytes for r in program.regions if r.name == "weights") // (4 * 32)
    assert facts["weight_bytes_per_token"] == (tiles + 2 * 12) * 4 * 32
