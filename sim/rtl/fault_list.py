"""All seeded faults of the gateware, and changes that are none."""

from __future__ import annotations

from sim.rtl.control_faults import CONTROL_FAULTS
from sim.rtl.core_faults import CORE_FAULTS
from sim.rtl.int8_faults import INT8_FAULTS
from sim.rtl.row_faults import ROW_FAULTS
from sim.rtl.sampler_faults import SAMPLER_FAULTS

__all__ = ["FAULTS"]

FAULTS = (*CORE_FAULTS, *CONTROL_FAULTS, *ROW_FAULTS, *INT8_FAULTS, *SAMPLER_FAULTS)
