"""The HBM2 of an Alveo U280: one pseudo-channel behind one AXI port of the kernel."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from sim.devices.dram_timing import AddressMap, DramTiming
from sim.devices.memory_config import MemoryConfig, MemoryKind

__all__ = ["ADDRESS_MAPS", "DEFAULT_MAP", "PSEUDO_CHANNEL_BYTES", "HbmTiming", "distance_cycles"]

PSEUDO_CHANNEL_BYTES = 256 << 20
DEFAULT_MAP = "RGBCG"
# The default's principle is S1's, the order of its bits and the other maps are S2's and S3's.
ADDRESS_MAPS = {
    name: AddressMap(order, row_bits=14, column_bits=5)
    for name, order in {
        "RGBCG": "row BG1 BA1 BA0 col BG0",
        "RBC": "row BG1 BG0 BA1 BA0 col",
        "RCB": "row col BG1 BG0 BA1 BA0",
        "BRC": "BG1 BG0 BA1 BA0 row col",
        "BRGCG": "BA1 BA0 row BG1 col BG0",
    }.items()
}


def distance_cycles(port: int, channel: int) -> int:
    """AXI cycles that a read from an HBM port to a channel outside its group of four takes longer, there and back.

    From port 0: 0, 1, 3, 5, 16, 18, 20, 22 for the eight groups. The ends are S2's, the values between from memory.
    """
    groups = abs(port // 4 - channel // 4)
    return max(0, 2 * groups - 1) + 9 * (port // 16 != channel // 16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HbmTiming(DramTiming):
    """Timing of an HBM2 pseudo-channel. Most parameters are those of :class:`sim.devices.dram_timing.DramTiming`.

    Basis of the defaults (S1 ... are the sources of ``shared/reference/u280.md``, D is derived there):

    * S1: clocks, outstanding transactions, ``queue_commands``, ``reorder_commands``, ``age_limit``, refresh (1950 ns
      when hot). S1 counts AXI commands in the reorder queue and in the age limit.
    * S2: ``read_hit_cycles`` 48, ``switch_cycles`` 7 (own group of four ports; Vitis always has the switch on, so it is
      the default; 0 bypasses it). A closed row costs 7, a missed one 14 AXI cycles more, which tRCD, tRP and
      ``command_grid`` give.
    * D, fits S2: ``ccd_short`` and ``ccd_long``. D from S5: ``read_to_write``, ``write_to_read_*``, ``write_done``.
    * S5: the times in ns but tFAW: S5 has 30 there, but S4's 4.75 GB/s of random 64-byte reads need 25 or less; 16
      (from memory).
    * D from S4: ``same_id_cycles``, with the ten figures of random reads over 2 and 4 channels.
    * From memory: ``write_response_cycles`` (40 to 50), ``converter_cycles`` (20 to 40 both ways).
    * Assumed: ``command_cycles``; no published figure depends on it.

    Parameters
    ----------
    address_map : str
        A name of :data:`ADDRESS_MAPS`; any but the default puts the reorder queue out of use (S1).
    same_id_cycles : int
        AXI cycles from the return of all data of an AXI ID to the release of its next address for another channel. Has
        no part where a port reads one channel, as the kernel's do.
    """

    KIND: ClassVar[int] = MemoryKind.HBM
    COLUMN_BYTES: ClassVar[int] = 32

    address_map: str = DEFAULT_MAP
    same_id_cycles: int = 3
    memory_mhz: int = 900
    axi_mhz: int = 450
    reads_outstanding: int = 64
    writes_outstanding: int = 32
    queue_commands: int = 12
    reorder_commands: int = 64
    age_limit: int = 128
    read_hit_cycles: int = 48
    command_cycles: int = 20
    write_response_cycles: int = 45
    switch_cycles: int = 7
    converter_cycles: int = 15
    ccd_short: int = 2
    ccd_long: int = 4
    rcd_ns: float = 14.0
    rp_ns: float = 14.0
    ras_ns: float = 34.0
    rc_ns: float = 48.0
    rrd_short_ns: float = 4.0
    rrd_long_ns: float = 6.0
    faw_ns: float = 16.0
    read_to_precharge_ns: float = 6.0
    write_recovery_ns: float = 16.0
    read_to_write: int = 14
    write_to_read_short: int = 12
    write_to_read_long: int = 14
    write_done: int = 6
    refresh_interval_ns: float = 3900.0
    refresh_busy_ns: float = 260.0
    command_grid: int = 2

    def __post_init__(self) -> None:
        if self.address_map not in ADDRESS_MAPS:
            raise ValueError(f"address_map must be one of {', '.join(ADDRESS_MAPS)}, got {self.address_map!r}")
        super().__post_init__()

    @property
    def bits(self) -> AddressMap:
        """Which address bits are row, bank and column."""
        return ADDRESS_MAPS[self.address_map]

    def memory_config(self, port_mhz: int, port_bytes: int) -> MemoryConfig:
        """The C structure for ports of this clock and width; raises ValueError for ports that no model knows."""
        config = super().memory_config(port_mhz, port_bytes)
        if self.address_map != DEFAULT_MAP:
            config.reorder_commands = 0
        return config
