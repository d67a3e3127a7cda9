"""One simulated board from opening to closing: xclbin, device, overlay and kernel in one `with`."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

from host.driver.gpt2_kernel import Gpt2Kernel
from host.driver.pynq_import import pynq
from host.driver.sim_device import SimU280Device
from host.driver.xclbin import cached_xclbin
from hw.board.board_model import BoardModel
from hw.gpt2.config import CoreConfig

__all__ = ["open_kernel"]


@contextlib.contextmanager
def open_kernel(
    board: BoardModel,
    core: CoreConfig,
    *,
    xclbin: pathlib.Path | None = None,
    poll_cycles: int = 4096,
    tag: str = "sim-u280",
    card: str | None = None,
) -> Iterator[Gpt2Kernel]:
    """The kernel of a core on a simulated board, ready to load a program.

    ``xclbin`` defaults to the cached file of the core, which is written if it is not there; ``tag`` and ``card`` are
    those of SimU280Device. At the end, whatever happened, a run under way is cancelled and the board is closed. Raises
    BadXclbin, VersionMismatch, DeviceBusy (the card is in use).
    """
    with contextlib.ExitStack() as stack:
        stack.callback(board.close)
        device = SimU280Device(board, poll_cycles=poll_cycles, tag=tag, card=card)
        stack.callback(device.close)
        overlay = pynq.Overlay(str(xclbin or cached_xclbin(core)), device=device)
        with overlay.gpt2_0 as kernel:
            yield kernel
