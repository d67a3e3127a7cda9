"""The compiled harness around a stand-in core: memory model, counters, watchdogs, waves, registers."""

import hashlib

import pytest

from hw.board.board_model import BoardError, BoardModel, BoardStuckError
from hw.board.gpt2_map import STALL_CAUSES, ErrorCode
from sim.devices.memory_timing import MemoryTiming
from sim.rtl.board import RtlBoard
from sim.rtl.build import compile_board


@pytest.fixture
def board(built, program):
    with RtlBoard(built) as made:
        made.load(*program)
        yield made


def finish(board, chunk=1_000_000):
    while board.advance(chunk):
        pass


def tokens_of(board, count):
    offset = board.map.window("tokens").offset
    return [board.read_register(offset + 4 * i) for i in range(count)]


def test_run_computes_and_counts(board, program, stand_in):
    assert isinstance(board, BoardModel)
    stand_in.start(board)
    finish(board)
    assert tokens_of(board, 8) == stand_in.expected_tokens(program)
    counters = board.counters()
    assert counters["cycles"] == counters["ticks"] > 7 * (64 + 16 + 32)
    stalls = sum(counters[f"stall_{cause}"] for cause in STALL_CAUSES)
    assert counters["tiles"] + stalls == counters["cycles"]
    assert counters["tiles"] == counters["harness_tiles"] == 7 * 16
    assert counters["stall_drain"] > 0
    assert counters["harness_read_beats"] == 7 * 16 * board.config.channels
    assert (stand_in.read(board, "done_count"), stand_in.read(board, "error")) == (1, 0)


def test_other_image_gives_other_tokens(board, program, stand_in):
    """Twin of the run: one byte of memory changed must show in tokens and hash."""
    stand_in.start(board)
    finish(board)
    tokens, keys = tokens_of(board, 8), board.kv_hash()
    board.load(*program)
    board.write_memory(0, 16 * 32 * 2, b"\x5a")
    stand_in.start(board)
    finish(board)
    assert tokens_of(board, 8) != tokens
    assert board.kv_hash() != keys


def test_hash_covers_keys_and_values_in_order(board, program, stand_in):
    stand_in.start(board)
    finish(board)
    regions = sorted(program[0].regions, key=lambda r: (r.channel, r.offset))
    data = b"".join(board.read_memory(r.channel, r.offset, r.bytes) for r in regions)
    assert board.kv_hash() == hashlib.sha256(data).hexdigest()
    assert data[-2:] == b"\x00\x7e"  # never written: fp16 NaN


def test_image_files_stay_and_memory_behind_them_is_nan(board, program, stand_in):
    before = program[1].files[0].read_bytes()
    assert board.read_memory(0, 31998, 4) == before[-2:] + b"\x00\x7e"
    assert board.read_memory(3, program[1].channel_bytes - 2, 2) == b"\x00\x7e"
    board.write_memory(0, 0, b"changed")
    assert program[1].files[0].read_bytes() == before
    board.load(*program)
    assert board.read_memory(0, 0, 7) == before[:7]


def test_latency_is_as_told(built, program, stand_in):
    cycles = {}
    for latency in (1, 64, 164):
        with RtlBoard(built, timing=MemoryTiming(read_min=latency, read_max=latency)) as board:
            board.load(*program)
            stand_in.start(board)
            finish(board)
            cycles[latency] = board.counters()["cycles"]
    assert cycles[64] - cycles[1] == 7 * 63
    assert cycles[164] - cycles[64] == 7 * 100


def test_random_latency_follows_its_seed(built, program, stand_in):
    def run(seed, poll):
        with RtlBoard(built, timing=MemoryTiming.random(seed)) as board:
            board.load(*program)
            for _ in range(poll):
                stand_in.read(board, "state")
            stand_in.start(board)
            while board.advance(17 + poll):
                if poll:
                    stand_in.read(board, "cycles")
            assert tokens_of(board, 8) == stand_in.expected_tokens(program)
            counters = board.counters()
            assert counters["cycles"] == counters["ticks"]
            return counters["cycles"], board.kv_hash()

    print("seeds 1, 2")
    first = run(1, 0)
    assert run(1, 5) == first  # looking does not change the run
    second = run(2, 0)
    assert second[0] != first[0]
    assert second[1] == first[1]


