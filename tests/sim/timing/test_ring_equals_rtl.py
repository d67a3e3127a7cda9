"""Rings on the timing model take exactly the cycles of the gateware: every counter of every board."""

from __future__ import annotations

import pytest

from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.programs.ring_case import random_ring_case
from sim.rtl.build import build_board
from sim.timing.gateware import case_run
from sim.timing.overrides import TimingOverrides
from sim.timing.ring_comparison import ring_gateware_run

CORE = core_config("16x4")
HOP_NS = 500.0
FIXED, HBM = MemoryTiming(), HbmTiming(seed=3)
# case in which a position would begin while the one before still adds up what nobody uses, and results wait for strips
SUMS_LATE = (54, 3)


@pytest.fixture(scope="module")
def built():
    return build_board(CORE)


def ran(built, folder, seed, boards, memory, links):
    runs = []
    for number, case in enumerate(random_ring_case(seed, CORE, boards).boards):
        (folder / str(number)).mkdir()
        runs.append(case_run(case, folder / str(number)))
    return ring_gateware_run(runs, built, memory, type(memory).__name__, links)


def unequal(comparisons):
    return [comparison.unequal() for comparison in comparisons if comparison.unequal()]


@pytest.mark.parametrize(
    ("seed", "boards", "memory", "hop_ns"),
    (
        (*SUMS_LATE, FIXED, HOP_NS),
        (0, 2, FIXED, HOP_NS),
        (5, 3, HBM, HOP_NS),
        (3, 4, FIXED, 1000.0),
        (2, 2, HBM, 200.0),
        (1, 2, FIXED, 0.0),
    ),
)
def test_random_rings(built, tmp_path, seed, boards, memory, hop_ns):
    assert not unequal(ran(built, tmp_path, seed, boards, memory, LinkTiming(hop_ns=hop_ns)).compared())


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "boards"), ((1, 2), (4, 3), (1, 4), (2, 5), (0, 8)))
def test_more_random_rings(built, tmp_path, seed, boards):
    for number, memory in enumerate((FIXED, MemoryTiming.random(seed), HBM)):
        folder = tmp_path / str(number)
        folder.mkdir()
        links = LinkTiming(hop_ns=HOP_NS, seed=number)
        assert not unequal(ran(built, folder, seed, boards, memory, links).compared()), memory


def test_twins_are_noticed(built, tmp_path):
    """A cable two cycles longer, a slower node, smaller frames: each changes counters."""
    gateware = ran(built, tmp_path, 3, 2, FIXED, LinkTiming(hop_ns=HOP_NS))
    assert not unequal(gateware.compared())
    assert unequal(gateware.compared(links=LinkTiming(hop_ns=HOP_NS + 10.0)))
    for name, extra in (("read_ahead", -3), ("frame_strips", -62), ("clear_cycles", 5), ("vector_sum_latency", 1)):
        assert unequal(gateware.compared(overrides=TimingOverrides(extra_cycles={name: extra}))), name


def test_twins_of_the_issue_unit_are_noticed(built, tmp_path, changed_model):
    """A position that does not wait for sums of the one before; results that do not wait for others' strips."""
    gateware = ran(built, tmp_path, *SUMS_LATE, FIXED, LinkTiming(hop_ns=HOP_NS))
    assert not unequal(gateware.compared())
    for old in ("fetch.work_valid && fetch.work.begins && h.statistics", "strip_ && !code.send;"):
        changed_model(("issue.h", old, "false && " + old))
        assert unequal(gateware.compared()), old


def test_a_twin_of_the_delivery_buffer_is_noticed(built, tmp_path, changed_model):
    """With one entry between node and core an entry is delivered every other cycle at most."""
    gateware = ran(built, tmp_path, 3, 2, FIXED, LinkTiming(hop_ns=HOP_NS))
    assert not unequal(gateware.compared())
    changed_model(("node.h", "DELIVERY = 2", "DELIVERY = 1"))
    assert unequal(gateware.compared())
