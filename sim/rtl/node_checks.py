"""Checks that tell a faulty ring node from a sound one: rings of them, random frames, broken runs, cut cables."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from hw.link.frame import KEEPALIVE, SILENCE, SLOTS
from sim.devices.link_timing import CHANNEL_DOWN_CYCLES, LINK_CLOCK_MHZ, LinkTiming
from sim.rtl.node_ring import KERNEL_MHZ, NodeRing, NodeRingError, NodeStatistics, NodeTraffic

__all__ = [
    "CHECKS",
    "broken_runs",
    "cut_cables",
    "every_frame",
    "inspect_node",
    "lost_cable",
    "saturated",
    "successive_runs",
]

_NOTICED_CYCLES = 100  # from a channel that goes down or comes up to what the node says
_BRING_UP_CYCLES = CHANNEL_DOWN_CYCLES + _NOTICED_CYCLES
_PACES = ((1, 0), (3, 4), (20, 60), (64, 200))  # accept_longest, pause_longest


def _silence_cycles(hop_ns: float) -> int:
    """Kernel cycles from a cut that keeps the channel up until both ends are dead, at most."""
    link_cycles = SILENCE + KEEPALIVE + hop_ns * float(LINK_CLOCK_MHZ) / 1000
    return int(link_cycles * KERNEL_MHZ / float(LINK_CLOCK_MHZ)) + _NOTICED_CYCLES


def _expect(holds: bool, what: str, board: int, statistics: NodeStatistics) -> None:
    if not holds:
        raise NodeRingError(f"{what}; board {board}: {statistics}")


def every_frame(
    verilog: str,
    entry_bits: int,
    *,
    boards: int = 4,
    frames: int = 150,
    seed: int = 1,
    rate: float = 0.0,
    spoiled: bool = False,
) -> None:
    """In a run every frame reaches every other board once, whole, by its way and in order.

    ``rate`` : probability that a cable drops a word, and that it changes one. ``spoiled`` : what is compared is wrong.
    Raises NodeRingError, as all checks here.
    """
    traffic = NodeTraffic(send_pause=0.2, accept_longest=3, pause_longest=4, spoiled=spoiled, seed=seed)
    links = LinkTiming(word_drop_rate=rate, word_corrupt_rate=rate, jitter_ns=50.0, seed=seed)
    with NodeRing(verilog, entry_bits, boards, traffic, links) as ring:
        ring.enqueue(1, frames)
        ring.finish(40 * frames * boards + (400 * frames * boards if rate else 0) + 2 * _BRING_UP_CYCLES)
        for board, statistics in enumerate(ring.statistics()):
            _expect(statistics.delivered == frames * (boards - 1), "all frames are delivered", board, statistics)
            _expect((statistics.ended, statistics.broke) == (1, 0), "the run ended", board, statistics)


def saturated(verilog: str, entry_bits: int, *, boards: int = 8, frames: int = 400, seed: int = 2) -> None:
    """All boards send as fast as they can and take what comes in short windows between long pauses: nothing locks up,
    and no frame takes much longer than all slots on its way need to become free."""
    traffic = NodeTraffic(accept_longest=24, pause_longest=240, seed=seed)
    # Before a frame there are at most the slots of its way: local, and receive and transit of each of boards / 2 hops.
    # A board that is open a tenth of the time, for both ports in turns, needs 96 cycles for a frame of mean size, 181
    # with entries of half the width: 55,000 and 104,000 cycles for 8 boards. The limit is a little below.
    slowest = 100 * SLOTS * boards * 512 // entry_bits
    with NodeRing(verilog, entry_bits, boards, traffic, LinkTiming(seed=seed)) as ring:
        ring.enqueue(1, frames)
        ring.finish(50 * frames * boards * 512 // entry_bits)
        for board, statistics in enumerate(ring.statistics()):
            _expect(statistics.delivered == frames * (boards - 1), "all frames are delivered", board, statistics)
            _expect(statistics.longest_cycles < slowest, "no frame waits for ever", board, statistics)


def successive_runs(verilog: str, entry_bits: int, *, boards: int = 4, seed: int = 3) -> None:
    """Runs that begin on some boards while they last on others: frames of the next run wait, none is mixed up."""
    runs, frames = 6, 30
    traffic = NodeTraffic(accept_longest=3, pause_longest=4, start_longest=600, seed=seed)
    with NodeRing(verilog, entry_bits, boards, traffic, LinkTiming(seed=seed)) as ring:
        for number in range(runs):
            ring.enqueue(number + 7, frames)
        ring.finish(20_000 * runs)
        for board, statistics in enumerate(ring.statistics()):
            _expect((statistics.ended, statistics.broke) == (runs, 0), "all runs ended", board, statistics)
            _expect(statistics.delivered == runs * frames * (boards - 1), "all is delivered", board, statistics)


def broken_runs(verilog: str, entry_bits: int, *, boards: int = 8, seed: int = 4, runs: int = 8) -> None:
    """Every second run is given up by a board at some time, in the middle of frames: all boards end it, what is left of
    it disturbs no later run, and the next one is complete."""
    rng = random.Random(seed)
    accept, pause = _PACES[seed % len(_PACES)]
    traffic = NodeTraffic(
        accept_longest=accept,
        pause_longest=pause,
        start_longest=rng.choice((0, 600, 3000)),
        silence_limit=20_000,
        seed=seed,
    )
    with NodeRing(verilog, entry_bits, boards, traffic, LinkTiming(seed=seed)) as ring:
        for number in range(runs):
            breaks = [0] * boards
            if number % 2 == 0:
                breaks[rng.randrange(boards)] = rng.randint(1, 3000)
            ring.enqueue(number, 100, breaks)
        ring.finish(25_000 * runs)
        for board, statistics in enumerate(ring.statistics()):
            _expect(statistics.broke <= (runs + 1) // 2, "only runs broke that were given up", board, statistics)


def cut_cables(
    verilog: str, entry_bits: int, *, boards: int = 4, seed: int = 5, cuts: int = 4, drops_channel: bool = True
) -> None:
    """A cable is cut in each run: both its ends are dead in time, all boards end the run, and a mended ring goes on."""
    rng = random.Random(seed)
    accept, pause = _PACES[seed % len(_PACES)]
    traffic = NodeTraffic(accept_longest=accept, pause_longest=pause, silence_limit=15_000, seed=seed)
    links = LinkTiming(seed=seed)
    limit = _NOTICED_CYCLES if drops_channel else _silence_cycles(links.hop_ns)
    with NodeRing(verilog, entry_bits, boards, traffic, links) as ring:
        for number in range(cuts):
            ring.enqueue(number, 100)
            ring.wait(_BRING_UP_CYCLES * (number == 0) + rng.randint(200, 1500))
            cable, at = rng.randrange(boards), ring.cycle
            ring.cut(cable, drops_channel)
            ring.wait(limit)
            for board, port in ((cable, 1), ((cable + 1) % boards, 0)):
                statistics = ring.statistics()[board]
                since = statistics.dead_since[port]
                _expect(
                    since is not None and at <= since, f"port {port} is dead {limit} cycles later", board, statistics
                )
            ring.finish(60_000)
            ring.mend(cable)
            ring.wait(_BRING_UP_CYCLES)
        before = ring.statistics()
        ring.enqueue(cuts, 50)
        ring.finish(60_000)
        for board, statistics in enumerate(ring.statistics()):
            _expect(statistics.ended == before[board].ended + 1, "the run on the mended ring ended", board, statistics)
            _expect(statistics.delivered >= 50 * (boards - 1), "all its frames are delivered", board, statistics)


def lost_cable(verilog: str, entry_bits: int, *, boards: int = 4, seed: int = 6, drops_channel: bool = True) -> None:
    """Boards that take no notice of a cut cable: what need not cross it still arrives, all of it and in order."""
    cable = seed % boards
    traffic = NodeTraffic(accept_longest=3, pause_longest=4, lost_cable=cable, seed=seed)
    links = LinkTiming(seed=seed)
    with NodeRing(verilog, entry_bits, boards, traffic, links) as ring:
        ring.enqueue(1, 400)
        ring.wait(_BRING_UP_CYCLES + 700)
        ring.cut(cable, drops_channel)
        ring.finish(_silence_cycles(links.hop_ns) + 60_000)


CHECKS: Mapping[str, Callable[[str, int], None]] = {
    "frames": every_frame,
    "saturation": saturated,
    "successive runs": successive_runs,
    "broken runs": broken_runs,
    "cut cables": cut_cables,
    "lost cable": lost_cable,
}


def inspect_node(verilog: str, entry_bits: int, checks: Iterable[str] = tuple(CHECKS)) -> tuple[str, str] | None:
    """The first of the checks that fails and what it saw; None if the node is sound."""
    for name in checks:
        try:
            CHECKS[name](verilog, entry_bits)
        except NodeRingError as error:
            return name, str(error)
    return None
