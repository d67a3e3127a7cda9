"""One lock for each card, held by one process at a time, which says who it is."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import re
import socket
import sys
import tempfile
from pathlib import Path

from host.errors import BadInput, DeviceBusy

__all__ = ["LOCK_FOLDER", "CardLock", "Holder", "lock_folder"]

LOCK_FOLDER = "RINGFLY_LOCKS"  # environment variable: another folder for the lock files
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}")
_MOST_BYTES = 4096  # of what a holder says about itself


def lock_folder() -> Path:
    """Folder of the lock files: ``$RINGFLY_LOCKS``, else ``/run/lock``, which all users share, else the one for
    temporary files."""
    named = os.environ.get(LOCK_FOLDER)
    if named:
        return Path(named)
    shared = Path("/run/lock")
    return shared if os.access(shared, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that holds a card: its id, command line, host, and since when (local time, to the second)."""

    pid: int
    command: str
    host: str
    since: str

    @classmethod
    def this_process(cls) -> Holder:
        """What the running process writes into its lock files."""
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        command = " ".join(sys.orig_argv).encode("utf-8", "replace").decode()
        return cls(os.getpid(), command[:300], socket.gethostname(), now)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} ({self.command}), since {self.since}"


class CardLock:
    """Exclusive use of the card `card`, from :meth:`acquire` (or entering ``with``) to :meth:`release`.

    Parameters
    ----------
    card : str
        Name of the card: letters, digits and ``._:@-``, such as the tag of a PYNQ device or a PCI address.
    folder : Path
        Where its lock file ``ringfly-<card>.lock`` lies; ``lock_folder()`` if None.

    The operating system holds the lock (``flock``), so it goes when its process ends, however that ends; the file
    stays, and what it says counts only while somebody holds the lock. Raises BadInput for a name that is none and a
    folder that cannot be written, DeviceBusy, which names the holder, for a card in use, in this process too.
    """

    def __init__(self, card: str, folder: Path | None = None) -> None:
        if not _NAME.fullmatch(card):
            raise BadInput(
                f"{card!r} is no name of a card",
                value=card,
                expected="letters, digits and . _ : @ -, at most 100",
                hint="Name it like its PCI address, for example 0000:3b:00.1.",
            )
        self.card = card
        self.path = (lock_folder() if folder is None else folder) / f"ringfly-{card}.lock"
        self._file: int | None = None

    def __enter__(self) -> CardLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock without waiting."""
        if self._file is not None:
            raise DeviceBusy(f"card {self.card} is already held by this very lock", value=self.card)
        try:
            file = _open(self.path)
        except OSError as error:
            raise BadInput(
                f"the lock of card {self.card} cannot be opened: {self.path}: {error.strerror or error}",
                kind="no_lock",
                value=str(self.path),
                hint=f"Set {LOCK_FOLDER} to a folder that everybody who uses the card can write.",
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(file, json.dumps(dataclasses.asdict(Holder.this_process())).encode())
        except BlockingIOError:
            holder = _holder(file)
            os.close(file)
            raise DeviceBusy(
                f"card {self.card} is in use by {holder or 'a process that has not said who it is'}",
                value=self.card if holder is None else dataclasses.asdict(holder),
                hint=f"Wait for it to end, or use another card. The lock is {self.path}.",
            ) from None
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        """Give the card back; nothing happens if it is not held."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a full disk must not keep the card
                os.ftruncate(file, 0)
            fcntl.flock(file, fcntl.LOCK_UN)  # closing alone leaves it to a child process that has the file open too
            os.close(file)


def _open(path: Path) -> int:
    """Open the lock file, made for all users if it is not there.

    Never O_CREAT on one that exists: Linux refuses that for another user's file in a folder like ``/run/lock``
    (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):  # made by somebody else just now
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(file, 0o666)  # whatever the umask says
            return file


def _write(file: int, data: bytes) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, data[:_MOST_BYTES], 0)


def _holder(file: int) -> Holder | None:
    """Who the file says holds the lock, or None if it says nothing that can be read."""
    try:
        facts = json.loads(os.pread(file, _MOST_BYTES, 0))
        return Holder(int(facts["pid"]), str(facts["command"]), str(facts["host"]), str(facts["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
