"""The build cache: hits, failures, kills, races."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sim.rtl import build_cache
from sim.rtl.build_cache import BuildError, cache_root, cached_folder

_SLOW = """
import sys, time
from sim.rtl.build_cache import cached_folder
def build(folder):
    (folder / "half").write_text("done")
    with open(sys.argv[1], "a") as log: log.write("built\\n")
    time.sleep(float(sys.argv[2]))
    (folder / "whole").write_text("done")
print(cached_folder("slow", ["recipe"], build))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGFLY_CACHE", str(tmp_path / "cache"))
    assert cache_root() == tmp_path / "cache"
    return tmp_path / "cache" / "builds"


def start_slow(log, seconds):
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    return subprocess.Popen(
        [sys.executable, "-c", _SLOW, str(log), str(seconds)], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_second_build_is_a_hit_and_another_recipe_is_not():
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "result").write_text(str(len(calls)))

    first = cached_folder("thing", ["a", "b"], build)
    assert cached_folder("thing", ["a", "b"], build) == first
    assert len(calls) == 1
    assert (first / "result").read_text() == "1"
    assert cached_folder("thing", ["ab", ""], build) != first
    assert cached_folder("thing", ["a", "c"], build) != first
    assert len(calls) == 3


def test_failed_build_leaves_nothing(cache):
    def build(folder):
        (folder / "half").write_text("")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cached_folder("thing", ["a"], build)
    assert list(cache.iterdir()) == []


def test_killed_build_is_no_build(cache, tmp_path):
    log = tmp_path / "log"
    process = start_slow(log, 100)
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not [path for path in cache.iterdir() if path.name.startswith("slow") and path.is_dir()]
    assert len([path for path in cache.iterdir() if path.name.startswith(".slow")]) == 1
    again = start_slow(log, 0)
    folder = again.communicate(timeout=60)[0].strip()
    assert again.returncode == 0
    assert [path.name for path in cache.iterdir()] == [os.path.basename(folder)]
    assert sorted(os.listdir(folder)) == ["half", "whole"]


def test_two_processes_build_once(tmp_path):
    log = tmp_path / "log"
    processes = [start_slow(log, 1) for _ in range(2)]
    folders = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(folders) == 1
    assert log.read_text() == "built\n"


def test_waiting_says_for_whom_and_has_an_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build_cache, "_REPORT_EVERY_S", 0.3)
    monkeypatch.setattr(build_cache, "_GIVE_UP_S", 1.0)
    log = tmp_path / "log"
    holder = start_slow(log, 100)
    try:
        deadline = time.monotonic() + 60
        while not log.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(BuildError, match=rf"process {holder.pid} \(-c\) has not finished building slow within 1 s"):
            cached_folder("slow", ["recipe"], lambda folder: None)
    finally:
        holder.kill()
        holder.wait()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert all(f"process {holder.pid} (-c) builds slow; waiting for it" in line for line in lines)
    assert cached_folder("slow", ["recipe"], lambda folder: None).is_dir()
