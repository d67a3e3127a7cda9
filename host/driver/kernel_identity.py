"""Is the kernel that answers the one that the xclbin, and this Ringfly, expect?"""

from __future__ import annotations

from collections.abc import Callable

from host.driver.xclbin_info import XclbinInfo, version_text
from host.errors import VersionMismatch
from hw.board.gpt2_map import IDENTITY, INTERFACE_VERSION

__all__ = ["check_kernel"]


def check_kernel(info: XclbinInfo, read: Callable[[str], int]) -> None:
    """Compare identity, interface version (major) and core digest of the kernel with those of its xclbin.

    ``read`` gives a register's value by name. Raises VersionMismatch, which names both sides.
    """
    identity = read("identity")
    if identity != IDENTITY:
        raise VersionMismatch(
            f"the kernel identifies itself as {identity:#010x}, a Ringfly kernel as {IDENTITY:#010x}",
            value=f"{identity:#010x}",
            expected=f"{IDENTITY:#010x}",
            hint="The board does not hold the xclbin's kernel; load the xclbin again.",
        )
    version = read("interface_version")
    if version >> 16 != INTERFACE_VERSION >> 16:
        raise VersionMismatch(
            f"the kernel has interface version {version_text(version)}, "
            f"this Ringfly drives {version_text(INTERFACE_VERSION)}",
            value=version_text(version),
            expected=version_text(INTERFACE_VERSION),
            hint="Use gateware and host of the same Ringfly.",
        )
    digest = read("config_digest")
    if digest != info.config_word:
        raise VersionMismatch(
            f"the kernel is another core than xclbin {info.path} describes: config digest {digest:016x}, "
            f"the xclbin's core {info.core.name} has {info.config_word:016x}",
            value=f"{digest:016x}",
            expected=f"{info.config_word:016x}",
            hint="Use the xclbin that was written for this core.",
        )
