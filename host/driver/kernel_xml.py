"""The kernel's description as xclbin XML: registers by name, memory ports, base address."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

from host.driver.u280_platform import KERNEL_BASE, KERNEL_INSTANCE, KERNEL_NAME, KERNEL_VLNV, PLATFORM_VBNV
from hw.bus.registers import RegisterMap
from hw.gpt2.config import CoreConfig

__all__ = ["Argument", "kernel_arguments", "kernel_xml"]

_SCALAR, _POINTER = 0, 1  # addressQualifier
_C_TYPES = {32: "unsigned int", 64: "unsigned long long"}


@dataclasses.dataclass(frozen=True)
class Argument:
    """One kernel argument: ``bank`` is the HBM bank that a pointer argument is bound to, None for scalars."""

    name: str
    index: int
    offset: int
    bits: int
    bank: int | None
    doc: str


def kernel_arguments(registers: RegisterMap, channels: int) -> list[Argument]:
    """The map's registers as kernel arguments, in order of offset.

    ``ctrl`` is left out: readers of the format add it themselves as ``CTRL``. PYNQ's register map has no register above
    64 bits, so a wider one becomes parts of 64 bits and a rest, lowest first, named ``NAME_0``, ``NAME_1``.
    """
    arguments: list[Argument] = []
    ports = {f"hbm{channel}": channel for channel in range(channels)}
    for register in sorted(registers, key=lambda item: item.offset):
        if register.name == "ctrl":
            continue
        starts = range(0, register.bits, 64)
        for part, start in enumerate(starts):
            name = register.name if len(starts) == 1 else f"{register.name}_{part}"
            bits = min(64, register.bits - start)
            bank = ports.get(register.name)
            arguments.append(Argument(name, len(arguments), register.offset + start // 8, bits, bank, register.doc))
    return arguments


def kernel_xml(registers: RegisterMap, config: CoreConfig) -> str:
    """Text of the EMBEDDED_METADATA section."""
    project = ElementTree.Element("project", name="ringfly")
    vendor, board = PLATFORM_VBNV.split("_")[:2]
    platform = ElementTree.SubElement(
        project, "platform", vendor=vendor, boardid=board, name=PLATFORM_VBNV, featureRomTime="0"
    )
    device = ElementTree.SubElement(platform, "device", name="fpga0", fpgaDevice="virtexuplus:xcu280:fsvh2892:-2L:e")
    core = ElementTree.SubElement(device, "core", name="OCL_REGION_0", target="hw_em", type="clc_region")
    kernel = ElementTree.SubElement(
        core,
        "kernel",
        name=KERNEL_NAME,
        language="ip_c",
        vlnv=KERNEL_VLNV,
        hwControlProtocol="ap_ctrl_hs",
        attributes=f"core {config.name}",
    )
    ElementTree.SubElement(
        kernel, "port", name="s_axi_control", mode="slave", range=hex(registers.size), dataWidth="32", base="0x0"
    )
    for channel in range(config.channels):
        ElementTree.SubElement(
            kernel,
            "port",
            name=f"m_axi_hbm{channel}",
            mode="master",
            range="0xFFFFFFFFFFFFFFFF",
            dataWidth=str(config.port_bits),
            base="0x0",
        )
    for argument in kernel_arguments(registers, config.channels):
        pointer = argument.bank is not None
        size = hex(argument.bits // 8)
        ElementTree.SubElement(
            kernel,
            "arg",
            name=argument.name,
            addressQualifier=str(_POINTER if pointer else _SCALAR),
            id=str(argument.index),
            port=f"m_axi_hbm{argument.bank}" if pointer else "s_axi_control",
            size=size,
            offset=hex(argument.offset),
            hostOffset="0x0",
            hostSize=size,
            type="void*" if pointer else _C_TYPES[argument.bits],
        )
    instance = ElementTree.SubElement(kernel, "instance", name=KERNEL_INSTANCE)
    ElementTree.SubElement(instance, "addrRemap", base=hex(KERNEL_BASE), port="s_axi_control")
    ElementTree.indent(project)
    return ElementTree.tostring(project, encoding="unicode", xml_declaration=True) + "\n"
