"""Random programs on rings of boards: gateware equals the functional executor bit for bit, whatever the cables do."""

from __future__ import annotations

import dataclasses

import pytest

from hw.gpt2.config import core_config
from sim.functional.ring import FunctionalRing
from sim.programs.ring_agreement import good_cables, ring_disagreement
from sim.programs.ring_case import random_ring_case, ring_sizes, run_ring_case
from sim.rtl.build import build_board
from sim.rtl.ring import RtlRing

CORE = core_config("16x4")
QUICK, ALL = 5, 100  # seeds 0 to 9 have rings of 2, 3, 4, 5 and 8 boards


@pytest.fixture(scope="module")
def built():
    return build_board(CORE)


@pytest.mark.parametrize("seed", [*range(QUICK), *(pytest.param(s, marks=pytest.mark.slow) for s in range(QUICK, ALL))])
def test_ring_of_gateware_equals_functional(built, seed):
    assert ring_disagreement(seed, CORE, built) == ""


def test_twin_a_changed_weight_on_one_board_shows_on_all(built, tmp_path):
    seed = 2
    boards = ring_sizes(seed)
    case = random_ring_case(seed, CORE, boards)
    want = run_ring_case(case, FunctionalRing(boards).boards, tmp_path)
    channels = case.boards[1].channels.copy()
    row = case.boards[1].program.registers["weight_base"] + 5
    channels[0, row * CORE.port_bytes // 2] ^= 0x3F00
    other = dataclasses.replace(case.boards[1], channels=channels)
    broken = dataclasses.replace(case, boards=(case.boards[0], other, *case.boards[2:]))
    with RtlRing(built, boards, links=good_cables(seed, boards)) as ring:
        got = run_ring_case(broken, ring.boards, tmp_path)
    assert all(mine != theirs for mine, theirs in zip(got, want, strict=True))