def test_two_boards_at_a_time(built, program, stand_in):
    with RtlBoard(built) as one, RtlBoard(built, timing=MemoryTiming.random(3)) as other:
        for board, tokens in ((one, (1, 2, 3)), (other, (4, 5, 6))):
            board.load(*program)
            stand_in.start(board, tokens=tokens)
        while one.advance(100) | other.advance(90):
            pass
        assert tokens_of(one, 8) == stand_in.expected_tokens(program, tokens=(1, 2, 3))
        assert tokens_of(other, 8) == stand_in.expected_tokens(program, tokens=(4, 5, 6))


def test_tokens_can_be_read_while_it_runs(board, program, stand_in):
    want = stand_in.expected_tokens(program)
    stand_in.start(board)
    seen = set()
    while board.advance(50):
        valid = stand_in.read(board, "tokens_valid")
        assert tokens_of(board, valid) == want[:valid]
        seen.add(valid)
    assert {4, 5, 6, 7} <= seen


def test_cancel_ends_the_run_and_the_next_one_is_right(board, program, stand_in):
    stand_in.start(board, max_new_tokens=50)
    board.advance(700)
    board.write_register(board.map["cancel"].offset, 1)
    assert 0 < board.advance(10_000) < 10_000
    assert stand_in.read(board, "error") == ErrorCode.CANCELLED
    assert stand_in.read(board, "done_count") == 1
    counters = board.counters()
    assert counters["cycles"] == counters["ticks"]
    stand_in.start(board)
    finish(board)
    assert tokens_of(board, 8) == stand_in.expected_tokens(program)
    assert stand_in.read(board, "error") == ErrorCode.NONE


@pytest.mark.parametrize(("register", "code"), [("weight_base", ErrorCode.READ), ("key_base", ErrorCode.WRITE)])
def test_outside_memory_is_an_error_response(board, stand_in, register, code):
    stand_in.start(board, **{register: 4096})
    finish(board)
    assert stand_in.read(board, "error") == code
    assert stand_in.read(board, "done_count") == 1


def test_memory_follows_the_base_registers(board, program, stand_in):
    for c in range(board.config.channels):
        board.write_register(board.map[f"hbm{c}"].offset, 0, 8)
    stand_in.start(board)
    finish(board)
    assert tokens_of(board, 8) == stand_in.expected_tokens(program)
    board.write_register(board.map["hbm1"].offset, (1 << 28) + 4096, 8)  # row 0 not at the channel's start
    stand_in.start(board)
    finish(board)
    assert board.read_memory(1, 1024 * 32 + 4096, 32) != board.read_memory(0, 1024 * 32 + 4096, 32)


@pytest.mark.parametrize("chunk", [1_000_000, 100])
def test_stuck_core_is_reported_with_what_it_waits_for(built, program, stand_in, chunk):
    with RtlBoard(built, no_progress_cycles=3000) as board:
        board.load(*program)
        stand_in.start(board, vocab=1)
        with pytest.raises(BoardStuckError) as caught:
            finish(board, chunk)
        message = str(caught.value)
        print(message)
        for part in ("3000 cycles", "RUN", "'stream'", "instruction 0", "busy units: key and value writer", "port 3"):
            assert part in message
        board.write_register(board.map["cancel"].offset, 1)  # it is still alive
        finish(board)
        assert stand_in.read(board, "error") == ErrorCode.CANCELLED


def test_silent_memory_is_reported_with_the_reads_under_way(built, program, stand_in):
    timing = MemoryTiming(read_min=1_000_000, read_max=1_000_000)
    with RtlBoard(built, timing=timing, no_progress_cycles=3000) as board:
        board.load(*program)
        stand_in.start(board)
        with pytest.raises(BoardStuckError, match="port 0: 1 read bursts and 0 write bursts under way"):
            finish(board)
        board.load(*program)  # reset: usable again
        assert stand_in.read(board, "state") == 0
        assert stand_in.read(board, "done_count") == 0


