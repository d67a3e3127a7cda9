"""xclbin files: what the stock parser reads, and what our reader refuses."""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib
import re

import pytest

from host.driver import xclbin_info
from host.driver.pynq_import import pynq, xclbin_parser, xclbin_structures
from host.driver.u280_platform import HBM_BANKS, KERNEL_BASE, KERNEL_VLNV, PLATFORM_VBNV
from host.driver.xclbin import cached_xclbin, write_xclbin
from host.driver.xclbin_info import read_xclbin, version_text
from host.errors import BadInput, BadXclbin, VersionMismatch
from hw.board.board_model import BANK_BYTES
from hw.board.gpt2_map import INTERFACE_VERSION, gpt2_register_map
from hw.gpt2.config import CORE_CONFIGS, FORMAT_VERSION

OURS = version_text(INTERFACE_VERSION)
CORE = CORE_CONFIGS["16x4"]


@pytest.mark.parametrize("core", CORE_CONFIGS.values(), ids=CORE_CONFIGS)
def test_stock_parser_reads_kernel_registers_and_banks(core, tmp_path):
    parsed = xclbin_parser.XclBin(str(write_xclbin(core, tmp_path / "a.xclbin")))
    ip = parsed.ip_dict["gpt2_0"]
    size = 0x10000 if core.rows == 1 else 0x20000
    assert (ip["type"], ip["phys_addr"], ip["addr_range"]) == (KERNEL_VLNV, KERNEL_BASE, size)
    assert (ip["cu_name"], ip["index"], ip["hw_control_protocol"]) == ("gpt2:gpt2_0", 0, "ap_ctrl_hs")
    wanted = {}
    for register in gpt2_register_map(core):
        if register.bits <= 64:
            wanted[register.name] = (register.offset, register.bits)
    wanted["eps_term_0"], wanted["eps_term_1"] = (0x130, 64), (0x138, 32)
    del wanted["ctrl"]  # the parser's own CTRL
    found = {name: (entry["address_offset"], entry["size"]) for name, entry in ip["registers"].items()}
    assert found.pop("CTRL") == (0, 4)
    assert found == wanted
    ports = {name: entry["memory"] for name, entry in ip["registers"].items() if "memory" in entry}
    assert ports == {f"hbm{channel}": f"HBM[{channel}]" for channel in range(core.channels)}
    banks = list(parsed.mem_dict.values())
    assert [bank["tag"] for bank in banks] == [f"HBM[{bank}]" for bank in range(HBM_BANKS)]
    assert [bank["base_address"] for bank in banks] == [bank * BANK_BYTES for bank in range(HBM_BANKS)]
    assert {bank["size"] for bank in banks} == {BANK_BYTES}
    assert [bank["used"] for bank in banks] == [int(bank < core.channels) for bank in range(HBM_BANKS)]
    assert parsed.clock_dict["clock0"] == {"name": "DATA_CLK", "frequency": 200, "type": "DATA"}
    assert parsed.clock_dict["clock1"]["frequency"] == core.port_clock_mhz


def test_our_reader_reads_it_back(tmp_path):
    path = write_xclbin(CORE, tmp_path / "a.xclbin")
    info = read_xclbin(path)
    assert (info.core, info.interface_version, info.platform) == (CORE, INTERFACE_VERSION, PLATFORM_VBNV)
    assert info.uuid == xclbin_parser.XclBin(str(path)).ip_dict["gpt2_0"]["xclbin_uuid"]
    assert info.config_word == int(CORE.digest[:16], 16)


def test_fixed_offsets_are_those_of_the_format():
    header, axlf = xclbin_structures.axlf_header, xclbin_structures.axlf
    start = axlf.m_header.offset
    assert start + header.m_length.offset == xclbin_info._LENGTH_AT
    assert start + header.m_platformVBNV.offset == xclbin_info._PLATFORM_AT
    assert start + header.u2.offset == xclbin_info._UUID_AT
    assert start + header.m_numSections.offset == xclbin_info._SECTIONS_AT
    assert axlf.m_sections.offset == xclbin_info._HEADERS_AT
    assert xclbin_info._SECTION_HEADER.size == ctypes.sizeof(xclbin_structures.axlf_section_header)
    assert ctypes.sizeof(axlf) == 496  # as in Xilinx' xclbin.h


def test_same_core_same_bytes_other_core_other_uuid(tmp_path):
    one = write_xclbin(CORE, tmp_path / "1.xclbin")
    two = write_xclbin(CORE, tmp_path / "2.xclbin")
    assert one.read_bytes() == two.read_bytes()
    other = write_xclbin(dataclasses.replace(CORE, fifo_words=256), tmp_path / "3.xclbin")
    assert read_xclbin(other).uuid != read_xclbin(one).uuid
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "1.xclbin",
        "2.xclbin",
        "3.xclbin",
    ]  # nothing half written


@pytest.mark.parametrize("place", [40, 460, 1000, -1])
def test_one_flipped_bit_is_refused(place, tmp_path):
    path = write_xclbin(CORE, tmp_path / "a.xclbin")
    read_xclbin(path)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadXclbin, match="damaged") as caught:
        read_xclbin(path)
    assert caught.value.exit_code == 2


def test_cut_off_foreign_missing_and_empty_files(tmp_path):
    path = write_xclbin(CORE, tmp_path / "a.xclbin")
    whole = path.read_bytes()
    for length in (0, 7, 100, 456, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(BadXclbin, match=r"is cut off|is no xclbin"):
            read_xclbin(path)
    path.write_text("not an xclbin, but long enough " * 40)
    with pytest.raises(BadXclbin, match="is no xclbin"):
        read_xclbin(path)
    with pytest.raises(BadXclbin, match="No such file"):
        read_xclbin(tmp_path / "none.xclbin")
    vendors = pathlib.Path(pynq.__file__).parent / "pl_server" / "default.xclbin"
    with pytest.raises(BadXclbin, match="not written by Ringfly"):
        read_xclbin(vendors)


def test_other_versions_name_both_sides(tmp_path):
    same_major = write_xclbin(CORE, tmp_path / "minor.xclbin", interface_version=INTERFACE_VERSION + 5)
    assert read_xclbin(same_major).interface_version == INTERFACE_VERSION + 5
    path = write_xclbin(CORE, tmp_path / "major.xclbin", interface_version=0x0009_0001)
    with pytest.raises(VersionMismatch, match=rf"version 9\.1, this Ringfly drives {re.escape(OURS)}"):
        read_xclbin(path)


def test_unknown_core_format_is_a_version_mismatch(tmp_path, monkeypatch):
    path = write_xclbin(CORE, tmp_path / "a.xclbin")
    monkeypatch.setattr("hw.gpt2.config.FORMAT_VERSION", FORMAT_VERSION + 1)
    with pytest.raises(
        VersionMismatch, match=f"core config format version {FORMAT_VERSION}, this Ringfly reads {FORMAT_VERSION + 1}"
    ):
        read_xclbin(path)


def test_paths_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(BadInput, match="cannot write xclbin") as caught:
        write_xclbin(CORE, blocked / "a.xclbin")
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == [blocked]


def test_cache_writes_once_per_core(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGFLY_CACHE", str(tmp_path))
    path = cached_xclbin(CORE)
    assert path.parent == tmp_path / "xclbin"
    stamp = path.stat().st_mtime_ns
    assert cached_xclbin(CORE) == path
    assert path.stat().st_mtime_ns == stamp
    assert cached_xclbin(dataclasses.replace(CORE, fifo_words=256)) != path
