"""The memory models against published figures, and changes of the models that must show in them."""

import dataclasses

import pytest

from sim.devices.ddr_timing import DdrTiming
from sim.devices.hbm_timing import HbmTiming
from sim.devices.vectors import Vector, ddr, latencies, lateral, linear, loaded, random_reads, strides

HBM, DDR = HbmTiming(), DdrTiming()


def missed(vectors):
    found = list(vectors)
    assert found
    return {vector.name for vector in found if vector.verdict == "missed"}


@pytest.mark.parametrize("group", [linear, strides, random_reads, latencies], ids=lambda group: group.__name__)
def test_hbm_is_as_published(group):
    assert missed(group(HBM)) == set()


def test_ddr_is_as_published():
    assert missed(ddr(DDR)) == set()


def test_lateral_links_are_as_published():
    assert missed(lateral()) == set()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_phases_of_refresh_change_little(seed):
    assert missed(linear(dataclasses.replace(HBM, seed=seed))) == set()


@pytest.mark.parametrize(
    "group, change, names",
    [
        (linear, {"refresh_interval_ns": 0.0}, {"linear, 32 channels at once"}),
        (linear, {"refresh_interval_ns": 1950.0}, {"linear, 32 channels at once"}),
        (linear, {"queue_commands": 1}, {"linear, 32 channels at once"}),
        (strides, {"ccd_long": 2}, {"sequential, 32 B, map RBC", "set 8 KB, stride 4 KB, 32 B", "stride 128 B, 32 B"}),
        (strides, {"rc_ns": 55.0}, {"set 256 MB, stride 4 KB, 32 B", "stride 16 KB, 32 B"}),
        (strides, {"queue_commands": 6}, {"sequential, bursts of 32 B"}),
        (random_reads, {"reorder_commands": 0}, {"random 256 B, 1 channel", "random 512 B, 1 channel"}),
        (random_reads, {"faw_ns": 30.0}, {"random 64 B, 1 channel", "random 128 B, 1 channel"}),
        (random_reads, {"same_id_cycles": 14}, {"random 64 B, 2 channels", "random 256 B, 4 channels"}),
        (latencies, {"rcd_ns": 24.0}, {"latency, switch off, closed row"}),
        (latencies, {"rp_ns": 24.0}, {"latency, switch off, other row open"}),
        (
            latencies,
            {"read_hit_cycles": 52},
            {"latency, switch off, open row", "latency, switch on, own group, open row"},
        ),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_a_wrong_parameter_of_hbm_shows(group, change, names):
    """Twins: what each parameter is there for."""
    assert names <= missed(group(dataclasses.replace(HBM, **change)))


@pytest.mark.parametrize(
    "change, names",
    [
        ({"refresh_interval_ns": 0.0}, {"DDR4 linear, one channel"}),
        ({"rp_ns": 25.0}, {"DDR4 latency, other row open"}),
        ({"read_hit_cycles": 24}, {"DDR4 latency, open row"}),
    ],
)
def test_a_wrong_parameter_of_ddr_shows(change, names):
    assert names <= missed(ddr(dataclasses.replace(DDR, **change)))


def test_writes_cost_reads_some_rate():
    def rates(timing):
        return [vector.measured for vector in loaded(timing) if vector.unit == "GB/s"]

    found = rates(HBM)
    assert found == sorted(found, reverse=True)
    assert 425 * 0.9 < found[-1] < found[1] < found[0]
    turning = rates(dataclasses.replace(HBM, read_to_write=60, write_to_read_short=60, write_to_read_long=60))
    assert turning[0] == found[0]
    assert turning[2] < found[2] - 4


def test_verdicts():
    assert Vector("a", "x", 1.04, 1.0, "").verdict == "held"
    assert Vector("a", "x", 1.06, 1.0, "").verdict == "missed"
    assert Vector("a", "x", 0.94, 1.0, "").verdict == "missed"
    assert Vector("a", "x", 9.0, 1.0, "", at_least=True).verdict == "held"
    assert Vector("a", "x", 0.9, 1.0, "", at_least=True).verdict == "missed"
    assert Vector("a", "x", 9.0, 1.0, "", None).verdict == Vector("a", "x", 9.0, None, "").verdict == "-"
