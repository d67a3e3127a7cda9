"""Batches and row caches behind the PYNQ device, on a register double and on the functional executor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from host.driver.batch_request import BatchRequest
from host.driver.gpt2_kernel import Gpt2Kernel
from host.driver.session import open_kernel
from host.errors import BadInput, DeviceBusy, KernelFault, StuckKernel, TimeLimit
from hw.board.gpt2_map import ErrorCode, Flags
from hw.board.program import Program
from hw.gpt2.config import CORE_CONFIGS

CORE, ROWS_CORE = CORE_CONFIGS["16x4"], CORE_CONFIGS["16x4r4"]
PROMPTS = [[3, 1, 4], [2, 7, 1, 8, 2, 8], [5], [9, 9]]
LIMIT_S = 30.0


def _requests(count: int = 6) -> list[BatchRequest]:
    return [BatchRequest(prompt, count) for prompt in PROMPTS]


def _run(kernel: Gpt2Kernel, requests: list[BatchRequest], write_logits: bool = False) -> list[list[int]]:
    kernel.start_batch(requests, write_logits)
    return [list(result.tokens) for result in kernel.wait_batch(LIMIT_S)]


def test_every_request_gets_the_tokens_of_its_own_run(rows_kernel, tiny_rows):
    seen: list[list[int]] = [[] for _ in PROMPTS]
    assert rows_kernel.start_batch(_requests()) == (0, 1, 2, 3)
    results = rows_kernel.wait_batch(LIMIT_S, lambda request, token: seen[request].append(token))
    for row, (prompt, result) in enumerate(zip(PROMPTS, results, strict=True)):
        assert list(result.tokens) == seen[row] == tiny_rows.generate(prompt, 6)
        assert result.reason == "length" and result.cycles == rows_kernel.get("cycles")
        assert rows_kernel.tokens(row) == prompt + seen[row]
    assert rows_kernel.wait_batch(LIMIT_S) == results  # an answer can be asked for again
    for prompt in PROMPTS:  # and a sequence afterwards is what it was
        rows_kernel.start(prompt, 6)
        assert list(rows_kernel.wait(LIMIT_S).tokens) == tiny_rows.generate(prompt, 6)


def test_twin_one_other_prompt_token_changes_its_request_alone(rows_kernel):
    before = _run(rows_kernel, _requests())
    changed = [*_requests()[:2], BatchRequest([6], 6), *_requests()[3:]]
    after = _run(rows_kernel, changed)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]


@pytest.mark.parametrize("order", [(3, 0, 2, 1), (1, 2), (3,)])
def test_requests_and_rows_in_any_order(order, rows_kernel, tiny_rows):
    """Given rows are kept, and results come in the order of the requests."""
    requests = [BatchRequest(PROMPTS[row], 3 + row, row=row) for row in order]
    assert rows_kernel.start_batch(requests) == order
    assert rows_kernel.get("batch_rows") == sum(1 << row for row in order)
    for row, result in zip(order, rows_kernel.wait_batch(LIMIT_S), strict=True):
        assert list(result.tokens) == tiny_rows.generate(PROMPTS[row], 3 + row)
    assert [list(result.tokens) for result in rows_kernel.wait_batch(LIMIT_S)] == [
        tiny_rows.generate(PROMPTS[row], 3 + row) for row in order
    ]


def test_requests_end_one_by_one_for_their_own_reasons(rows_kernel, tiny_rows):
    free = tiny_rows.generate(PROMPTS[1], 30)
    long = [1] * 60
    requests = [
        BatchRequest(PROMPTS[0], 2),
        BatchRequest(PROMPTS[1], 30, stop_ids=(free[6],)),
        BatchRequest(long, 1000),
        BatchRequest(PROMPTS[3], 20),
    ]
    rows_kernel.start_batch(requests)
    results = rows_kernel.wait_batch(LIMIT_S)
    assert [result.reason for result in results] == ["length", "stop", "context", "length"]
    assert list(results[0].tokens) == tiny_rows.generate(PROMPTS[0], 2)
    assert list(results[1].tokens) == tiny_rows.generate(PROMPTS[1], 30, (free[6],))
    assert list(results[2].tokens) == tiny_rows.generate(long, 1000)
    assert list(results[3].tokens) == tiny_rows.generate(PROMPTS[3], 20)
    assert rows_kernel.get("done_count") == rows_kernel.get("start_count") == 1


def test_a_batch_goes_on_where_sequences_have_read_the_prompts(rows_kernel, tiny_rows):
    firsts = []
    for row, prompt in enumerate(PROMPTS):
        rows_kernel.start(prompt, 1, row=row)
        firsts += rows_kernel.wait(LIMIT_S).tokens
    requests = [
        BatchRequest([*prompt, first], 5, position=len(prompt)) for prompt, first in zip(PROMPTS, firsts, strict=True)
    ]
    # without rows given each goes to the cache that holds its prompt, whatever their order
    turned = [requests[2], requests[0], requests[3], requests[1]]
    assert rows_kernel.start_batch(turned) == (2, 0, 3, 1)
    results = rows_kernel.wait_batch(LIMIT_S)
    for place, row in enumerate((2, 0, 3, 1)):
        assert [firsts[row], *results[place].tokens] == tiny_rows.generate(PROMPTS[row], 6)
    # and a sequence goes on with what a row of the batch has left
    whole = [*PROMPTS[1], firsts[1], *results[3].tokens]
    rows_kernel.start(whole, 2, position=len(whole) - 1, row=1)
    assert list(rows_kernel.wait(LIMIT_S).tokens) == tiny_rows.generate(whole, 2)


def test_each_cache_is_trusted_for_what_ran_on_it(rows_kernel):
    for row in (0, 2):
        rows_kernel.start(PROMPTS[row], 1, row=row)
        rows_kernel.wait(LIMIT_S)
    for row, position, have in ((0, 4, 3), (1, 1, 0), (2, 2, 1), (3, 1, 0)):
        prompt = [*PROMPTS[row], 1, 1]
        with pytest.raises(BadInput, match=f"the cache holds those of {have}") as caught:
            rows_kernel.start(prompt, 1, position=position, row=row)
        assert caught.value.kind == "not_cached"
        with pytest.raises(BadInput, match=f"request 0: position {position} .* holds those of {have}"):
            rows_kernel.start_batch([BatchRequest(prompt, 1, position=position, row=row)])
    rows_kernel.start([*PROMPTS[2], 1], 1, position=1, row=2)  # twin: what is there can be used
    rows_kernel.wait(LIMIT_S)
    # a row that nothing was said of gets what fits, and says so if nothing does
    with pytest.raises(BadInput, match="request 1: position 2 needs"):
        rows_kernel.start_batch([BatchRequest([3, 1, 4, 1], 1, position=3), BatchRequest([3, 1, 4, 1], 1, position=2)])


@pytest.mark.parametrize("row", [0, 1, 3])
def test_a_sequence_on_any_cache_leaves_the_others_alone(row, rows_kernel, rows_board, tiny_rows):
    """Its registers are row 0's, with the bases of the row."""
    registers = rows_kernel.program.registers
    rows_kernel.start(PROMPTS[1], 3, write_logits=True, row=row)
    assert list(rows_kernel.wait(LIMIT_S).tokens) == tiny_rows.generate(PROMPTS[1], 3)
    for base in ("key_base", "value_base", "logits_base"):
        assert rows_kernel.get(base) == registers[f"{base}_{row}" if row else base]
    tokens = rows_kernel.tokens()
    for position in range(5, 8):
        logits = rows_kernel.read_logits(position, row)
        np.testing.assert_array_equal(logits, tiny_rows.logits(position, tokens[position]))
    for other in {0, 1, 2, 3} - {row}:
        with pytest.raises(BadInput, match=f"no logits of position 5 of row {other}"):
            rows_kernel.read_logits(5, other)
        base = registers[f"logits_base_{other}" if other else "logits_base"] * ROWS_CORE.port_bytes
        assert rows_board.read_memory(0, base, 4096) == b"\x00\x7e" * 2048


