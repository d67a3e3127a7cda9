"""The accuracy bar of DESIGN section 5, judged by transformers' GPT2LMHeadModel read straight from the directory.

Executor `functional` with the shipped checkpoint: >= 2,000 teacher-forced held-out positions, and 20 seeded prompts of
100 tokens each, free-running. Four broken variants must fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

import sim.functional.attention as attention
import sim.functional.row_core as row_core
from host.compiler import compile_model
from host.errors import KernelFault
from host.runtime.accuracy import arg_max_differences, logit_errors, teacher_forced_logits, text_windows
from host.runtime.board_executor import BoardExecutor, open_executor
from host.runtime.comparison import TIE_ERRORS, Comparison, compare, stored_rms_error
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import core_config
from sw.models.tokenizer import Tokenizer

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
CORE = core_config("16x4")
SEED = 20240613
POSITIONS, PROMPTS, TOKENS = 2048, 20, 100
TWIN_POSITIONS = 96
Logits = npt.NDArray[np.float32]


@functools.cache
def _judge(dtype: torch.dtype) -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(TINY, dtype=dtype, attn_implementation="sdpa").eval()


def _judged(ids: Sequence[int], dtype: torch.dtype = torch.float32) -> Logits:
    with torch.inference_mode():
        return _judge(dtype)(torch.tensor([list(ids)])).logits[0].float().numpy()


@functools.cache
def _windows() -> list[list[int]]:
    ids = Tokenizer(TINY).encode((TINY / "heldout.txt").read_text(encoding="utf-8"))
    return text_windows(ids, 256, POSITIONS)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, MemoryImage]:
    return compile_model(TINY, CORE, tmp_path_factory.mktemp("program") / "tiny")


@pytest.fixture(scope="module")
def executor(compiled: tuple[Program, MemoryImage]) -> Iterator[BoardExecutor]:
    with open_executor("functional", [compiled]) as found:
        yield found


@pytest.fixture(scope="module")
def logits(executor: BoardExecutor) -> tuple[Logits, Logits]:
    """(ours, transformers fp32) at every position."""
    ours = teacher_forced_logits(executor.appliance, _windows())
    return ours, np.concatenate([_judged(window) for window in _windows()])


def test_logit_error_is_no_larger_than_pytorch_fp16s(logits: tuple[Logits, Logits]) -> None:
    ours, reference = logits
    bar = logit_errors(np.concatenate([_judged(window, torch.float16) for window in _windows()]), reference)
    got = logit_errors(ours, reference)
    print(f"{len(ours)} positions: ours {got}, PyTorch fp16 SDPA {bar}")
    assert len(ours) >= 2000
    assert got["rms_error"] <= bar["rms_error"] and got["p999_error"] <= bar["p999_error"]


def test_arg_max_differs_only_where_the_reference_is_nearly_tied(logits: tuple[Logits, Logits]) -> None:
    ours, reference = logits
    threshold = TIE_ERRORS * logit_errors(ours, reference)["rms_error"]
    differences = arg_max_differences(ours, reference)
    print(f"threshold {threshold:.2e}, {len(differences)} differences: {differences[:20]}")
    top = np.sort(reference, axis=1)[:, -2:]
    clear = top[:, 1] - top[:, 0] > threshold
    assert clear.sum() > 0.9 * len(ours)
    assert (ours.argmax(axis=1) == reference.argmax(axis=1))[clear].all()
    assert all(difference["gap"] <= threshold for difference in differences)


def test_the_stored_figure_is_that_of_this_checkpoint(
    compiled: tuple[Program, MemoryImage], logits: tuple[Logits, Logits]
) -> None:
    stored = stored_rms_error(compiled[0].model_digest, CORE.digest)
    assert stored is not None, "measure again: python -m host.runtime.accuracy (see results/accuracy_gpt2_tiny.json)"
    assert stored[0] == pytest.approx(logit_errors(*logits)["rms_error"], rel=0.02)


def _prompts() -> list[list[int]]:
    draw = random.Random(SEED)
    ids = [token for window in _windows() for token in window]
    starts = [draw.randrange(len(ids) - 40) for _ in range(PROMPTS)]
    return [ids[start : start + draw.randint(1, 30)] for start in starts]


def _free_run(executor: BoardExecutor, prompt: list[int], tokens: int, rms_error: float) -> Comparison:
    executor.appliance.start(prompt, tokens)
    result = executor.appliance.wait(300.0)
    return compare(_judged, prompt, result.tokens, rms_error=rms_error)


def test_free_running_text_is_never_wrong(executor: BoardExecutor, logits: tuple[Logits, Logits]) -> None:
    rms_error = logit_errors(*logits)["rms_error"]
    found = [_free_run(executor, prompt, TOKENS, rms_error) for prompt in _prompts()]
    ties = [tie for comparison in found for tie in comparison.near_ties]
    wrong = [tie for comparison in found for tie in comparison.wrong]
    tokens = sum(comparison.tokens for comparison in found)
    print(f"seed {SEED}: {tokens} tokens, {len(ties)} near ties {ties[:20]}, {len(wrong)} wrong {wrong[:5]}")
    assert tokens == PROMPTS * TOKENS
    assert not wrong
    assert len(ties) <= 0.01 * PROMPTS * TOKENS


# Twins: broken on purpose, they must fail the bar on a part of the same text.


def _fails_bar(program: Program, image: MemoryImage) -> bool:
    windows = [_windows()[0][:TWIN_POSITIONS]]
    reference = _judged(windows[0])
    bar = logit_errors(_judged(windows[0], torch.float16), reference)
    with open_executor("functional", [(program, image)]) as executor:
        try:
            got = logit_errors(teacher_forced_logits(executor.appliance, windows), reference)
        except KernelFault as fault:  # NaN logits
            print(fault)
            return True
    print(f"bar {bar}, got {got}")
    return got["rms_error"] > bar["rms_error"] or got["p999_error"] > bar["p999_error"]


def test_the_unbroken_program_passes_where_the_twins_fail(compiled: tuple[Program, MemoryImage]) -> None:
    assert not _fails_bar(*compiled)


@pytest.mark.parametrize("seed", range(3))
def test_twin_one_weight_word_flipped(seed: int, compiled: tuple[Program, MemoryImage], tmp_path: Path) -> None:
    program, image = compiled
    draw = random.Random(SEED + seed)
    channel = draw.randrange(len(image.files))
    region = next(r for r in program.regions_of("weights") if r.channel == channel)
    data = bytearray(image.files[channel].read_bytes())
    place = region.offset + 2 * draw.randrange(region.bytes // 2)
    data[place + 1] ^= 0x40  # the exponent's highest bit
    broken = tmp_path / image.files[channel].name
    broken.write_bytes(data)
    files = tuple(broken if number == channel else path for number, path in enumerate(image.files))
    print(f"channel {channel}, byte {place}")
    assert _fails_bar(program, dataclasses.replace(image, files=files))


def test_twin_layer_norm_epsilon_times_100(compiled: tuple[Program, MemoryImage]) -> None:
    program, image = compiled
    registers = {**program.registers, "eps_term": 100 * program.registers["eps_term"]}
    assert _fails_bar(dataclasses.replace(program, registers=registers), image)


def test_twin_position_off_by_one(tmp_path: Path) -> None:
    model = tmp_path / "shifted"
    model.mkdir()
    for path in TINY.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    tensors = load_file(TINY / "model.safetensors")
    name = next(key for key in tensors if key.endswith("wpe.weight"))
    tensors[name] = torch.roll(tensors[name], -1, dims=0).contiguous()
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert _fails_bar(*compile_model(model, CORE, tmp_path / "program"))


@contextlib.contextmanager
def _mask_without_the_newest_slot(folder: Path) -> Iterator[None]:
    """The functional executor with an attention that lets p instead of p + 1 positions take part (for p > 0)."""
    text = Path(attention.__file__).read_text(encoding="utf-8")
    right, wrong = "head, lanes, core_rows, position + 1)", "head, lanes, core_rows, max(position, 1))"
    assert text.count(right) == 2
    folder.mkdir()
    path = folder / "short_mask_attention.py"
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    name = "sim.functional.short_mask_attention"  # inside the package, so that its relative imports work
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    broken = importlib.util.module_from_spec(spec)
    sys.modules[name] = broken
    spec.loader.exec_module(broken)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_core, "SCORE_HEADS", broken.SCORE_HEADS)
        patch.setattr(row_core, "VALUE_HEADS", broken.VALUE_HEADS)
        yield
    del sys.modules[name]


def test_twin_mask_off_by_one(compiled: tuple[Program, MemoryImage], tmp_path: Path) -> None:
    with _mask_without_the_newest_slot(tmp_path / "broken"):
        assert _fails_bar(*compiled)
