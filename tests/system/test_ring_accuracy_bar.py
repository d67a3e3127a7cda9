"""The accuracy bar of DESIGN section 5 for rings: functional, shipped checkpoint, teacher-forced held-out positions.

Judge is transformers' GPT2LMHeadModel, read straight from the directory. Bits depend on the number of boards, so each
has an error of its own; `results/accuracy_gpt2_tiny*.json` record all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import GPT2LMHeadModel

from host.compiler import chosen_model
from host.errors import KernelFault
from host.runtime.accuracy import arg_max_differences, logit_errors, teacher_forced_logits, text_windows
from host.runtime.board_executor import open_executor
from host.runtime.comparison import TIE_ERRORS, stored_rms_error
from host.runtime.program_folders import Programs, compile_programs
from hw.gpt2.config import core_config
from sw.models.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "checkpoints" / "gpt2-tiny"
CORE = core_config("16x4")
BOARDS = (1, 2, 3, 4, 8)
FULL, SHORT = 2048, 256  # positions; with fewer the 99.9th percentile is noise
Logits = npt.NDArray[np.float32]


@functools.cache
def _windows(positions: int) -> list[list[int]]:
    ids = Tokenizer(TINY).encode((TINY / "heldout.txt").read_text(encoding="utf-8"))
    return text_windows(ids, 256, positions)


def _judged(positions: int, dtype: torch.dtype) -> Logits:
    model = GPT2LMHeadModel.from_pretrained(TINY, dtype=dtype, attn_implementation="sdpa").eval()
    with torch.inference_mode():
        return np.concatenate([model(torch.tensor([w])).logits[0].float().numpy() for w in _windows(positions)])


def _logits(programs: Programs, positions: int) -> Logits:
    with open_executor("functional", programs) as executor:
        return teacher_forced_logits(executor.appliance, _windows(positions))


def _holds(ours: Logits, positions: int) -> bool:
    """Whether RMS and 99.9th percentile of the error are no larger than those of PyTorch fp16 with SDPA."""
    reference = _judged(positions, torch.float32)
    bar, got = logit_errors(_judged(positions, torch.float16), reference), logit_errors(ours, reference)
    print(f"{positions} positions: ours {got}, PyTorch fp16 SDPA {bar}")
    return got["rms_error"] <= bar["rms_error"] and got["p999_error"] <= bar["p999_error"]


@pytest.mark.parametrize(
    ("boards", "positions"),
    [(3, SHORT), *(pytest.param(boards, FULL, marks=pytest.mark.slow) for boards in BOARDS)],
)
def test_the_bar_holds(boards: int, positions: int, tmp_path: Path) -> None:
    programs = compile_programs(TINY, CORE, tmp_path / "program", boards)
    ours, reference = _logits(programs, positions), _judged(positions, torch.float32)
    assert len(ours) == positions and _holds(ours, positions)
    rms_error = logit_errors(ours, reference)["rms_error"]
    assert all(tie["gap"] <= TIE_ERRORS * rms_error for tie in arg_max_differences(ours, reference))
    stored = stored_rms_error(programs[0][0].model_digest, CORE.digest, boards=boards)
    assert stored is not None, "measure again: python -m host.runtime.accuracy"
    assert stored[0] == pytest.approx(rms_error, rel=0.02 if positions == FULL else 0.2)


@pytest.mark.parametrize("boards", BOARDS)
def test_the_record_is_of_this_checkpoint_and_holds(boards: int) -> None:
    stored = stored_rms_error(chosen_model(TINY).digest(), CORE.digest, boards=boards)
    assert stored is not None, "measure again: python -m host.runtime.accuracy"
    record = json.loads((ROOT / "results" / stored[1].partition(",")[0]).read_text(encoding="utf-8"))
    assert record["positions"] >= 2000 and record["executor"] == "functional"
    for name in ("rms_error", "p999_error"):
        assert record["core"][name] <= record["pytorch_fp16_sdpa"][name]
    assert all(tie["gap"] <= record["near_tie_threshold"] for tie in record["arg_max_differences"])


def test_twin_a_wrong_weight_on_one_board_fails_the_bar(tmp_path: Path) -> None:
    """On the positions on which the right ones hold it."""
    programs = compile_programs(TINY, CORE, tmp_path / "program", 3)
    program, image = programs[1]
    region = next(region for region in program.regions_of("weights") if region.channel == 0)
    data = bytearray(image.files[0].read_bytes())
    data[region.offset + 2 * 1000 + 1] ^= 0x40  # the exponent's highest bit
    broken = tmp_path / image.files[0].name
    broken.write_bytes(data)
    changed = dataclasses.replace(image, files=(broken, *image.files[1:]))
    try:
        assert not _holds(_logits([programs[0], (program, changed), programs[2]], SHORT), SHORT)
    except KernelFault as fault:  # NaN logits
        print(fault)
