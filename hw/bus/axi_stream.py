"""AXI4-Stream signature, seen from the sender."""

from __future__ import annotations

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["AxiStreamSignature"]


class AxiStreamSignature(wiring.Signature):
    """Framed AXI4-Stream; ``Out`` on a sender, ``In`` on a receiver.

    Parameters
    ----------
    bits : int
        Bits of ``tdata``: a power of two, 8 to 1024.
    ready : bool
        Whether the receiver can hold the sender. An Aurora core's receive side cannot.

    Members
    -------
    ``tvalid``, ``tready`` (only if ``ready``), ``tdata``, ``tkeep`` (bit per byte), ``tlast``.

    Raises TypeError or ValueError for other parameters.
    """

    def __init__(self, bits: int, *, ready: bool):
        if not isinstance(bits, int) or isinstance(bits, bool) or not isinstance(ready, bool):
            raise TypeError(f"bits must be an int and ready a bool, got {bits!r} and {ready!r}")
        if not 8 <= bits <= 1024 or bits & (bits - 1):
            raise ValueError(f"bits must be a power of two, 8 to 1024, got {bits!r}")
        self.bits = bits
        self.ready = ready
        members = {"tvalid": Out(1), "tdata": Out(bits), "tkeep": Out(bits // 8), "tlast": Out(1)}
        if ready:
            members["tready"] = In(1)
        super().__init__(members)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AxiStreamSignature) and self.members == other.members

    def __repr__(self) -> str:
        return f"AxiStreamSignature({self.bits}, ready={self.ready})"
