"""The kernel driver on faulty boards, with bad requests, and on a card that has no load hook."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from host.driver.pynq_import import pynq
from host.driver.session import open_kernel
from host.driver.sim_device import SimU280Device
from host.driver.state_words import STATE_REGISTERS, error_words, state_words
from host.driver.xclbin_info import version_text
from host.errors import (
    BadInput,
    BoardFailed,
    DeviceBusy,
    KernelFault,
    MachineError,
    StuckKernel,
    TimeLimit,
    VersionMismatch,
)
from hw.board.gpt2_map import INTERFACE_VERSION, STALL_CAUSES, ErrorCode
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import CORE_CONFIGS

OURS = re.escape(version_text(INTERFACE_VERSION))
CORE = CORE_CONFIGS["16x4"]


@pytest.fixture
def opened(double, xclbin, tiny):
    with open_kernel(double, CORE, xclbin=xclbin, poll_cycles=1000) as kernel:
        kernel.load(tiny.folder)
        yield kernel


def test_stuck_board_ends_with_its_state(opened, double):
    double.stuck_at = 5
    opened.start([1, 2, 3], 10)
    seen: list[int] = []
    with pytest.raises(StuckKernel, match=r"4 polls without a tile or token: state run; position 5") as caught:
        opened.wait(0.05, seen.append)
    assert (caught.value.kind, caught.value.exit_code) == ("stuck_kernel", 3)
    assert isinstance(caught.value, MachineError)
    assert caught.value.value["dump_position"] == 5
    assert len(seen) == 3
    with pytest.raises(DeviceBusy):
        opened.start([1], 1)
    opened.cancel()
    assert opened.wait(1.0).reason == "cancelled"


@pytest.mark.parametrize("name", ["tiles", "tokens_valid", "dump_position"])
def test_work_that_no_other_register_shows_is_no_standstill(opened, double, monkeypatch, name):
    """Slow, not stuck: everything else in the state dump stands still."""
    double.stuck_at = 1
    opened.start([1, 2, 3], 10)

    def work(max_cycles: int) -> int:
        double._put(name, double._get(name) % 60 + 1)
        return 0

    monkeypatch.setattr(double, "advance", work)
    with pytest.raises(TimeLimit, match="it still works"):
        opened.wait(0.01)
    double._end(ErrorCode.CANCELLED, 0)


@pytest.mark.parametrize(("kilocycles", "error"), [(16, TimeLimit), (10**6, StuckKernel)])
def test_polls_go_on_while_cycles_pass(opened, double, monkeypatch, kilocycles, error):
    """A tile every 16,000 cycles is work, though four polls do not see it; 20,000 cycles without one are not."""
    double.stuck_at = 1
    opened.start([1, 2, 3], 10)
    counted = []

    def work(max_cycles: int) -> int:
        counted.append(1)
        double._put("cycles", 1000 * len(counted))
        double._put("tiles", len(counted) // kilocycles)
        return 0

    monkeypatch.setattr(double, "advance", work)
    with pytest.raises(error, match="it still works" if error is TimeLimit else r"2\d{4} cycles without a tile"):
        opened.wait(0.001)


def test_a_run_that_ends_while_its_time_limit_is_looked_into_has_ended(opened, tiny):
    opened.start([1, 2, 3], 2)  # four positions, of which each poll lets the board work on one
    assert list(opened.wait(1e-9).tokens) == tiny.generate([1, 2, 3], 2)
    opened.start([1, 2, 3], 40)  # twin
    with pytest.raises(TimeLimit):
        opened.wait(1e-9)
    opened.wait(5.0)


def test_model_that_notices_by_itself(opened, double):
    double.stuck_at, double.raises_stuck = 4, True
    opened.start([1, 2, 3], 10)
    with pytest.raises(StuckKernel, match="everything waits for memory"):
        opened.wait(5.0)


def test_lost_start(opened, double):
    double.lost_starts = 1
    with pytest.raises(StuckKernel, match="did not take the start: state idle"):
        opened.start([1], 1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.NAN_LOGITS, "a logit is NaN at position 3"),
        (ErrorCode.ILLEGAL, "unknown operation in instruction 3"),
        (ErrorCode.READ, "memory answered a read on port 3 with an error"),
        (ErrorCode.WRITE, "memory answered a write on port 3 with an error"),
    ],
)
def test_error_codes_become_faults(opened, double, tiny, code, words):
    opened.start([1, 2, 3], 10)
    opened.wait(1.0)
    double.fault = (code, 3)
    opened.start([1, 2, 3], 10)
    for _ in range(2):
        with pytest.raises(KernelFault, match=words) as caught:
            opened.wait(1.0)
    assert caught.value.exit_code == 3
    double.fault = None
    with pytest.raises(BadInput, match="the cache holds those of 0"):
        opened.start([1, 2, 3], 1, position=2)  # nothing is trusted after a fault
    opened.start([1, 2, 3], 2)
    assert list(opened.wait(1.0).tokens) == tiny.generate([1, 2, 3], 2)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (([], 1), "empty_prompt", "the prompt is empty"),
        (([1] * 65, 1), "prompt_too_long", "the prompt has 65 tokens, the cache of this program holds 64"),
        (([1, 64], 1), "bad_input", r"prompt id 64 \(number 1\) is not in the vocabulary of 64"),
        (([-1], 1), "bad_input", "prompt id -1"),
        (([1.5], 1), "bad_input", "whole numbers"),
        (([1], 0), "bad_input", "max_new_tokens must be a number from 1, got 0"),
        (([1], 1, [1, 2, 3, 4, 5]), "bad_input", "5 stop ids, the kernel compares 4"),
        (([1], 1, [99]), "bad_input", "stop id 99"),
        (([1, 2], 1, [], False, 2), "bad_input", "position must lie in the prompt of 2 tokens, got 2"),
        (([1, 2], 1, [], False, 1), "not_cached", "the cache holds those of 0"),
    ],
)
def test_bad_requests_are_refused_before_any_register(opened, double, arguments, kind, words):
    before = dict(double.words)
    with pytest.raises(BadInput, match=words) as caught:
        opened.start(*arguments)
    assert (caught.value.kind, caught.value.exit_code) == (kind, 2)
    assert double.words == before


def test_numpy_integers_are_integers(opened, tiny):
    opened.start(np.array([1, 2, 3], np.int64), 2, stop_ids=np.array([63], np.int32))
    assert list(opened.wait(1.0).tokens) == tiny.generate([1, 2, 3], 2, (63,))


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_time_limits_must_be_positive(opened, timeout_s):
    with pytest.raises(BadInput, match="timeout_s must be above 0"):
        opened.wait(timeout_s)


def test_damaged_programs_are_refused(opened, tiny, tmp_path):
    with pytest.raises(BadInput, match="no program folder") as caught:
        opened.load(tmp_path / "none")
    assert caught.value.kind == "bad_program"
    folder = shutil.copytree(tiny.folder, tmp_path / "copy")
    opened.load(folder)  # twin: undamaged it loads
    (folder / "ch02.bin").write_bytes(bytes((folder / "ch02.bin").stat().st_size))
    with pytest.raises(BadInput, match=r"ch02\.bin is damaged"):
        opened.load(folder)
    meta = json.loads((folder / "program.json").read_text())
    meta["format"] = "ringfly-program/9"
    (folder / "program.json").write_text(json.dumps(meta))
    with pytest.raises(BadInput, match="ringfly-program/9"):
        opened.load(folder)


def test_programs_that_do_not_fit_the_core(opened, tiny):
    program, image = Program.load(tiny.folder)
    long = dataclasses.replace(program, instructions=program.instructions * 100)
    with pytest.raises(BadInput, match="400 instructions, the core holds 256"):
        opened.load((long, image))
    few = MemoryImage(image.files[:2], image.image_bytes, image.channel_bytes, image.sha256[:2])
    with pytest.raises(BadInput, match="2 channel files, the core has 4 memory ports"):
        opened.load((program, few))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("identity", 0xDEAD, "identifies itself as 0x0000dead, a Ringfly kernel as 0x52464c59"),
        ("version", 0x0003_0002, rf"interface version 3\.2, this Ringfly drives {OURS}"),
        ("digest", 0x1234, f"digest 0000000000001234, the xclbin's core 16x4 has {CORE.digest[:16]}"),
    ],
)
def test_gateware_of_another_version(double, xclbin, name, value, words):
    setattr(double, name, value)
    with pytest.raises(VersionMismatch, match=words), open_kernel(double, CORE, xclbin=xclbin):
        pass
    assert double.closed


def test_board_of_another_core(board_double, xclbin):
    other = board_double(CORE_CONFIGS["64x16"])
    with (
        pytest.raises(VersionMismatch, match=r"not that of xclbin .*64x16, program is for 16x4"),
        open_kernel(other, CORE, xclbin=xclbin),
    ):
        pass


def test_leaving_cancels_and_closes(double, xclbin, tiny):
    with pytest.raises(KeyboardInterrupt), open_kernel(double, CORE, xclbin=xclbin, poll_cycles=1) as kernel:
        kernel.load(tiny.folder)
        kernel.start([1], 60)

        def interrupt(token: int) -> None:
            raise KeyboardInterrupt

        kernel.wait(5.0, interrupt)
    assert double.closed and not double.running
    assert double._get("error") == ErrorCode.CANCELLED
    with pytest.raises(BoardFailed, match="closed"):
        kernel.state_dump()


def test_card_without_load_hook(double, xclbin, tiny):
    """A real card: no load_program, so image, instructions and registers go through buffers and MMIO."""

    class PlainCard(SimU280Device):
        load_program = None

    loads = []
    device = PlainCard(double)
    try:
        kernel = pynq.Overlay(str(xclbin), device=device).gpt2_0
        loads.append(double.loads)
        kernel.load(tiny.folder)
        kernel.start([1, 2, 3], 5, write_logits=True)
        assert list(kernel.wait(5.0).tokens) == tiny.generate([1, 2, 3], 5)
        np.testing.assert_array_equal(kernel.read_logits(2), tiny.logits(2, 3))
        assert [address >> 28 for address in (buffer.device_address for buffer in kernel.buffers)] == [0, 1, 2, 3]
        assert kernel.buffers[0].device_address != 0
        never_written = kernel.buffers[2][8192:16384]  # keys and values
        never_written[:] = 0
        never_written.invalidate()
        assert (never_written.view("<u2") == 0x7E00).all()
    finally:
        device.close()
    assert loads == [double.loads] == [1]  # only the blank load of the download


def test_state_in_words():
    dump = dict.fromkeys(STATE_REGISTERS, 0)
    dump |= {"state": 1, "dump_stall": STALL_CAUSES.index("stream"), "dump_fifo": 7 << 16 | 2, "dump_units": 0b101}
    text = state_words(dump)
    assert "state run" in text and "waits for memory" in text
    assert "read FIFOs hold 2 to 7 rows" in text and "busy units: writer, softmax" in text
    assert state_words({"state": 9, "dump_stall": 99}) == "state 9; stall cause 99"
    assert state_words({}) == ""
    assert error_words(99, 5) == "unknown error code 99 (detail 5)"
