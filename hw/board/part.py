"""What the FPGA of an Alveo U280 has: the whole part, its three dies, and what the shell leaves of them."""

from __future__ import annotations

import dataclasses

__all__ = ["SHELL", "SLRS", "U280", "Resources"]


@dataclasses.dataclass(frozen=True)
class Resources:
    """Amounts of what a design takes; ``bram`` counts 36-kbit blocks, half a block is an 18-kbit one.

    ``source`` says where the figures are from.
    """

    lut: int
    ff: int
    bram: float
    uram: int
    dsp: int
    source: str = ""

    def amounts(self) -> dict[str, float]:
        """The figures by name."""
        return {"lut": self.lut, "ff": self.ff, "dsp": self.dsp, "bram": self.bram, "uram": self.uram}


U280 = Resources(
    lut=1_303_680, ff=2_607_360, bram=2_016, uram=960, dsp=9_024, source="XCU280, published by AMD (DS963, UG1314)"
)

SHELL = Resources(
    lut=107_629,
    ff=136_086,
    bram=195.5,
    uram=0,
    dsp=4,
    source="platform xilinx_u280_gen3x16_xdma_1_202211_1, published in the resource models of HLS tools",
)
"""What the platform takes before any kernel, over all dies."""

_SLR_SOURCE = "free beside the platform, published by AMD (UG1120, 2019-20); `platforminfo` tells for a newer one"

SLRS = {
    "SLR0": Resources(lut=369_000, ff=746_000, bram=507, uram=320, dsp=2_733, source=_SLR_SOURCE),
    "SLR1": Resources(lut=333_000, ff=675_000, bram=468, uram=320, dsp=2_877, source=_SLR_SOURCE),
    "SLR2": Resources(lut=367_000, ff=729_000, bram=512, uram=320, dsp=2_880, source=_SLR_SOURCE),
}
"""What each die leaves to kernels. The memory controllers are at SLR0, the cable ports at SLR2."""
