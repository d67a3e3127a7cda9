"""Seeded faults of the gateware: five drawn ones are caught, a control is not reported."""

from __future__ import annotations

import pathlib

import pytest

from host.compiler import compile_model
from hw.gpt2.config import core_config
from sim.rtl.build import compile_board
from sim.rtl.detection import ModelRun, inspect
from sim.rtl.fault_patch import Fault
from sim.rtl.faults import check_faults, draw_faults, export_with_fault, list_faults
from sim.rtl.verilator import QUICK_COMPILE_FLAGS

CORE = core_config("16x4")
CHECKPOINT = pathlib.Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
DRAWN = draw_faults(5, seed=20)


def kernel(fault: Fault):
    return compile_board(CORE, export_with_fault(fault, CORE), compile_flags=QUICK_COMPILE_FLAGS)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    program, image = compile_model(CHECKPOINT, CORE, tmp_path_factory.mktemp("faults") / "program")
    return ModelRun(program, image, tokens=(5, 77, 300, 12, 9), new_tokens=4)


def test_the_list():
    faults = [fault for fault in list_faults() if not fault.equivalent]
    assert len(faults) >= 20
    assert sum(fault.caught_by == "programs" for fault in faults) >= 2
    assert check_faults() == []


@pytest.mark.parametrize("fault", DRAWN, ids=lambda fault: fault.name)
def test_a_drawn_fault_is_caught(fault, model):
    finding = inspect(kernel(fault), model)
    assert finding is not None, f"{fault.name}: {fault.description}"
    if fault.caught_by == "programs":
        assert finding.check == "programs"


@pytest.mark.parametrize("control", [f for f in list_faults() if f.equivalent][:1], ids=lambda fault: fault.name)
def test_a_control_is_not_reported(control, model):
    assert inspect(kernel(control), model) is None
