"""Seeded faults of the link port: the list fits the sources, and random frames tell each from the sound port."""

import dataclasses

import pytest

from sim.rtl.fault_patch import FaultError
from sim.rtl.faults import check_faults
from sim.rtl.link_checks import CHECKS, inspect_port
from sim.rtl.link_faults import LINK_FAULTS, faulty_port

BITS = 512
FAULTS = [fault for fault in LINK_FAULTS if not fault.equivalent]
CONTROLS = [fault for fault in LINK_FAULTS if fault.equivalent]


def test_the_list_fits_the_sources():
    assert check_faults(LINK_FAULTS) == []
    assert len(FAULTS) >= 12 and {fault.caught_by for fault in FAULTS} == set(CHECKS) and CONTROLS


def test_a_port_that_cannot_be_elaborated_is_an_error():
    fault = dataclasses.replace(FAULTS[0], name="broken", after="good.eq(no_such_name")
    with pytest.raises(FaultError, match=r"broken: the faulty port cannot be exported:(.|\n)*no_such_name"):
        faulty_port(fault, BITS)


def expect_caught(fault):
    found = inspect_port(faulty_port(fault, BITS), BITS, [fault.caught_by])
    assert found is not None, f"{fault.name}: {fault.description}"


def test_frames_with_a_wrong_crc_are_noticed():
    expect_caught(FAULTS[0])


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS[1:], ids=lambda fault: fault.name)
def test_every_other_fault_is_caught(fault):
    expect_caught(fault)


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS, ids=lambda fault: fault.name)
def test_a_control_is_not_reported(control):
    """The sound port passes the same checks in test_link_pair.py."""
    assert inspect_port(faulty_port(control, BITS), BITS) is None