def test_logits_of_every_row(rows_kernel, rows_board, tiny_rows):
    new = _run(rows_kernel, _requests(4), write_logits=True)
    for row, (prompt, tokens) in enumerate(zip(PROMPTS, new, strict=True)):
        whole = prompt + tokens
        for position in range(len(prompt) - 1, len(whole) - 1):
            logits = rows_kernel.read_logits(position, row)
            np.testing.assert_array_equal(logits, tiny_rows.logits(position, whole[position]))
        for position in (len(prompt) - 2, len(whole) - 1):
            with pytest.raises(BadInput, match="no logits of position"):
                rows_kernel.read_logits(position, row)
    # twin: a changed word of row 2's region shows in row 2 alone
    at = rows_kernel.program.registers["logits_base_2"] * ROWS_CORE.port_bytes
    before = [rows_kernel.read_logits(len(prompt) - 1, row).copy() for row, prompt in enumerate(PROMPTS)]
    rows_board.write_memory(0, at, b"\x01\x02\x03\x04")
    after = [rows_kernel.read_logits(len(prompt) - 1, row) for row, prompt in enumerate(PROMPTS)]
    assert [bool((a != b).any()) for a, b in zip(before, after, strict=True)] == [False, False, True, False]


def test_cancel_keeps_the_reasons_of_those_that_had_ended(rows_kernel, tiny_rows):
    seen: list[list[int]] = [[] for _ in PROMPTS]

    def watch(request: int, token: int) -> None:
        seen[request].append(token)
        if len(seen[1]) == 5:
            rows_kernel.cancel()

    rows_kernel.start_batch([BatchRequest(PROMPTS[0], 2), BatchRequest(PROMPTS[1], 50), BatchRequest(PROMPTS[2], 50)])
    results = rows_kernel.wait_batch(LIMIT_S, watch)
    assert [result.reason for result in results] == ["length", "cancelled", "cancelled"]
    for prompt, result in zip(PROMPTS, results, strict=False):
        assert list(result.tokens) == tiny_rows.generate(prompt, len(result.tokens))
    assert 5 <= len(results[1].tokens) < 50
    with pytest.raises(BadInput, match="the cache holds those of 0"):  # nothing is trusted after it
        rows_kernel.start([*PROMPTS[1], 1], 1, position=2, row=1)
    assert _run(rows_kernel, _requests(3)) == [tiny_rows.generate(prompt, 3) for prompt in PROMPTS]


