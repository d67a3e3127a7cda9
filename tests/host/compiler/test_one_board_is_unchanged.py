"""Programs and images of one board are, byte for byte, those from before a model could be split over several.

The hashes were recorded then, over instructions, descriptors, regions, registers, notes and the hashes of the images.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from host.compiler import Shape, compile_model, compile_ring, plan_program
from hw.board.program import Program
from hw.gpt2.config import CoreConfig, core_config
from sw.models.gpt2_config import GPT2Config
from sw.models.named_sizes import NAMED_SIZES
from sw.models.seeded_weights import SeededCheckpoint

SMALL = core_config("16x4")
THREE = GPT2Config(2, 3, 48, 40, 101)
CASES: dict[str, tuple[GPT2Config, CoreConfig, int | None, int, str]] = {
    "three heads": (THREE, SMALL, None, 9, "1cda62e00a0a5214b8b9a3802ae03152da92ce1e79fb02f40950e50308c9ef51"),
    "tails": (
        GPT2Config(2, 3, 36, 40, 97, n_inner=50),
        SMALL,
        20,
        0,
        "fca90fa0dd23531efdee404958d58ffa0fee2020b0c248f01de70f78ad599602",
    ),
    "64x16": (
        GPT2Config(2, 4, 128, 96, 300),
        core_config("64x16"),
        None,
        5,
        "296293664363efbd03639c8727179bc6cd35b1ebfb6bedc90f98b5e0346782e8",
    ),
    "small memories": (
        GPT2Config(1, 3, 48, 40, 50),
        dataclasses.replace(SMALL, acc_depth=8, param_depth=8, prob_words=5),
        None,
        0,
        "0900207f14bdcd736da8a4719542c2adfd419c99a2878d6f7eaf824fba7a088a",
    ),
}
SIZES = {
    "gpt2-345m": "5c316cf6586a7d29544ef39a3783131c49c437f464d781d6372e67ea9718317e",
    "gpt2-xl": "bf94f6e22ca007481010a2230379014523f4feebfd4dd04322a825234ecf7ad4",
}


def _digest(program: Program, image_sha256: tuple[str, ...] = ()) -> str:
    facts = [
        list(program.instructions),
        list(program.descriptors),
        [dataclasses.asdict(region) for region in program.regions],
        dict(program.registers),
        dict(program.notes),
        program.board,
        program.boards,
        program.model_digest,
    ]
    return hashlib.sha256((json.dumps(facts, sort_keys=True) + "".join(image_sha256)).encode()).hexdigest()


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_one_board(name: str, tmp_path: Path) -> None:
    config, core, context, cached, recorded = CASES[name]
    weights = SeededCheckpoint(config, 4)
    program, image = compile_model(weights, core, tmp_path / "one", context=context, seeded_positions=cached)
    assert _digest(program, image.sha256) == recorded
    # a ring of one board is the same program
    ring = compile_ring(weights, core, tmp_path / "ring", 1, context=context, seeded_positions=cached)
    [(program, image)] = ring.boards
    assert _digest(program, image.sha256) == recorded


def test_twin_another_seed_has_other_bytes(tmp_path: Path) -> None:
    program, image = compile_model(SeededCheckpoint(THREE, 5), SMALL, tmp_path / "one", seeded_positions=9)
    assert _digest(program, image.sha256) != CASES["three heads"][-1]


@pytest.mark.parametrize("name", SIZES)
def test_program_of_one_board(name: str) -> None:
    assert _digest(plan_program(Shape(NAMED_SIZES[name], core_config("64x16"), 1024))) == SIZES[name]
