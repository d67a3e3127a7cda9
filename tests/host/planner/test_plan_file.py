"""plan.json: what is saved is what is read; what was changed, is missing or of another version is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from host.compiler import plan_ring
from host.planner import Plan
from hw.board.program import ProgramError
from hw.gpt2.config import core_config
from sw.models.gpt2_config import GPT2Config
from sw.models.seeded_weights import SeededCheckpoint

MODEL = GPT2Config(2, 5, 60, 40, 140)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_ring(SeededCheckpoint(MODEL), core_config("16x4"), 3).plan


def test_saved_is_read(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path)
    again = Plan.load(tmp_path)
    assert again == plan and again.key == plan.key
    text = (tmp_path / "plan.json").read_text()
    data = json.loads(text)
    assert data["format"] == "ringfly-plan/1" and len(data["boards"]) == 3
    assert [board["board"] for board in data["boards"]] == [0, 1, 2]
    assert data["boards"][2]["left_neighbour"] == 1 and data["boards"][2]["right_neighbour"] == 0
    assert sum(board["heads"]["count"] for board in data["boards"]) == 5
    assert '"heads": {"first": 0, "count": ' in text  # one line a slice
    ends = [board["regions"]["logits"] for board in data["boards"]]
    assert [end["first_byte"] + end["bytes"] for end in ends] == [b["bytes_per_channel"] for b in data["boards"]]


def test_the_key_is_that_of_the_bytes(plan: Plan) -> None:
    assert 0 < plan.key < 1 << 64
    for change in ({"model_digest": "00"}, {"context": 39}, {"cache": "9 positions, seed 1"}, {"core_digest": "ab"}):
        assert dataclasses.replace(plan, **change).key != plan.key


@pytest.mark.parametrize("change", ["format", "slice", "region", "field", "json", "list", "missing", "spaces"])
def test_what_is_damaged_is_refused(plan: Plan, tmp_path: Path, change: str) -> None:
    plan.save(tmp_path)
    path = tmp_path / "plan.json"
    data = json.loads(path.read_text())
    if change == "format":
        data["format"] = "ringfly-plan/9"
    elif change == "slice":
        data["boards"][1]["heads"]["count"] += 1
    elif change == "region":
        data["boards"][1]["regions"]["keys"]["bytes"] += 4096
    elif change == "field":
        del data["boards"][0]["weight_rows"]
    elif change == "list":
        data = [data]
    path.write_text("{" if change == "json" else json.dumps(data))
    if change == "missing":
        path.unlink()
    with pytest.raises(ProgramError, match=str(tmp_path)):
        Plan.load(tmp_path)


def test_parts_that_do_not_belong_together(plan: Plan) -> None:
    with pytest.raises(ValueError, match="2 boards are described, the partition has 3"):
        dataclasses.replace(plan, boards=plan.boards[:2])
    with pytest.raises(ValueError, match="the model has 6"):
        dataclasses.replace(plan, model=dataclasses.replace(MODEL, n_head=6))
