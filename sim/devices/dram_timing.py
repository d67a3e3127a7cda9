"""What the models of HBM and DDR have in common: parameters, bounds, address maps, conversion to memory cycles."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar

from sim.devices.memory_config import MemoryConfig, check_port

__all__ = ["AddressMap", "DramTiming"]

_BANK_BITS = ("BG0", "BG1", "BA0", "BA1")
# Sizes of the arrays in dram_channel.h and dram_port.h.
_LIMITS = {
    "reads_outstanding": (1, 64),
    "writes_outstanding": (1, 32),
    "queue_commands": (1, 64),
    "reorder_commands": (0, 64),
    "age_limit": (1, 1 << 16),
    "converter_cycles": (0, 1000),
}


@dataclasses.dataclass(frozen=True)
class AddressMap:
    """Order of the fields in the address of a column access, high to low.

    ``row`` and ``col`` stand for ``row_bits`` and ``column_bits`` bits, ``BG0``, ``BG1``, ``BA0``, ``BA1`` for one each
    (bank group and bank). The bits inside a column access are left out.
    """

    order: str
    row_bits: int
    column_bits: int

    def fill(self, config: MemoryConfig) -> None:
        """Write the positions of the bits into the C structure."""
        position = 0
        for name in reversed(self.order.split()):
            width = {"row": self.row_bits, "col": self.column_bits}.get(name, 1)
            if name == "row":
                config.row_mask = ((1 << width) - 1) << position
            elif name in _BANK_BITS:
                setattr(config, f"bank_bit{_BANK_BITS.index(name)}", position)
            position += width
        config.group_bits = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class DramTiming(abc.ABC):
    """Timing of one DRAM channel, its controller, its memory port and the converter between it and the kernel's port.

    "Port cycles" are those of the kernel's port, "AXI cycles" those of the memory port (``axi_mhz``), tCK those of
    ``memory_mhz``.

    Parameters
    ----------
    seed : int
        Of the phases of the refreshes, one a channel.
    memory_mhz, axi_mhz : int
        Clocks of the memory and of its port.
    reads_outstanding, writes_outstanding : int
        Transactions of up to 16 column accesses that the memory port takes.
    queue_commands, reorder_commands, age_limit : int
        Commands whose order is fixed and whose rows are opened ahead, commands among which the order is chosen (0: in
        order), and newer ones that may pass one.
    read_hit_cycles : int
        AXI cycles from address to data, row open.
    command_cycles : int
        How many of them pass before the controller can act.
    write_response_cycles : int
        AXI cycles from accepted write data to the response, which never comes before the write is performed.
    switch_cycles : int
        AXI cycles that a switch adds to a read, 0 for none.
    converter_cycles : int
        Port cycles in each direction for the platform's width and clock converter.
    ccd_short, ccd_long : int
        tCCD_S and tCCD_L: column to column in another and in the same bank group, tCK.
    rcd_ns, rp_ns, ras_ns, rc_ns, rrd_short_ns, rrd_long_ns, faw_ns, read_to_precharge_ns, write_recovery_ns : float
        tRCD, tRP, tRAS, tRC, tRRD_S, tRRD_L, tFAW, tRTP, tWR.
    read_to_write, write_to_read_short, write_to_read_long, write_done : int
        tCK from column command to column command across a change of direction (to another, to the same bank group), and
        from a write's command to the end of its data.
    refresh_interval_ns, refresh_busy_ns : float
        tREFI and tRFC, all banks at once; interval 0 turns refresh off.
    command_grid : int
        Activations and columns begin at multiples of so many tCK, a power of two: the controller's clock.
    """

    KIND: ClassVar[int]
    COLUMN_BYTES: ClassVar[int]

    seed: int = 0
    memory_mhz: int
    axi_mhz: int
    reads_outstanding: int
    writes_outstanding: int
    queue_commands: int
    reorder_commands: int
    age_limit: int
    read_hit_cycles: int
    command_cycles: int
    write_response_cycles: int
    switch_cycles: int
    converter_cycles: int
    ccd_short: int
    ccd_long: int
    rcd_ns: float
    rp_ns: float
    ras_ns: float
    rc_ns: float
    rrd_short_ns: float
    rrd_long_ns: float
    faw_ns: float
    read_to_precharge_ns: float
    write_recovery_ns: float
    read_to_write: int
    write_to_read_short: int
    write_to_read_long: int
    write_done: int
    refresh_interval_ns: float
    refresh_busy_ns: float
    command_grid: int

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be {low} to {high}, got {getattr(self, name)!r}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not 0 <= value < 1 << 31:
                raise ValueError(f"{field.name} must be 0 to {(1 << 31) - 1}, got {value!r}")
        if not self.axi_mhz or not self.memory_mhz or self.memory_mhz % self.axi_mhz:
            raise ValueError(f"memory_mhz must be a multiple of axi_mhz = {self.axi_mhz!r}, got {self.memory_mhz!r}")
        if self.read_hit_cycles <= self.command_cycles:
            raise ValueError(
                f"read_hit_cycles must be over command_cycles = {self.command_cycles!r}, got {self.read_hit_cycles!r}"
            )
        if not self.command_grid or self.command_grid & (self.command_grid - 1):
            raise ValueError(f"command_grid must be a power of two, got {self.command_grid!r}")
        if 0 < self.refresh_interval_ns <= 2 * self.refresh_busy_ns:
            raise ValueError(
                f"refresh_interval_ns must be 0 (off) or more than twice refresh_busy_ns = {self.refresh_busy_ns!r}, "
                f"got {self.refresh_interval_ns!r}"
            )

    @property
    @abc.abstractmethod
    def bits(self) -> AddressMap:
        """Which address bits are row, bank and column."""

    def memory_config(self, port_mhz: int, port_bytes: int) -> MemoryConfig:
        """The C structure for ports of this clock and width; raises ValueError for ports that no model knows."""
        check_port(port_mhz, port_bytes)
        axi = self.memory_mhz // self.axi_mhz  # tCK
        there = self.switch_cycles // 2

        def cycles(time_ns: float) -> int:
            return math.ceil(time_ns * self.memory_mhz / 1000 - 1e-9)

        config = MemoryConfig(
            kind=self.KIND,
            port_mhz=port_mhz,
            port_bytes=port_bytes,
            converter_cycles=self.converter_cycles,
            burst_columns=16,
            reads_outstanding=self.reads_outstanding,
            writes_outstanding=self.writes_outstanding,
            port_period=axi,
            memory_mhz=self.memory_mhz,
            address_delay=(self.command_cycles + there) * axi,
            data_delay=(self.read_hit_cycles - self.command_cycles + self.switch_cycles - there) * axi,
            response_delay=(self.write_response_cycles + self.switch_cycles) * axi,
            queue_commands=self.queue_commands,
            reorder_commands=self.reorder_commands,
            age_limit=self.age_limit,
            command_grid=self.command_grid,
            column_bytes=self.COLUMN_BYTES,
            ccd_short=self.ccd_short,
            ccd_long=self.ccd_long,
            rcd=cycles(self.rcd_ns),
            rp=cycles(self.rp_ns),
            ras=cycles(self.ras_ns),
            rc=cycles(self.rc_ns),
            rrd_short=cycles(self.rrd_short_ns),
            rrd_long=cycles(self.rrd_long_ns),
            faw=cycles(self.faw_ns),
            read_to_precharge=cycles(self.read_to_precharge_ns),
            write_to_precharge=self.write_done + cycles(self.write_recovery_ns),
            read_to_write=self.read_to_write,
            write_to_read_short=self.write_to_read_short,
            write_to_read_long=self.write_to_read_long,
            write_done=self.write_done,
            refresh_interval=cycles(self.refresh_interval_ns),
            refresh_busy=cycles(self.refresh_busy_ns),
        )
        self.bits.fill(config)
        return config
