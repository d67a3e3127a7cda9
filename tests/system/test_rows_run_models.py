"""The shipped checkpoint on cores with rows: the bits of the core with one, and the tokens of `transformers`.

Executor `functional`. One sequence whose prompt is taken several positions a step, and a batch of requests of
different lengths; tokens and logits of each are those of the same text on core 16x4 by itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import GPT2LMHeadModel

from host.compiler import compile_model
from host.runtime.comparison import compare
from hw.board.gpt2_map import Flags, row_register
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import core_config
from sim.functional import FunctionalBoard
from sim.programs import RandomCase
from sim.programs.random_case import await_end, start_case
from sim.programs.ring_case import board_logits
from sw.models.tokenizer import Tokenizer

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
TEXTS = ("In the beginning", "And", "The Lord said unto", "Blessed are they that")
NEW_TOKENS = (9, 12, 4, 7)
Compiled = tuple[Program, MemoryImage]
Logits = npt.NDArray[np.uint32]


@functools.cache
def _prompts() -> tuple[tuple[int, ...], ...]:
    tokenizer = Tokenizer(TINY)
    return tuple(tuple(tokenizer.encode(text)) for text in TEXTS)


@functools.cache
def _judge(dtype: torch.dtype) -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(TINY, dtype=dtype, attn_implementation="sdpa").eval()


def _judged(ids: Sequence[int], dtype: torch.dtype = torch.float32) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        found: npt.NDArray[np.float32] = _judge(dtype)(torch.tensor([list(ids)])).logits[0].float().numpy()
    return found


def _half(ids: Sequence[int]) -> npt.NDArray[np.float32]:
    return _judged(ids, torch.float16)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    folder = tmp_path_factory.mktemp("programs")
    return {core: compile_model(TINY, core_config(core), folder / core) for core in ("16x4", "16x4r2", "16x4r4")}


def _run(compiled: Compiled, prompts: Sequence[tuple[int, ...]], new: Sequence[int], flags: Flags) -> tuple:
    """(tokens, logits of each decode step) of every request, and the tiles of the run."""
    program, image = compiled
    registers = {"flags": int(flags | Flags.WRITE_LOGITS)}
    if flags & Flags.BATCH:
        registers["batch_rows"] = (1 << len(prompts)) - 1
    for row, (prompt, tokens) in enumerate(zip(prompts, new, strict=True)):
        own = {"position": 0, "prompt_end": len(prompt), "max_new_tokens": tokens, "stop_count": 0}
        registers |= {row_register(name, row): value for name, value in own.items()}
    case = RandomCase(
        seed=0,
        program=program,
        instructions=(),
        channels=np.zeros((0, 0), np.uint16),
        channel_bytes=image.channel_bytes,
        tokens=prompts[0],
        run_registers=registers,
        product_rows=(),
        wanted=(),
        row_tokens=tuple(prompts[1:]),
    )
    board = FunctionalBoard()
    board.load(program, image)
    start_case(case, board)
    result = await_end(case, board, 1)
    assert result.error == 0
    found = []
    for row, prompt in enumerate(prompts):
        base = {"logits_base": program.registers[row_register("logits_base", row)]}
        one = dataclasses.replace(case, program=dataclasses.replace(program, registers={**program.registers, **base}))
        tokens = (result.tokens, *result.row_tokens)[row]
        logits = np.stack([board_logits(one, board, p) for p in range(len(prompt) - 1, len(tokens) - 1)])
        found.append((tokens[len(prompt) :], logits))
    board.close()
    return found, result.tiles


def _same(one: tuple, other: tuple) -> bool:
    return one[0] == other[0] and np.array_equal(one[1], other[1])


def _verdict(prompt: tuple[int, ...], found: tuple) -> str:
    tokens, logits = found
    return compare(_judged, prompt, tokens, logits=logits.view(np.float32), half=_half).verdict


def test_a_prompt_in_steps_of_several_positions(compiled: dict[str, Compiled]) -> None:
    prompt, new = tuple(Tokenizer(TINY).encode(" ".join(TEXTS))), 8
    [alone], tiles = _run(compiled["16x4"], [prompt], [new], Flags(0))
    assert _verdict(prompt, alone) in ("equal", "near_tie(1)")
    for core, at_most in (("16x4r2", 0.75), ("16x4r4", 0.65)):
        [found], several_tiles = _run(compiled[core], [prompt], [new], Flags(0))
        assert _same(found, alone)
        print(f"core {core}: prompt of {len(prompt)}, {new} new tokens: {several_tiles:,} tiles, 16x4 {tiles:,}")
        assert several_tiles < at_most * tiles
    [other], _ = _run(compiled["16x4r4"], [(*prompt[:-1], prompt[-1] ^ 1)], [new], Flags(0))
    assert not _same(other, alone)  # twin: another last token
    assert _verdict(prompt, other) == "wrong"


@pytest.mark.parametrize("core", ["16x4r2", "16x4r4"])
def test_a_batch_of_requests(core: str, compiled: dict[str, Compiled]) -> None:
    prompts = _prompts()[: core_config(core).rows]
    new = NEW_TOKENS[: len(prompts)]
    assert len(set(map(len, prompts))) > 1
    together, _ = _run(compiled[core], prompts, new, Flags.BATCH)
    for prompt, tokens, found in zip(prompts, new, together, strict=True):
        [alone], _ = _run(compiled["16x4"], [prompt], [tokens], Flags(0))
        assert len(found[0]) == tokens and _same(found, alone)
        assert _verdict(prompt, found) in ("equal", "near_tie(1)")
    assert not _same(together[0], together[1])  # twin: the rows are told apart
