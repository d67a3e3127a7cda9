"""The few facts of the Alveo U280 platform that addresses and metadata depend on."""

from __future__ import annotations

from hw.board.board_model import BANK_BYTES

__all__ = [
    "HBM_BANKS",
    "KERNEL_BASE",
    "KERNEL_INSTANCE",
    "KERNEL_NAME",
    "KERNEL_VLNV",
    "PLATFORM_VBNV",
    "bank_base",
    "bank_tag",
]

PLATFORM_VBNV = "xilinx_u280_gen3x16_xdma_1_202211_1"  # vendor, board, name and version of the shell
HBM_BANKS = 32  # pseudo-channels
KERNEL_BASE = 0x0080_0000  # where the shell maps the first kernel's AXI-Lite registers

KERNEL_NAME = "gpt2"
KERNEL_INSTANCE = "gpt2_0"
KERNEL_VLNV = "ringfly:kernel:gpt2:1.0"


def bank_base(bank: int) -> int:
    """Physical byte address of an HBM bank."""
    return bank * BANK_BYTES


def bank_tag(bank: int) -> str:
    """Name of an HBM bank in an xclbin's memory topology; PYNQ strips the brackets (``ol.HBM0``)."""
    return f"HBM[{bank}]"
