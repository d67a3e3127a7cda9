"""Rings of nodes: every frame reaches every other board once, by its way; rings do not lock up."""

import functools

import pytest

from sim.rtl.node_checks import every_frame, saturated
from sim.rtl.node_ring import NodeRingError, node_verilog

BITS = 512

exported = functools.cache(node_verilog)


@pytest.fixture(params=[BITS, pytest.param(256, marks=pytest.mark.slow)])
def node(request):
    """Verilog and entry width of a node."""
    return exported(request.param), request.param


@pytest.mark.parametrize("boards", [2, 3, 4, 5, 8])
def test_every_frame_reaches_every_other_board_once(node, boards):
    every_frame(*node, boards=boards, seed=boards)


@pytest.mark.parametrize("boards", [2, 3, 4, 8])
def test_a_bad_cable_loses_nothing(node, boards):
    every_frame(*node, boards=boards, frames=60, seed=boards + 10, rate=0.01)


@pytest.mark.parametrize("boards", [2, 4])
def test_twin_with_one_bit_changed(node, boards):
    with pytest.raises(NodeRingError, match="has wrong data"):
        every_frame(*node, boards=boards, spoiled=True)


@pytest.mark.parametrize("boards, frames", [(4, 400), (8, 200)])
def test_full_slots_do_not_lock_up(node, boards, frames):
    saturated(*node, boards=boards, frames=frames)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20, 21])
def test_many_frames_do_not_lock_up(node, seed):
    saturated(*node, frames=1000, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("boards", [4, 8])
def test_thousands_of_frames_over_a_bad_cable(node, boards):
    every_frame(*node, boards=boards, frames=1000, seed=boards + 30, rate=0.01)
