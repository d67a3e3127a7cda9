"""One seed again: the command says that executors agree, or what differs, and writes waves with names."""

import json
import random
import shlex

import pytest

from sim.programs import replay
from sim.programs.random_case import random_case
from sim.programs.sensitivity import flip_word

SEED = 3


def test_a_sound_seed_agrees(capsys):
    assert replay.main([str(SEED)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"random program of seed {SEED} for core 16x4: ")
    assert lines[-1] == "gateware and functional executor agree"


def test_a_difference_is_said_and_waves_are_written(monkeypatch, capsys, tmp_path):
    """The gateware gets a flipped weight."""
    flipped = flip_word(random_case(SEED, replay.core_config("16x4")), random.Random(SEED))
    real = replay.run_case

    def run_case(case, board, *rest):
        return real(flipped if isinstance(board, replay.RtlBoard) else case, board, *rest)

    monkeypatch.setattr(replay, "run_case", run_case)
    waves = tmp_path / "seed.fst"
    assert replay.main([str(SEED), "--waves", str(waves), "--from-cycle", "100", "--cycles", "50"]) == 1
    out = capsys.readouterr().out
    assert "logits, channel 0: " in out and "half words differ, first half word" in out
    assert waves.stat().st_size > 1000
    assert json.loads((tmp_path / "seed.fst.names.json").read_text())


def test_printed_command_is_one_that_the_program_takes(monkeypatch):
    words = shlex.split(replay.replay_command(17, "16x4", sampled=True))
    assert words[:3] == [".venv/bin/python", "-m", "sim.programs.replay"]
    seen = {}

    def random_case(seed, config):
        seen.update(seed=seed, core=config.name)
        return f"case {seed}"

    def sampled_case(case):
        seen["sampled"] = case
        raise InterruptedError

    monkeypatch.setattr(replay, "random_case", random_case)
    monkeypatch.setattr(replay, "sampled_case", sampled_case)

    with pytest.raises(InterruptedError):
        replay.main(words[3:])
    assert seen == {"seed": 17, "core": "16x4", "sampled": "case 17"}
    assert "--sampled" not in replay.replay_command(17, "16x4")
