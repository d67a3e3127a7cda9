"""Boards of one model share its pages: a second board takes memory for its keys and values, not for the weights."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from host.bench.anonymous_memory import anonymous_bytes
from host.compiler import compile_model
from host.driver.session import open_kernel
from hw.board.board_model import BoardModel
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.functional import FunctionalBoard
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board
from sw.models.gpt2_config import GPT2Config
from sw.models.seeded_weights import SeededCheckpoint

CONFIG = GPT2Config(n_layer=4, n_head=8, n_embd=512, n_positions=64, vocab_size=8192)
CORE = core_config("16x4")
# Beside keys and values. functional: of the interpreter and its libraries. rtl: registers and memories of the gateware
# and its HBM model, 0.07 MB, and what the driver holds (measured; the first board of a process loads libraries too).
SLACK_BYTES = {"functional": 3 << 20, "rtl": 1 << 20}


def _functional() -> BoardModel:
    return FunctionalBoard()


def _gateware() -> BoardModel:
    return RtlBoard(build_board(CORE), timing=HbmTiming())


@pytest.mark.parametrize(
    ("executor", "make", "count", "new_tokens"), [("functional", _functional, 3, 3), ("rtl", _gateware, 2, 2)]
)
def test_a_second_board_takes_memory_for_its_cache_alone(
    executor: str, make: Callable[[], BoardModel], count: int, new_tokens: int, tmp_path: Path
) -> None:
    program, image = compile_model(SeededCheckpoint(CONFIG, 1), CORE, tmp_path / "program", seeded_positions=40)
    total_bytes = image.image_bytes * CORE.channels
    cache_bytes = sum(region.bytes for region in program.regions if region.kind in ("keys", "values"))
    assert total_bytes > 40 << 20 and cache_bytes + SLACK_BYTES[executor] < total_bytes / 5

    def taken() -> int:
        gc.collect()
        return anonymous_bytes() or 0

    with ExitStack() as stack:
        boards: list[BoardModel] = []
        tokens, growth = [], []
        for _ in range(count):
            before = taken()
            boards.append(make())
            kernel = stack.enter_context(open_kernel(boards[-1], CORE))
            kernel.load((program, image))
            kernel.start([0] * 40 + [7], new_tokens, position=40)
            tokens.append(kernel.wait(120.0).tokens)
            growth.append(taken() - before)
        print(f"{executor}: image {total_bytes:,} bytes, cache {cache_bytes:,}, growth {growth}")
        assert len(set(tokens)) == 1 and len(tokens[0]) == new_tokens
        assert all(more < cache_bytes + SLACK_BYTES[executor] for more in growth[1:])
        before = taken()
        for channel in range(CORE.channels):  # twin: a board that writes its weights has a copy of them
            data = boards[-1].read_memory(channel, 0, image.image_bytes)
            boards[-1].write_memory(channel, 0, data)
        assert taken() - before > 0.8 * total_bytes
    image.verify()  # nobody wrote the files