def test_time_limit_says_where_all_rows_are_and_the_run_goes_on(rows_kernel, tiny_rows):
    rows_kernel.start_batch(_requests(50))
    with pytest.raises(TimeLimit, match=r"still works: state run; .* \d+ tokens valid, \d+ of row 1, \d+ of row 2"):
        rows_kernel.wait_batch(1e-9)
    with pytest.raises(DeviceBusy, match="still running"):
        rows_kernel.start_batch(_requests())
    with pytest.raises(DeviceBusy, match="still running"):
        rows_kernel.start(PROMPTS[0], 1)
    with pytest.raises(DeviceBusy, match="write register"):
        rows_kernel.set("position_2", 1)
    with pytest.raises(DeviceBusy, match="write register"):
        rows_kernel.mmio.write(rows_kernel.map.window("tokens_3").offset, 1)
    results = rows_kernel.wait_batch(LIMIT_S)
    assert [list(result.tokens) for result in results] == [tiny_rows.generate(prompt, 50) for prompt in PROMPTS]


def test_looking_at_one_rows_tokens_lets_the_board_work(rows_kernel):
    rows_kernel.start_batch(_requests(8))
    for _ in range(1000):
        if rows_kernel.get("tokens_valid_2") == len(PROMPTS[2]) + 8:
            break
    assert rows_kernel.tokens(2)[:1] == PROMPTS[2] and len(rows_kernel.tokens(2)) == 9
    rows_kernel.wait_batch(LIMIT_S)


def test_the_two_kinds_of_run_are_told_apart(rows_kernel):
    rows_kernel.start_batch(_requests(2))
    with pytest.raises(BadInput, match="the last start was a batch") as caught:
        rows_kernel.wait(LIMIT_S)
    assert caught.value.kind == "other_run" and "wait_batch" in caught.value.hint
    for ask in (lambda: rows_kernel.follow([]), lambda: rows_kernel.result([])):
        with pytest.raises(BadInput, match="the last start was a batch"):
            ask()
    rows_kernel.wait_batch(LIMIT_S)
    rows_kernel.start(PROMPTS[0], 1)
    for ask in (lambda: rows_kernel.wait_batch(LIMIT_S), lambda: rows_kernel.follow_batch([[]])):
        with pytest.raises(BadInput, match="the last start was a sequence"):
            ask()
    rows_kernel.wait(LIMIT_S)


