"""Paths that cross units: the timing of each unit, put together along the wires between them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping

from sim.synth.cells import LEVEL
from sim.synth.levels import PATHS, LoopError, UnitTiming, whole_register

__all__ = ["JoinedPath", "Part", "joined_paths"]

_Place = tuple[str, str]  # (path of an instance, place as in sim.synth.netlist.Graph)


@dataclasses.dataclass(frozen=True)
class Part:
    """A synthesised unit: its timing, and by instance name the unit that each black box in it stands for."""

    timing: UnitTiming
    boxes: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class JoinedPath:
    """A path between registers that crosses borders of units, ``eighths`` of a level long.

    ``unit`` and ``start_unit`` : those it ends and starts in. ``start`` and ``end`` are (path of the instance,
    register), the kernel's own path being empty; ``crossings`` the places at which it leaves an instance, first to
    last.
    """

    eighths: int
    unit: str
    start_unit: str
    start: _Place
    end: _Place
    crossings: tuple[_Place, ...]

    @property
    def levels(self) -> int:
        """Whole levels."""
        return self.eighths // LEVEL


@dataclasses.dataclass(frozen=True)
class _Way:
    """The longest way from a register to a place where signals leave an instance.

    It comes from the register ``start`` of that instance, or into it at ``source``.
    """

    eighths: int
    start: str = ""
    source: str | None = None


def joined_paths(parts: Mapping[str, Part], top: str, limit: int = PATHS) -> list[JoinedPath]:
    """The longest paths between registers that cross a border of units, longest first.

    Of each unit, those to the ``limit`` registers where the longest ones end, whatever the bit and whichever instance.
    ``parts`` are by unit, ``top`` is the kernel's. Paths from and to the kernel's own ports are not among them. Raises
    LoopError if logic feeds itself through several units.
    """
    return _Joining(parts, top).worst(limit)


class _Joining:
    def __init__(self, parts: Mapping[str, Part], top: str) -> None:
        self._parts = parts
        self._units: dict[str, str] = {}  # by instance
        self._around: dict[str, tuple[str, str]] = {}  # the instance around it, and its own name there
        self._inside: dict[tuple[str, str], str] = {}  # the reverse
        self._ways: dict[_Place, _Way | None] = {}
        self._open: set[_Place] = set()
        for instance, unit, around, name in _instances(parts, top, "", "", ""):
            self._units[instance] = unit
            if around != instance:
                self._around[instance] = (around, name)
                self._inside[around, name] = instance

    def worst(self, limit: int) -> list[JoinedPath]:
        longest: dict[tuple[str, str], tuple[int, _Place, str]] = {}
        for instance, unit in self._units.items():
            for place, (behind, register) in self._parts[unit].timing.required.items():
                way = self._into((instance, place))
                key = (unit, whole_register(register))
                if way is not None and way.eighths + behind > longest.get(key, (-1,))[0]:
                    longest[key] = (way.eighths + behind, (instance, place), register)
        found: list[JoinedPath] = []
        kept = collections.Counter[str]()
        for (unit, _), entry in sorted(longest.items(), key=lambda item: (-item[1][0], *item[1][1:])):
            kept[unit] += 1
            if kept[unit] <= limit:
                found.append(self._path(*entry))
        return found

    def _path(self, eighths: int, source: _Place, register: str) -> JoinedPath:
        end = (source[0], register)
        crossings: list[_Place] = []
        while True:
            sink = self._driver(source)
            assert sink is not None
            crossings.append(sink)
            way = self._way(sink)
            assert way is not None
            if way.source is None:
                start = (sink[0], way.start)
                units = self._units[end[0]], self._units[start[0]]
                return JoinedPath(eighths, *units, start, end, tuple(reversed(crossings)))
            source = (sink[0], way.source)

    def _driver(self, source: _Place) -> _Place | None:
        """Where the signal that comes into an instance left another one; None at the kernel's own ports."""
        instance, place = source
        name, inner, port = place.rpartition("/")
        if inner:
            return self._inside[instance, name], port
        if instance not in self._around:
            return None
        around, name = self._around[instance]
        return around, f"{name}/{place}"

    def _into(self, source: _Place) -> _Way | None:
        sink = self._driver(source)
        return None if sink is None else self._way(sink)

    def _way(self, sink: _Place) -> _Way | None:
        """The longest way to a place that signals leave an instance at; None if it comes from no register."""
        if sink in self._ways:
            return self._ways[sink]
        if sink in self._open:
            raise LoopError(f"logic feeds itself through several units at {sink[1]} of {sink[0] or 'the kernel'}")
        self._open.add(sink)
        instance, place = sink
        timing = self._parts[self._units[instance]].timing
        best = _Way(timing.arrivals[place][0], start=timing.arrivals[place][1]) if place in timing.arrivals else None
        for source, length in timing.through.get(place, {}).items():
            came = self._into((instance, source))
            if came is not None and (best is None or came.eighths + length > best.eighths):
                best = _Way(came.eighths + length, source=source)
        self._open.remove(sink)
        self._ways[sink] = best
        return best


def _instances(
    parts: Mapping[str, Part], unit: str, instance: str, around: str, name: str
) -> Iterator[tuple[str, str, str, str]]:
    """(path, unit, path of the instance around, name there) of every instance; the kernel stands around itself."""
    yield instance, unit, around, name
    for box, kind in parts[unit].boxes.items():
        yield from _instances(parts, kind, f"{instance}.{box}" if instance else box, instance, box)
