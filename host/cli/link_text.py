"""What the ring ports of boards counted, for people."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["link_lines", "link_summary"]

PORTS = ("left", "right")
BoardLinks = Sequence[Sequence[dict[str, int]]]  # [board][port]


def link_summary(boards: BoardLinks) -> str:
    """One line: frames, resends and dropped frames of all ports together."""
    frames, resends, dropped = (
        sum(port[name] for board in boards for port in board) for name in ("frames_sent", "resends", "frames_dropped")
    )
    return f"{frames:,} frames, {dropped:,} dropped, {resends:,} times sent again"


def link_lines(boards: BoardLinks) -> list[str]:
    """A line a port."""
    lines = [f"  {'port':<20}{'sent':>12}{'received':>12}{'dropped':>12}{'sent again':>12}"]
    for board, ports in enumerate(boards):
        for number, port in enumerate(ports):
            counts = (port[name] for name in ("frames_sent", "frames_received", "frames_dropped", "resends"))
            lines.append(f"  {f'board {board} {PORTS[number]}':<20}" + "".join(f"{count:>12,}" for count in counts))
    return lines
