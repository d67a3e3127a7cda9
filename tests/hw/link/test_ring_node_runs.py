# amaranth: UnusedElaboratable=no
"""Rings of nodes: runs follow each other, break in the middle of frames, lose a cable; the next one is whole."""

import functools

import pytest

from hw.link.node import RingNode
from sim.rtl.node_checks import broken_runs, cut_cables, lost_cable, successive_runs
from sim.rtl.node_ring import node_verilog

BITS = 512
PACES = 4  # ways in which cores take what is delivered; node_checks draws them by seed

exported = functools.cache(node_verilog)


@pytest.fixture(params=[BITS, pytest.param(256, marks=pytest.mark.slow)])
def node(request):
    """Verilog and entry width of a node."""
    return exported(request.param), request.param


@pytest.mark.parametrize("boards", [2, 3, 4, 8])
def test_frames_of_the_next_run_wait(node, boards):
    successive_runs(*node, boards=boards, seed=boards)


@pytest.mark.parametrize("boards, seed", [(2, 2), (3, 5), (4, 6), (8, 4), (8, 5)])
def test_a_broken_run_leaves_nothing_behind(node, boards, seed):
    broken_runs(*node, boards=boards, seed=seed)


@pytest.mark.parametrize("drops_channel", [True, False])
@pytest.mark.parametrize("boards, seed", [(2, 4), (3, 5), (4, 6)])
def test_a_cut_cable_ends_the_run_and_a_mended_ring_goes_on(node, boards, seed, drops_channel):
    cut_cables(*node, boards=boards, seed=seed, drops_channel=drops_channel)


@pytest.mark.parametrize("drops_channel", [True, False])
@pytest.mark.parametrize("boards", [2, 3, 4])
def test_a_cut_cable_does_not_hold_up_the_other_way(node, boards, drops_channel):
    lost_cable(*node, boards=boards, drops_channel=drops_channel)


@pytest.mark.slow
@pytest.mark.parametrize("boards", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("seed", range(40, 40 + 2 * PACES))
def test_many_broken_runs(node, boards, seed):
    broken_runs(*node, boards=boards, seed=seed, runs=12)


@pytest.mark.slow
@pytest.mark.parametrize("drops_channel", [True, False])
@pytest.mark.parametrize("boards", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("seed", range(60, 60 + PACES))
def test_many_cut_cables(node, boards, seed, drops_channel):
    cut_cables(*node, boards=boards, seed=seed, cuts=6, drops_channel=drops_channel)


@pytest.mark.parametrize("bits", [0, 128, 1024, "256"])
def test_other_widths_are_refused(bits):
    with pytest.raises(ValueError, match="entry_bits must be 256 or 512"):
        RingNode(bits)