def test_a_batch_that_user_code_started(rows_kernel, tiny_rows):
    """Plain registers: rows 1 and 3 alone; then the driver goes on with their caches."""
    for row in (1, 3):
        prompt = PROMPTS[row]
        rows_kernel.mmio.write(rows_kernel.map.window(f"tokens_{row}").offset, np.array(prompt, "<u4").tobytes())
        for name, value in (("position", 0), ("prompt_end", len(prompt)), ("max_new_tokens", 4), ("stop_count", 0)):
            rows_kernel.set(f"{name}_{row}", value)
    rows_kernel.set("flags", int(Flags.BATCH))
    rows_kernel.set("batch_rows", 0b1010)
    rows_kernel.set("ctrl", 1)
    results = rows_kernel.wait_batch(LIMIT_S)
    new = [tiny_rows.generate(PROMPTS[row], 4) for row in (1, 3)]
    assert [list(result.tokens) for result in results] == new
    requests = [
        BatchRequest([*PROMPTS[row], *tokens], 2, position=len(PROMPTS[row]) + 3, row=row)
        for row, tokens in zip((1, 3), new, strict=True)
    ]
    assert _run(rows_kernel, requests) == [
        tiny_rows.generate([*PROMPTS[row], *tokens], 2) for row, tokens in zip((1, 3), new, strict=True)
    ]


def test_start_registers_of_one_row_out_of_range(rows_kernel):
    _run(rows_kernel, _requests(1))
    rows_kernel.set("max_new_tokens_2", 0)
    rows_kernel.set("ctrl", 1)
    with pytest.raises(KernelFault, match=r"ended the batch: start registers out of range \(position 0\)"):
        rows_kernel.wait_batch(LIMIT_S)


