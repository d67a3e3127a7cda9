"""However a run on several boards ends, also while they are opened: all are released, and the next run works."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from host.driver.card_lock import CardLock
from host.driver.sim_device import SimU280Device
from host.errors import (
    BadInput,
    BoardFailed,
    DeviceBusy,
    KernelFault,
    TimeLimit,
)
from host.runtime.appliance import open_appliance
from host.runtime.board_executor import BoardExecutor
from host.runtime.job import Job
from host.runtime.sampling import Sampler
from hw.board.board_model import BoardError
from hw.board.gpt2_map import ErrorCode
from hw.gpt2.config import CORE_CONFIGS

CORE = CORE_CONFIGS["16x4"]
PROMPT, LIMIT_S = [3, 1, 4], 20.0

pytestmark = pytest.mark.usefixtures("short_waits")
GREEDY = Sampler(0.0, 0, 0)


class TrippedError(BoardError):
    """Injected."""


def _job(sampler: Sampler) -> Job:
    return Job(PROMPT, 3, sampler, keep_logits=True, timeout_s=LIMIT_S)


def _run_all(ring: Any, programs: Any, xclbin: pathlib.Path, sampler: Sampler) -> list[int]:
    """From opening to closing, with locks."""
    cards = [f"test-{place}" for place in range(len(ring.boards))]
    with open_appliance(ring.boards, CORE, xclbin=xclbin, poll_cycles=10, cards=cards) as appliance:
        appliance.load(programs, verify=False)
        return BoardExecutor("functional", appliance, None).run(_job(sampler)).tokens


METHODS = ("load", "read_register", "write_register", "start", "advance", "read_memory")


@pytest.mark.parametrize("sampler", [GREEDY, Sampler(0.8, 0, 1)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("raised", [TrippedError, KeyboardInterrupt])
@pytest.mark.parametrize("board", [0, 1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_a_fault_at_any_step_releases_all_boards(
    method: str, board: int, raised: type[BaseException], sampler: Sampler, ring_double: Any, programs: Any,
    xclbin: pathlib.Path, expected: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    """The first, a middle and the last access of each kind to each board, from opening to reading logits."""
    monkeypatch.setenv("RINGFLY_LOCKS", str(tmp_path))
    made = programs(3)
    ring, count = ring_double(3), 0

    def counted(place: int, what: str) -> None:
        nonlocal count
        count += (place, what) == (board, method)

    ring.trip = counted
    good = _run_all(ring, made, xclbin, sampler)
    assert count, "the step does not exist"
    for at in sorted({1, (count + 1) // 2, count}):
        broken, passed = ring_double(3), 0

        def tripped(place: int, what: str, at: int = at) -> None:
            nonlocal passed
            if (place, what) == (board, method):
                passed += 1
                if passed == at:
                    raise raised("injected")

        broken.trip = tripped
        try:
            tokens = _run_all(broken, made, xclbin, sampler)
        except raised:
            assert raised is KeyboardInterrupt
        except BoardFailed as error:
            assert raised is TrippedError and f"board {board} (test-{board}): " in error.message
            assert "injected" in error.message
        else:  # an access while the boards are released: nothing is lost
            assert raised is TrippedError and tokens == good
        assert passed >= at
        assert SimU280Device._open == []
        for other in broken.boards:
            assert other.closes and not other.running
            with CardLock(f"test-{other.place}"):  # nobody holds it
                pass
    assert _run_all(ring_double(3), made, xclbin, sampler) == good


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_card_in_use_releases_those_that_were_opened(
    place: int, ring_double: Any, xclbin: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("RINGFLY_LOCKS", str(tmp_path))
    cards = ["a", "b", "c"]
    ring = ring_double(3)
    with CardLock(cards[place]):
        with pytest.raises(
            DeviceBusy, match=rf"board {place} \({cards[place]}\): card {cards[place]} is in use by process"
        ):
            with open_appliance(ring.boards, CORE, xclbin=xclbin, cards=cards):
                pass
        assert all(board.closes for board in ring.boards) and SimU280Device._open == []
        for other in set(cards) - {cards[place]}:
            with CardLock(other):
                pass
    with open_appliance(ring_double(3).boards, CORE, xclbin=xclbin, cards=cards):  # twin: it is free again
        pass


@pytest.mark.parametrize("cards", [["a", "b"], ["a", "a", "b"]])
def test_cards_must_be_one_a_board(cards: list[str], ring_double: Any, xclbin: pathlib.Path) -> None:
    ring = ring_double(3)
    with pytest.raises(BadInput, match="3 boards need as many different cards"):
        with open_appliance(ring.boards, CORE, xclbin=xclbin, cards=cards):
            pass
    assert all(board.closes for board in ring.boards)


@pytest.mark.parametrize("sampler", [GREEDY, Sampler(0.8, 0, 1)], ids=["greedy", "sampled"])
def test_after_any_failed_job_the_next_one_works(sampler: Sampler, opened: Any) -> None:
    ring, appliance = opened(3)
    executor = BoardExecutor("functional", appliance, None)
    good = executor.run(_job(sampler)).tokens

    def interrupt(token: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run(dataclasses.replace(_job(sampler), on_token=interrupt))
    assert not any(board.running for board in ring.boards)
    assert executor.run(_job(sampler)).tokens == good
    with pytest.raises(TimeLimit):
        executor.run(dataclasses.replace(_job(sampler), max_new_tokens=55, timeout_s=1e-9))
    assert not any(board.running for board in ring.boards)
    assert executor.run(_job(sampler)).tokens == good
    ring.faults = {3: [(1, ErrorCode.READ, 0)]}
    with pytest.raises(KernelFault):
        executor.run(_job(sampler))
    ring.faults = {}
    assert executor.run(_job(sampler)).tokens == good
