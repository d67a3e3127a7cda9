"""One suite for every board model behind the PYNQ device: double, functional executor and Verilated gateware."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import numpy as np
import pytest

from host.driver.gpt2_kernel import Gpt2Kernel
from host.driver.program_memory import copy_image
from host.driver.pynq_import import pynq
from host.driver.sim_device import SimU280Device
from host.driver.xclbin import write_xclbin
from host.driver.xclbin_info import version_text
from host.errors import (
    BadInput,
    BadPointer,
    BoardFailed,
    DeviceBusy,
    KernelFault,
    StuckKernel,
    TimeLimit,
    VersionMismatch,
)
from hw.board.board_model import BANK_BYTES, BoardError, BoardModel
from hw.board.gpt2_map import IDENTITY, INTERFACE_VERSION
from hw.board.program import Program
from hw.gpt2.config import CORE_CONFIGS
from hw.gpt2.isa import Access

OURS = version_text(INTERFACE_VERSION)
CORE = CORE_CONFIGS["16x4"]
PROMPT = [3, 1, 4, 1, 5]
LIMIT_S = 30.0


def test_board_is_a_board_model(board):
    assert isinstance(board, BoardModel)


def test_identity_is_readable_before_a_program(overlay):
    registers = overlay.gpt2_0.register_map
    assert int(registers.identity) == IDENTITY
    assert int(registers.interface_version) >> 16 == INTERFACE_VERSION >> 16
    assert f"{int(registers.config_digest):016x}" == CORE.digest[:16]


def test_start_and_done(kernel, tiny):
    kernel.start(PROMPT, 6)
    result = kernel.wait(LIMIT_S)
    assert list(result.tokens) == tiny.generate(PROMPT, 6)
    assert result.reason == "length"
    assert kernel.tokens() == PROMPT + list(result.tokens)
    assert int(kernel.register_map.CTRL.AP_DONE) == 1
    assert int(kernel.register_map.CTRL.AP_IDLE) == 1
    assert kernel.wait(LIMIT_S) == result  # an answer can be asked for again


def test_one_changed_weight_changes_the_logits(kernel, tiny):
    """Twin of the equality tests: memory that differs in one word must show."""
    kernel.start(PROMPT, 1, write_logits=True)
    kernel.wait(LIMIT_S)
    right = kernel.read_logits(4)
    np.testing.assert_array_equal(right, tiny.logits(4, PROMPT[-1]))
    word = kernel.buffers[1][: CORE.port_bytes]
    word.invalidate()
    word.view("<f2")[0] += 1
    word.flush()
    kernel.start(PROMPT, 1, write_logits=True)
    kernel.wait(LIMIT_S)
    wrong = kernel.read_logits(4)
    x = tiny.position[4] + tiny.token[PROMPT[-1]]
    assert wrong[1] == right[1] + x[0]  # lane 1, first strip: column 1
    assert (np.delete(wrong, 1) == np.delete(right, 1)).all()


def test_done_count_never_misses(kernel, tiny):
    before = kernel.get("done_count")
    for count in (1, 3, 2):
        kernel.start(PROMPT, count)
        kernel.wait(LIMIT_S)
    assert kernel.get("done_count") - before == 3
    assert kernel.get("done_count") == kernel.get("start_count")


def test_second_start_is_refused(kernel, tiny):
    kernel.start(PROMPT, 40)
    with pytest.raises(DeviceBusy, match="still running") as caught:
        kernel.start(PROMPT, 1)
    assert caught.value.exit_code == 2
    with pytest.raises(DeviceBusy, match="start the kernel again"):
        kernel.register_map.CTRL.AP_START = 1
    with pytest.raises(DeviceBusy, match="write register"):
        kernel.register_map.position = 1
    with pytest.raises(DeviceBusy):
        kernel.load(tiny.folder)
    assert list(kernel.wait(LIMIT_S).tokens) == tiny.generate(PROMPT, 40)
    assert kernel.get("start_count") == kernel.get("done_count")


def test_registers_above_32_bits(overlay):
    kernel = overlay.gpt2_0
    kernel.register_map.hbm1 = 0x1_2345_6000
    assert int(kernel.register_map.hbm1) == kernel.get("hbm1") == 0x1_2345_6000
    kernel.mmio.write(kernel.map["hbm2"].offset + 4, 1)  # high word alone
    assert kernel.get("hbm2") >> 32 == 1
    kernel.set("eps_term", 0x1234_9ABC_DEF0_0FED_CBA9)  # 80 of the 96 bits are kept
    assert kernel.get("eps_term") == 0x1234_9ABC_DEF0_0FED_CBA9
    assert int(kernel.register_map.eps_term_0) == 0x9ABC_DEF0_0FED_CBA9
    assert int(kernel.register_map.eps_term_1) == 0x1234
    with pytest.raises(BadInput, match="32 bits"):
        kernel.set("vocab", 1 << 32)


def test_accesses_must_be_words_of_the_kernel(device, overlay):
    base = overlay.ip_dict["gpt2_0"]["phys_addr"]
    for address, length in ((base + 2, 4), (base, 3), (base - 4, 4), (base + 0x10000, 4), (base + 0xFFFC, 8)):
        with pytest.raises(BadInput, match="not in the kernel's registers or not in 4-byte words"):
            device.read_registers(address, length)


def test_cancel_and_run_again(kernel, tiny):
    seen: list[int] = []

    def stop_after_three(token: int) -> None:
        seen.append(token)
        if len(seen) == 3:
            kernel.cancel()

    kernel.start(PROMPT, 50)
    result = kernel.wait(LIMIT_S, stop_after_three)
    assert result.reason == "cancelled"
    assert 3 <= len(result.tokens) < 50
    assert list(result.tokens) == tiny.generate(PROMPT, len(result.tokens)) == seen
    kernel.cancel()  # nothing runs: nothing happens
    kernel.start(PROMPT, 7)
    assert list(kernel.wait(LIMIT_S).tokens) == tiny.generate(PROMPT, 7)


def test_token_ring_while_it_runs(kernel, tiny):
    expected = PROMPT + tiny.generate(PROMPT, 50)
    lengths = []
    kernel.start(PROMPT, 50)
    while kernel.running():
        tokens = kernel.tokens()
        assert tokens == expected[: len(tokens)]
        lengths.append(len(tokens))
    assert kernel.tokens() == expected
    assert lengths == sorted(lengths)
    assert len({length for length in lengths if len(PROMPT) < length < len(expected)}) > 3


def test_time_limit_says_where_it_is_and_the_run_goes_on(kernel, tiny):
    kernel.start(PROMPT, 58)
    with pytest.raises(TimeLimit, match=r"still works: state run; position \d+") as caught:
        kernel.wait(1e-9)
    assert caught.value.exit_code == 3
    assert caught.value.kind == "time_limit"
    assert list(kernel.wait(LIMIT_S).tokens) == tiny.generate(PROMPT, 58)


def test_starved_kernel_is_stuck_and_can_be_cancelled(kernel, board, tiny):
    """An access program that fetches too few rows: the kernel waits for memory for ever."""
    program, image = Program.load(tiny.folder)
    weights = Access.decode(program.descriptors[2])
    few = dataclasses.replace(weights, count=weights.count - 8).encode()
    kernel.load(
        (dataclasses.replace(program, descriptors=(*program.descriptors[:2], few, program.descriptors[3])), image)
    )
    if hasattr(board, "stuck_at"):
        board.stuck_at = len(PROMPT) - 1
    kernel.start(PROMPT, 5)
    with pytest.raises(StuckKernel) as caught:
        kernel.wait(0.5)
    assert (caught.value.kind, caught.value.exit_code) == ("stuck_kernel", 3)
    kernel.cancel()
    assert kernel.wait(LIMIT_S).reason == "cancelled"
    if hasattr(board, "stuck_at"):
        board.stuck_at = None
    kernel.load(tiny.folder)
    kernel.start(PROMPT, 5)
    assert list(kernel.wait(LIMIT_S).tokens) == tiny.generate(PROMPT, 5)


def test_stop_ids_and_full_context(kernel, tiny):
    free = tiny.generate(PROMPT, 59)
    stop = free[4]
    expected = tiny.generate(PROMPT, 59, (stop,))
    kernel.start(PROMPT, 59, stop_ids=(stop,))
    result = kernel.wait(LIMIT_S)
    assert (list(result.tokens), result.reason) == (expected, "stop")
    kernel.start(PROMPT, 1000)
    result = kernel.wait(LIMIT_S)
    assert result.reason == "context"
    assert list(result.tokens) == tiny.generate(PROMPT, 60)
    assert len(PROMPT) + len(result.tokens) == kernel.get("context_limit") + 1


def test_one_start_a_token_from_the_cache(kernel, tiny):
    tokens = list(PROMPT)
    kernel.start(tokens, 1)
    tokens += kernel.wait(LIMIT_S).tokens
    for _ in range(5):
        kernel.start(tokens, 1, position=len(tokens) - 1)
        tokens += kernel.wait(LIMIT_S).tokens
    assert tokens == PROMPT + tiny.generate(PROMPT, 6)
    with pytest.raises(BadInput, match="the cache holds those of 2") as caught:
        kernel.start([3, 1, 0, 1, 5], 1, position=4)
    assert caught.value.kind == "not_cached"


def test_logits_of_every_decode_step(kernel, tiny):
    kernel.start(PROMPT, 4, write_logits=True)
    tokens = PROMPT + list(kernel.wait(LIMIT_S).tokens)
    for position in range(4, 8):
        np.testing.assert_array_equal(kernel.read_logits(position), tiny.logits(position, tokens[position]))
    for position in (3, 8):
        with pytest.raises(BadInput, match="no logits of position"):
            kernel.read_logits(position)


def test_logits_into_a_users_buffers(kernel, overlay, tiny):
    """Plain PYNQ: a buffer in each bank, its row written to a register, read after invalidate."""
    buffers = [pynq.allocate((64, 2, 8), "f4", target=getattr(overlay, f"HBM{c}")) for c in range(CORE.channels)]
    for buffer in buffers:
        buffer[:] = 0
        buffer.flush()
    kernel.register_map.logits_base = (buffers[0].device_address - int(kernel.register_map.hbm0)) // CORE.port_bytes
    kernel.start(PROMPT, 1, write_logits=True)
    kernel.wait(LIMIT_S)
    for buffer in buffers:
        buffer.invalidate()
    got = np.stack([np.array(buffer[4]) for buffer in buffers], axis=1).reshape(-1)
    np.testing.assert_array_equal(got, tiny.logits(4, PROMPT[-1]))
    assert not buffers[0][3].any()


def test_users_buffers_survive_a_load(kernel, overlay, tiny, board):
    buffer = pynq.allocate((1000,), "u4", target=overlay.HBM2)
    buffer[:] = np.arange(1000)
    buffer.sync_to_device()
    kernel.load(tiny.folder)
    buffer[:] = 0
    buffer.sync_from_device()
    assert (np.array(buffer) == np.arange(1000)).all()
    assert board.read_memory(2, buffer.device_address - 2 * BANK_BYTES, 8) == bytes([0, 0, 0, 0, 1, 0, 0, 0])


def test_memory_outside_the_image_is_nan(kernel):
    for buffer in kernel.buffers:
        part = buffer[8192:16384]  # keys and values
        part.invalidate()
        assert (part.view("<u2") == 0x7E00).all()


def test_program_in_a_users_own_buffers(overlay, tiny):
    """No load(): image copied to allocated buffers, pointers, program and registers written by hand."""
    program, image = Program.load(tiny.folder)
    kernel = overlay.gpt2_0
    banks = [getattr(overlay, f"HBM{channel}") for channel in range(CORE.channels)]
    buffers = copy_image(image, 65536, banks)
    for channel, buffer in enumerate(buffers):
        setattr(kernel.register_map, f"hbm{channel}", buffer.device_address)
    for name, words in (("instructions", program.instructions), ("descriptors", program.descriptors)):
        kernel.mmio.write(kernel.map.window(name).offset, b"".join(word.to_bytes(16, "little") for word in words))
    for name, value in program.registers.items():
        kernel.set(name, value)
    kernel.mmio.write(0x4000, np.array(PROMPT, "<u4").tobytes())
    kernel.register_map.position, kernel.register_map.prompt_end = 0, len(PROMPT)
    kernel.register_map.max_new_tokens = 3
    kernel.register_map.CTRL.AP_START = 1
    assert list(kernel.wait(LIMIT_S).tokens) == tiny.generate(PROMPT, 3)


def test_pointers_are_checked_before_a_start(kernel, overlay):
    right = kernel.get("hbm1")
    other = pynq.allocate((64,), target=overlay.HBM0)
    for wrong, reason in (
        (other.device_address, r"a buffer of HBM\[0\]; port 1 reaches HBM\[1\]"),
        (right + (64 << 20), "no live buffer"),
        (0xFFFF_FFFF_0000 & ((1 << 34) - 1), "no live buffer"),
    ):
        kernel.register_map.hbm1 = wrong
        with pytest.raises(BadPointer, match=reason):
            kernel.start(PROMPT, 1)
    kernel.register_map.hbm1 = right
    kernel.start(PROMPT, 1)
    kernel.wait(LIMIT_S)


def test_start_without_a_program(overlay):
    kernel = overlay.gpt2_0
    with pytest.raises(BadInput, match="no program is loaded"):
        kernel.start(PROMPT, 1)
    with pytest.raises(BadPointer, match="no live buffer"):
        kernel.register_map.CTRL.AP_START = 1
    with pytest.raises(BadInput, match="never started"):
        kernel.wait(1.0)


def test_start_registers_out_of_range_are_an_error_code(kernel):
    kernel.start(PROMPT, 1)
    kernel.wait(LIMIT_S)
    kernel.register_map.max_new_tokens = 0
    kernel.register_map.CTRL.AP_START = 1
    with pytest.raises(KernelFault, match="start registers out of range") as caught:
        kernel.wait(LIMIT_S)
    assert caught.value.exit_code == 3


def test_hashes_and_counters(kernel, board, device):
    kernel.start(PROMPT, 4)
    kernel.wait(LIMIT_S)
    assert kernel.kv_hash() == board.kv_hash()
    before = kernel.kv_hash()
    region = kernel.buffers[3][12288:12290]  # twin: one changed half word of the values
    region[:] = 1
    region.flush()
    assert kernel.kv_hash() == board.kv_hash() != before
    counters, harness = kernel.counters(), device.harness_counters()
    assert harness["ticks"] == harness["cycles"] == counters["cycles"]


def test_memory_bounds(kernel, board, device):
    for channel, offset, nbytes in ((CORE.channels, 0, 4), (-1, 0, 4), (0, -4, 4), (0, BANK_BYTES - 4, 8)):
        with pytest.raises(BoardError):
            board.read_memory(channel, offset, nbytes)
    with pytest.raises(BoardError):
        board.write_memory(0, BANK_BYTES - 2, bytes(4))
    allocation = kernel.buffers[0].bo
    with pytest.raises(BoardFailed, match="sim-u280 failed"):
        device.invalidate(allocation, BANK_BYTES - 4, 0, 8)


def test_xclbin_of_another_version(device, tmp_path):
    path = write_xclbin(CORE, tmp_path / "old.xclbin", interface_version=0x0007_0003)
    with pytest.raises(VersionMismatch, match=rf"version 7\.3, this Ringfly drives {re.escape(OURS)}") as caught:
        pynq.Overlay(str(path), device=device)
    assert (caught.value.value, caught.value.expected, caught.value.exit_code) == ("7.3", OURS, 2)


def test_program_of_another_core(kernel, tiny):
    program, image = Program.load(tiny.folder)
    other = dataclasses.replace(program, core=CORE_CONFIGS["64x16"])
    with pytest.raises(VersionMismatch, match=r"program is for core 64x16 .* kernel is core 16x4"):
        kernel.load((other, image))
    kernel.start(PROMPT, 2)  # the loaded program still stands
    assert list(kernel.wait(LIMIT_S).tokens) == tiny.generate(PROMPT, 2)


def test_second_overlay_replaces_the_first(overlay, device, tiny, xclbin):
    with overlay.gpt2_0 as first:
        first.load(tiny.folder)
        first.start(PROMPT, 50)
        with pytest.raises(DeviceBusy, match="load an xclbin"):
            pynq.Overlay(str(xclbin), device=device)
        first.wait(LIMIT_S)
        second = pynq.Overlay(str(xclbin), device=device)
        with pytest.raises(RuntimeError, match="not currently loaded"):
            overlay.gpt2_0  # noqa: B018 - PYNQ's own check
        second.gpt2_0.load(tiny.folder)
        second.gpt2_0.start(PROMPT, 2)
        assert list(second.gpt2_0.wait(LIMIT_S).tokens) == tiny.generate(PROMPT, 2)


def test_close(board, xclbin, tiny):
    device = SimU280Device(board)
    kernel: Gpt2Kernel = pynq.Overlay(str(xclbin), device=device).gpt2_0
    kernel.load(pathlib.Path(tiny.folder))
    kernel.start(PROMPT, 50)
    kernel.close()
    kernel.close()
    device.close()
    device.close()
    with pytest.raises(BoardFailed, match="closed"):
        kernel.get("state")
