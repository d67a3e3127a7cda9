"""The 64x16 core runs whole models: the shipped checkpoint, token for token and bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from host.compiler import compile_model
from host.driver.session import open_kernel
from hw.board.board_model import BoardModel
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import core_config
from sim.devices.hbm_timing import HbmTiming
from sim.functional import FunctionalBoard
from sim.rtl.board import RtlBoard
from sim.rtl.build import build_board

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
CORE = core_config("64x16")
PROMPT = (73, 78, 262, 100, 31, 7)
TOKENS = 8
WAIT_S = 600.0


def _run(board: BoardModel, program: Program, image: MemoryImage, prompt: list[int]) -> tuple[object, ...]:
    with open_kernel(board, program.core) as kernel:
        kernel.load((program, image))
        kernel.start(prompt, TOKENS, write_logits=True)
        result = kernel.wait(WAIT_S)
        logits = [kernel.read_logits(len(prompt) - 1 + step).view(np.uint32).tolist() for step in range(TOKENS)]
        return result.tokens, logits, kernel.kv_hash()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_eight_tokens_of_the_shipped_checkpoint(tmp_path: Path) -> None:
    program, image = compile_model(TINY, CORE, tmp_path / "program")
    gateware = _run(RtlBoard(build_board(CORE), timing=HbmTiming()), program, image, list(PROMPT))
    assert gateware == _run(FunctionalBoard(), program, image, list(PROMPT))
    # twin: another prompt gives other logits and another cache
    other = _run(FunctionalBoard(), program, image, [*PROMPT[:-1], PROMPT[-1] + 1])
    assert other[1] != gateware[1] and other[2] != gateware[2]