BAD: dict[str, tuple[Callable[[], list[BatchRequest]], str, str]] = {
    "none": (list, "empty_batch", "the batch is empty"),
    "five": (
        lambda: [*_requests(), BatchRequest([1], 1)], "too_many_requests", "5 requests in a batch, .* takes 4",
    ),
    "empty prompt": (lambda: [*_requests()[:2], BatchRequest([], 1)], "empty_prompt", "request 2: the prompt is empty"),
    "longer than the cache": (
        lambda: [BatchRequest([1], 1), BatchRequest([1] * 65, 1)], "prompt_too_long", "request 1: the prompt has 65",
    ),
    "no token wanted": (lambda: [BatchRequest([1], 0)], "bad_input", "request 0: max_new_tokens must be"),
    "five stop ids": (lambda: [BatchRequest([1], 1, [1, 2, 3, 4, 5])], "bad_input", "request 0: 5 stop ids"),
    "token of another vocabulary": (lambda: [BatchRequest([64], 1)], "bad_input", "request 0: prompt id 64"),
    "position behind the prompt": (lambda: [BatchRequest([1], 1, position=1)], "bad_input", "request 0: position must"),
    "unknown row": (lambda: [BatchRequest([1], 1, row=4)], "unknown_row", "request 0: there is no cache of row 4"),
    "negative row": (lambda: [BatchRequest([1], 1, row=-1)], "unknown_row", "request 0: there is no cache of row -1"),
    "row that is none": (lambda: [BatchRequest([1], 1, row="a")], "bad_input", "request 0: a row must be"),  # type: ignore
    "row twice": (
        lambda: [BatchRequest([1], 1, row=2), BatchRequest([1], 1, row=2)], "row_taken", "request 1: row 2 is given",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_batches_are_refused_before_any_register(name, board_double, rows_xclbin, tiny_rows):
    make, kind, words = BAD[name]
    double = board_double(ROWS_CORE)
    with open_kernel(double, ROWS_CORE, xclbin=rows_xclbin) as kernel:
        kernel.load(tiny_rows.folder)
        before = dict(double.words)
        with pytest.raises(BadInput, match=words) as caught:
            kernel.start_batch(make())
        assert (caught.value.kind, caught.value.exit_code) == (kind, 2)
        assert double.words == before


def test_a_sequence_on_a_row_that_is_not_there(rows_kernel, double, xclbin, tiny):
    for row in (4, -1):
        with pytest.raises(BadInput, match=f"no cache of row {row}: the program has those of rows 0 to 3"):
            rows_kernel.start([1], 1, row=row)
    with open_kernel(double, CORE, xclbin=xclbin, tag="one-row") as kernel:
        kernel.load(tiny.folder)
        with pytest.raises(BadInput, match="no cache of row 1: the program has one") as caught:
            kernel.start([1], 1, row=1)
        assert caught.value.kind == "unknown_row" and "16x4r4" in caught.value.hint
        with pytest.raises(BadInput, match="core 16x4 has one row: it takes no batch") as caught:
            kernel.start_batch([BatchRequest([1], 1)])
        assert caught.value.kind == "no_rows"


def test_a_program_with_one_cache_runs_sequences_on_a_core_with_rows(rows_board, rows_xclbin, tiny, tiny_rows):
    """Bases of rows 1 to 3 are missing: batches have one row, and nothing is written there."""
    program, image = Program.load(tiny_rows.folder)
    names = [name for name in program.registers if name.endswith(("_1", "_2", "_3"))]
    registers = {name: value for name, value in program.registers.items() if name not in names}
    with open_kernel(rows_board, ROWS_CORE, xclbin=rows_xclbin) as kernel:
        kernel.load((dataclasses.replace(program, registers=registers), image))
        kernel.start(PROMPTS[1], 4)
        assert list(kernel.wait(LIMIT_S).tokens) == tiny.generate(PROMPTS[1], 4)
        with pytest.raises(BadInput, match="2 requests in a batch, core 16x4r4 with this program takes 1"):
            kernel.start_batch(_requests()[:2])


@pytest.fixture
def on_double(board_double, rows_xclbin, tiny_rows):
    double = board_double(ROWS_CORE)
    with open_kernel(double, ROWS_CORE, xclbin=rows_xclbin, poll_cycles=1000) as kernel:
        kernel.load(tiny_rows.folder)
        yield double, kernel


def test_a_nan_names_row_and_request(on_double):
    double, kernel = on_double
    double.fault = (ErrorCode.NAN_LOGITS, 5)
    kernel.start_batch([BatchRequest(PROMPTS[1], 9, row=3), BatchRequest([1], 2, row=0)])
    for _ in range(2):
        with pytest.raises(KernelFault, match="a logit is NaN at position 5 of row 3, which has request 0") as caught:
            kernel.wait_batch(LIMIT_S)
        assert caught.value.value == {"error": 3, "error_info": 5 | 3 << 24, "row": 3, "request": 0}
    kernel.start(PROMPTS[1], 9)
    with pytest.raises(KernelFault, match=r"ended the run: a logit is NaN at position 5\Z"):
        kernel.wait(LIMIT_S)


def test_a_stuck_batch_ends_with_its_state(on_double):
    double, kernel = on_double
    double.stuck_at = 5
    kernel.start_batch(_requests(40))
    with pytest.raises(StuckKernel, match="4 polls without a tile or token: state run; position 5") as caught:
        kernel.wait_batch(0.05)
    assert caught.value.value["tokens_valid_3"] == double._get("tokens_valid_3")
    kernel.cancel()
    assert {result.reason for result in kernel.wait_batch(1.0)} == {"cancelled"}


def test_tokens_of_a_later_row_are_no_standstill(on_double, monkeypatch):
    double, kernel = on_double
    double.stuck_at = 0
    kernel.start_batch(_requests(40))

    def work(max_cycles: int) -> int:
        double._put("tokens_valid_3", double._get("tokens_valid_3") % 60 + 1)
        return 0

    monkeypatch.setattr(double, "advance", work)
    with pytest.raises(TimeLimit, match="it still works"):
        kernel.wait_batch(0.01)
    double._end(ErrorCode.CANCELLED, 0)


def test_a_lost_start_and_leaving(on_double):
    double, kernel = on_double
    double.lost_starts = 1
    with pytest.raises(StuckKernel, match="did not take the start"):
        kernel.start_batch(_requests())
    double.lost_starts = 0
    kernel.start_batch(_requests(40))
    kernel.close()
    assert not double.running and double._get("error") == ErrorCode.CANCELLED


def test_windows_and_registers_of_rows_are_of_cores_with_rows_alone(rows_kernel, double, xclbin, tiny):
    rows_kernel.mmio.write(0x18000, 7)  # tokens_3[0]
    assert rows_kernel.mmio.read(0x18000) == rows_kernel.ring(0, 1, 3)[0] == 7
    rows_kernel.set("key_base_3", 12)
    assert int(rows_kernel.register_map.key_base_3) == 12
    base = rows_kernel.device.ip_dict["gpt2_0"]["phys_addr"]
    for address in (base + 0x20000, base + 0x1FFFE):
        with pytest.raises(BadInput, match="not in the kernel's registers or not in 4-byte words"):
            rows_kernel.device.read_registers(address, 4)
    with open_kernel(double, CORE, xclbin=xclbin, tag="one-row") as kernel:
        kernel.load(tiny.folder)
        with pytest.raises(BadInput, match="not in the kernel's registers"):
            kernel.device.read_registers(base + 0x10000, 4)
        assert not hasattr(kernel.register_map, "key_base_1")
