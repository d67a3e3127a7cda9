"""Command that measures what two link ports carry, and says what of the cable's rate they can.

``python -m sim.rtl.link_throughput`` ends with exit code 1 if a direction carries less than 95 % of the limit.
"""

from __future__ import annotations

import argparse
import dataclasses
from fractions import Fraction

from hw.link.frame import BEAT_BYTES, MAX_BEATS
from sim.devices.link_timing import LINK_CLOCK_MHZ, LinkTiming
from sim.rtl.link_pair import LinkPair, PairTraffic, port_verilog

__all__ = ["LIMIT_GBITS", "Throughput", "main", "measure"]

REQUIRED = 0.95
_ENTRY_BITS = 512  # a core with entries of 256 bits at 200 MHz writes half of what the cable carries
_TRAILER_BYTES = 16
_FRAMING = Fraction(MAX_BEATS, MAX_BEATS + 1)
_GEARBOX = Fraction(32, 33)
_COMPENSATION = Fraction(4992 - 8, 4992)
_BUS_GBITS = LINK_CLOCK_MHZ * 8 * BEAT_BYTES / 1000
LIMIT_GBITS = float(_BUS_GBITS * _GEARBOX * _COMPENSATION * _FRAMING)
_WARM_UP_CYCLES = 5000
_PATTERN_CYCLES = 33 * 1664  # both transmit patterns, 33 and 4,992 cycles, begin anew


@dataclasses.dataclass(frozen=True)
class Throughput:
    """Payload that a direction carries, in Gb/s, and what part of the limit that is."""

    name: str
    gbits: float

    @property
    def share(self) -> float:
        """Of the limit of frames of 512 bytes."""
        return self.gbits / LIMIT_GBITS


def measure(verilog: str, links: LinkTiming) -> list[Throughput]:
    """Frames of 512 bytes from a core that always has one to a core that never waits: one way, then both ways at once.

    ``verilog`` is that of a port with entries of 512 bits. Raises PairError if a frame is wrong.
    """
    results = []
    for one_way in (True, False):
        frames = 2 * (_WARM_UP_CYCLES + _PATTERN_CYCLES) // MAX_BEATS
        with LinkPair(verilog, _ENTRY_BITS, PairTraffic(frames, 0, one_way=one_way, full=True), links) as pair:
            pair.run(_WARM_UP_CYCLES)
            before = pair.statistics()
            pair.run(_PATTERN_CYCLES)
            after = pair.statistics()
        for receiver in (1,) if one_way else (1, 0):
            payload = after[receiver].payload_bytes - before[receiver].payload_bytes
            gbits = float(8 * payload * LINK_CLOCK_MHZ / _PATTERN_CYCLES / 1000)
            results.append(Throughput("one way" if one_way else f"both ways, to board {receiver}", gbits))
    return results


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sim.rtl.link_throughput", description=__doc__)
    parser.add_argument("--hop-ns", type=float, default=500.0, help="latency of the cable, one way (default: 500)")
    options = parser.parse_args(arguments)
    payload, unused = MAX_BEATS * BEAT_BYTES, BEAT_BYTES - _TRAILER_BYTES
    terms = (
        ("bus", f"4 lanes of 25.78125 Gb/s, {BEAT_BYTES} bytes a cycle", f"{float(_BUS_GBITS):8.3f} Gb/s"),
        ("gearbox", "32 of 33 cycles", f"{float(_GEARBOX):8.4f}"),
        ("compensation", "4,984 of 4,992 cycles", f"{float(_COMPENSATION):8.4f}"),
        ("framing", f"{payload} bytes payload, {_TRAILER_BYTES} header, {unused} unused", f"{float(_FRAMING):8.4f}"),
        ("limit", "all of these", f"{LIMIT_GBITS:8.3f} Gb/s"),
    )
    for name, meaning, value in terms:
        print(f"{name:<13} {meaning:<44} {value}")
    results = measure(port_verilog(_ENTRY_BITS), LinkTiming(hop_ns=options.hop_ns))
    for result in results:
        print(f"{'measured':<13} {result.name:<44} {result.gbits:8.3f} Gb/s, {result.share:.2%} of the limit")
    missed = [result.name for result in results if result.share < REQUIRED]
    if missed:
        print(f"less than {REQUIRED:.0%}: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
