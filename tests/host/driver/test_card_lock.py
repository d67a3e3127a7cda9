"""One lock a card: held by one process at a time, named to all others, gone with its process however that ends."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.driver.card_lock import CardLock, lock_folder
from host.driver.session import open_kernel
from host.driver.sim_device import SimU280Device
from host.errors import BadInput, DeviceBusy
from hw.gpt2.config import CORE_CONFIGS

ROOT = Path(__file__).resolve().parents[3]
# Where the tests run in the background SIGINT may be ignored, and children inherit that.
HOLD = "import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler); "
HOLD += "from host.driver.card_lock import CardLock; CardLock(sys.argv[1]).acquire(); print('held', flush=True); "
HOLD += "time.sleep(60)"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RINGFLY_LOCKS", str(tmp_path))
    return tmp_path


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[str]]:
    """A process that holds card u280-a and says so."""
    command = [sys.executable, "-c", HOLD, "u280-a"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_another_process_is_named(other_process: subprocess.Popen[str]) -> None:
    lock = CardLock("u280-a")
    with pytest.raises(DeviceBusy) as got:
        lock.acquire()
    assert (got.value.kind, got.value.exit_code) == ("device_busy", 2)
    for word in ("card u280-a is in use", f"process {other_process.pid}", socket.gethostname(), "u280-a)", "since 20"):
        assert word in got.value.message, got.value.message
    assert str(lock.path) in got.value.hint
    with CardLock("u280-b"):  # twin: another card is free
        pass


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_ends_leaves_the_card_free(ending: signal.Signals, other_process: subprocess.Popen[str]) -> None:
    other_process.send_signal(ending)
    other_process.wait(30)
    lock = CardLock("u280-a")
    assert str(other_process.pid) in lock.path.read_text()  # what it wrote is still there, and blocks nobody
    with lock:
        assert str(os.getpid()) in lock.path.read_text()
    assert lock.path.read_text() == ""


def test_a_child_that_runs_on_does_not_keep_the_card() -> None:
    with CardLock("u280-a"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    try:
        with CardLock("u280-a"):
            pass
    finally:
        child.kill()
        child.wait()


def test_the_same_process_cannot_hold_a_card_twice() -> None:
    with CardLock("u280-a") as lock:
        with pytest.raises(DeviceBusy, match=f"process {os.getpid()} on"):
            CardLock("u280-a").acquire()
        with pytest.raises(DeviceBusy, match="by this very lock"):
            lock.acquire()
    lock.release()  # nothing happens
    with lock, pytest.raises(DeviceBusy):
        CardLock("u280-a").acquire()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', "\udcff"])
def test_a_holder_that_says_nothing_is_still_a_holder(text: str) -> None:
    with CardLock("u280-a") as lock:
        lock.path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(DeviceBusy, match="has not said who it is"):
            CardLock("u280-a").acquire()


def test_everybody_can_take_the_lock_of_everybody(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with CardLock("u280-a") as lock:
            assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    finally:
        os.umask(before)


@pytest.mark.parametrize("card", ["", "../u280", "a/b", "-x", "a b", "x" * 101, "\n"])
def test_names_of_cards(card: str) -> None:
    with pytest.raises(BadInput, match="no name of a card"):
        CardLock(card)


def test_a_lock_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RINGFLY_LOCKS", str(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match="No such file") as got:
        CardLock("u280-a").acquire()
    assert got.value.kind == "no_lock" and "RINGFLY_LOCKS" in got.value.hint
    (tmp_path / "ringfly-link.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="cannot be opened"):  # a link could make a file anywhere
        CardLock("link", tmp_path).acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_all_users_share_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGFLY_LOCKS")
    assert str(lock_folder()) in ("/run/lock", "/tmp")


def test_a_simulated_card_with_a_name_is_locked_until_it_is_closed(board_double, xclbin, other_process) -> None:
    busy = board_double()
    with pytest.raises(DeviceBusy, match=f"process {other_process.pid}"):
        with open_kernel(busy, CORE_CONFIGS["16x4"], xclbin=xclbin, card="u280-a"):
            pass
    assert busy.closed and SimU280Device._open == []
    with open_kernel(board_double(), CORE_CONFIGS["16x4"], xclbin=xclbin, card="u280-b"):
        with pytest.raises(DeviceBusy):
            SimU280Device(board_double(), card="u280-b")
        SimU280Device(board_double()).close()  # twin: without a name there is no lock
    with CardLock("u280-b"):
        pass
