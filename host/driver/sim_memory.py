"""HBM banks of a simulated board and the buffers in them, as PYNQ sees them.

A buffer has a host array and device memory (the board model's); `flush` and `invalidate` copy between the two, as on a
card. Programs lie at the start of each bank, other buffers are given out from its end.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

from host.driver.pynq_import import pynq
from host.driver.u280_platform import bank_base, bank_tag
from host.errors import BadInput, BadPointer, BankFull

__all__ = ["Allocation", "HbmBank", "SimBuffer"]

ALIGNMENT_BYTES = 4096


class Allocation:
    """A span of one bank, which PYNQ calls ``bo``: ``offset`` and ``nbytes`` in bytes, ``host`` the host's memory."""

    def __init__(self, bank: HbmBank, offset: int, nbytes: int) -> None:
        self.bank = bank
        self.offset = offset
        self.nbytes = nbytes
        # Pages are claimed when first touched; np.empty would claim one of 2 MiB at once.
        self.host = np.frombuffer(mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
        self.live = True

    @property
    def address(self) -> int:
        """Physical byte address."""
        return bank_base(self.bank.idx) + self.offset

    @property
    def end(self) -> int:
        """First byte behind it, in the bank."""
        return self.offset + self.nbytes

    def free(self) -> None:
        """Give the span back; calling it again does nothing."""
        if self.live:
            self.live = False
            self.bank.allocations.remove(self)

    def __str__(self) -> str:
        return f"{self.nbytes} bytes at {self.address:#x} in {self.bank.tag}"


class SimBuffer(pynq.buffer.PynqBuffer):
    """Buffer in a simulated bank.

    Views keep the device address of what they show; results of arithmetic and copies have none (``device_address`` is
    None), and flushing one is an error instead of a wrong address.
    """

    bo: Allocation | None = None
    device: Any = None
    offset = 0
    device_address: int | None
    owns_allocation = False

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        if self.device_address is None or self.bo is None:
            return
        low, high = np.byte_bounds(self)
        start = self.bo.host.ctypes.data
        if not (start <= low and high <= start + max(self.bo.nbytes, 1)):
            self.device_address = None
            self.coherent = None
            self.bo = None
            self.offset = 0

    def flush(self) -> None:
        """Copy the host array to device memory (a strided view: the whole span that it covers)."""
        allocation, offset, nbytes = self._span()
        self.device.flush(allocation, offset, self.virtual_address, nbytes)

    def invalidate(self) -> None:
        """Copy device memory to the host array (a strided view: the whole span that it covers)."""
        allocation, offset, nbytes = self._span()
        self.device.invalidate(allocation, offset, self.virtual_address, nbytes)

    def freebuffer(self) -> None:
        """Give the device memory back. Views free nothing."""
        if self.owns_allocation and self.bo is not None:
            self.bo.free()

    def _span(self) -> tuple[Allocation, int, int]:
        if self.bo is None:
            raise BadPointer(
                "this array is a result or copy on the host, not a buffer of the board",
                hint="Copy it into a buffer made by allocate(): buffer[:] = array.",
            )
        low, high = np.byte_bounds(self)
        return self.bo, low - self.bo.host.ctypes.data, high - low if self.size else 0


class HbmBank:
    """One memory bank: what ``ol.HBM0`` is.

    Parameters
    ----------
    device : SimU280Device
        The board that the bank belongs to.
    desc : dict
        PYNQ's description: ``idx``, ``size`` (bytes), ``base_address``, ``tag``.
    """

    def __init__(self, device: Any, desc: dict[str, Any]) -> None:
        self.device = device
        self.desc = desc
        self.idx: int = desc["idx"]
        self.size: int = desc["size"]
        self.base_address: int = desc["base_address"]
        self.tag: str = desc["tag"]
        self.allocations: list[Allocation] = []

    def __repr__(self) -> str:
        return f"<{self.tag}: {self.num_buffers} buffers, {self.mem_used} of {self.size} bytes>"

    @property
    def mem_used(self) -> int:
        """Bytes in live buffers."""
        return sum(allocation.nbytes for allocation in self.allocations)

    @property
    def num_buffers(self) -> int:
        """Live buffers, the program's included."""
        return len(self.allocations)

    def allocate(self, shape: int | tuple[int, ...], dtype: Any = "u4", cacheable: int = 0) -> SimBuffer:
        """A buffer in this bank (``pynq.allocate(shape, dtype, target=bank)``), uninitialised on both sides.

        ``cacheable`` is taken for compatibility and changes nothing. Raises BankFull, BadInput for an impossible shape.
        """
        del cacheable
        try:
            kind = np.dtype(dtype)
            sizes = (int(shape),) if np.ndim(shape) == 0 else tuple(int(size) for size in shape)  # type: ignore
        except (TypeError, ValueError) as error:
            raise BadInput(f"cannot allocate shape {shape!r} of {dtype!r}: {error}", value=repr(shape)) from None
        if min(sizes, default=1) < 0:
            raise BadInput(f"cannot allocate negative shape {sizes}", value=sizes)
        nbytes = math.prod(sizes) * kind.itemsize
        return self.buffer(Allocation(self, self._place(nbytes), nbytes), sizes, kind)

    def allocate_program(self, nbytes: int) -> SimBuffer:
        """The program's buffer, at the start of the bank. Raises BankFull, which names what lies there."""
        if nbytes > self.size:
            raise self._full(nbytes, "Use a core with more channels, a smaller model or a shorter context.")
        for allocation in self.allocations:
            if allocation.offset < nbytes:
                raise BankFull(
                    f"the program needs the first {nbytes} bytes of {self.tag}, where a buffer lies ({allocation})",
                    value=nbytes,
                    expected=allocation.offset,
                    hint="Free that buffer, or load the program first.",
                )
        return self.buffer(Allocation(self, 0, nbytes), (nbytes,), np.dtype("u1"))

    def buffer(self, allocation: Allocation, shape: tuple[int, ...], dtype: np.dtype[Any]) -> SimBuffer:
        """Enter an allocation and wrap its host memory."""
        self.allocations.append(allocation)
        self.allocations.sort(key=lambda item: item.offset)
        buffer = SimBuffer(
            shape,
            dtype,
            buffer=allocation.host,
            device=self.device,
            bo=allocation,
            device_address=allocation.address,
            coherent=False,
        )
        buffer.owns_allocation = True
        return buffer

    def find(self, offset: int) -> Allocation | None:
        """The live allocation that holds a byte of the bank."""
        for allocation in self.allocations:
            if allocation.offset <= offset < allocation.end:
                return allocation
        return None

    def _place(self, nbytes: int) -> int:
        """Offset of the highest gap that takes ``nbytes``."""
        size = -(-max(nbytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        top = self.size
        for allocation in reversed(self.allocations):
            if top - -(-allocation.end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES >= size:
                break
            top = allocation.offset
        if top < size:
            raise self._full(nbytes, "Free buffers, or use another bank.")
        return top - size

    def _full(self, nbytes: int, hint: str) -> BankFull:
        return BankFull(
            f"{self.tag} has no room for {nbytes} bytes: {self.size} in all, {self.mem_used} in use",
            value=nbytes,
            expected=self.size - self.mem_used,
            hint=hint,
        )


def bank_names(banks: list[dict[str, Any]]) -> str:
    """Names for messages, as attributes of an overlay."""
    names = [bank_tag(bank["idx"]).replace("[", "").replace("]", "") for bank in banks]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
