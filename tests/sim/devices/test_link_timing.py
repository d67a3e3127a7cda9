"""A cable alone: rate, latency, order, losses within their probabilities, cuts and resets."""

import dataclasses
import math

import numpy as np
import pytest

from sim.devices.link_timing import CHANNEL_DOWN_CYCLES, LINK_CLOCK_MHZ, ClockPeriods, LinkTiming
from sim.devices.link_traffic import compile_link, link_sources, run_link

CLEAN = LinkTiming(seed=3)
GBITS_RAW = float(LINK_CLOCK_MHZ) * 256 / 1000
FRAME = 17


def frames(count, words=FRAME):
    return np.tile(np.arange(words) == words - 1, count)


def changed_model(old, new):
    sources = link_sources()
    assert sources["link_timing.h"].count(old) == 1
    return compile_link(sources | {"link_timing.h": sources["link_timing.h"].replace(old, new)})


def gigabits(run):
    """From the channel's coming up on."""
    return GBITS_RAW * run.busy[run.up].mean()


def within_binomial(count, trials, rate, sigmas=5):
    return abs(count - trials * rate) <= sigmas * math.sqrt(trials * rate * (1 - rate))


def test_clock_and_periods():
    assert float(LINK_CLOCK_MHZ) == pytest.approx(402.832, abs=5e-4)  # u280.md b.1
    assert GBITS_RAW == 103.125
    periods = ClockPeriods.of(200, 225)
    assert periods.core / float(periods.units_per_ns) == 5
    assert periods.port / float(periods.units_per_ns) == pytest.approx(1000 / 225, rel=1e-15)
    assert periods.link * 825 == 2048 * periods.units_per_ns
    assert math.gcd(periods.core, periods.port, periods.link) == 1
    assert ClockPeriods.of(300, 450).core * 2 == ClockPeriods.of(300, 450).port * 3


def test_rate_is_the_published_ceiling():
    run = run_link(CLEAN, np.ones(400_000), 33 * 4992 * 2 + CHANNEL_DOWN_CYCLES)
    assert gigabits(run) == pytest.approx(99.84, rel=2e-5)  # u280.md 0: 99.84 Gb/s = 103.125 x 32/33 x 0.9984
    assert run.counters["words_received"] > 0.999 * run.counters["words_sent"]


@pytest.mark.parametrize(
    ("old", "new", "gigabit_s"),
    [
        ("GEARBOX_CYCLES = 33", "GEARBOX_CYCLES = 1000000", 103.125 * 0.9984),
        ("COMPENSATION_STALL = 8", "COMPENSATION_STALL = 0", 100.0),
    ],
)
def test_twin_rate_without_one_of_the_stalls(old, new, gigabit_s):
    run = run_link(CLEAN, np.ones(400_000), 33 * 4992 * 2 + CHANNEL_DOWN_CYCLES, library=changed_model(old, new))
    assert gigabits(run) == pytest.approx(gigabit_s, rel=2e-5)
    assert gigabits(run) != pytest.approx(99.84, rel=1e-3)


def test_pattern_of_the_stalls():
    """One cycle after every 32, eight together once in 4,992 and never two of these within eight cycles."""
    run = run_link(CLEAN, np.ones(1), 50_000)
    ready = run.ready[run.up]
    stalls = np.flatnonzero(~ready)
    runs = np.split(stalls, np.flatnonzero(np.diff(stalls) > 1) + 1)
    long = [stall for stall in runs if len(stall) > 2]
    assert len(long) in (9, 10)
    assert all(8 <= len(stall) <= 10 for stall in long)
    assert np.diff([stall[0] for stall in long]) == pytest.approx(4992, abs=1)
    short = np.array([stall[0] for stall in runs if len(stall) == 1])
    assert len(short) > 0.9 * len(ready) / 33
    assert set(np.diff(short) % 33) == {0}
    assert not run.ready[~run.up].any()


def test_directions_and_seeds_have_phases_of_their_own():
    runs = [run_link(CLEAN, np.ones(1), 10_000, cable=cable, end=end) for cable in (0, 1) for end in (0, 1)]
    runs.append(run_link(dataclasses.replace(CLEAN, seed=4), np.ones(1), 10_000))
    assert len({run.ready.tobytes() for run in runs}) == 5


