"""A ring in trouble: lost words, cut cables, resets, limits; and what the messages say."""

import contextlib

import pytest

from hw.board.board_model import BoardError, BoardStuckError
from hw.board.gpt2_map import ErrorCode
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.rtl.ring import RtlRing

PATIENCE = {"no_progress_cycles": 3000}


@pytest.fixture
def ring(ring_built, program):
    with RtlRing(ring_built, 3, **PATIENCE) as made:
        load(made, program)
        yield made


def load(ring, program):
    for board in ring.boards:
        board.load(*program)


def start(ring, stand_in, **more):
    for b, board in enumerate(ring.boards):
        boards = {"weight_base": 16 * b, "ring_boards": len(ring.boards), "ring_board": b}
        stand_in.start(board, **boards | more)


def advance(ring, cycles):
    """Let the ring work; whether any board had a run."""
    return sum(board.advance(cycles) for board in ring.boards) > 0


def finish(ring, chunk=1_000_000):
    while advance(ring, chunk):
        pass


def tokens_of(ring):
    offset = ring.boards[0].map.window("tokens").offset
    return [[board.read_register(offset + 4 * i) for i in range(8)] for board in ring.boards]


def ends_well(ring, program, stand_in):
    finish(ring)
    return tokens_of(ring) == stand_in.expected_ring_tokens(program, len(ring.boards))


@pytest.mark.parametrize("chunk", [1_000_000, 100])
def test_a_lost_word_leaves_the_ring_stuck(ring, program, stand_in, chunk):
    ring.cut(0, 1, drops_channel=False)
    start(ring, stand_in)
    with pytest.raises(BoardStuckError) as caught:
        finish(ring, chunk)
    message = str(caught.value)
    print(message)
    for part in ("3000 cycles", "no frame is under way", "board 0: state", "board 2: state", "'stream'", "port 3"):
        assert part in message
    lost = ring.link_counters(0, 1).words_lost
    assert lost >= 4  # two words after each of the first positions, and ACKs
    assert ring.link_counters(1, 1).words_lost == 0
    for board in ring.boards:
        board.write_register(board.map["cancel"].offset, 1)  # they are still alive
    finish(ring)
    assert [stand_in.read(board, "error") for board in ring.boards] == [ErrorCode.CANCELLED] * 3


def test_keepalives_are_no_progress_and_slow_frames_are_no_standstill(ring_built, program, stand_in):
    """ACKs flow in the stuck ring above all the time; here a hop takes longer than the patience lasts."""
    with RtlRing(ring_built, 2, links=LinkTiming(hop_ns=20_000.0), **PATIENCE) as ring:  # 4,000 cycles
        load(ring, program)
        start(ring, stand_in)
        assert ends_well(ring, program, stand_in)
        assert ring.boards[0].counters()["cycles"] > 6 * 4000
    with RtlRing(ring_built, 2, links=LinkTiming(hop_ns=20_000.0, word_drop_rate=1.0), **PATIENCE) as ring:
        load(ring, program)
        start(ring, stand_in)
        with pytest.raises(BoardStuckError, match="nothing moved on any board for 3000 cycles"):
            finish(ring)


def test_slow_boards_are_not_stuck(ring_built, program, stand_in):
    memory = MemoryTiming(read_min=2900, read_max=2900)
    with RtlRing(ring_built, 2, timing=memory, **PATIENCE) as ring:
        load(ring, program)
        start(ring, stand_in)
        assert ends_well(ring, program, stand_in)


def test_a_board_that_hangs_stops_all(ring, program, stand_in):
    start(ring, stand_in)
    ring.boards[1].write_register(ring.boards[1].map["cancel"].offset, 1)
    with pytest.raises(BoardStuckError, match=r"board 1: state IDLE.*board 2: state RUN"):
        finish(ring)
    load(ring, program)
    start(ring, stand_in)
    assert ends_well(ring, program, stand_in)


def test_loading_mends_nothing(ring, program, stand_in):
    """A cable cut by hand stays cut until it is mended; one that was cut at a time is whole after a load."""
    ring.cut(2, 1)
    load(ring, program)
    start(ring, stand_in)
    with pytest.raises(BoardStuckError):
        finish(ring)
    ring.mend(2, 1)
    load(ring, program)
    start(ring, stand_in)
    assert ends_well(ring, program, stand_in)


