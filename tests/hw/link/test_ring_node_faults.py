"""Seeded faults of the ring node are caught by the checks that its tests use; a change that is none is not."""

import pytest

from sim.rtl.faults import check_faults
from sim.rtl.link_faults import faulty_node
from sim.rtl.node_checks import CHECKS, inspect_node
from sim.rtl.node_faults import NODE_FAULTS

BITS = 256
FAULTS = [fault for fault in NODE_FAULTS if not fault.equivalent]
CONTROLS = [fault for fault in NODE_FAULTS if fault.equivalent]


def test_every_fault_is_a_change_of_the_source_and_names_its_check():
    assert check_faults(NODE_FAULTS) == []
    assert {fault.caught_by for fault in FAULTS} == set(CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_are_caught(fault):
    found = inspect_node(faulty_node(fault, BITS), BITS, [fault.caught_by])
    assert found is not None and found[0] == fault.caught_by


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_an_equivalent_change_is_not_reported(control):
    assert inspect_node(faulty_node(control, BITS), BITS) is None