@pytest.mark.parametrize("hop_ns", [0, 100.0, 500.0, 1234.5])
@pytest.mark.parametrize("phase", [0.0, 0.4])
def test_latency_and_order(hop_ns, phase):
    """The hop, to the next edge of the receiver's clock; without jitter all words take equally long."""
    run = run_link(dataclasses.replace(CLEAN, hop_ns=hop_ns), np.ones(20_000), 22_000, phase=phase)
    hop_ns = max(hop_ns, 5.0 + 1000 / float(LINK_CLOCK_MHZ))  # a cycle of the core's clock and one of the link's
    latency = run.latency_ns()
    assert latency.min() == latency.max()
    assert hop_ns <= latency.min() < hop_ns + 1000 / float(LINK_CLOCK_MHZ)
    assert (run.arrivals["number"] == np.arange(len(run.arrivals))).all()
    assert len(run.arrivals) == 20_000


def test_jitter_delays_and_keeps_order():
    jittery = dataclasses.replace(CLEAN, jitter_ns=40.0)
    run = run_link(jittery, np.ones(20_000), 22_000)
    latency, period_ns = run.latency_ns(), 1000 / float(LINK_CLOCK_MHZ)
    assert 500 <= latency.min() < latency.max() - 20
    assert 530 < latency.max() < 540 + 40 * period_ns  # a word late by 40 ns holds up those behind it
    assert len(set(latency)) > 5
    assert (run.arrivals["number"] == np.arange(20_000)).all()
    assert np.diff(run.arrivals["time"].astype(np.int64)).min() == run.periods.link
    narrow = run_link(dataclasses.replace(jittery, jitter_ns=20.0), np.ones(20_000), 22_000).latency_ns()
    assert narrow.max() < latency.max() - 15  # twin: the bounds tell delays apart


