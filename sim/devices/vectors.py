"""Holds the memory models to published figures: ``python -m sim.devices.vectors [--json]``.

Exit status 1 if a figure is missed. Sources S1, S2, S4 and D (derived there) are those of ``shared/reference/u280.md``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sim.devices.ddr_timing import DdrTiming
from sim.devices.hbm_timing import PSEUDO_CHANNEL_BYTES, HbmTiming, distance_cycles
from sim.devices.traffic import Port, lateral_efficiency, requests_of, run_port, run_switch

__all__ = ["Vector", "all_vectors", "ddr", "latencies", "lateral", "linear", "loaded", "random_reads", "strides"]

_LINEAR_BAR, _BAR = 0.02, 0.05
_CHANNELS = 32
_RAW_PORT = Port(450, 32)  # the memory's own port
_KERNEL_PORT = Port(225, 64)
_TUTORIAL_PORT = Port(300, 64)
_DDR_PORT = Port(300, 64)


@dataclasses.dataclass(frozen=True)
class Vector:
    """One figure of a model and its published counterpart.

    ``bar`` is the largest relative difference that holds; None: for information. ``at_least``: the published figure
    was limited by something else, so only a lower one misses it.
    """

    name: str
    unit: str
    measured: float
    published: float | None
    source: str
    bar: float | None = _BAR
    at_least: bool = False

    @property
    def difference(self) -> float | None:
        """Relative difference to the published figure."""
        return None if self.published is None else self.measured / self.published - 1

    @property
    def verdict(self) -> str:
        """``held``, ``missed``, or ``-`` where there is no bar."""
        if self.bar is None or self.difference is None:
            return "-"
        low = self.difference >= -self.bar
        return "held" if low and (self.at_least or self.difference <= self.bar) else "missed"


def _bypassed(timing: HbmTiming) -> HbmTiming:
    """At the memory's own port, as Shuhai measured."""
    return dataclasses.replace(timing, switch_cycles=0, converter_cycles=0)


def linear(timing: HbmTiming) -> Iterator[Vector]:
    """All 32 channels at once, read by ports of the kernel in bursts of 16 beats, 13 refreshes long."""
    requests = requests_of(np.arange(800) * 1024, 1024, 64)
    rates = run_port(timing, requests, _KERNEL_PORT, ports=_CHANNELS).gigabytes_per_s()
    yield Vector("linear, 32 channels at once", "GB/s", rates.sum(), 425, "S2", _LINEAR_BAR)
    yield Vector("linear, slowest channel", "GB/s", rates.min(), 13.27, "S2", _LINEAR_BAR)
    yield Vector("linear, fastest channel", "GB/s", rates.max(), 13.27, "S2", _LINEAR_BAR)


def strides(timing: HbmTiming) -> Iterator[Vector]:
    """Shuhai's sequences: reads of ``burst`` bytes with a stride inside a working set."""
    raw = _bypassed(timing)

    def rate(stride: int, working_set: int, burst: int = 32, address_map: str = timing.address_map) -> float:
        mapped = dataclasses.replace(raw, address_map=address_map)
        offsets = np.arange(20_000) * stride % working_set
        return float(run_port(mapped, requests_of(offsets, burst, 32), _RAW_PORT).gigabytes_per_s()[0])

    whole = PSEUDO_CHANNEL_BYTES
    yield Vector("sequential, bursts of 512 B", "GB/s", rate(512, whole, 512), 13.27, "S2", _LINEAR_BAR)
    yield Vector("sequential, bursts of 32 B", "GB/s", rate(32, whole), 13.27, "S2")
    yield Vector("sequential, 32 B, map RBC", "GB/s", rate(32, whole, address_map="RBC"), 6.71, "D")
    yield Vector("set 8 KB, stride 4 KB, 32 B", "GB/s", rate(4096, 8192), 6.7, "S2")
    yield Vector("set 256 MB, stride 4 KB, 32 B", "GB/s", rate(4096, whole), 2.4, "S2")
    yield Vector("stride 128 B, 32 B", "GB/s", rate(128, whole), 6.74, "D")
    default, other = rate(1024, whole), rate(1024, whole, address_map="BRC")
    yield Vector("stride 1 KB, 32 B", "GB/s", default, 7.14, "D")
    yield Vector("stride 1 KB, 32 B, map BRC", "GB/s", other, 0.63, "D")
    yield Vector("stride 1 KB, default over BRC", "x", default / other, 10, 'S2, "almost 10"; D has 11.3', None)
    yield Vector("stride 16 KB, 32 B", "GB/s", rate(16384, whole), 0.63, "D")


