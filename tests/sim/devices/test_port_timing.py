"""One port and the memory behind it: what comes when, whatever comes later and however often it is asked."""

import dataclasses

import numpy as np
import pytest

from sim.devices.ddr_timing import DdrTiming
from sim.devices.hbm_timing import HbmTiming
from sim.devices.memory_timing import MemoryTiming
from sim.devices.traffic import Port, compile_models, model_sources, requests_of, run_port

KERNEL = Port(225, 64)
KINDS = {
    "hbm": HbmTiming(seed=5),
    "hbm-in-order": HbmTiming(seed=5, reorder_commands=0),
    "hbm-rbc": HbmTiming(seed=5, address_map="RBC"),
    "ddr": DdrTiming(seed=5),
    "delays": MemoryTiming.random(5),
}


def traffic(seed, count=600, span=1 << 20, pause=40):
    """Random reads and writes of 1 to 16 words, with pauses in which the port is idle."""
    rng = np.random.default_rng(seed)
    beats = rng.integers(1, 17, count)
    rows = rng.integers(0, span // 1024, count)
    requests = requests_of(rows * 1024 + (16 - beats) * 64, 64, 64)
    requests["beats"] = beats
    requests["write"] = rng.random(count) < 0.3
    requests["not_before"] = np.cumsum(rng.integers(0, pause, count) * (rng.random(count) < 0.3) * 10)
    return requests


@pytest.mark.parametrize("kind", KINDS)
def test_equal_runs(kind):
    first, again = (run_port(KINDS[kind], traffic(1), KERNEL, ports=2) for _ in range(2))
    assert (first.answers == again.answers).all()
    assert (first.answers[0] != first.answers[1]).any()  # channels differ
    other = run_port(dataclasses.replace(KINDS[kind], seed=6), traffic(1), KERNEL)
    assert (first.answers[0] != other.answers[0]).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [50, 300, 450])
def test_the_future_changes_nothing(kind, cut):
    """Answers given before a request is sent are the same without it and all after it."""
    requests = traffic(2)
    whole, part = run_port(KINDS[kind], requests, KERNEL), run_port(KINDS[kind], requests[:cut], KERNEL)
    sent = requests["not_before"][cut]
    for name in ("accepted", "first", "last"):
        early = part.answers[0][name] < sent
        assert (whole.answers[0][name][:cut][early] == part.answers[0][name][early]).all()
    assert early.any()


@pytest.mark.parametrize("kind", ["hbm", "hbm-in-order", "hbm-rbc", "ddr"])
def test_idle_cycles_need_no_call(kind):
    requests = traffic(3, pause=400)
    every = run_port(KINDS[kind], requests, KERNEL)
    some = run_port(KINDS[kind], requests, KERNEL, skip_idle=True)
    assert (every.answers == some.answers).all()
    assert (every.totals == some.totals).all()
    assert every.totals["refreshes"][0] > 10


def changed_models(header, old, new):
    sources = model_sources()
    assert sources[header].count(old) == 1
    return compile_models(sources | {header: sources[header].replace(old, new)})


@pytest.mark.parametrize("kind", ["hbm", "hbm-rbc", "ddr"])
def test_whole_bursts_are_placed_as_column_by_column(kind):
    """The short cut for the columns of a burst changes nothing."""
    slow = changed_models("dram_bank.h", "if (!run_step_ ||", "if (true ||")
    for seed in range(4):
        requests = traffic(seed, count=2000, span=64 << 20)
        requests["not_before"] //= 1 + seed
        quick, stepped = (run_port(KINDS[kind], requests, KERNEL, ports=4, library=library) for library in (None, slow))
        assert (quick.answers == stepped.answers).all()
        assert (quick.totals == stepped.totals).all()


def test_the_short_cut_must_look_at_refreshes():
    """Twin of the equality."""
    blind = changed_models("dram_bank.h", "|| end >= refresh_at_)", ")")
    requests = requests_of(np.arange(1000) * 1024, 1024, 64)
    exact, wrong = (run_port(KINDS["hbm"], requests, KERNEL, library=library) for library in (None, blind))
    assert (exact.answers != wrong.answers).any()


def read_and_write(write_offset, library=None):
    """When a read of offset 0 and a slightly older write are through, both behind 20 reads of one bank's rows."""
    busy = requests_of((1 << 20) + np.arange(20) * 16384, 1024, 64)
    read, write = requests_of([0], 64, 64), requests_of([write_offset], 64, 64, write=True)
    write["not_before"], read["not_before"] = 100, 102
    run = run_port(HbmTiming(refresh_interval_ns=0.0), np.concatenate([busy, write, read]), KERNEL, library=library)
    return [int(cycle) for cycle in run.answers["last"][0, -2:]]


def test_a_read_waits_for_an_older_write_of_the_same_word():
    """Else the write would wait until there are no reads left."""
    write, read = read_and_write(0)
    later_write, earlier_read = read_and_write(4096)
    assert read > earlier_read
    assert write < later_write
    blind = changed_models("dram_channel.h", "after = number + 1;", "after = 0;")
    assert read_and_write(0, blind)[1] < read


