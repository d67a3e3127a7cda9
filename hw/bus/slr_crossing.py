"""Registers on a wide path between super logic regions of the part, marked so that they stay flip-flops."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value

__all__ = ["slr_crossing"]

_MARK = {"SHREG_EXTRACT": "NO"}  # AMD UG912: no shift register, which would lie on one side


def slr_crossing(m: Module, value: Value, stages: int, name: str) -> Value:
    """``value`` as it was ``stages`` (>= 0) cycles of ``sync`` ago, in registers ``<name>_<stage>`` without reset."""
    for stage in range(stages):
        crossed = Signal(value.shape(), name=f"{name}_{stage}", reset_less=True, attrs=_MARK)
        m.d.sync += crossed.eq(value)
        value = crossed
    return value
