"""Folders of finished builds, found again by the hash of everything that went into them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

__all__ = ["BuildError", "cache_root", "cached_folder"]

_LOOK_EVERY_S = 0.1
_REPORT_EVERY_S = 10.0
_GIVE_UP_S = 3600.0


class BuildError(RuntimeError):
    """A tool failed (the message ends with its output), or a build did not end in time."""


def cache_root() -> pathlib.Path:
    """Folder of all builds: ``$RINGFLY_CACHE``, else ``~/.cache/ringfly``."""
    chosen = os.environ.get("RINGFLY_CACHE")
    return pathlib.Path(chosen) if chosen else pathlib.Path.home() / ".cache" / "ringfly"


def cached_folder(kind: str, recipe: Sequence[str], build: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """The folder that ``build(folder)`` fills, built only if no finished one with this recipe exists.

    Parameters
    ----------
    kind : str
        Leading part of the folder's name, for people.
    recipe : sequence of str
        Everything that the result depends on: sources, flags, versions.
    build : callable
        Fills the empty folder that it is given. If it raises, nothing is kept.

    Two processes with the same recipe build once: the second waits for the first. A finished folder appears by one
    rename, so a killed build is never mistaken for a finished one; its remains are removed by the next build of the
    same recipe. Raises BuildError if the other process holds the build for more than an hour.
    """
    digest = hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:32]
    root = cache_root() / "builds"
    folder = root / f"{kind}-{digest}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f"{kind}-{digest}.lock", kind):
        if folder.is_dir():
            return folder
        for stale in root.glob(f".{kind}-{digest}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        scratch = pathlib.Path(tempfile.mkdtemp(prefix=f".{kind}-{digest}-", dir=root))
        try:
            build(scratch)
            scratch.rename(folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return folder


@contextlib.contextmanager
def _locked(path: pathlib.Path, kind: str) -> Iterator[None]:
    """Hold an exclusive lock; the system releases it when the holder dies. The file goes away with the last holder.

    While it is locked the file says who holds it. Raises BuildError after :data:`_GIVE_UP_S`.
    """
    start = time.monotonic()
    report = start
    while True:
        handle = path.open("a+")
        while not _taken(handle):
            now = time.monotonic()
            holder = _holder(path)
            if now - start >= _GIVE_UP_S:
                handle.close()
                raise BuildError(
                    f"{holder} has not finished building {kind} within {now - start:.0f} s; "
                    "end it if it hangs, and start again"
                )
            if now >= report:
                print(
                    f"{holder} builds {kind}; waiting for it, {now - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
                report = now + _REPORT_EVERY_S
            time.sleep(_LOOK_EVERY_S)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                break
        handle.close()  # the holder before us removed the file: lock the new one
    try:
        handle.truncate(0)
        handle.write(f"process {os.getpid()} ({pathlib.Path(sys.argv[0] or sys.executable).name})\n")
        handle.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        handle.close()


def _holder(path: pathlib.Path) -> str:
    """Who wrote itself into the lock file."""
    try:
        return path.read_text().strip() or "another process"
    except FileNotFoundError:
        return "another process"


def _taken(handle: TextIO) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
