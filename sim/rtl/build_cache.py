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
from collections.abc import Callable, Iterator, Sequence

__all__ = ["cache_root", "cached_folder"]


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
    same recipe.
    """
    digest = hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:32]
    root = cache_root() / "builds"
    folder = root / f"{kind}-{digest}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f"{kind}-{digest}.lock", f"another process builds {kind}; waiting for it"):
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
def _locked(path: pathlib.Path, message: str) -> Iterator[None]:
    """Hold an exclusive lock; the system releases it when the holder dies. The file goes away with the last holder."""
    while True:
        handle = path.open("w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(message, file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                break
        handle.close()  # the holder before us removed the file: lock the new one
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        handle.close()
