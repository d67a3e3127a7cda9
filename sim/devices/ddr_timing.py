"""The DDR4 of an Alveo U280: one of its two channels behind one AXI port of the kernel."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from sim.devices.dram_timing import AddressMap, DramTiming
from sim.devices.memory_config import MemoryKind

__all__ = ["DDR_CHANNEL_BYTES", "DdrTiming"]

DDR_CHANNEL_BYTES = 16 << 30
_MAP = AddressMap("row col BA1 BA0 BG1 BG0", row_bits=17, column_bits=7)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DdrTiming(DramTiming):
    """Timing of a DDR4-2400 channel of 64 bit. The parameters are those of :class:`sim.devices.dram_timing.DramTiming`.

    Basis of the defaults (sources of ``shared/reference/u280.md``): ``read_hit_cycles`` 22 is S2's, and so are 5 and 10
    cycles more for a closed and a missed row, which tRCD, tRP and ``command_grid`` give; ``axi_mhz`` S2; the times of
    the DRAM are JEDEC's for a 16 GB module of 8 Gb chips, from memory; the order of the address bits, the depth of the
    queue, the limits, ``command_cycles``, write latency and converter are assumed.
    """

    KIND: ClassVar[int] = MemoryKind.DDR
    COLUMN_BYTES: ClassVar[int] = 64

    memory_mhz: int = 1200
    axi_mhz: int = 300
    reads_outstanding: int = 64
    writes_outstanding: int = 32
    queue_commands: int = 12
    reorder_commands: int = 0
    age_limit: int = 128
    read_hit_cycles: int = 22
    command_cycles: int = 8
    write_response_cycles: int = 20
    switch_cycles: int = 0
    converter_cycles: int = 15
    ccd_short: int = 4
    ccd_long: int = 6
    rcd_ns: float = 14.16
    rp_ns: float = 14.16
    ras_ns: float = 32.0
    rc_ns: float = 46.16
    rrd_short_ns: float = 3.3
    rrd_long_ns: float = 4.9
    faw_ns: float = 13.0
    read_to_precharge_ns: float = 7.5
    write_recovery_ns: float = 15.0
    read_to_write: int = 11
    write_to_read_short: int = 19
    write_to_read_long: int = 25
    write_done: int = 16
    refresh_interval_ns: float = 7800.0
    refresh_busy_ns: float = 350.0
    command_grid: int = 4

    @property
    def bits(self) -> AddressMap:
        """Which address bits are row, bank and column."""
        return _MAP
