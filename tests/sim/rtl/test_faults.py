"""Seeded faults: the list fits the sources; a faulty kernel is exported apart; the shipped one knows no faults."""

import dataclasses
import sys

import pytest

from hw.gpt2.config import ConfigError
from sim.rtl import faults
from sim.rtl.build import export_board
from sim.rtl.fault_patch import Fault, FaultError, install
from sim.rtl.faults import check_faults, core_of, draw_faults, export_with_fault, find_fault, list_faults


def test_list_fits_the_sources():
    assert check_faults() == []
    assert list_faults()[-1].equivalent
    assert not list_faults()[0].equivalent


def test_list_that_does_not_fit_is_noticed():
    good = find_fault("done_lost")
    bad = [
        dataclasses.replace(good, name="absent", before="no such text"),
        dataclasses.replace(good, name="twice", before="m.d.sync"),
        dataclasses.replace(good, name="same", after=good.before),
        dataclasses.replace(good, name="syntax", after="done_count.eq("),
        dataclasses.replace(good, name="module", module="hw.board.no_such"),
        good,
        good,
    ]
    problems = check_faults(bad)
    assert len(problems) == 6
    for problem, word in zip(
        problems, ("0 times", "times", "changes nothing", "never closed", "no module", "twice"), strict=True
    ):
        assert word in problem


def test_a_fault_may_need_another_core(config):
    changed = [fault for fault in list_faults() if fault.core_changes]
    assert changed
    for fault in changed:
        assert core_of(fault, config) != config
        assert core_of(dataclasses.replace(fault, core_changes=()), config) == config
    with pytest.raises(ConfigError, match="score_rows must be a power of two, got 5"):
        core_of(dataclasses.replace(changed[0], core_changes=(("score_rows", 5),)), config)


def test_draw_follows_its_seed():
    real = sum(not fault.equivalent for fault in list_faults())
    drawn = draw_faults(5, seed=1)
    assert drawn == draw_faults(5, seed=1)
    assert len({fault.name for fault in drawn}) == 5
    assert any(draw_faults(5, seed) != drawn for seed in range(2, 6))
    assert not any(fault.equivalent for fault in draw_faults(real, seed=3))
    with pytest.raises(FaultError, match=f"1 to {real} faults"):
        draw_faults(real + 1, seed=0)


def test_unknown_fault_lists_the_names():
    with pytest.raises(FaultError, match=r"unknown fault 'nonsense'; known faults: .*done_lost"):
        find_fault("nonsense")


def test_fault_must_come_before_the_import():
    assert "hw.board.control" in sys.modules
    with pytest.raises(FaultError, match="imported before"):
        install(find_fault("done_lost"))


def test_design_that_cannot_be_elaborated_is_an_error(config):
    fault = Fault("broken", "hw.board.control", "self._idle = Signal", "self._idle = no_such_name", "", "control")
    with pytest.raises(FaultError, match="no_such_name"):
        export_with_fault(fault, config)


def test_faulty_kernel_is_exported_apart(config):
    """What a faulty kernel does is in test_kernel_and_host.py."""
    shipped = export_board(config).text
    faulty = export_with_fault("cycle_counter_stops_in_reset", config).text
    assert faulty != shipped
    assert export_board(config).text == shipped
    assert export_with_fault("cycle_counter_stops_in_reset", config).text == faulty


def test_export_that_does_not_end_is_an_error(config, monkeypatch, tmp_path):
    monkeypatch.setenv("RINGFLY_CACHE", str(tmp_path))
    monkeypatch.setattr(faults, "_EXPORT_LIMIT_S", 0.0)
    with pytest.raises(FaultError, match="done_lost: the faulty design is not exported after 0 s"):
        export_with_fault("done_lost", config)
