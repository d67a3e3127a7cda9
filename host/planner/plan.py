"""``plan.json``: how a model is split over the boards of a ring and what lies where, for people and for the driver."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from host.planner.partition import KINDS, Partition
from hw.board.program import ProgramError
from sw.models.gpt2_config import GPT2Config

__all__ = ["PLAN_FILE", "PLAN_FORMAT", "Estimate", "Plan", "PlannedBoard"]

PLAN_FORMAT = "ringfly-plan/1"
PLAN_FILE = "plan.json"
_AGAIN = "make the folder again with `ringfly compile`"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Cycles that a decode step is expected to take: `cycles` with `positions` attended; `source` says whose figure."""

    cycles: int
    positions: int
    source: str


@dataclasses.dataclass(frozen=True)
class PlannedBoard:
    """What one board holds.

    Members: `weight_rows`: rows of the weight stream of a token; `regions`: (first byte, bytes) by name, the same in
    every channel; `bytes_per_channel`: end of the last one.
    """

    weight_rows: int
    regions: dict[str, tuple[int, int]]

    @property
    def bytes_per_channel(self) -> int:
        """Bytes of a channel in use."""
        return max((first + size for first, size in self.regions.values()), default=0)


@dataclasses.dataclass(frozen=True)
class Plan:
    """One model on one ring.

    Parameters
    ----------
    model, model_digest : sizes and SHA-256 of the weights ("" if none were read).
    core_name, core_digest : the core of every board.
    context : positions of the key/value cache.
    channel_bytes : memory of one channel.
    partition : slices of every board.
    boards : what each board holds, in order.
    estimate : expected cycles of a decode step.
    cache : keys and values that the images hold, in words; "" if none.

    Raises ValueError if the parts do not belong together.
    """

    model: GPT2Config
    model_digest: str
    core_name: str
    core_digest: str
    context: int
    channel_bytes: int
    partition: Partition
    boards: tuple[PlannedBoard, ...]
    estimate: Estimate
    cache: str = ""

    def __post_init__(self) -> None:
        self.partition.check(self.model)
        if len(self.boards) != self.partition.boards:
            raise ValueError(f"{len(self.boards)} boards are described, the partition has {self.partition.boards}")

    def to_json(self) -> str:
        """The text of ``plan.json``."""
        slices = {kind: self.partition.ranges(kind) for kind in KINDS}
        data = {
            "format": PLAN_FORMAT,
            "model": dataclasses.asdict(self.model),
            "model_digest": self.model_digest,
            "core": self.core_name,
            "core_digest": self.core_digest,
            "context": self.context,
            "cache": self.cache,
            "channel_bytes": self.channel_bytes,
            "decode_step": dataclasses.asdict(self.estimate),
            "boards": [
                {
                    "board": board,
                    "left_neighbour": (board - 1) % len(self.boards),
                    "right_neighbour": (board + 1) % len(self.boards),
                    **{kind: _span(slices[kind][board]) for kind in KINDS},
                    "weight_rows": planned.weight_rows,
                    "bytes_per_channel": planned.bytes_per_channel,
                    "regions": {
                        name: {"first_byte": at, "bytes": size} for name, (at, size) in planned.regions.items()
                    },
                }
                for board, planned in enumerate(self.boards)
            ],
        }
        return _flat_leaves(json.dumps(data, indent=1)) + "\n"

    @property
    def key(self) -> int:
        """Register `ring_key`: the first 8 bytes of the SHA-256 of ``plan.json``, highest byte first."""
        return int.from_bytes(hashlib.sha256(self.to_json().encode()).digest()[:8], "big")

    def save(self, folder: Path) -> None:
        """Write ``plan.json`` into `folder`."""
        (folder / PLAN_FILE).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Read ``plan.json`` of `folder`. Raises ProgramError for a missing or damaged file or another version."""
        path = folder / PLAN_FILE
        if not path.is_file():
            raise ProgramError(f"{folder} is no folder of a ring (no {PLAN_FILE}); {_AGAIN}")
        text = path.read_bytes()
        try:
            data = json.loads(text.decode("utf-8"))
        except ValueError as error:
            raise ProgramError(f"{path} is not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != PLAN_FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ProgramError(f"{path} has format {found!r}, this Ringfly reads {PLAN_FORMAT!r}; {_AGAIN}")
        try:
            plan = cls._of(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProgramError(f"{path} is damaged: {type(error).__name__}: {error}; {_AGAIN}") from None
        if plan.to_json().encode() != text:
            raise ProgramError(f"{path} was changed: its parts do not agree with each other; {_AGAIN}")
        return plan

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Plan:
        boards = data["boards"]
        return cls(
            model=GPT2Config(**data["model"]),
            model_digest=data["model_digest"],
            core_name=data["core"],
            core_digest=data["core_digest"],
            context=data["context"],
            channel_bytes=data["channel_bytes"],
            partition=Partition(*(tuple(board[kind]["count"] for board in boards) for kind in KINDS)),
            boards=tuple(
                PlannedBoard(
                    board["weight_rows"],
                    {name: (region["first_byte"], region["bytes"]) for name, region in board["regions"].items()},
                )
                for board in boards
            ),
            estimate=Estimate(**data["decode_step"]),
            cache=data["cache"],
        )


def _span(own: range) -> dict[str, int]:
    return {"first": own.start, "count": len(own)}


def _flat_leaves(text: str) -> str:
    """JSON with every innermost object on one line, which is how a person reads a span or a region."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append(line)
        if line.strip().startswith("}"):
            start = next(i for i in reversed(range(len(lines) - 1)) if lines[i].endswith("{"))
            leaf = "".join(part.strip() + " " for part in lines[start + 1 : -1]).strip()
            if len(lines) - start <= 6 and "{" not in leaf and "[" not in leaf:
                lines[start:] = [f"{lines[start]}{leaf}{line.strip()}"]
    return "\n".join(lines)