def _tutorial_words(words: int, burst_words: int, count: int) -> npt.NDArray[np.int64]:
    """Addresses of S4's kernel in words of 64 bytes: a walk by a 32-bit LFSR (taps 32, 22, 2, 1), aligned to bursts."""
    register, word = 0x12345678, 0
    found = np.empty(count, np.int64)
    for index in range(count):
        bit = (register ^ register >> 10 ^ register >> 30 ^ register >> 31) & 1
        register = register >> 1 | bit << 31
        word = (word + (register & (words - 1))) % words & -burst_words
        found[index] = word
    return found


def random_reads(timing: HbmTiming) -> Iterator[Vector]:
    """S4's kernel: reads from two buffers and writes to a third in step, so the slower of reads and writes counts.

    With RAMA it reaches 100, 75 and 50 M requests a second of 64, 128 and 256 bytes: it sends one in beats + 2 cycles.
    Its 1-channel figures of 64 and 128 bytes count as lower bounds. Over several channels only reads are modelled.
    """
    channel_words = PSEUDO_CHANNEL_BYTES // 64
    published = {
        64: (4.75, 0.76, 0.55),
        128: (9.60, 1.50, 1.07),
        256: (12.62, 2.71, 1.99),
        512: (13.13, 4.50, 3.50),
        1024: (13.16, 6.55, 5.53),
    }
    for burst, figures in published.items():
        beats, interval = burst // 64, burst // 64 + 2
        offsets = _tutorial_words(channel_words, beats, 10_000) * 64
        rates = []
        for write in (False, True):
            requests = requests_of(offsets, burst, 64, write=write)
            requests["not_before"] = np.arange(len(requests)) * interval
            rates.append(float(run_port(timing, requests, _TUTORIAL_PORT).gigabytes_per_s()[0]))
        yield Vector(f"random {burst} B, 1 channel", "GB/s", min(rates), figures[0], "S4", at_least=burst < 256)
        for channels, figure in zip((2, 4), figures[1:], strict=True):
            words = _tutorial_words(channel_words * channels, beats, 4000)
            requests = requests_of(words % channel_words * 64, burst, 64)
            requests["channel"] = words // channel_words
            rate = run_switch(timing, [0] * channels, requests, _TUTORIAL_PORT, interval=interval).gigabytes_per_s()
            yield Vector(f"random {burst} B, {channels} channels", "GB/s", float(rate[0]), figure, "S4")
    requests = requests_of(np.arange(10_000) * 256, 256, 64)
    rate = run_port(timing, requests, _TUTORIAL_PORT).gigabytes_per_s()
    yield Vector("sequential 256 B, 1 channel", "GB/s", float(rate[0]), 13.10, "S4")


def _idle_reads(hit: int, miss: int, beat_bytes: int) -> npt.NDArray:
    """Reads of a closed row, of the same one at ``hit``, of another one of its bank at ``miss``; far apart in time."""
    requests = requests_of([0, hit, miss], beat_bytes, beat_bytes)
    requests["not_before"] = [0, 200, 400]
    return requests


def latencies(timing: HbmTiming) -> Iterator[Vector]:
    """Single reads of an idle memory; the median of 32 channels with their phases of refresh."""
    raw = _bypassed(timing)
    requests = _idle_reads(64, 1 << 20, 32)
    names = ("closed row", "open row", "other row open")
    for switch, label, published in ((0, "switch off", (55, 48, 62)), (7, "switch on, own group", (62, 55, 69))):
        switched = dataclasses.replace(raw, switch_cycles=switch)
        found = np.median(run_port(switched, requests, _RAW_PORT, ports=_CHANNELS).latency(), axis=0)
        for name, cycles, figure in zip(names, found, published, strict=True):
            yield Vector(f"latency, {label}, {name}", "cycles", float(cycles), figure, "S2")
    quiet = dataclasses.replace(raw, switch_cycles=7, refresh_interval_ns=0.0)
    for group, figure in enumerate((55, 56, 58, 60, 71, 73, 75, 77)):
        run = run_switch(quiet, [distance_cycles(0, 4 * group)], requests, _RAW_PORT)
        name = f"latency, port 0 to channels {4 * group}-{4 * group + 3}, open row"
        yield Vector(name, "cycles", float(run.latency()[0, 1]), figure, "S2" if group in (0, 7) else "from memory")


