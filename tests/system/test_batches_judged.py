"""Every text of a batch is judged by transformers' GPT2LMHeadModel as a single one is; waves of four on core 16x4r4."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import GPT2LMHeadModel

from host.runtime.board_executor import open_executor
from host.runtime.comparison import Comparison, compare
from host.runtime.job import Job, RunOutcome
from host.runtime.program_folders import compile_programs
from host.runtime.sampling import Sampler
from hw.gpt2.config import core_config
from sw.models.tokenizer import Tokenizer

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
CORE = core_config("16x4r4")
SEED = 20261201
LENGTHS, TOKENS, CONTEXT = (1, 2, 7, 16, 31, 5), 24, 64


@functools.cache
def _judge(dtype: torch.dtype) -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(TINY, dtype=dtype, attn_implementation="sdpa").eval()


def _judged(ids: Sequence[int], dtype: torch.dtype) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        return _judge(dtype)(torch.tensor([list(ids)])).logits[0].float().numpy()


def _prompts() -> list[list[int]]:
    draw = random.Random(SEED)
    ids = Tokenizer(TINY).encode((TINY / "heldout.txt").read_text(encoding="utf-8"))
    return [ids[start : start + length] for length in LENGTHS for start in [draw.randrange(len(ids) - length)]]


def _compare(prompt: list[int], outcome: RunOutcome, tokens: list[int]) -> Comparison:
    return compare(
        lambda ids: _judged(ids, torch.float32),
        prompt,
        tokens,
        logits=outcome.logits,
        half=lambda ids: _judged(ids, torch.float16),
    )


@pytest.mark.parametrize("executor", ["functional", pytest.param("rtl", marks=pytest.mark.slow)])
def test_every_text_of_a_batch_is_transformers_own(executor: str, tmp_path: Path) -> None:
    prompts = _prompts()
    programs = compile_programs(TINY, CORE, tmp_path / "program", context=CONTEXT)
    with open_executor(executor, programs) as runner:
        jobs = [Job(prompt, TOKENS, Sampler(), keep_logits=True) for prompt in prompts]
        outcomes = runner.run_batch(jobs)
    verdicts = []
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert len(outcome.tokens) == TOKENS and outcome.finish_reason == "length"
        comparison = _compare(prompt, outcome, outcome.tokens)
        verdicts.append(comparison.verdict)
        assert comparison.verdict != "wrong", comparison
        # twin: the last token exchanged for the least probable one
        assert outcome.logits is not None
        changed = [*outcome.tokens[:-1], int(outcome.logits[-1].argmin())]
        assert _compare(prompt, outcome, changed).verdict == "wrong"
    print(f"{len(prompts)} texts in batches on {executor}: {', '.join(verdicts)}")
    assert verdicts.count("equal") > len(verdicts) // 2
