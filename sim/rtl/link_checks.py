"""Checks that tell a faulty link port from a sound one: two of them, random frames, good and bad cables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from hw.link.frame import SLOTS
from sim.devices.link_timing import CHANNEL_DOWN_CYCLES, LinkTiming
from sim.rtl.link_pair import LinkPair, PairError, PairStatistics, PairTraffic

__all__ = ["CHECKS", "bad_cable", "channel_down", "credits_end", "full_slots", "good_cable", "inspect_port"]

_CYCLES_A_FRAME = 2000  # far more than a frame takes with the resends that it costs others
_SETTLED_CYCLES = 10_000
_NOTICED_CYCLES = 100  # from a channel that goes down to `up` and `dead`


def _traffic(frames: int, seed: int) -> PairTraffic:
    """Both regions, all sizes; senders and receivers pause, now and then for long."""
    return PairTraffic(
        frames,
        frames,
        write_pause=0.2,
        read_pause=0.3,
        rewrite=0.05,
        long_pause=0.002,
        long_pause_cycles=600,
        seed=seed,
    )


def _expect(holds: bool, what: str, board: PairStatistics) -> None:
    if not holds:
        raise PairError(f"{what}: {board}")


def _finish(pair: LinkPair, frames: int) -> tuple[PairStatistics, PairStatistics]:
    pair.finish(_CYCLES_A_FRAME * frames)
    for board in pair.statistics():
        _expect(board.pushed == board.delivered == (frames, frames), f"{frames} frames of each region were sent", board)
        counted = board.frames_sent == board.frames_received == 2 * frames & 0xFFFF
        _expect(counted, f"{2 * frames} frames were sent and received", board)
    return pair.statistics()


def good_cable(
    verilog: str, entry_bits: int, *, frames: int = 300, seed: int = 1, hop_ns: float = 500.0, jitter_ns: float = 0.0
) -> None:
    """All frames arrive as they were sent, in order and once, and none of them twice on the cable.

    Raises PairError, as all checks here.
    """
    links = LinkTiming(hop_ns=hop_ns, jitter_ns=jitter_ns, seed=seed)
    with LinkPair(verilog, entry_bits, _traffic(frames, seed), links) as pair:
        for board in _finish(pair, frames):
            _expect(board.frames_dropped == board.resends == 0, "nothing was lost on the cable", board)


def bad_cable(
    verilog: str, entry_bits: int, *, frames: int = 300, seed: int = 2, rate: float = 0.01, jitter_ns: float = 0.0
) -> None:
    """The same over a cable that drops and changes words, each with probability ``rate``; here frames are resent."""
    links = LinkTiming(word_drop_rate=rate, word_corrupt_rate=rate, jitter_ns=jitter_ns, seed=seed)
    with LinkPair(verilog, entry_bits, _traffic(frames, seed), links) as pair:
        for board in _finish(pair, frames):
            _expect(bool(board.frames_dropped and board.resends), "frames were lost on the cable", board)


def full_slots(verilog: str, entry_bits: int, *, seed: int = 3) -> None:
    """Readers so slow that receive slots are full again and again, while frames that were taken come once more."""
    frames, often = 500, 0.03 * entry_bits / 512  # a pause in each cycle that reads an entry
    traffic = PairTraffic(frames, frames, long_pause=often, long_pause_cycles=800, seed=seed)
    links = LinkTiming(word_drop_rate=0.003, word_corrupt_rate=0.003, seed=seed)
    with LinkPair(verilog, entry_bits, traffic, links) as pair:
        _finish(pair, frames)


def credits_end(verilog: str, entry_bits: int) -> None:
    """Readers that stand still stop the senders: a local frame needs two free slots at the far end, one in transit
    takes the last. When they go on, so does everything."""
    for local, transit, sent in ((400, 0, SLOTS - 1), (0, 400, SLOTS), (400, 400, SLOTS)):
        with LinkPair(verilog, entry_bits, PairTraffic(local, transit, full=True), LinkTiming()) as pair:
            pair.hold_readers(True)
            for _ in range(2):
                pair.run(_SETTLED_CYCLES)
                for board in pair.statistics():
                    _expect(board.frames_sent == board.frames_received == sent, f"{sent} frames have slots", board)
                    waiting = SLOTS * bool(local) + SLOTS * bool(transit)
                    _expect(sum(board.pushed) == sent + waiting, f"{waiting} frames have transmit slots", board)
            pair.hold_readers(False)
            pair.finish(_CYCLES_A_FRAME * 400)
            for board in pair.statistics():
                _expect(board.delivered == (local, transit) and not board.resends, "everything goes on", board)


def channel_down(verilog: str, entry_bits: int, *, seed: int = 5) -> None:
    """A channel that goes down loses what was under way and no more, wherever that falls in the traffic: the next
    frames are taken in order, from one that was pushed since."""
    links = LinkTiming(word_drop_rate=0.001, word_corrupt_rate=0.001, seed=seed)
    with LinkPair(verilog, entry_bits, _traffic(1500, seed), links) as pair:
        pauses = (1000, 1001, 200, 2777, 1, 2003, 500)
        for cycles in pauses:
            pair.run(CHANNEL_DOWN_CYCLES + cycles)
            pair.reset_channel()
            pair.run(_NOTICED_CYCLES)
            for board in pair.statistics():
                _expect(board.dead and not board.up, "the channel is down", board)
            pair.run(CHANNEL_DOWN_CYCLES)
            for board in pair.statistics():
                _expect(board.up and not board.dead, "the channel is up", board)
        pair.finish(_CYCLES_A_FRAME * 1500)
        for board in pair.statistics():
            lost = sum(board.pushed) - sum(board.delivered)
            _expect(0 < lost < len(pauses) * 4 * SLOTS, f"{lost} frames were lost", board)


CHECKS: Mapping[str, Callable[[str, int], None]] = {
    "good cable": good_cable,
    "bad cable": bad_cable,
    "credits": credits_end,
    "full slots": full_slots,
    "channel down": channel_down,
}


def inspect_port(verilog: str, entry_bits: int, checks: Iterable[str] = tuple(CHECKS)) -> tuple[str, str] | None:
    """The first of the checks that fails and what it saw; None if the port is sound."""
    for name in checks:
        try:
            CHECKS[name](verilog, entry_bits)
        except PairError as error:
            return name, str(error)
    return None