def lateral() -> Iterator[Vector]:
    """Two masters that write through one link between groups."""
    for beats, figure in ((1, 24.9), (2, 33.3), (4, 39.9), (8, 44.4), (16, 47.0)):
        yield Vector(f"lateral link, writes of {32 * beats} B", "%", 100 * lateral_efficiency(2, beats), figure, "S1")


def ddr(timing: DdrTiming) -> Iterator[Vector]:
    """One channel of DDR4 at the user side of its controller."""
    raw = dataclasses.replace(timing, converter_cycles=0)
    requests = requests_of(np.arange(4000) * 1024, 1024, 64)
    rate = run_port(raw, requests, _DDR_PORT).gigabytes_per_s()
    yield Vector("DDR4 linear, one channel", "GB/s", float(rate[0]), 18, "S2")
    found = np.median(run_port(raw, _idle_reads(1024, 1 << 20, 64), _DDR_PORT, ports=_CHANNELS).latency(), axis=0)
    for name, cycles, figure in zip(("closed row", "open row", "other row open"), found, (27, 22, 32), strict=True):
        yield Vector(f"DDR4 latency, {name}", "cycles", float(cycles), figure, "S2")


def loaded(timing: HbmTiming) -> Iterator[Vector]:
    """Linear reads by all 32 ports of the kernel while each writes single words, as keys and values are written.

    A layer of GPT-2 345M writes at most 115 words to a channel in 12,288 words read: 9.4 in 1,000.
    """
    bursts = 800
    for per_thousand in (0, 5, 10, 20, 50):
        count = bursts * 16 * per_thousand // 1000
        reads = requests_of(np.arange(bursts) * 1024, 1024, 64)
        writes = requests_of((64 << 20) + np.arange(count) * 4096, 64, 64, write=True)
        writes["not_before"] = np.linspace(0, bursts * 16, count, endpoint=False).astype(np.uint64)
        run = run_port(timing, np.concatenate([reads, writes]), _KERNEL_PORT, ports=_CHANNELS)
        seconds = (run.answers["last"][:, bursts - 1] - run.answers["last"][:, bursts // 10]) / 225e6
        rate = float((bursts - 1 - bursts // 10) * 1024 / 1e9 * (1 / seconds).sum())
        yield Vector(f"linear reads, {per_thousand} writes in 1,000 words", "GB/s", rate, None, "no figure known", None)
    words = run_port(timing, requests_of(np.arange(800) * 1024, 1024, 64), _KERNEL_PORT, ports=_CHANNELS)
    waits = float(words.totals["late_cycles"].mean() / words.totals["cycles"].mean())
    yield Vector("linear reads, cycles behind a refresh", "%", 100 * waits, None, "no figure known", None)


def all_vectors(hbm: HbmTiming | None = None, ddr4: DdrTiming | None = None) -> Iterator[Vector]:
    """Every figure of both models."""
    hbm = hbm or HbmTiming()
    yield from linear(hbm)
    yield from strides(hbm)
    yield from random_reads(hbm)
    yield from latencies(hbm)
    yield from lateral()
    yield from ddr(ddr4 or DdrTiming())
    yield from loaded(hbm)


def main() -> int:
    """Print the table, as lines or as JSON."""
    parser = argparse.ArgumentParser(prog="python -m sim.devices.vectors", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON array")
    options = parser.parse_args()
    found = []
    if not options.json:
        print(f"{'figure':<48} {'unit':<7}{'model':>8} {'published':>9} {'difference':>10}  {'bar':<9} {'':<6}  source")
    for vector in all_vectors():
        found.append(vector)
        if options.json:
            continue
        published = "-" if vector.published is None else f"{vector.published:g}"
        difference = "-" if vector.difference is None else f"{100 * vector.difference:+.1f} %"
        bar = "-" if vector.bar is None else f"{'from -' if vector.at_least else '+-'}{100 * vector.bar:g} %"
        print(
            f"{vector.name:<48} {vector.unit:<7}{vector.measured:>8.4g} {published:>9} {difference:>10}  {bar:<9} "
            f"{vector.verdict:<6}  {vector.source}",
            flush=True,
        )
    missed = sum(vector.verdict == "missed" for vector in found)
    if options.json:
        rows = [
            dataclasses.asdict(vector) | {"difference": vector.difference, "verdict": vector.verdict}
            for vector in found
        ]
        print(json.dumps(rows, indent=1))
    else:
        held = sum(vector.verdict == "held" for vector in found)
        print(f"{held} held, {missed} missed, {len(found) - held - missed} without a bar")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
