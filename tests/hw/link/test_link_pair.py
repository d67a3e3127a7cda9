"""Two link ports on one cable: nothing is lost, doubled, reordered or changed, whatever the cable does."""

import functools

import pytest

from hw.link.frame import KEEPALIVE, SILENCE
from sim.devices.link_timing import LinkTiming
from sim.rtl.link_checks import bad_cable, channel_down, credits_end, full_slots, good_cable
from sim.rtl.link_pair import LinkPair, PairError, PairTraffic, port_verilog
from sim.rtl.link_throughput import REQUIRED, main

BITS = 512
HOP_CYCLES = 202  # 500 ns
MARGIN_CYCLES = 100  # ports, crossings, pauses of the Aurora core

exported = functools.cache(port_verilog)


@pytest.fixture(scope="module")
def verilog():
    return exported(BITS)


@pytest.fixture(scope="module", params=[BITS, pytest.param(256, marks=pytest.mark.slow)])
def port(request):
    """Verilog and entry width of a port."""
    return exported(request.param), request.param


@pytest.mark.parametrize("hop_ns, jitter_ns", [(0.0, 0.0), (500.0, 0.0), (500.0, 300.0)])
def test_a_good_cable_needs_no_resend(port, hop_ns, jitter_ns):
    good_cable(*port, hop_ns=hop_ns, jitter_ns=jitter_ns)


@pytest.mark.parametrize("seed, jitter_ns", [(2, 0.0), (3, 100.0)])
def test_a_bad_cable_loses_nothing(port, seed, jitter_ns):
    bad_cable(*port, seed=seed, jitter_ns=jitter_ns)


@pytest.mark.slow
def test_ten_thousand_frames_over_a_bad_cable(port):
    bad_cable(*port, frames=5000, seed=4)


def test_full_slots_are_not_overwritten(port):
    full_slots(*port)


def test_credits_run_out_and_recover(port):
    credits_end(*port)


def test_a_channel_that_goes_down_loses_what_was_under_way_and_no_more(port):
    channel_down(*port)


def test_a_dead_cable_shows_and_a_mended_one_goes_on(verilog):
    frames = 1500
    with LinkPair(verilog, BITS, PairTraffic(frames, frames, full=True, seed=6), LinkTiming()) as pair:
        pair.run(10_000)
        pair.cut(drops_channel=False)
        pair.run(SILENCE + HOP_CYCLES - MARGIN_CYCLES - KEEPALIVE)
        assert not any(board.dead for board in pair.statistics())
        pair.run(KEEPALIVE + 2 * MARGIN_CYCLES)
        assert all(board.dead and board.up for board in pair.statistics())
        pair.mend()
        pair.finish(100_000)
        for board in pair.statistics():
            assert board.delivered == (frames, frames) and board.resends and not board.dead


def test_an_idle_cable_is_not_dead(verilog):
    with LinkPair(verilog, BITS, PairTraffic(1, 1, seed=7), LinkTiming()) as pair:
        pair.finish(3000)
        before = pair.statistics()
        for _ in range(4):
            pair.run(SILENCE)
            assert not any(board.dead for board in pair.statistics())
        words = [b.words_sent - a.words_sent for a, b in zip(before, pair.statistics(), strict=True)]
        assert all(4 * SILENCE // KEEPALIVE <= count <= 5 * SILENCE // KEEPALIVE for count in words)


def test_frames_that_do_not_arrive_are_reported(verilog):
    with LinkPair(verilog, BITS, PairTraffic(10, 10), LinkTiming(word_drop_rate=1.0)) as pair:
        with pytest.raises(PairError, match="not all frames were delivered within 5000 link cycles"):
            pair.finish(5000)


def test_a_full_cable(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.count("99.9") == 3, "percent of the limit: one way, and each of both"
    assert main(["--hop-ns", "1500"]) == 1, "twin: 64 slots do not reach so far"
    assert f"less than {REQUIRED:.0%}" in capsys.readouterr().out
