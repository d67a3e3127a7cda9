"""How far the boards of a ring may work by themselves changes nothing, as long as a hop is longer."""

import pytest

from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.rtl import build
from sim.rtl.ring import RtlRing
from sim.rtl.verilator import QUICK_COMPILE_FLAGS

WINDOW = "(config.hop - LINK_PERIOD) / CORE_PERIOD"
JOIN = "if (!board.link_clock && !board.idle()) board.start_link_clock(origin_);"


@pytest.fixture
def changed(monkeypatch, one_clock, stand_in):
    """Builds the ring with one line of its harness replaced."""

    def make(old, new):
        real = build.build_library

        def patched(name, *, sources, **rest):
            assert sources["ring.h"].count(old) == 1
            return real(name, sources=sources | {"ring.h": sources["ring.h"].replace(old, new)}, **rest)

        with monkeypatch.context() as patch:
            patch.setattr(build, "build_library", patched)
            export = stand_in.export(one_clock, stand_in.RingCore)
            return build.compile_board(one_clock, export, compile_flags=QUICK_COMPILE_FLAGS)

    return make


def outcome(built, program, stand_in, hop_ns, looks=0):
    links = LinkTiming(hop_ns=hop_ns, jitter_ns=15.0, seed=2)
    with RtlRing(built, 3, timing=MemoryTiming.random(6), links=links) as ring:
        for board in ring.boards:
            board.load(*program)
        for b, board in enumerate(ring.boards):
            for _ in range(looks * b):
                stand_in.read(board, "state")
            stand_in.start(board, weight_base=16 * b, ring_boards=3, ring_board=b)
        while sum(board.advance(1_000_000) for board in ring.boards):
            pass
        words = [ring.link_counters(b, port) for b in range(3) for port in (0, 1)]
        return [(board.counters(), board.kv_hash()) for board in ring.boards], words


@pytest.mark.slow
@pytest.mark.parametrize("hop_ns", [37.0, 500.0])
def test_a_window_of_one_cycle_gives_the_same(ring_built, changed, program, stand_in, hop_ns):
    step_by_step = changed(WINDOW, "uint64_t(1)")
    want, words = outcome(step_by_step, program, stand_in, hop_ns)
    found, found_words = outcome(ring_built, program, stand_in, hop_ns)
    assert found == want
    assert sum(counters.words_sent for counters in words) <= sum(counters.words_sent for counters in found_words)


@pytest.mark.slow
def test_twin_a_window_longer_than_a_hop_changes_the_run(ring_built, changed, program, stand_in):
    too_long = changed(WINDOW, "2 * (config.hop / CORE_PERIOD)")
    assert outcome(too_long, program, stand_in, 500.0)[0] != outcome(ring_built, program, stand_in, 500.0)[0]


def test_twin_links_that_move_before_the_run_show_how_often_the_host_looked(ring_built, changed, program, stand_in):
    restless = changed(JOIN, "if (!board.link_clock) board.start_link_clock(origin_);")
    assert outcome(ring_built, program, stand_in, 500.0, looks=9) == outcome(ring_built, program, stand_in, 500.0)
    assert outcome(restless, program, stand_in, 500.0, looks=9) != outcome(restless, program, stand_in, 500.0)
