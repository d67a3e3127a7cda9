"""Memory bounds: measured from outside on fresh processes, and a process that takes too much is noticed."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import pytest

import host.bench.memory as memory
from host.bench.anonymous_memory import anonymous_bytes, watched_run
from host.compiler import chosen_model
from sw.models.weights import expected_shapes

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny"


def _hungry(megabytes: int) -> list[str]:
    return [sys.executable, "-c", f"import time; a = bytearray({megabytes} << 20); time.sleep(0.3)"]


def test_the_peak_is_that_of_the_process(tmp_path: Path) -> None:
    runs = {size: watched_run(_hungry(size), tmp_path, 60.0) for size in (1, 200)}
    assert all(run.code == 0 and run.samples > 20 for run in runs.values())
    assert 190 << 20 < runs[200].peak_bytes - runs[1].peak_bytes < 210 << 20


def test_children_count_once_they_have_memory_of_their_own(tmp_path: Path) -> None:
    child = f"import subprocess; subprocess.run({_hungry(100)!r}, check=True)"
    grandchild = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    run = watched_run([sys.executable, "-c", grandchild], tmp_path, 60.0)
    assert run.code == 0 and 100 << 20 < run.peak_bytes < 150 << 20, run
    code = "import os, time; a = bytearray(100 << 20); {}; time.sleep(0.5); pid and os.wait()"
    plain, forked = (
        watched_run([sys.executable, "-c", code.format(work)], tmp_path, 60.0)
        for work in ("pid = 0", "pid = os.fork()")
    )
    assert plain.code == forked.code == 0, plain.stderr + forked.stderr
    assert plain.peak_bytes > 100 << 20 and forked.peak_bytes >= plain.peak_bytes - (4 << 20)


def test_mapped_files_do_not_count_until_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(100 << 20))
    code = "import mmap, time; f = open({!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=3); {}"
    touch = "[m.__getitem__(i) for i in range(0, len(m), 4096)]; time.sleep(0.2)"
    write = "[m.__setitem__(i, 1) for i in range(0, len(m), 4096)]; time.sleep(0.2)"
    read, wrote = (
        watched_run([sys.executable, "-c", code.format(str(path), work)], tmp_path, 60.0) for work in (touch, write)
    )
    assert read.code == wrote.code == 0, read.stderr + wrote.stderr
    assert read.peak_bytes < 30 << 20 < 100 << 20 < wrote.peak_bytes


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.5 s"):
        watched_run([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, 0.5)
    assert time.monotonic() - start < 30
    assert (anonymous_bytes() or 0) > 1 << 20 and anonymous_bytes(2**22 + 1) is None


def test_the_bounds_are_those_that_were_promised() -> None:
    weights = chosen_model("gpt2-xl")
    assert memory.compile_bound_bytes(weights) == 600_000_000 + 4 * 50257 * 1600
    from host.compiler import chosen_core, fitting_shape, plan_program

    program = plan_program(fitting_shape(weights, chosen_core("64x16")))
    model = 2 * sum(math.prod(shape) for shape in expected_shapes(weights.config).values())
    assert memory.run_bound_bytes(weights, program) == 600_000_000 + 2 * 48 * 1024 * 1600 * 2 + round(0.1 * model)


def test_a_small_model_holds_its_bounds_and_a_missed_one_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--model", str(TINY), "--core", "16x4", "--kv", "30", "--run", "functional", "--json"]
    assert memory.main(command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (
        answer["held"] and answer["kv"] == 30 and [run["work"] for run in answer["runs"]] == ["compile", "functional"]
    )
    for run in answer["runs"]:
        assert 20e6 < run["peak_anonymous_bytes"] <= run["bound_bytes"] and run["samples"] > 20
    assert answer["runs"][1]["step_seconds"] > 0
    monkeypatch.setattr(memory, "ALLOWANCE_BYTES", 1_000_000)  # twin
    assert memory.main(command[:-1]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_work_that_fails_is_no_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory.main(["--model", str(TINY), "--core", "16x4", "--kv", "1000"]) == 2
    assert "positions with keys and values is 999" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2-124m", "gpt2-xl"])
def test_real_sizes_hold_their_bounds(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert memory.main(["--model", model, "--run", "functional"]) == 0, capsys.readouterr().out
    print(capsys.readouterr().out)