def test_a_port_word_a_cycle_and_not_more():
    fast = dataclasses.replace(KINDS["hbm"], refresh_interval_ns=0.0)
    for port in (KERNEL, Port(300, 64), Port(450, 32), Port(100, 64)):
        requests = requests_of(np.arange(400) * 16 * port.bytes, 16 * port.bytes, port.bytes)
        run = run_port(fast, requests, port)
        took = run.answers["last"][0, -1] - run.answers["last"][0, 100]
        words = 299 * 16
        assert took >= words
        assert took >= words * port.bytes / 14.4e9 * port.mhz * 1e6 * 0.999  # nor more than the memory port has
        assert took <= max(words, words * port.bytes / 14.4e9 * port.mhz * 1e6) * 1.01


def test_limits_of_outstanding_transactions():
    """With the memory far away the rate is what the outstanding transactions carry; two for a burst of 16 words."""
    far = HbmTiming(read_hit_cycles=4000, refresh_interval_ns=0.0)
    requests = requests_of(np.arange(400) * 1024, 1024, 64)
    for transactions in (64, 32, 16):
        run = run_port(dataclasses.replace(far, reads_outstanding=transactions), requests, KERNEL)
        bursts_at_a_time = transactions // 2
        round_trips = np.diff(run.answers["last"][0, ::bursts_at_a_time][2:])
        assert abs(np.median(round_trips) - 2000) < 60
    writes = requests_of(np.arange(400) * 64, 64, 64, write=True)
    slow = HbmTiming(write_response_cycles=2000, refresh_interval_ns=0.0)
    for transactions in (32, 8):
        run = run_port(dataclasses.replace(slow, writes_outstanding=transactions), writes, KERNEL)
        assert abs(np.median(np.diff(run.answers["last"][0, ::transactions][2:])) - 1000) < 60


def test_a_write_is_answered_after_its_time_and_not_before_it_is_performed():
    def answered(timing):
        return int(run_port(timing, requests_of([0], 64, 64, write=True), KERNEL).latency()[0, 0])

    quiet = HbmTiming(refresh_interval_ns=0.0)
    longer = dataclasses.replace(quiet, write_response_cycles=245)
    assert answered(longer) - answered(quiet) == 100  # 200 AXI cycles
    prompt = dataclasses.replace(quiet, write_response_cycles=0)
    slow_row = dataclasses.replace(prompt, rcd_ns=1014.0)
    assert answered(slow_row) - answered(prompt) == 225  # 1,000 ns


def test_refreshes_explain_late_beats():
    requests = requests_of(np.arange(800) * 1024, 1024, 64)
    run = run_port(KINDS["hbm"], requests, KERNEL)
    refreshes, late = int(run.totals["refreshes"][0]), int(run.totals["late_cycles"][0])
    microseconds = run.totals["cycles"][0] / 225
    assert abs(refreshes - microseconds / 3.9) <= 1
    assert 58 * (refreshes - 1) <= late <= 75 * refreshes  # 260 ns and the rows to open again: 59 cycles or more
    off = run_port(dataclasses.replace(KINDS["hbm"], refresh_interval_ns=0.0), requests, KERNEL)
    assert off.totals["late_cycles"][0] == off.totals["refreshes"][0] == 0


def test_counters_of_rows():
    run = run_port(HbmTiming(refresh_interval_ns=0.0), requests_of(np.arange(64) * 1024, 1024, 64), KERNEL)
    totals = run.totals[0]
    assert (totals["row_closed"], totals["row_misses"]) == (16, 64 - 16)  # 64 KB: each of 16 banks opened 4 times
    assert totals["row_hits"] == 64 * 32 - 64
    assert totals["turnarounds"] == 0


class SplitMix:
    """The generator of delays.h, written again."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = ((self.state ^ self.state >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return z ^ z >> 31


def test_delays_are_drawn_as_they_always_were():
    """Latencies and pauses of one read at a time and of one write at a time, channel 3 of seed 7."""
    timing = MemoryTiming(1, 200, 1, 150, 0, 1, 300, 16, 500, 7)
    reads, writes = requests_of(np.zeros(50), 64, 64), requests_of(np.zeros(50), 64, 64, write=True)
    streams = [SplitMix(7 * 1000003 + 3 * 8 + index) for index in range(6)]
    expected_reads = []
    for _ in reads:
        expected_reads.append(1 + streams[0].next() % 200)
        streams[0].next()  # early or not
    expected_writes = [1 + streams[1].next() % 150 for _ in writes]
    read = run_port(timing, reads, KERNEL, ports=4, outstanding=1)
    write = run_port(timing, writes, KERNEL, ports=4, outstanding=1)
    assert list(read.latency()[3]) == expected_reads
    assert list(read.latency()[2]) != expected_reads
    answered = write.latency()[3]
    assert all(late >= draw for late, draw in zip(answered, expected_writes, strict=True))
    assert np.mean(answered == expected_writes) > 0.5  # the others' data were held up by a pause
