"""Several boards in one process: the same results on any number of threads and for any order of the host's accesses."""

import pytest

from hw.board.board_model import BoardError, BoardModel
from sim.devices.link_timing import LinkTiming
from sim.devices.memory_timing import MemoryTiming
from sim.rtl.board import RtlBoard
from sim.rtl.ring import RtlRing, board_memory


def load(ring, program, order=None):
    for b in order or range(len(ring.boards)):
        ring.boards[b].load(*program)


def start(ring, stand_in, order=None, **more):
    for b in order or range(len(ring.boards)):
        boards = {"weight_base": 16 * b, "ring_boards": len(ring.boards), "ring_board": b}
        stand_in.start(ring.boards[b], **boards | more)


def advance(ring, cycles):
    """Let the ring work; whether any board had a run."""
    return sum(board.advance(cycles) for board in ring.boards) > 0


def finish(ring, chunk=1_000_000):
    while advance(ring, chunk):
        pass


def tokens_of(board, count=8):
    offset = board.map.window("tokens").offset
    return [board.read_register(offset + 4 * i) for i in range(count)]


def outcome(ring):
    """All that a run leaves: counters, memory, tokens of every board."""
    return [(board.counters(), board.kv_hash(), tokens_of(board)) for board in ring.boards]


def run(built, program, stand_in, boards=3, chunk=1_000_000, order=None, **options):
    with RtlRing(built, boards, **options) as ring:
        load(ring, program)
        start(ring, stand_in, order)
        finish(ring, chunk)
        return outcome(ring), [ring.link_counters(b, 1).words_sent for b in range(boards)]


def cycles(result):
    return [counters["cycles"] for counters, _, _ in result[0]]


@pytest.mark.parametrize("boards", [2, 3, 8])
def test_a_ring_computes_and_counts(ring_built, program, stand_in, boards):
    with RtlRing(ring_built, boards) as ring:
        assert all(isinstance(board, BoardModel) for board in ring.boards)
        load(ring, program)
        start(ring, stand_in)
        finish(ring)
        assert [tokens_of(board) for board in ring.boards] == stand_in.expected_ring_tokens(program, boards)
        for board in ring.boards:
            counters = board.counters()
            assert counters["cycles"] == counters["ticks"]
            assert counters["tiles"] == counters["harness_tiles"] == 7 * 16
            assert counters["harness_read_beats"] == 7 * 16 * board.config.channels
            assert counters["cycles"] > 6 * 100 + 7 * (64 + 16 + 32)  # six hops of 500 ns


def test_twin_another_image_on_one_board_reaches_the_others(ring_built, program, stand_in):
    def tokens(change):
        with RtlRing(ring_built, 3) as ring:
            load(ring, program)
            if change:
                ring.boards[0].write_memory(0, 32 * 16 * 3, b"\x5a")
            start(ring, stand_in)
            finish(ring)
            return [tokens_of(board) for board in ring.boards]

    plain, changed = tokens(False), tokens(True)
    assert [a == b for a, b in zip(plain, changed, strict=True)] == [False, False, True]  # left to right, one hop


@pytest.mark.parametrize("memory", [MemoryTiming(), MemoryTiming.random(4)], ids=["fixed", "random"])
@pytest.mark.parametrize("hop_ns", [0.0, 37.0, 500.0])
def test_one_and_two_threads_agree(ring_built, program, stand_in, memory, hop_ns):
    def with_threads(threads, **changes):
        links = LinkTiming(**{"hop_ns": hop_ns, "jitter_ns": 20.0, "seed": 1} | changes)
        return run(ring_built, program, stand_in, timing=memory, links=links, threads=threads)

    one = with_threads(1)
    assert with_threads(2) == one
    assert with_threads(2) == with_threads(1, seed=1) == one
    assert cycles(with_threads(1, hop_ns=hop_ns + 300)) != cycles(one)  # twin: the comparison sees a hop


def test_memory_differs_from_board_to_board_as_stated(ring_built, program, stand_in):
    memory = MemoryTiming.random(5)
    assert board_memory(memory, 2) == MemoryTiming.random(7)
    alone = []
    for b in range(2):
        with RtlBoard(ring_built, timing=board_memory(memory, b)) as board:
            board.load(*program)
            stand_in.start(board, weight_base=0)
            while board.advance(1_000_000):
                pass
            alone.append(board.counters())
    with RtlRing(ring_built, 2, timing=memory) as ring:
        load(ring, program)
        for board in ring.boards:
            stand_in.start(board, weight_base=0)  # ring_boards is 0: nobody waits for another
        finish(ring)
        assert [board.counters() for board in ring.boards] == alone
    assert alone[0] != alone[1]


