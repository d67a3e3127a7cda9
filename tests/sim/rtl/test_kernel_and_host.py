"""What the kernel promises the host: start and done, cancel, errors, token ring, counters, ends of a run.

No other executor is needed: the program is that of sim.rtl.speed with three tokens of prompt, and runs are compared
with each other. The checks run with even and with random memory, and on a faulty kernel, which they must notice.
"""

import pytest

from hw.board.gpt2_map import STALL_CAUSES, ErrorCode
from hw.gpt2.isa import Instruction, Op
from sim.devices.memory_timing import MemoryTiming
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board, compile_board
from sim.rtl.faults import export_with_fault
from sim.rtl.speed import stream_program
from sim.rtl.verilator import QUICK_COMPILE_FLAGS

CANCEL_CYCLES = 10_000  # a cancelled run ends within so many
RUN_CYCLES = 1_000_000
PROMPT = (11, 22, 33)
NEW = 4
UNWRITTEN = 0xFFFF_FFFF


class Host:
    """A board with the program loaded; registers by name, and runs."""

    def __init__(self, board, folder):
        program, image = stream_program(board.config, folder)
        board.load(program, image)
        self.board = board
        products = [i for i in map(Instruction.decode, program.instructions) if i.op == Op.MM]
        rows = [i.words * i.strips for i in products]
        self.head_rows = sum(rows[:-1]), rows[-1]  # first row and number of rows of the last product's weights

    def get(self, name):
        register = self.board.map[name]
        return self.board.read_register(register.offset, register.bits // 8)

    def set(self, name, value):
        register = self.board.map[name]
        self.board.write_register(register.offset, value, register.bits // 8)

    def start(self, new=NEW, **registers):
        offset = self.board.map.window("tokens").offset
        for index in range(len(PROMPT) + new):
            self.board.write_register(offset + 4 * index, PROMPT[index] if index < len(PROMPT) else UNWRITTEN)
        for name, value in {"prompt_end": len(PROMPT), "max_new_tokens": new, **registers}.items():
            self.set(name, value)
        self.set("ctrl", 1)

    def finish(self):
        self.board.advance(RUN_CYCLES)
        assert self.get("state") == 0

    def tokens(self):
        """The new tokens that are valid."""
        offset = self.board.map.window("tokens").offset
        return [self.board.read_register(offset + 4 * i) for i in range(len(PROMPT), self.get("tokens_valid"))]

    def run(self, **registers):
        self.start(**registers)
        self.finish()
        return self.tokens()


def check_counters(host):
    for _ in range(2):
        host.run()
        counters = host.board.counters()
        assert counters["cycles"] == counters["ticks"]
        assert counters["tiles"] == counters["harness_tiles"]
        assert counters["tiles"] + sum(counters[f"stall_{cause}"] for cause in STALL_CAUSES) == counters["cycles"]


def check_starts_and_dones(host):
    for run in range(1, 4):
        host.start()
        assert host.get("ctrl") & 2 == 0
        host.finish()
        assert (host.get("start_count"), host.get("done_count")) == (run, run)
        assert host.get("error") == ErrorCode.NONE
        assert host.get("ctrl") & 2


def check_token_ring(host):
    want = host.run()
    assert len(want) == NEW and UNWRITTEN not in want
    host.start()
    while host.board.advance(50):
        found = host.tokens()
        assert found == want[: len(found)]
    assert host.tokens() == want


def check_cancel(host):
    want = host.run()
    host.start(new=100)
    host.board.advance(5000)
    host.set("cancel", 1)
    host.board.advance(CANCEL_CYCLES)
    assert host.get("state") == 0
    assert host.get("error") == ErrorCode.CANCELLED
    assert host.run() == want
    assert host.get("error") == ErrorCode.NONE


def check_start_errors(host):
    limit = host.get("context_limit")
    for registers in ({"max_new_tokens": 0}, {"position": 3}, {"prompt_end": limit + 1}):
        host.start(**registers)
        host.finish()
        assert host.get("error") == ErrorCode.START
        host.set("position", 0)
    host.run()
    assert host.get("error") == ErrorCode.NONE


def check_stop_ids(host):
    want = host.run()
    for slot in range(4):
        registers = {f"stop_{i}": UNWRITTEN for i in range(4)} | {f"stop_{slot}": want[1]}
        assert host.run(stop_count=slot + 1, **registers) == want[: want.index(want[1]) + 1]
        assert host.run(stop_count=slot, **registers) == want


def check_context_end(host):
    want = host.run()
    assert host.run(context_limit=len(PROMPT) + 1) == want[:2]
    assert host.get("error") == ErrorCode.NONE


def check_tie(host):
    """With the head's weights all zero every logit is zero: the lowest token wins."""
    first, rows = host.head_rows
    size = host.board.config.port_bytes
    for channel in range(host.board.config.channels):
        host.board.write_memory(channel, first * size, bytes(rows * size))
    assert host.run() == [0] * NEW


CHECKS = (
    check_counters,
    check_starts_and_dones,
    check_token_ring,
    check_cancel,
    check_start_errors,
    check_stop_ids,
    check_context_end,
    check_tie,
)


@pytest.mark.parametrize("timing", [MemoryTiming(), MemoryTiming.random(7)], ids=["even", "random seed 7"])
def test_kernel(config, tmp_path, timing):
    with RtlBoard(build_board(config), timing=timing) as board:
        for check in CHECKS:
            check(Host(board, tmp_path))


def test_faulty_kernel_is_noticed(config, tmp_path):
    """Twin: the fault shows in its own check and in no other (faults of starts and dones: tests/hw/board)."""
    faulty = export_with_fault("cycle_counter_stops_in_reset", config)
    built = compile_board(config, faulty, compile_flags=QUICK_COMPILE_FLAGS)
    noticed = []
    with RtlBoard(built) as board:
        for check in CHECKS:
            try:
                check(Host(board, tmp_path))
            except AssertionError:
                noticed.append(check)
    assert noticed == [check_counters]
