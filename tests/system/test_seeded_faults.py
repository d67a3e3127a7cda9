"""Seeded faults of the gateware: five drawn ones are caught, a control is not reported.

The full regression looks at every fault and every control.
"""

from __future__ import annotations

import pytest

from host.bench.fault_hunt import hunt
from hw.gpt2.config import core_config
from sim.rtl.faults import check_faults, draw_faults, list_faults

CORE = core_config("16x4")
DRAWN = draw_faults(5, seed=3)
FAULTS = [fault for fault in list_faults() if not fault.equivalent]
CONTROLS = [fault for fault in list_faults() if fault.equivalent]


def test_the_list():
    assert len(FAULTS) >= 20
    assert sum(fault.caught_by == "programs" for fault in FAULTS) >= 2
    assert check_faults() == []


def expect_caught(fault):
    (hunted,) = hunt([fault], CORE, print)
    assert hunted.check is not None, f"{fault.name}: {fault.description}"
    if fault.caught_by == "programs":
        assert hunted.check == "programs"


def expect_sound(control):
    (hunted,) = hunt([control], CORE, print)
    assert hunted.as_wanted, f"{control.name} was reported by {hunted.check}: {hunted.detail}"


@pytest.mark.parametrize("fault", DRAWN, ids=lambda fault: fault.name)
def test_a_drawn_fault_is_caught(fault):
    expect_caught(fault)


@pytest.mark.parametrize("control", CONTROLS[:1], ids=lambda fault: fault.name)
def test_a_control_is_not_reported(control):
    expect_sound(control)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [f for f in FAULTS if f not in DRAWN], ids=lambda fault: fault.name)
def test_every_other_fault_is_caught(fault):
    expect_caught(fault)


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS[1:], ids=lambda fault: fault.name)
def test_no_other_control_is_reported(control):
    expect_sound(control)