@pytest.mark.parametrize("by_the_other_end", [False, True])
def test_a_cut_in_the_middle_of_a_run(ring, program, stand_in, by_the_other_end):
    start(ring, stand_in)
    ring.boards[0].advance(1_000)
    ring.cut(*((1, 0) if by_the_other_end else (0, 1)))
    with pytest.raises(BoardStuckError):
        finish(ring)
    assert ring.link_counters(0, 1).words_received > 0
    assert stand_in.read(ring.boards[1], "tokens_valid") > 3  # it had got that far


@pytest.mark.parametrize("threads", [1, 2])
def test_a_cut_at_a_time(ring_built, program, stand_in, threads):
    """Stands still at the same place on any number of threads, and works again after a load without it."""

    def dumps(cut_at_ns):
        links = LinkTiming(cut_at_ns=cut_at_ns)
        with RtlRing(ring_built, 2, links=links, threads=threads, **PATIENCE) as ring:
            load(ring, program)
            start(ring, stand_in)
            with pytest.raises(BoardStuckError):
                finish(ring)
            return [board.state_dump()["dump_position"] for board in ring.boards]

    assert dumps(4_000.0) == dumps(4_000.0) == [4, 4]
    assert dumps(1_000.0) == [1, 1]


def test_one_bad_cable_of_three(ring_built, program, stand_in):
    links = [LinkTiming(), LinkTiming(word_drop_rate=1.0), LinkTiming()]
    with RtlRing(ring_built, 3, links=links, **PATIENCE) as ring:
        load(ring, program)
        start(ring, stand_in)
        with pytest.raises(BoardStuckError):
            finish(ring)
        lost = [[ring.link_counters(b, port).words_lost for port in (0, 1)] for b in range(3)]
    assert [[count > 0 for count in board] for board in lost] == [[False, False], [False, True], [True, False]]


def test_corrupted_words_arrive_changed(ring_built, program, stand_in):
    with RtlRing(ring_built, 2, links=LinkTiming(word_corrupt_rate=0.5, seed=1), **PATIENCE) as ring:
        load(ring, program)
        start(ring, stand_in)
        with contextlib.suppress(BoardStuckError):
            finish(ring)
        assert ring.link_counters(0, 1).words_corrupted > 0
        assert tokens_of(ring) != stand_in.expected_ring_tokens(program, 2)


def test_a_reset_of_one_board_takes_its_channels_down(ring, program, stand_in):
    """The words under way are lost, so the others wait; the third cable goes on."""
    start(ring, stand_in)
    ring.boards[0].advance(200)
    lost = [ring.link_counters(b, 1).words_lost for b in range(3)]
    while any(ring.link_counters(b, 1).words_sent == ring.link_counters(b, 1).words_received for b in (0, 2)):
        ring.move(1)
    ring.boards[0].load(*program)
    assert [ring.link_counters(b, 1).words_lost > lost[b] for b in range(3)] == [True, False, True]
    assert stand_in.read(ring.boards[0], "state") == 0
    assert stand_in.read(ring.boards[1], "state") == 1
    with pytest.raises(BoardStuckError):
        finish(ring)
    load(ring, program)
    start(ring, stand_in)
    assert ends_well(ring, program, stand_in)


def test_wall_clock_limit(ring_built, program, stand_in):
    memory = MemoryTiming(read_min=15_000, read_max=15_000)
    with RtlRing(ring_built, 2, timing=memory, wall_limit_s=0.001) as ring:
        load(ring, program)
        start(ring, stand_in)
        with pytest.raises(BoardStuckError, match=r"the ring took more than 0\.001 s of wall-clock time; board 0"):
            finish(ring)


def test_broken_protocol_names_the_board(ring, stand_in):
    start(ring, stand_in)
    ring.boards[1].write_register(ring.boards[1].map["cancel"].offset, 1)
    ring.boards[1].advance(1_000)
    stand_in.start(ring.boards[1], vocab=2, weight_base=0)
    with pytest.raises(BoardError, match=r"memory of board 1, channel 0: AR: 16 beats at 0x\w+ cross a 4 KB boundary"):
        ring.boards[0].advance(100_000)


def test_the_ring_can_move_without_a_run(ring, stand_in):
    """Ports send their ACKs when the ring moves, and only then."""
    counters = [ring.link_counters(0, 1).words_sent]
    for _ in range(50):
        stand_in.read(ring.boards[0], "state")
    counters.append(ring.link_counters(0, 1).words_sent)
    ring.move(10_000)  # 20,142 link cycles
    counters.append(ring.link_counters(0, 1).words_sent)
    assert counters[0] == counters[1]
    assert 30 < counters[2] - counters[1] < 42
