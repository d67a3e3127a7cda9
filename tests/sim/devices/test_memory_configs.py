"""Parameters of the memory models: bounds, conversion to memory cycles, layout in C."""

import ctypes
import dataclasses

import pytest

from sim.devices.ddr_timing import DdrTiming
from sim.devices.hbm_timing import ADDRESS_MAPS, HbmTiming, distance_cycles
from sim.devices.memory_config import MemoryConfig, MemoryKind, device_sources
from sim.devices.memory_timing import MemoryTiming
from sim.devices.traffic import BuildError, compile_models, model_sources


def fields(config):
    return {name: getattr(config, name) for name, _ in config._fields_}


def test_fields_come_from_the_header():
    names = [name for name, _ in MemoryConfig._fields_]
    assert names[:3] == ["kind", "port_mhz", "port_bytes"]
    assert names[-1] == "row_mask"
    assert len(names) == len(set(names)) > 40
    assert ctypes.sizeof(MemoryConfig) == 4 * len(names)


def test_a_changed_layout_is_noticed():
    sources = model_sources()
    header = sources["memory_config.h"].replace("X(row_mask)", "X(row_mask) X(another)")
    with pytest.raises(BuildError, match="start again"):
        compile_models(sources | {"memory_config.h": header})


def test_every_header_is_a_source():
    assert {"port_timing.h", "memory_config.h", "delays.h", "dram_port.h"} <= set(device_sources())


def test_hbm_in_memory_cycles():
    config = fields(HbmTiming().memory_config(225, 64))
    assert config["kind"] == MemoryKind.HBM
    assert (config["rcd"], config["rp"], config["ras"], config["rc"]) == (13, 13, 31, 44)  # 1.111 ns each
    assert (config["refresh_interval"], config["refresh_busy"]) == (3510, 234)
    assert config["address_delay"] + config["data_delay"] == 2 * (48 + 7)
    assert config["port_period"] == 2
    bypassed = fields(dataclasses.replace(HbmTiming(), switch_cycles=0).memory_config(225, 64))
    assert bypassed["address_delay"] + bypassed["data_delay"] == 2 * 48


def test_default_address_map():
    """addr[5] = BG0, [10:6] = column, [12:11] = bank, [13] = BG1, [27:14] = row; bits here begin at addr[5]."""
    config = HbmTiming().memory_config(225, 64)
    assert [getattr(config, f"bank_bit{index}") + 5 for index in range(4)] == [5, 13, 11, 12]
    assert config.row_mask << 5 == ((1 << 14) - 1) << 14


@pytest.mark.parametrize("name", ADDRESS_MAPS)
def test_address_maps_use_every_bit_once(name):
    config = HbmTiming(address_map=name).memory_config(225, 64)
    banks = [1 << getattr(config, f"bank_bit{index}") for index in range(4)]
    assert len(set(banks)) == 4
    assert all(not bank & config.row_mask for bank in banks)
    assert config.row_mask.bit_count() == 14
    assert (config.row_mask | sum(banks)).bit_length() <= 23
    assert config.reorder_commands == (64 if name == "RGBCG" else 0)


def test_ddr_in_memory_cycles():
    config = fields(DdrTiming().memory_config(225, 64))
    assert (config["kind"], config["column_bytes"], config["port_period"]) == (MemoryKind.DDR, 64, 4)
    assert (config["refresh_interval"], config["refresh_busy"]) == (9360, 420)


def test_delays_as_given():
    config = fields(MemoryTiming(3, 5, 7, 9, 1, 2, 3, 4, 5, seed=8).memory_config(450, 32))
    assert (config["kind"], config["port_mhz"], config["port_bytes"]) == (MemoryKind.DELAYS, 450, 32)
    assert [config[name] for name in ("read_min", "read_max", "write_min", "write_max")] == [3, 5, 7, 9]
    assert [config[name] for name in ("gap_permille", "gap_max", "stall_permille", "stall_max")] == [1, 2, 3, 4]
    assert config["early_permille"] == 5


def test_distance():
    assert [distance_cycles(0, 4 * group) for group in range(8)] == [0, 1, 3, 5, 16, 18, 20, 22]
    assert distance_cycles(31, 0) == 22
    assert distance_cycles(12, 16) == distance_cycles(16, 12) == 10  # neighbours, other stack


@pytest.mark.parametrize(
    "kind, change, message",
    [
        (HbmTiming, {"address_map": "XYZ"}, "address_map must be one of RGBCG, RBC"),
        (HbmTiming, {"reads_outstanding": 65}, "reads_outstanding must be 1 to 64, got 65"),
        (HbmTiming, {"writes_outstanding": 0}, "writes_outstanding must be 1 to 32, got 0"),
        (HbmTiming, {"queue_commands": 0}, "queue_commands must be 1 to 64"),
        (HbmTiming, {"reorder_commands": 100}, "reorder_commands must be 0 to 64"),
        (HbmTiming, {"rc_ns": -1.0}, "rc_ns must be 0 to"),
        (HbmTiming, {"axi_mhz": 400}, "multiple of axi_mhz = 400, got 900"),
        (HbmTiming, {"command_cycles": 48}, "read_hit_cycles must be over command_cycles = 48, got 48"),
        (HbmTiming, {"command_grid": 3}, "command_grid must be a power of two, got 3"),
        (HbmTiming, {"refresh_interval_ns": 500.0}, "must be 0 \\(off\\) or more than twice refresh_busy_ns = 260.0"),
        (DdrTiming, {"axi_mhz": 0}, "axi_mhz = 0"),
        (MemoryTiming, {"read_min": 0}, "1 <= min <= max"),
        (MemoryTiming, {"gap_permille": 1001}, "gap_permille must be 0 to 1000, got 1001"),
    ],
)
def test_bad_parameters_are_refused(kind, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(kind(), **change)


@pytest.mark.parametrize("timing", [HbmTiming(), DdrTiming(), MemoryTiming()])
def test_bad_ports_are_refused(timing):
    with pytest.raises(ValueError, match="port_bytes must be 32 or 64, got 16"):
        timing.memory_config(225, 16)
    with pytest.raises(ValueError, match="port_mhz must be 1 to 1000, got 0"):
        timing.memory_config(0, 64)
