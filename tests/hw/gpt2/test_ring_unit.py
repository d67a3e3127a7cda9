"""A core's part in the ring: joining, strips, sums and arg-max of others, every error of docs/ring.md section 5."""

import numpy as np
import pytest

from hw.board.gpt2_map import INTERFACE_VERSION, ErrorCode
from hw.gpt2.config import core_config
from hw.gpt2.ring import Ring
from hw.link.frame import FrameKind
from hw.link.node import delivery_layout
from hw.link.payload import best_layout, hello_layout, sums_layout
from sim.rtl.unit import VerilatedUnit

CONFIG = core_config("64x16")
CYCLES = 200
BOARDS, BOARD, KEY = 4, 2, 0xABCDEF0123456789


def pack(layout, **values):
    return sum(
        int(getattr(values.get(name, 0), "value", values.get(name, 0))) << field.offset for name, field in layout
    )


def words(value, bits):
    return [value >> 32 * i & 0xFFFFFFFF for i in range(-(-bits // 32))]


def hello(**changes):
    fields = {
        "version": INTERFACE_VERSION,
        "boards": BOARDS,
        "board": BOARD,
        "config_digest": int(CONFIG.digest[:16], 16),
        "ring_key": KEY,
    }
    return pack(hello_layout(), **(fields | changes))


def frame(kind, payload=0, port=0, index=0, **header):
    layout = delivery_layout(CONFIG.link_entry_bits)
    values = {"kind": kind, **header}
    head = sum(
        int(getattr(values.get(name, 0), "value", values.get(name, 0))) << field.offset
        for name, field in layout["header"].shape
    )
    return pack(layout, data=payload, last=1, index=index, port=port, header=head)


class Script:
    """Inputs cycle by cycle; everything not said is 0, the run's registers are set."""

    def __init__(self, **levels):
        base = {"run": 1, "ring": 1, "boards": BOARDS, "board": BOARD, "limit": 100, "cleared": 1, "up": 3}
        self.columns = {name: np.full(CYCLES, value, np.uint64) for name, value in (base | levels).items()}
        self.columns["key"] = np.array([words(KEY, 64)] * CYCLES, np.uint32)
        self.columns["hello_taken"] = np.zeros(CYCLES, np.uint64)
        self.columns["hello_taken"][3] = 3
        self.columns["store_ready"] = np.ones(CYCLES, np.uint64)
        self.columns["run"][0] = 0
        layout = delivery_layout(CONFIG.link_entry_bits)
        self.columns["deliver_valid"] = np.zeros(CYCLES, np.uint64)
        self.columns["deliver"] = np.array([words(0, layout.size)] * CYCLES, np.uint32)

    def frame(self, cycle, value):
        self.columns["deliver_valid"][cycle] = 1
        self.columns["deliver"][cycle] = words(value, delivery_layout(CONFIG.link_entry_bits).size)
        return self

    def joined(self):
        self.frame(5, frame(FrameKind.HELLO, hello(board=BOARD - 1), port=0))
        return self.frame(6, frame(FrameKind.HELLO, hello(board=BOARD + 1), port=1))

    def put(self, name, cycle, value, bits=0):
        if bits:
            self.columns.setdefault(name, np.zeros((CYCLES, -(-bits // 32)), np.uint32))[cycle] = words(value, bits)
        else:
            self.columns.setdefault(name, np.zeros(CYCLES, np.uint64))[cycle] = value
        return self

    def play(self):
        return VerilatedUnit(Ring(CONFIG)).run(self.columns)


def failure(out):
    """(cycle of its cause, code, info) of the first failure, which is told a cycle late."""
    assert out["fail"].any(), "nothing failed"
    told = int(out["fail"].argmax())
    return told - 1, ErrorCode(int(out["fail_code"][told])), int(out["fail_info"][told])


def test_joined_when_both_neighbours_have_said_hello():
    out = Script().joined().play()
    assert out["hello"][2] == 3 and out["hello"][10] == 0
    assert out["joined"].argmax() == 8 and not out["fail"].any()
    assert not Script().frame(5, frame(FrameKind.HELLO, hello(board=BOARD - 1))).play()["joined"].any()
    assert not Script(cleared=0).joined().play()["joined"].any(), "the scoreboard is not ready"


@pytest.mark.parametrize(
    ("changes", "port", "code", "info"),
    [
        ({"version": 0x30001, "board": BOARD - 1}, 0, ErrorCode.RING_VERSION, 0x30001),
        ({"version": 0x30001, "board": BOARD + 1}, 1, ErrorCode.RING_VERSION, 1 << 31 | 0x30001),
        ({"board": BOARD}, 0, ErrorCode.RING_ORDER, BOARDS << 8 | BOARD),
        ({"board": BOARD - 1}, 1, ErrorCode.RING_ORDER, 1 << 31 | BOARDS << 8 | BOARD - 1),
        ({"board": BOARD - 1, "boards": 3}, 0, ErrorCode.RING_ORDER, 3 << 8 | BOARD - 1),
        ({"board": BOARD + 1, "ring_key": 1}, 1, ErrorCode.RING_PROGRAM, 1),
        ({"board": BOARD - 1, "config_digest": 1}, 0, ErrorCode.RING_PROGRAM, 0),
    ],
)
def test_a_neighbour_that_does_not_belong(changes, port, code, info):
    out = Script().frame(5, frame(FrameKind.HELLO, hello(**changes), port=port)).play()
    assert failure(out) == (5, code, info)


def test_hello_again_when_the_channel_went_down_before_joining():
    script = Script().frame(5, frame(FrameKind.HELLO, hello(board=BOARD - 1), port=0))
    script.columns["up"][10:15] = 0b10
    script.columns["hello_taken"][20] = 0b01
    script.frame(30, frame(FrameKind.HELLO, hello(board=BOARD + 1), port=1))
    out = script.play()
    assert out["hello"][8] == 0 and out["hello"][12] == 0 and out["hello"][16] == 0b01 and out["hello"][22] == 0
    assert out["joined"].argmax() == 32
    later = Script().joined()
    later.columns["up"][50:55] = 0b10  # in the run a lost channel is an error of its own
    assert not later.play()["hello"][20:].any()


def test_neighbours_wrap_around():
    script = Script(board=0).frame(5, frame(FrameKind.HELLO, hello(board=3), port=0))
    out = script.frame(6, frame(FrameKind.HELLO, hello(board=1), port=1)).play()
    assert out["joined"].any() and not out["fail"].any()


def test_no_hello_within_the_limit():
    cycle, code, info = failure(Script().frame(5, frame(FrameKind.HELLO, hello(board=BOARD + 1), port=1)).play())
    assert (code, info) == (ErrorCode.NO_HELLO, 0b01) and 100 <= cycle <= 103
    assert not Script(limit=0).play()["fail"].any(), "0 is for ever"


def test_dead_port():
    script = Script().joined()
    script.columns["dead"] = np.zeros(CYCLES, np.uint64)
    script.columns["dead"][50:] = 2
    assert failure(script.play()) == (50, ErrorCode.LINK_DOWN, 1)
    waiting = Script(dead=3)
    assert failure(waiting.play())[1] == ErrorCode.NO_HELLO, "before the boards have joined the limit counts"


def test_silent_peers():
    script = Script().joined().put("sums", 20, 1).put("waits", 0, 0)
    script.columns["waits"][30:] = 1
    script.frame(25, frame(FrameKind.SUMS, 0, origin=3))
    cycle, code, info = failure(script.play())
    assert (code, info) == (ErrorCode.PEER_SILENT, 0b0011) and 130 <= cycle <= 133
    script = Script(awaited=40).joined().put("waits", 0, 0)
    script.columns["waits"][30:] = 1
    assert failure(script.play())[1:] == (ErrorCode.PEER_SILENT, 41 << 8)
    script.columns["waits"][80:90] = 0
    assert failure(script.play())[0] >= 190, "the limit is of one wait, not of all together"


def test_peer_that_failed():
    out = Script().joined().frame(40, frame(FrameKind.ABORT, address=ErrorCode.NAN_LOGITS, origin=1)).play()
    assert failure(out) == (40, ErrorCode.PEER_FAILED, 1 << 8 | ErrorCode.NAN_LOGITS)


def test_sums_of_all_boards():
    layout = sums_layout()
    parts = [(-(1 << 40) - 3, 1 << 90), (5, 7), ((1 << 41) + 1, (1 << 95) - 9), (-12, 3)]
    pack_sums = [pack(layout, sum1=a & (1 << 56) - 1, sum2=b) for a, b in parts]
    for own_cycle, others in ((30, (10, 20, 40)), (10, (20, 21, 22)), (21, (20, 21, 22))):
        script = Script().joined().put("sums", own_cycle, 1).put("own_sums", own_cycle, pack_sums[0], layout.size)
        for cycle, value, origin in zip(others, pack_sums[1:], (0, 1, 3), strict=True):
            script.frame(cycle, frame(FrameKind.SUMS, value, origin=origin))
        out = script.play()
        ready = out["deliver_ready"]
        if own_cycle in others:
            assert ready[own_cycle] == 0, "own sums first"  # so this script's frame was not taken
            continue
        assert out["total"].sum() == 1
        total = sum(int(word) << 32 * i for i, word in enumerate(out["total_sums"][out["total"].argmax()]))
        want = pack(layout, sum1=sum(a for a, _ in parts) & (1 << 56) - 1, sum2=sum(b for _, b in parts))
        assert total & (1 << layout.size) - 1 == want
        missing = out["sums_missing"]
        assert missing[own_cycle + 1 : int(out["total"].argmax())].all() and not missing[: own_cycle + 1].any()


def fp32(value):
    return int(np.array(value, np.float32).view(np.uint32))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_arg_max_of_all_boards(order):
    layout = best_layout()
    cases = {
        "largest": ([(-1.0, 5), (2.0, 100), (1.5, 300), (-9.0, 400)], 100),
        "lowest id of equals": ([(3.0, 90), (3.0, 50), (1.0, 0), (3.0, 70)], 50),
        "zeros are equal": ([(-0.0, 10), (0.0, 20), (-0.0, 30), (-1.0, 5)], 10),
    }
    for what, (parts, want) in cases.items():
        script = Script().joined()
        for place, board in enumerate(order):
            value, token = parts[board]
            content = pack(layout, value=fp32(value), token=token, some=1)
            if board == BOARD:
                script.put("best", 20 + place, 1).put("own_best", 20 + place, content, layout.size)
            else:
                script.frame(20 + place, frame(FrameKind.BEST, content, origin=board))
        out = script.play()
        assert out["decided"].sum() == 1, what
        decision = sum(int(word) << 32 * i for i, word in enumerate(out["decision"][out["decided"].argmax()]))
        assert decision >> 32 & 0xFFFFFFFF == want, what


def test_a_nan_on_any_board_counts():
    layout = best_layout()
    script = Script().joined().put("best", 20, 1).put("own_best", 20, pack(layout, value=fp32(1), some=1), layout.size)
    for board, cycle in ((0, 21), (1, 22), (3, 23)):
        script.frame(cycle, frame(FrameKind.BEST, pack(layout, some=board != 1, nan=board == 1), origin=board))
    out = script.play()
    decision = sum(int(word) << 32 * i for i, word in enumerate(out["decision"][out["decided"].argmax()]))
    assert out["decided"].any() and decision >> 65 & 1


def test_strips_go_to_their_words():
    """Address 5, three strips: entry 0 holds strips 4 and 5 (of which 5 counts), entry 1 strips 6 and 7."""
    script = Script().joined()
    script.frame(20, frame(FrameKind.STRIPS, 0xAAAA, index=0, address=5, strips=3))
    script.frame(21, frame(FrameKind.STRIPS, 0xBBBB, index=1, address=5, strips=3))
    script.columns["store_ready"][20] = 0
    out = script.play()
    assert out["deliver_ready"][20] == 0 and out["deliver_ready"][21] == 1
    assert (out["store"][20], out["store_word"][20]) == (0b0010, 1)
    assert (out["store"][21], out["store_word"][21]) == (0b1100, 1)
    assert out["store_data"][21][0] == 0xBBBB and not out["store"][22:].any()
