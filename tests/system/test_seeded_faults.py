"""Seeded faults of the gateware: five drawn ones are caught, a control is not reported."""

from __future__ import annotations

import pytest

from host.cli.fault_hunt import hunt
from hw.gpt2.config import core_config
from sim.rtl.faults import check_faults, draw_faults, list_faults

CORE = core_config("16x4")
DRAWN = draw_faults(5, seed=3)
CONTROLS = [fault for fault in list_faults() if fault.equivalent]


def test_the_list():
    faults = [fault for fault in list_faults() if not fault.equivalent]
    assert len(faults) >= 20
    assert sum(fault.caught_by == "programs" for fault in faults) >= 2
    assert check_faults() == []


@pytest.mark.parametrize("fault", DRAWN, ids=lambda fault: fault.name)
def test_a_drawn_fault_is_caught(fault):
    (hunted,) = hunt([fault], CORE, print)
    assert hunted.check is not None, f"{fault.name}: {fault.description}"
    if fault.caught_by == "programs":
        assert hunted.check == "programs"


@pytest.mark.parametrize("control", CONTROLS[:1], ids=lambda fault: fault.name)
def test_a_control_is_not_reported(control):
    (hunted,) = hunt([control], CORE, print)
    assert hunted.as_wanted, f"{control.name} was reported by {hunted.check}: {hunted.detail}"
