"""Compiles golden models to machine code, with a cache that notices changes in their callees.

numba's own cache looks only at the file of the compiled function: after an edit of `fp32_mul` a cached `gelu` would
still hold the old one. Here the name of the cache folder contains the hash of all sources the function may call.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numba

__all__ = ["cached_njit", "golden_njit", "source_digest"]


def source_digest(*folders: Path) -> str:
    """SHA-256 (hexadecimal) over names and contents of all Python files directly in `folders`, in sorted order."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def cached_njit(*folders: Path, **options) -> Callable[[Callable], Callable]:
    """Return a decorator like `numba.njit(cache=True, **options)` whose cache is renewed when a source changes.

    Parameters
    ----------
    folders : Path
        Packages whose Python files the decorated functions are compiled from: their own and those of their callees.
    options
        Passed on to `numba.njit`, for example ``parallel=True``.

    The machine code lies below ``$RINGFLY_CACHE/numba`` (``~/.cache/ringfly/numba`` if the variable is not set).
    """
    root = Path(os.environ.get("RINGFLY_CACHE") or Path.home() / ".cache" / "ringfly")
    cache_dir = root / "numba" / source_digest(*folders)[:16]

    def decorate(function: Callable) -> Callable:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(cache_dir)  # read by numba at decoration, not at compilation
        try:
            return numba.njit(cache=True, **options)(function)
        finally:
            numba.config.CACHE_DIR = before

    return decorate


golden_njit = cached_njit(Path(__file__).parent)
"""Decorator of all golden models in `hw.numerics`."""
