"""Writes real xclbin containers in pure Python: what PYNQ (or XRT) reads to know a kernel, its registers and its banks.

Sections: embedded XML, IP layout, connectivity, memory topology, clock topology, and user metadata (JSON) with our
interface version and the whole core configuration. There is no bitstream section: the mode is hardware emulation, so
no real card takes such a file. The same configuration always gives the same bytes; the UUID is derived from them.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from host.driver.kernel_xml import kernel_arguments, kernel_xml
from host.driver.u280_platform import (
    HBM_BANKS,
    KERNEL_BASE,
    KERNEL_INSTANCE,
    KERNEL_NAME,
    PLATFORM_VBNV,
    bank_base,
    bank_tag,
)
from host.driver.xclbin_info import MAGIC, METADATA_FORMAT, content_uuid
from host.errors import BadInput
from hw.board.board_model import BANK_BYTES
from hw.board.gpt2_map import INTERFACE_VERSION, gpt2_register_map
from hw.gpt2.config import CoreConfig
from sim.rtl.build_cache import cache_root

__all__ = ["cached_xclbin", "write_xclbin"]

_ALIGNMENT = 8  # sections start on 8 bytes, as xclbinutil places them


def write_xclbin(config: CoreConfig, path: pathlib.Path, *, interface_version: int = INTERFACE_VERSION) -> pathlib.Path:
    """Write the xclbin of a core to ``path`` (whole or not at all) and return ``path``.

    ``interface_version`` is major << 16 | minor and differs from ours only in tests. Raises BadInput if the core has
    more ports than the board has banks or if the file cannot be written.
    """
    if config.channels > HBM_BANKS:
        raise BadInput(
            f"core {config.name} has {config.channels} memory ports, the U280 has {HBM_BANKS} HBM banks",
            value=config.channels,
            expected=f"at most {HBM_BANKS}",
            hint="Choose a core with fewer channels.",
        )
    data = _container(_sections(config, interface_version))
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise BadInput(
            f"cannot write xclbin {path}: {error.strerror}",
            value=str(path),
            hint="Choose a folder that can be written (environment variable RINGFLY_CACHE).",
        ) from None
    return path


def cached_xclbin(config: CoreConfig, folder: pathlib.Path | None = None) -> pathlib.Path:
    """Path of the core's xclbin in the cache folder (default ``$RINGFLY_CACHE/xclbin``); written if it is not there."""
    folder = cache_root() / "xclbin" if folder is None else folder
    path = folder / f"gpt2_{config.name}_{config.digest[:12]}_{INTERFACE_VERSION:08x}.xclbin"
    return path if path.is_file() else write_xclbin(config, path)


def _sections(config: CoreConfig, interface_version: int) -> list[tuple[int, str, bytes]]:
    """(kind, name, content) of every section."""
    from host.driver.pynq_import import xclbin_structures as axlf

    registers = gpt2_register_map(config)
    kernel = axlf.ip_data(
        m_type=axlf.IP_TYPE.IP_KERNEL,
        m_base_address=KERNEL_BASE,
        m_name=_text(f"{KERNEL_NAME}:{KERNEL_INSTANCE}", 64),
    )
    connections = [
        axlf.connection(arg_index=argument.index, m_ip_layout_index=0, mem_data_index=argument.bank)
        for argument in kernel_arguments(registers, config.channels)
        if argument.bank is not None
    ]
    banks = []
    for bank in range(HBM_BANKS):
        entry = axlf.mem_data(
            m_type=axlf.MEM_TYPE.MEM_HBM, m_used=int(bank < config.channels), m_tag=bank_tag(bank).encode()
        )
        entry.m_size = BANK_BYTES // 1024
        entry.m_base_address = bank_base(bank)
        banks.append(entry)
    clocks = [
        axlf.clock_freq(m_freq_Mhz=config.core_clock_mhz, m_type=axlf.CLOCK_TYPE.CT_DATA, m_name=b"DATA_CLK"),
        axlf.clock_freq(m_freq_Mhz=config.port_clock_mhz, m_type=axlf.CLOCK_TYPE.CT_KERNEL, m_name=b"KERNEL_CLK"),
    ]
    metadata = {
        "format": METADATA_FORMAT,
        "kernel": KERNEL_NAME,
        "interface_version": interface_version,
        "core_digest": config.digest,
        "core": json.loads(config.to_json()),
    }
    kind = axlf.AXLF_SECTION_KIND
    return [
        (kind.EMBEDDED_METADATA, "EMBEDDED_META", kernel_xml(registers, config).encode()),
        (kind.IP_LAYOUT, "IP_LAYOUT", _table(axlf.ip_layout, "m_ip_data", [kernel])),
        (kind.CONNECTIVITY, "CONNECTIVITY", _table(axlf.connectivity, "m_connection", connections)),
        (kind.MEM_TOPOLOGY, "MEM_TOPOLOGY", _table(axlf.mem_topology, "m_mem_data", banks)),
        (kind.CLOCK_FREQ_TOPOLOGY, "CLOCK_FREQ", _table(axlf.clock_freq_topology, "m_clock_freq", clocks)),
        (kind.USER_METADATA, "USER_METADATA", json.dumps(metadata, sort_keys=True, indent=1).encode()),
    ]


def _container(sections: Sequence[tuple[int, str, bytes]]) -> bytes:
    """File content: magic, header, section headers, sections; the UUID is filled in last."""
    from host.driver.pynq_import import xclbin_structures as axlf

    headers_at = axlf.axlf.m_sections.offset
    position = headers_at + len(sections) * ctypes.sizeof(axlf.axlf_section_header)
    headers, body = b"", b""
    for kind, name, content in sections:
        padding = -position % _ALIGNMENT
        body += bytes(padding) + content
        position += padding
        headers += bytes(
            axlf.axlf_section_header(
                m_sectionKind=kind, m_sectionName=name.encode(), m_sectionOffset=position, m_sectionSize=len(content)
            )
        )
        position += len(content)
    top = axlf.axlf(m_magic=MAGIC)
    # Not signed: signature length -1 and filler, as xclbinutil writes them.
    ctypes.memset(ctypes.addressof(top) + axlf.axlf.m_cipher.offset, 0xFF, 32 + 256)
    top.m_header.m_length = position
    top.m_header.m_versionMajor = 2
    top.m_header.m_mode = axlf.XCLBIN_MODE.XCLBIN_HW_EMU
    top.m_header.m_platformVBNV = _text(PLATFORM_VBNV, 64)
    top.m_header.m_numSections = len(sections)
    data = bytes(top)[:headers_at] + headers + body
    uuid_at = axlf.axlf.m_header.offset + axlf.axlf_header.u2.offset
    return data[:uuid_at] + content_uuid(data) + data[uuid_at + 16 :]


def _table(structure: Any, field: str, entries: Sequence[ctypes.Structure]) -> bytes:
    """A counted table: the structure declares one entry, the file holds all."""
    start = getattr(structure, field).offset
    head = bytes(structure(m_count=len(entries)))[:start]
    return head + b"".join(bytes(entry) for entry in entries)


def _text(text: str, size: int) -> Any:
    """Zero-filled byte array of a C string."""
    return (ctypes.c_uint8 * size)(*text.encode())
