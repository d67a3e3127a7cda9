"""Clock-crossing flip-flops as an FPGA flow wants them: marked, so that their stages stay together."""

from __future__ import annotations

from amaranth.hdl import ClockDomain, ClockSignal, Module, ResetSignal, Signal
from amaranth.lib.cdc import AsyncFFSynchronizer, FFSynchronizer

__all__ = ["marked_async_ff_sync", "marked_ff_sync"]

_MARK = {"ASYNC_REG": "TRUE"}  # AMD UG912: placed next to each other, no logic between, no shift register


def marked_ff_sync(synchronizer: FFSynchronizer) -> Module:
    """What ``FFSynchronizer`` becomes in an export: the same flip-flops, marked."""
    m = Module()
    flops = [
        Signal(
            synchronizer.i.shape(),
            name=f"stage{index}",
            init=synchronizer._init,
            reset_less=synchronizer._reset_less,
            attrs=_MARK,
        )
        for index in range(synchronizer._stages)
    ]
    for value, flop in zip((synchronizer.i, *flops), flops, strict=False):
        m.d[synchronizer._o_domain] += flop.eq(value)
    m.d.comb += synchronizer.o.eq(flops[-1])
    return m


def marked_async_ff_sync(synchronizer: AsyncFFSynchronizer) -> Module:
    """What ``AsyncFFSynchronizer`` becomes in an export: set at once, released by the clock, marked."""
    m = Module()
    m.domains += ClockDomain("async_ff", async_reset=True, local=True)
    flops = [Signal(name=f"stage{index}", init=1, attrs=_MARK) for index in range(synchronizer._stages)]
    for value, flop in zip((0, *flops), flops, strict=False):
        m.d.async_ff += flop.eq(value)
    m.d.comb += [
        ResetSignal("async_ff").eq(synchronizer.i if synchronizer._edge == "pos" else ~synchronizer.i),
        ClockSignal("async_ff").eq(ClockSignal(synchronizer._o_domain)),
        synchronizer.o.eq(flops[-1]),
    ]
    return m
