"""`ringfly faults`: the list, the verdicts, the exit codes; the hunt itself runs on one fault and one control."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import pytest

import host.bench.fault_hunt as fault_hunt
from host.bench.fault_hunt import Hunted, small_model_run
from host.cli.main import main
from hw.gpt2.config import CoreConfig, core_config
from sim.functional import FunctionalBoard
from sim.rtl.fault_patch import Fault


def test_list_names_faults_and_controls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "--list", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "ringfly-faults/1"
    real = [entry for entry in answer["faults"] if not entry["control"]]
    assert len(real) >= 20 and len(real) < len(answer["faults"])
    assert sum(entry["caught_by"] == "programs" for entry in real) >= 2
    assert main(["faults", "--list"]) == 0
    assert f"{len(real)} faults" in capsys.readouterr().out


@pytest.mark.parametrize(
    "equivalent,check,code", [(False, "programs", 0), (False, None, 4), (True, None, 0), (True, "programs", 4)]
)
def test_exit_code_says_whether_faults_and_only_faults_are_noticed(
    equivalent: bool,
    check: str | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault = Fault("some", "hw.gpt2.core", "a", "b", "it breaks", "nothing" if equivalent else "programs")

    def hunt(faults: Sequence[Fault], core: CoreConfig, say: Callable[[str], object]) -> Iterator[Hunted]:
        assert len(faults) == 2 and core.name == "16x4"
        say("building")
        yield Hunted(fault, check, "tokens differ" if check else None, 1.0)

    monkeypatch.setattr(fault_hunt, "hunt", hunt)
    assert main(["faults", "--draw", "2", "--seed", "5", "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["as_wanted"] == (code == 0) and answer["faults"][0]["noticed"] == (check is not None)
    assert main(["faults", "--draw", "2", "--seed", "5"]) == code
    assert ("as wanted" if code == 0 else "NOT as wanted") in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments,kind", [([], "bad_input"), (["--draw", "500"], "bad_fault"), (["--name", "nonsense"], "bad_fault")]
)
def test_bad_arguments(arguments: list[str], kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", *arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == kind


def test_the_model_of_the_hunt_fills_its_cache_with_varied_text() -> None:
    with small_model_run(core_config("16x4")) as run:
        board = FunctionalBoard()
        board.load(run.program, run.image)
        assert run.program.registers["context_limit"] < len(run.tokens) + run.new_tokens
        assert len(set(run.tokens)) == len(run.tokens)
        board.close()


@pytest.mark.slow
def test_a_fault_is_noticed_and_a_control_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--name", "score_mask_off_by_one", "--name", "control_position_plus_one"]
    assert main(["faults", *names, "--json"]) == 0
    fault, control = json.loads(capsys.readouterr().out)["faults"]
    assert fault["noticed"] and fault["check"] == "programs"
    assert control["control"] and not control["noticed"]
