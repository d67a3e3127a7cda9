"""The timing model compiled with pieces of its source replaced: what a comparison with the gateware must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sim.timing import TimingError, library
from sim.timing.comparison import GatewareRun

Change = tuple[str, str, str]


@pytest.fixture
def changed_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``changed_model((file, old, new), ...)`` replaces texts that are there once, in the original each time."""
    sources = library._sources()

    def make(*changes: Change) -> None:
        changed = dict(sources)
        for file, old, new in changes:
            assert changed[file].count(old) == 1, f"{file} has {old!r} {changed[file].count(old)} times"
            changed[file] = changed[file].replace(old, new)
        monkeypatch.setattr(library, "_sources", lambda: changed)
        library.load_library.cache_clear()

    yield make
    monkeypatch.undo()
    library.load_library.cache_clear()


@pytest.fixture
def differs() -> Callable[[GatewareRun], bool]:
    """Whether any counter of a run differs, or the timing model does not come to an end."""

    def check(run: GatewareRun) -> bool:
        try:
            return bool(run.compared().unequal())
        except TimingError:
            return True

    return check
