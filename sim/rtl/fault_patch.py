"""One fault as a change of a module's source text, and the import hook that applies it. Imports no gateware."""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import pathlib
import sys
import types
from collections.abc import Sequence

__all__ = ["Fault", "FaultError", "install", "module_path", "patched_text"]


class FaultError(ValueError):
    """A fault that is unknown or does not fit the source it patches."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A seeded fault.

    ``module`` is the dotted name of a gateware module whose text ``before`` (which must occur exactly once) becomes
        ``after``;
    ``description`` says what is wrong then; ``caught_by`` which check finds it: ``programs`` (random programs alone),
        ``model`` (a whole model), ``counters``, ``control`` (start, done, cancel, registers), or ``nothing`` for an
        equivalent change that must not be reported;
    ``core_changes`` : fields of the core's config and their values, where the fault shows only on another core.
    """

    name: str
    module: str
    before: str
    after: str
    description: str
    caught_by: str
    core_changes: tuple[tuple[str, int | str], ...] = ()

    @property
    def equivalent(self) -> bool:
        """The change does not change what the hardware does."""
        return self.caught_by == "nothing"


def module_path(module: str, root: pathlib.Path) -> pathlib.Path:
    """Source file of a module below ``root``. Raises FaultError if there is none."""
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    if not path.is_file():
        raise FaultError(f"there is no module {module} ({path})")
    return path


def patched_text(fault: Fault, text: str) -> str:
    """The module's text with the fault in it. Raises FaultError unless ``before`` is there once and differs."""
    found = text.count(fault.before)
    if not fault.before or found != 1:
        raise FaultError(
            f"fault {fault.name}: its text occurs {found} times in {fault.module}, must be once: {fault.before!r}"
        )
    if fault.before == fault.after:
        raise FaultError(f"fault {fault.name}: changes nothing")
    return text.replace(fault.before, fault.after)


class _PatchedLoader(importlib.machinery.SourceFileLoader):
    """Compiles the changed text; never reads or writes byte code on disk."""

    def __init__(self, fault: Fault, path: str) -> None:
        super().__init__(fault.module, path)
        self._fault = fault

    def get_code(self, fullname: str) -> types.CodeType:
        path = pathlib.Path(self.path)
        text = patched_text(self._fault, path.read_text(encoding="utf-8"))
        return compile(text, str(path), "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._fault.module:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            return None
        loader = _PatchedLoader(self._fault, found.origin)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=found.origin)


def install(fault: Fault) -> None:
    """From now on importing the fault's module gives the faulty one. Raises FaultError if it was imported before."""
    if fault.module in sys.modules:
        raise FaultError(f"fault {fault.name}: {fault.module} was imported before the fault was installed")
    sys.meta_path.insert(0, _Finder(fault))
