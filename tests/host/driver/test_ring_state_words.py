"""What the registers of a board in a ring say, in words; and what its ports counted in a run."""

from __future__ import annotations

import pytest

from host.driver.link_counters import LinkCounters
from host.driver.session import open_kernel
from host.driver.state_words import STATE_REGISTERS, error_words, state_words
from hw.board.gpt2_map import STALL_CAUSES, ErrorCode
from hw.gpt2.config import CORE_CONFIGS

WORDS = [
    (ErrorCode.LINK_DOWN, 0, "the cable at its left port is dead"),
    (ErrorCode.LINK_DOWN, 1, "the cable at its right port is dead"),
    (ErrorCode.NO_HELLO, 1, "no board has begun this run at its left port"),
    (ErrorCode.NO_HELLO, 3, "no board has begun this run at its left and right ports"),
    (ErrorCode.RING_VERSION, 0x0003_0004, "the board at its left port has interface version 3.4"),
    (ErrorCode.RING_VERSION, 1 << 31 | 0x0003_0004, "the board at its right port has interface version 3.4"),
    (ErrorCode.RING_ORDER, 1 << 31 | 4 << 8 | 3, "at its right port is board 3 of 4"),
    (ErrorCode.RING_PROGRAM, 1, "the board at its right port has another core or a program of another plan"),
    (ErrorCode.PEER_SILENT, 0b101, "it waits in vain for the sums or arg-max of boards 0, 2"),
    (ErrorCode.PEER_SILENT, 18 << 8, "it waits in vain for strip 17 of another board"),
    (ErrorCode.PEER_FAILED, 3 << 8 | ErrorCode.READ, "board 3 failed: READ"),
    (ErrorCode.PEER_FAILED, 3 << 8 | 99, "board 3 failed: error 99"),
]


@pytest.mark.parametrize(("code", "info", "words"), WORDS)
def test_errors(code: ErrorCode, info: int, words: str) -> None:
    assert error_words(code, info).startswith(words)


def test_every_error_and_stall_has_words_of_its_own() -> None:
    assert len({error_words(code, 0) for code in ErrorCode}) == len(ErrorCode)
    assert len({state_words({"dump_stall": index}) for index in range(len(STALL_CAUSES))}) == len(STALL_CAUSES)


def test_what_a_board_waits_for() -> None:
    dump = dict.fromkeys(STATE_REGISTERS, 0)
    alone = state_words(dump | {"link_status": 0b01100})  # a board without cables: nothing to say
    assert "cable" not in alone and "another board" not in alone
    joined = state_words(dump | {"link_status": 0b11000, "dump_ring": 21 << 16 | 0b0110 << 8 | 0b010})
    assert "the cable at its right port is dead" in joined and "left port" not in joined
    assert "waits for sums of boards 1, 2" in joined and "waits for strip 20 of another board" in joined
    assert "waits for the neighbours' hello" in state_words(dump | {"dump_ring": 1})


def test_counters_go_on_behind_two_bytes(double, xclbin) -> None:
    with open_kernel(double, CORE_CONFIGS["16x4"], xclbin=xclbin) as kernel:
        double._put("link_1_resends", 65_530)
        counters = LinkCounters(kernel)
        double._put("link_1_resends", 4)
        double._put("link_0_frames_sent", 40_000)
        counters.update()
        double._put("link_0_frames_sent", 80_000 % 65_536)
        counters.update()
        assert counters.ports[1]["resends"] == 10 and counters.ports[0]["frames_sent"] == 80_000
        assert sum(port["frames_dropped"] for port in counters.ports) == 0