def test_slow_run_within_limits_is_not_stuck(built, program, stand_in):
    """Twin of the two above."""
    timing = MemoryTiming(read_min=2900, read_max=2900)
    with RtlBoard(built, timing=timing, no_progress_cycles=3000) as board:
        board.load(*program)
        stand_in.start(board)
        finish(board)
        assert tokens_of(board, 8) == stand_in.expected_tokens(program)


def test_wall_clock_limit(built, program, stand_in):
    timing = MemoryTiming(read_min=15_000, read_max=15_000)
    with RtlBoard(built, timing=timing, wall_limit_s=0.001) as board:
        board.load(*program)
        stand_in.start(board, max_new_tokens=50)
        with pytest.raises(BoardStuckError, match=r"0\.001 s of wall-clock"):
            finish(board)


def test_broken_protocol_is_reported(board, stand_in):
    stand_in.start(board, vocab=2)
    with pytest.raises(BoardError, match=r"channel 0: AR: 16 beats at 0x\w+ cross a 4 KB boundary"):
        board.advance(100_000)


def test_refused_accesses_say_why(board, stand_in):
    with pytest.raises(BoardError, match=r"0x10, identity \(r\), was refused in state IDLE"):
        board.write_register(0x10, 1)
    with pytest.raises(BoardError, match="no register"):
        board.read_register(0x3FC)
    with pytest.raises(BoardError, match="whole 32-bit words"):
        board.read_register(0x2)
    with pytest.raises(BoardError, match="does not fit 4 bytes"):
        board.write_register(0x100, 1 << 32)
    with pytest.raises(BoardError, match="outside channel 2"):
        board.read_memory(2, 4096 * 32 - 1, 2)
    with pytest.raises(BoardError, match="channel must be 0 to 3"):
        board.read_memory(4, 0, 2)
    stand_in.start(board)
    with pytest.raises(BoardError, match="state RUN"):
        board.write_register(board.map["position"].offset, 1)
    finish(board)


def test_start_during_a_run_is_ignored(board, stand_in):
    stand_in.start(board)
    board.write_register(0, 1)
    finish(board)
    assert stand_in.read(board, "start_count") == stand_in.read(board, "done_count") == 1


def test_blank_program_leaves_identity_readable(built, config, program, tmp_path):
    import dataclasses

    blank = dataclasses.replace(program[0], instructions=(), descriptors=(), regions=(), registers={})
    image = dataclasses.replace(
        program[1], files=("/dev/null",) * config.channels, image_bytes=0, channel_bytes=1 << 28
    )
    with RtlBoard(built) as board:
        board.load(blank, image)
        assert board.read_register(0x10) == 0x52464C59
        assert board.read_memory(3, (1 << 28) - 4, 4) == b"\x00\x7e\x00\x7e"


def test_program_of_another_core_is_refused(built, program):
    import dataclasses

    other = dataclasses.replace(program[0], core=dataclasses.replace(program[0].core, context=512))
    with RtlBoard(built) as board, pytest.raises(BoardError, match="compile it for this core"):
        board.load(other, program[1])


def test_closed_board(built):
    board = RtlBoard(built)
    board.close()
    board.close()
    with pytest.raises(BoardError, match="closed"):
        board.read_register(0)


def test_waves_of_a_window(program, stand_in, built, tmp_path):
    with RtlBoard(built) as board, pytest.raises(BoardError, match="trace=True"):
        board.trace(tmp_path / "no.fst", 0, 1)
    traced = compile_board(built.config, stand_in.export(built.config), trace=True)
    assert traced.verilog_sha256 == built.verilog_sha256
    with RtlBoard(traced) as board:
        board.load(*program)
        board.trace(tmp_path / "run.fst", 100, 50)
        stand_in.start(board)
        finish(board)
        assert tokens_of(board, 8) == stand_in.expected_tokens(program)
    assert (tmp_path / "run.fst").stat().st_size > 1000