@pytest.mark.parametrize("hop_ns", [0.0, 500.0])
def test_what_the_host_does_before_changes_nothing(ring_built, program, stand_in, hop_ns):
    options = {"timing": MemoryTiming.random(2), "links": LinkTiming(hop_ns=hop_ns, jitter_ns=10.0)}
    want, _ = run(ring_built, program, stand_in, **options)
    for order in ((2, 0, 1), (1, 2, 0)):
        with RtlRing(ring_built, 3, **options) as ring:
            load(ring, program, order)
            for looks, board in zip((3, 0, 17), ring.boards, strict=True):
                for _ in range(looks):
                    stand_in.read(board, "state")
            for b in order:
                start(ring, stand_in, [b])
                for _ in range(b):
                    stand_in.read(ring.boards[b], "start_count")
            finish(ring)
            assert outcome(ring) == want


def test_looking_while_it_moves_changes_nothing(ring_built, program, stand_in):
    options = {"timing": MemoryTiming.random(2), "links": LinkTiming(hop_ns=123.0, jitter_ns=10.0)}
    want, _ = run(ring_built, program, stand_in, **options)
    for threads, chunk in ((1, 17), (2, 17), (1, 1)):
        with RtlRing(ring_built, 3, threads=threads, **options) as ring:
            load(ring, program)
            start(ring, stand_in)
            while advance(ring, chunk):
                if chunk > 1:
                    stand_in.read(ring.boards[chunk % 3], "cycles")
            assert outcome(ring) == want


def test_runs_after_one_another_repeat(ring_built, program, stand_in):
    """What one run leaves on the cables does not depend on how the host waited for it."""
    results = []
    for chunk, looks in ((1_000_000, 0), (17, 1), (300, 3)):
        with RtlRing(ring_built, 3, links=LinkTiming(hop_ns=700.0)) as ring:
            load(ring, program)
            found = []
            for tokens in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
                start(ring, stand_in, tokens=tokens)
                while advance(ring, chunk):
                    for _ in range(looks):
                        stand_in.read(ring.boards[1], "state")
                want = stand_in.expected_ring_tokens(program, 3, tokens=tokens)
                assert [tokens_of(board) for board in ring.boards] == want
                found.append(outcome(ring))
            results.append(found)
    assert results[0] == results[1] == results[2]


def test_a_board_that_starts_later(ring_built, program, stand_in):
    """The others wait for it, and it idles while they run."""
    with RtlRing(ring_built, 2) as ring:
        load(ring, program)
        start(ring, stand_in, [0])
        assert ring.boards[0].advance(5_000) == 5_000
        assert stand_in.read(ring.boards[0], "tokens_valid") == 3
        assert ring.boards[1].advance(100) == 0
        start(ring, stand_in, [1])
        finish(ring)
        assert [tokens_of(board) for board in ring.boards] == stand_in.expected_ring_tokens(program, 2)


def test_link_counters(ring_built, program, stand_in):
    with RtlRing(ring_built, 3) as ring:
        load(ring, program)
        before = [ring.link_counters(b, 1) for b in range(3)]
        start(ring, stand_in)
        finish(ring)
        ring.move(1_000)
        for b in range(3):
            counters = ring.link_counters(b, 1)
            assert counters.words_sent - before[b].words_sent >= 12  # two words after each of six positions
            assert counters.words_lost == counters.words_corrupted == 0
            assert counters.words_sent - counters.words_received in (0, 1)  # an ACK may be under way
            assert 0 < ring.link_counters(b, 0).words_sent < counters.words_sent  # ACKs only


def test_one_board_of_such_a_kernel_alone(built, ring_built, program, stand_in):
    """A board by itself takes as many cycles as ever."""
    results = []
    for kernel in (built, ring_built):
        with RtlBoard(kernel, timing=MemoryTiming.random(3)) as board:
            board.load(*program)
            stand_in.start(board)
            while board.advance(1_000_000):
                pass
            results.append((board.counters(), board.kv_hash(), tokens_of(board)))
    assert results[0] == results[1]
    assert results[0][2] == stand_in.expected_tokens(program)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"boards": 1}, "boards must be 2 to 8, got 1"),
        ({"boards": 9}, "boards must be 2 to 8, got 9"),
        ({"boards": 2, "threads": 3}, "threads must be 1 or 2, got 3"),
        ({"boards": 3, "links": [LinkTiming()] * 2}, "links must be one LinkTiming or 3, one for each cable, got 2"),
    ],
)
def test_rings_that_cannot_be(ring_built, arguments, message):
    with pytest.raises(BoardError, match=message):
        RtlRing(ring_built, **arguments)


def test_closed_boards(ring_built, program):
    ring = RtlRing(ring_built, 2)
    ring.boards[0].close()
    with pytest.raises(BoardError, match="the board is closed"):
        ring.boards[0].read_register(0)
    assert ring.boards[1].read_register(0x10) == 0x52464C59
    with pytest.raises(BoardError, match=r"port 0 \(left\) or 1 \(right\), got 0 and 2"):
        ring.cut(0, 2)
    ring.boards[1].close()
    ring.close()
    with pytest.raises(BoardError, match="the ring is closed"):
        ring.move(1)
