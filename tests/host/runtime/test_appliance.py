"""Several boards as one: runs, what they agree on, errors that name board and port, and release at every step."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from host.driver.sim_device import SimU280Device
from host.driver.xclbin_info import version_text
from host.errors import (
    BadInput,
    RingFault,
    StuckKernel,
    TimeLimit,
    VersionMismatch,
)
from host.runtime import appliance as appliance_module
from host.runtime.appliance import open_appliance
from host.runtime.sampling import Sampler
from hw.board.gpt2_map import INTERFACE_VERSION, ErrorCode
from hw.gpt2.config import CORE_CONFIGS
from hw.gpt2.sampled_token import BoardSampling

OURS = version_text(INTERFACE_VERSION)
CORE = CORE_CONFIGS["16x4"]
PROMPT, LIMIT_S = [3, 1, 4], 20.0

pytestmark = pytest.mark.usefixtures("short_waits")
GREEDY = Sampler(0.0, 0, 0)


@pytest.mark.parametrize("boards", [1, 2, 3, 8])
def test_tokens_and_logits_of_all_boards(boards: int, opened: Any, expected: Any, whole_logits: Any) -> None:
    ring, appliance = opened(boards)
    seen: list[int] = []
    appliance.start(PROMPT, 5, write_logits=True)
    result = appliance.wait(LIMIT_S, seen.append)
    assert list(result.tokens) == seen == expected(PROMPT, 5) and result.reason == "length"
    for step, token in enumerate(result.tokens):
        logits = appliance.read_logits(len(PROMPT) - 1 + step)
        np.testing.assert_array_equal(logits, whole_logits(token))
    assert appliance.vocabulary == 64
    for board in range(boards):  # twin: one changed word of any board's logits shows
        memory, at = ring.boards[board].memory[0], 8192 + 2 * 32 * (len(PROMPT) - 1)
        memory[at] ^= 0xFF
        assert (appliance.read_logits(len(PROMPT) - 1) != whole_logits(result.tokens[0])).sum() == 1
        memory[at] ^= 0xFF


@pytest.mark.parametrize("boards", [1, 3])
def test_a_run_that_ends_while_its_time_limit_is_looked_into_has_ended(boards: int, opened: Any, expected: Any) -> None:
    _, appliance = opened(boards)
    appliance.start(PROMPT, 3)
    assert list(appliance.wait(1e-9).tokens) == expected(PROMPT, 3)
    appliance.start(PROMPT, 60)  # twin
    with pytest.raises(TimeLimit):
        appliance.wait(1e-9)
    appliance.wait(LIMIT_S)


def test_token_ids_of_other_boards_columns_are_legal(opened: Any) -> None:
    _, appliance = opened(4)  # board 0 has 8 of the 64 columns
    appliance.start([63, 40], 1, stop_ids=[62])
    appliance.wait(LIMIT_S)
    with pytest.raises(BadInput, match="prompt id 64"):
        appliance.start([64], 1)


def test_every_run_has_another_number_and_the_same_on_all_boards(opened: Any) -> None:
    ring, appliance = opened(3)
    numbers = []
    for _ in range(300):
        appliance.start([1], 1)
        appliance.wait(LIMIT_S)
        found = {board.get("ring_run") for board in ring.boards}
        assert len(found) == 1 and found <= set(range(256))
        numbers += found
    assert all(first != second for first, second in itertools.pairwise(numbers))
    assert len(set(numbers[:256])) == 256
    assert {board.get("link_limit") for board in ring.boards} == {appliance_module.LINK_LIMIT_CYCLES}


def test_no_board_starts_before_all_are_prepared(opened: Any) -> None:
    ring, appliance = opened(3)
    calls: list[tuple[int, str]] = []
    ring.trip = lambda board, method: calls.append((board, method))
    appliance.start(PROMPT, 2)
    starts = [index for index, (_, method) in enumerate(calls) if method == "start"]
    assert [calls[index][0] for index in starts] == [0, 1, 2]
    assert not [call for call in calls[: starts[-1]] if call[1] == "advance"]
    for board in range(3):
        prepared = [i for i, call in enumerate(calls) if call == (board, "write_register") and i < starts[0]]
        assert prepared


def test_boards_of_a_ring_do_not_sample(opened: Any) -> None:
    """None of them sees all logits, so that a request for it must not pass in silence."""
    ring, appliance = opened(2)
    with pytest.raises(BadInput, match="a board samples alone, these are 2") as caught:
        appliance.start(PROMPT, 3, sampling=BoardSampling.of(0.8, 0, 1, 100))
    assert caught.value.kind == "sampling_on_ring"
    assert {board.get("start_count") for board in ring.boards} == {0}


@pytest.mark.parametrize("boards", [2, 4])
def test_link_counters_of_a_run_go_on_behind_two_bytes(boards: int, opened: Any) -> None:
    ring, appliance = opened(boards)
    for _ in range(2):
        ring.frames_a_position = 10_000
        appliance.start(PROMPT, 6)  # 8 positions
        appliance.wait(LIMIT_S)
        assert [[port["frames_sent"] for port in ports] for ports in appliance.link_counters()] == [
            [80_000] * 2
        ] * boards


def test_boards_must_agree(opened: Any, expected: Any) -> None:
    ring, appliance = opened(3)
    ring.wrong_tokens = {(2, 4): 63}
    appliance.start(PROMPT, 4)
    with pytest.raises(
        RingFault, match=r"board 0 \(sim-u280-0\) and board 2 \(sim-u280-2\) disagree on new token 2"
    ) as got:
        appliance.wait(LIMIT_S)
    assert got.value.kind == "boards_differ" and got.value.exit_code == 3
    assert f"{expected(PROMPT, 3)[2]} and 63" in got.value.message
    ring.wrong_tokens = {}
    appliance.start(PROMPT, 4)  # twin: without the fault they agree
    assert list(appliance.wait(LIMIT_S).tokens) == expected(PROMPT, 4)


def test_cancel_on_any_board_is_no_error(opened: Any) -> None:
    ring, appliance = opened(3)
    appliance.start(PROMPT, 50)
    assert appliance.running()
    appliance.kernels[1].cancel()
    assert {board.get("error") for board in ring.boards} == {ErrorCode.CANCELLED, ErrorCode.PEER_FAILED}
    assert appliance.wait(LIMIT_S).reason == "cancelled"


@pytest.mark.parametrize("board", [0, 1, 2])
def test_a_lost_start_stops_the_boards_that_had_started(board: int, opened: Any, expected: Any) -> None:
    ring, appliance = opened(3)
    ring.lost_starts = {board}
    with pytest.raises(StuckKernel, match=rf"board {board} \(sim-u280-{board}\): the kernel did not take the start"):
        appliance.start(PROMPT, 3)
    assert not any(each.running for each in ring.boards)
    ring.lost_starts = set()
    appliance.start(PROMPT, 3)
    assert list(appliance.wait(LIMIT_S).tokens) == expected(PROMPT, 3)


# Boards and programs that do not belong together


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "version",
            0x0002_0007,
            [f"board 0 (sim-u280-0) has interface version {OURS}", "board 2 (sim-u280-2) has 2.7"],
        ),
        ("version", 0x0009_0000, ["board 2 (sim-u280-2): the kernel has interface version 9.0", f"drives {OURS}"]),
        ("digest", 0x1234, ["board 2 (sim-u280-2)", "0000000000001234", CORE.digest[:16]]),
    ],
)
def test_boards_whose_kernels_differ_are_refused_at_open(
    name: str, value: int, words: list[str], ring_double: Any, xclbin: pathlib.Path
) -> None:
    ring = ring_double(3)
    setattr(ring.boards[2], name, value)
    with pytest.raises(VersionMismatch) as got, open_appliance(ring.boards, CORE, xclbin=xclbin):
        pass
    for word in words:
        assert word in got.value.message, got.value.message
    assert all(board.closes for board in ring.boards) and SimU280Device._open == []


MIXED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a board left out": (lambda found: found[:2], "2 programs for 3 boards"),
    "two exchanged": (lambda found: [found[1], found[0], found[2]], "board 1 of 3 is given for board 0 of 3"),
    "of one board": (lambda found: [_changed(found[0], board=0, boards=1), *found[1:]], "board 0 of 1 is given for"),
    "another plan": (lambda found: [*found[:2], _registers(found[2], ring_key=1)], "register ring_key is"),
    "another model": (lambda found: [*found[:2], _changed(found[2], model_digest="other")], "the model is double"),
    "a gap in the logits": (lambda found: [*found[:2], _registers(found[2], token_offset=17)], "begin at 17, not 16"),
    "wrong place": (lambda found: [*found[:2], _registers(found[2], ring_board=0)], "ring_board to [3, 0]"),
    "another context": (lambda found: [*found[:2], _registers(found[2], context_limit=9)], "context_limit is 64"),
}


def _changed(entry: Any, **fields: Any) -> Any:
    return dataclasses.replace(entry[0], **fields), entry[1]


def _registers(entry: Any, **values: int) -> Any:
    return _changed(entry, registers={**entry[0].registers, **values})


@pytest.mark.parametrize("name", MIXED)
def test_programs_that_do_not_belong_together(name: str, opened: Any, programs: Any, expected: Any) -> None:
    _, appliance = opened(3)
    change, words = MIXED[name]
    with pytest.raises(BadInput) as got:
        appliance.load(change(programs(3)), verify=False)
    assert got.value.kind == "bad_program" and words in got.value.message, got.value.message
    appliance.load(programs(3), verify=False)  # twin
    appliance.start(PROMPT, 2)
    assert list(appliance.wait(LIMIT_S).tokens) == expected(PROMPT, 2)


def test_one_boards_program_of_a_ring_is_refused_alone(opened: Any, programs: Any) -> None:
    _, appliance = opened(1)
    with pytest.raises(BadInput, match="board 0 of 4 is given for board 0 of 1") as got:
        appliance.load(programs(4)[:1], verify=False)
    assert "the folder that holds the programs of all boards" in got.value.hint


@pytest.mark.parametrize(("boards", "words"), [(0, "1 to 8, got 0"), (9, "1 to 8, got 9")])
def test_number_of_boards(boards: int, words: str, ring_double: Any, xclbin: pathlib.Path) -> None:
    ring = ring_double(boards)
    with pytest.raises(BadInput, match=words), open_appliance(ring.boards, CORE, xclbin=xclbin):
        pass
    assert all(board.closes for board in ring.boards)
