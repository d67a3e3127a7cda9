"""AXI4 and AXI4-Lite signatures, seen from the master."""

from __future__ import annotations

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["BURST_INCR", "RESP_OKAY", "Axi4Signature", "AxiLiteSignature"]

BURST_INCR = 1  # AxBURST: addresses of a burst count up
RESP_OKAY = 0  # xRESP: anything else is an error for us (we make no exclusive accesses)


def _need_width(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} to {high} bits, got {value!r}")
    return value


class Axi4Signature(wiring.Signature):
    """All five AXI4 channels of a memory-mapped master; ``Out`` on a master, ``In`` on a slave.

    Parameters
    ----------
    addr_width : int
        Byte address bits, 12 to 64.
    data_width : int
        Bits of one beat: a power of two, 32 to 1024.
    id_width : int
        Bits of the transaction IDs, 1 to 16.

    Members
    -------
    AW ``awaddr awlen(8) awsize(3) awburst(2) awid awvalid awready``; W ``wdata wstrb wlast wvalid wready``;
    B ``bid bresp(2) bvalid bready``; AR ``araddr arlen arsize arburst arid arvalid arready``;
    R ``rid rdata rresp rlast rvalid rready``. Cache, protection, lock, QoS and region are left to their defaults.

    Raises TypeError or ValueError for widths outside these ranges.
    """

    def __init__(self, addr_width: int, data_width: int, id_width: int = 1):
        self.addr_width = _need_width("addr_width", addr_width, 12, 64)
        self.data_width = _need_width("data_width", data_width, 32, 1024)
        self.id_width = _need_width("id_width", id_width, 1, 16)
        if data_width & (data_width - 1):
            raise ValueError(f"data_width must be a power of two, got {data_width!r}")
        super().__init__(
            {
                "awaddr": Out(addr_width),
                "awlen": Out(8),
                "awsize": Out(3),
                "awburst": Out(2),
                "awid": Out(id_width),
                "awvalid": Out(1),
                "awready": In(1),
                "wdata": Out(data_width),
                "wstrb": Out(data_width // 8),
                "wlast": Out(1),
                "wvalid": Out(1),
                "wready": In(1),
                "bid": In(id_width),
                "bresp": In(2),
                "bvalid": In(1),
                "bready": Out(1),
                "araddr": Out(addr_width),
                "arlen": Out(8),
                "arsize": Out(3),
                "arburst": Out(2),
                "arid": Out(id_width),
                "arvalid": Out(1),
                "arready": In(1),
                "rid": In(id_width),
                "rdata": In(data_width),
                "rresp": In(2),
                "rlast": In(1),
                "rvalid": In(1),
                "rready": Out(1),
            }
        )

    @property
    def beat_bytes(self) -> int:
        """Bytes of one full beat."""
        return self.data_width // 8

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axi4Signature) and self.members == other.members

    def __repr__(self) -> str:
        return f"Axi4Signature({self.addr_width}, {self.data_width}, {self.id_width})"


class AxiLiteSignature(wiring.Signature):
    """AXI4-Lite with 32-bit data, for registers; ``Out`` on a master, ``In`` on a slave.

    Parameters
    ----------
    addr_width : int
        Byte address bits, 2 to 64.

    Members
    -------
    AW ``awaddr awvalid awready``; W ``wdata(32) wstrb(4) wvalid wready``; B ``bresp(2) bvalid bready``;
    AR ``araddr arvalid arready``; R ``rdata(32) rresp(2) rvalid rready``. Protection bits are not used.

    Raises TypeError or ValueError for a width outside this range.
    """

    def __init__(self, addr_width: int):
        self.addr_width = _need_width("addr_width", addr_width, 2, 64)
        super().__init__(
            {
                "awaddr": Out(addr_width),
                "awvalid": Out(1),
                "awready": In(1),
                "wdata": Out(32),
                "wstrb": Out(4),
                "wvalid": Out(1),
                "wready": In(1),
                "bresp": In(2),
                "bvalid": In(1),
                "bready": Out(1),
                "araddr": Out(addr_width),
                "arvalid": Out(1),
                "arready": In(1),
                "rdata": In(32),
                "rresp": In(2),
                "rvalid": In(1),
                "rready": Out(1),
            }
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AxiLiteSignature) and self.members == other.members

    def __repr__(self) -> str:
        return f"AxiLiteSignature({self.addr_width})"
