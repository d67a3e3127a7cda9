"""A run that fails on a ring: the error names the cause, its board, its port and the cable's other end."""

from __future__ import annotations

from typing import Any

import pytest

from host.errors import (
    DeviceBusy,
    HostError,
    KernelFault,
    RingFault,
    StuckKernel,
    TimeLimit,
)
from host.runtime.sampling import Sampler
from hw.board.gpt2_map import ErrorCode
from hw.gpt2.config import CORE_CONFIGS

CORE = CORE_CONFIGS["16x4"]
PROMPT, LIMIT_S = [3, 1, 4], 20.0

pytestmark = pytest.mark.usefixtures("short_waits")
GREEDY = Sampler(0.0, 0, 0)


FAULTS: dict[str, tuple[list[tuple[int, ErrorCode, int]], type[HostError], str, list[str]]] = {
    "cut cable, both ends": (
        [(1, ErrorCode.LINK_DOWN, 1), (2, ErrorCode.LINK_DOWN, 0)], RingFault, "link_down",
        ["the cable between board 1 (sim-u280-1) port 1 (right) and board 2 (sim-u280-2) port 0 (left) is dead",
         "as board 1 (sim-u280-1) and board 2 (sim-u280-2) report"],
    ),
    "cut cable around the end": (
        [(3, ErrorCode.LINK_DOWN, 1)], RingFault, "link_down",
        ["between board 3 (sim-u280-3) port 1 (right) and board 0 (sim-u280-0) port 0 (left) is dead"],
    ),
    "a board between two dead cables": (
        [(1, ErrorCode.LINK_DOWN, 1), (3, ErrorCode.LINK_DOWN, 0)], RingFault, "link_down",
        ["both lead to board 2 (sim-u280-2)", "seems to have stopped"],
    ),
    "no hello": (
        [(1, ErrorCode.NO_HELLO, 2)], RingFault, "no_hello",
        ["board 1 (sim-u280-1) port 1 (right) has heard nothing of this run from board 2 (sim-u280-2) port 0 (left)"],
    ),
    "version": (
        [(2, ErrorCode.RING_VERSION, 1 << 31 | 0x0009_0001)], RingFault, "ring_version",
        ["board 2 (sim-u280-2) port 1 (right) answers interface version 9.1", "that of board 3 (sim-u280-3) port 0"],
    ),
    "order": (
        [(1, ErrorCode.RING_ORDER, 1 << 31 | 4 << 8 | 3)], RingFault, "ring_order",
        ["board 1 (sim-u280-1) port 1 (right) answers board 3 of 4, expected board 2 (sim-u280-2) port 0 (left) of 4",
         "port 1 (right) of a board goes to port 0 (left) of the next"],
    ),
    "program": (
        [(0, ErrorCode.RING_PROGRAM, 0)], RingFault, "ring_program",
        ["board 0 (sim-u280-0) port 0 (left) board 3 (sim-u280-3) port 1 (right) has another core or a program"],
    ),
    "silent, sums": (
        [(1, ErrorCode.PEER_SILENT, 0b1000)], RingFault, "peer_silent",
        ["board 1 (sim-u280-1) waited in vain for the sums or arg-max of board 3", "Look at board 3"],
    ),
    "silent, strip": (
        [(1, ErrorCode.PEER_SILENT, (8 + 12 + 1) << 8)], RingFault, "peer_silent",
        ["waited in vain for strip 20 of another board, which board 2 (sim-u280-2) computes", "Look at board 2"],
    ),
    "NaN": ([(2, ErrorCode.NAN_LOGITS, 5)], KernelFault, "kernel_fault",
            ["ended the run on board 2 (sim-u280-2): a logit is NaN at position 5"]),
    "read error": ([(3, ErrorCode.READ, 7)], KernelFault, "kernel_fault", ["board 3", "read on port 7"]),
    "the cause, not what follows": (
        [(3, ErrorCode.READ, 7), (0, ErrorCode.LINK_DOWN, 0), (1, ErrorCode.PEER_SILENT, 8)], KernelFault,
        "kernel_fault", ["board 3", "read on port 7"],
    ),
    "only an echo": ([(board, ErrorCode.PEER_FAILED, 2 << 8 | ErrorCode.WRITE) for board in (0, 1, 3)],
                     RingFault, "peer_failed",
                     ["because board 2 (sim-u280-2) failed with WRITE", "it itself ended with PEER_FAILED"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_errors_name_board_and_port_and_the_next_run_works(name: str, opened: Any, expected: Any) -> None:
    faults, error, kind, words = FAULTS[name]
    ring, appliance = opened(4)
    ring.faults = {4: faults}
    appliance.start(PROMPT, 6)
    with pytest.raises(error) as got:
        appliance.wait(LIMIT_S)
    assert got.value.kind == kind and got.value.exit_code == 3
    for word in words:
        assert word in str(got.value), str(got.value)
    assert kind == "peer_failed" or "PEER_FAILED" not in got.value.message
    assert not any(board.running for board in ring.boards)
    ring.faults = {}
    appliance.start(PROMPT, 6)
    assert list(appliance.wait(LIMIT_S).tokens) == expected(PROMPT, 6)


def test_twin_the_same_error_at_another_port_names_another_cable(opened: Any) -> None:
    ring, appliance = opened(4)
    messages = set()
    for board in range(4):
        for port in (0, 1):
            ring.faults = {4: [(board, ErrorCode.LINK_DOWN, port)]}
            appliance.start(PROMPT, 6)
            with pytest.raises(RingFault) as got:
                appliance.wait(LIMIT_S)
            messages.add(got.value.message.split(" is dead")[0])
            assert (got.value.value["board"], got.value.value["port"]) == (board, port)
            assert got.value.value["peer"] == (board + (1 if port else -1)) % 4
    assert len(messages) == 4  # two ends each


def test_one_board_has_no_board_in_its_errors(opened: Any) -> None:
    ring, appliance = opened(1)
    ring.faults = {2: [(0, ErrorCode.NAN_LOGITS, 2)]}
    appliance.start(PROMPT, 3)
    with pytest.raises(KernelFault, match=r"^the kernel ended the run: a logit is NaN at position 2"):
        appliance.wait(LIMIT_S)


def test_a_board_that_hears_no_abort_is_told_of_and_cancelled(opened: Any) -> None:
    ring, appliance = opened(3)
    ring.faults, ring.deaf = {0: [(0, ErrorCode.LINK_DOWN, 1)]}, {1}
    appliance.start(PROMPT, 6)
    with pytest.raises(RingFault) as got:
        appliance.wait(LIMIT_S)
    assert got.value.kind == "link_down" and got.value.value["ends"][1] is None
    with pytest.raises(DeviceBusy, match=r"board 1 \(sim-u280-1\): the kernel is still running"):
        appliance.start(PROMPT, 1)
    ring.faults, ring.deaf = {}, set()
    assert appliance.stop()
    appliance.start(PROMPT, 1)  # twin: when it listens again, the next run works


def test_a_stuck_ring_and_a_slow_one(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ring, appliance = opened(2)
    ring.deaf = {0, 1}
    appliance.start(PROMPT, 6)
    with pytest.raises(StuckKernel, match=r"the ring is stuck.*board 0 .*: state run.*board 1 .*: state run"):
        appliance.wait(0.02)
    ring.deaf = set()
    assert appliance.stop()
    appliance.start([1], 60)
    with pytest.raises(TimeLimit, match=r"board 0 \(sim-u280-0\): .*it still works"):
        appliance.wait(1e-9)
    assert appliance.wait(LIMIT_S).reason == "length"


@pytest.mark.parametrize(("dead", "kind"), [(0b0000, "no_hello"), (0b0100, "no_hello"), (0b1000, "link_down")])
def test_a_neighbour_behind_a_dead_cable_is_not_blamed(dead: int, kind: str, opened: Any) -> None:
    """Twins: without a dead cable, or with one at the other port, the neighbour itself is missing."""
    ring, appliance = opened(4)
    ring.faults = {2: [(1, ErrorCode.NO_HELLO, 0b10)]}
    appliance.start(PROMPT, 6)
    ring.boards[1].put("link_status", dead)
    with pytest.raises(RingFault) as got:
        appliance.wait(LIMIT_S)
    assert got.value.kind == kind and (got.value.value["board"], got.value.value["port"]) == (1, 1)
    assert "board 1 (sim-u280-1) port 1 (right)" in got.value.message