def test_nothing_happens_to_words_of_a_clean_cable():
    run = run_link(CLEAN, frames(1000), 20_000)
    assert not run.arrivals["changed_bits"].any()
    assert (run.arrivals["last"] == frames(1000)).all()
    assert run.counters == {
        "words_sent": 17_000, "words_lost": 0, "words_corrupted": 0, "words_received": 17_000,
    }  # fmt: skip


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.3])
def test_words_are_lost_and_changed_as_often_as_told(rate):
    words = 200_000
    run = run_link(dataclasses.replace(CLEAN, word_drop_rate=rate), frames(words // 17), 220_000)
    lost = run.counters["words_lost"]
    sent = run.counters["words_sent"]
    assert within_binomial(lost, sent, rate)
    assert len(run.arrivals) == sent - lost
    assert (np.diff(run.arrivals["number"].astype(np.int64)) > 0).all()
    run = run_link(dataclasses.replace(CLEAN, word_corrupt_rate=rate), frames(words // 17), 220_000)
    wrong = (run.arrivals["changed_bits"] > 0) | (run.arrivals["last"] != frames(words // 17))
    assert within_binomial(wrong.sum(), sent, rate)
    assert wrong.sum() == run.counters["words_corrupted"]
    assert len(run.arrivals) == sent
    assert run.arrivals["changed_bits"].max() <= 8
    assert not within_binomial(lost, sent, 2 * rate)  # twin: the bound tells rates apart


@pytest.mark.parametrize("words", [1, 5, 17, 40])
def test_a_frame_error_is_one_wrong_word(words):
    run = run_link(dataclasses.replace(CLEAN, frame_error_rate=0.1), frames(4000, words), 4000 * words * 2)
    wrong = (run.arrivals["changed_bits"] > 0).reshape(4000, words)
    assert set(wrong.sum(axis=1)) == {0, 1}
    assert within_binomial(wrong.sum(), 4000, 0.1)
    assert (wrong.any(axis=0) == (np.arange(words) < 17)).all()  # each of the first 17 now and then
    assert (run.arrivals["last"] == frames(4000, words)).all()


def test_equal_seeds_equal_runs():
    timing = LinkTiming(
        word_drop_rate=0.01, word_corrupt_rate=0.01, frame_error_rate=0.1, jitter_ns=30.0, cut_at_ns=40_000.0, seed=9
    )

    def outcome(timing, **where):
        return run_link(timing, frames(1000), 20_000, **where).arrivals.tobytes()

    assert outcome(timing) == outcome(timing)
    others = {
        outcome(dataclasses.replace(timing, seed=10)),
        outcome(timing, end=1),
        outcome(timing, cable=1),
        outcome(dataclasses.replace(timing, jitter_ns=31.0)),
    }
    assert len(others | {outcome(timing)}) == 5


def test_draws_of_one_kind_do_not_move_those_of_another():
    """So the words that are lost stay the same when corruption is added."""
    lossy = dataclasses.replace(CLEAN, word_drop_rate=0.05)
    numbers = [
        run_link(timing, frames(1000), 20_000).arrivals["number"]
        for timing in (lossy, dataclasses.replace(lossy, word_corrupt_rate=0.5, jitter_ns=10.0))
    ]
    assert (numbers[0] == numbers[1]).all()


@pytest.mark.parametrize("drops", [True, False])
def test_cut_at_a_time(drops):
    timing = dataclasses.replace(CLEAN, cut_at_ns=10_000.0, cut_drops_channel=drops)
    run = run_link(timing, np.ones(10_000), 12_000)
    since_up_ns = (run.arrivals["time"] - CHANNEL_DOWN_CYCLES * run.periods.link) / float(run.periods.units_per_ns)
    assert 9_990 < since_up_ns.max() <= 10_000
    assert run.up[-1] == run.ready[-100:].any() == (not drops)
    assert run.counters["words_received"] + run.counters["words_lost"] == run.counters["words_sent"]
    whole = run_link(CLEAN, np.ones(10_000), 12_000)
    assert (whole.arrivals[: len(run.arrivals)] == run.arrivals).all()
    assert len(whole.arrivals) > 2 * len(run.arrivals)


@pytest.mark.parametrize("cut", ["cut", "cut_silently"])
def test_cut_and_mend(cut):
    run = run_link(CLEAN, np.ones(20_000), 20_000, events=[(5_000, cut), (9_000, "mend")])
    arrived_in = ((run.arrivals["time"] // run.periods.link) - 1).astype(int)
    quiet = 9_000 + 201 if cut == "cut_silently" else 9_000 + CHANNEL_DOWN_CYCLES + 201
    assert not ((arrived_in >= 5_000) & (arrived_in < quiet - 3)).any()
    assert arrived_in[np.searchsorted(arrived_in, 5_000)] == pytest.approx(quiet, abs=3)
    assert run.up[4_998] and run.up[-1]
    assert run.up[5_000:9_000].any() == (cut == "cut_silently")
    if cut == "cut":
        assert np.flatnonzero(run.up[9_000:])[0] == pytest.approx(CHANNEL_DOWN_CYCLES, abs=1)
    assert run.counters["words_lost"] > 190
    assert run.counters["words_sent"] == run.counters["words_lost"] + run.counters["words_received"] + int(
        run.counters["words_sent"] - run.arrivals["number"][-1] - 1
    )


def test_reset_takes_the_channel_down_and_loses_what_is_under_way():
    run = run_link(CLEAN, np.ones(20_000), 20_000, events=[(5_000, "reset")])
    down = np.flatnonzero(~run.up)
    assert down[down > 1000].tolist() == pytest.approx(range(5_000, 5_000 + CHANNEL_DOWN_CYCLES - 1), abs=1)
    gap = np.flatnonzero(np.diff(run.arrivals["number"].astype(np.int64)) > 1)
    assert len(gap) == 1
    lost = run.arrivals["number"][gap[0] + 1] - run.arrivals["number"][gap[0]] - 1
    assert 500 / 2.4824 * 0.9 < lost <= 500 / 2.4824 + 1  # a hop's worth of words
    assert run.counters["words_lost"] == lost


@pytest.mark.parametrize(
    ("name", "value"),
    [("hop_ns", -1.0), ("hop_ns", 2e9), ("word_drop_rate", 1.1), ("frame_error_rate", -0.1), ("seed", -1),
     ("cut_at_ns", -5.0), ("jitter_ns", float("nan"))],
)  # fmt: skip
def test_figures_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .* got"):
        LinkTiming(**{name: value})
