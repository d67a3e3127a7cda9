"""Whole models: the gateware and the functional executor agree bit for bit, under random memory latency.

Compared are tokens, the fp32 logits of every decode step, and the hash of the whole key/value memory; the hardware's
cycle counter equals the harness's ticks.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from host.compiler import compile_model
from host.driver.session import open_kernel
from hw.board.board_model import BoardModel
from hw.board.program import MemoryImage, Program
from hw.gpt2.config import core_config
from hw.gpt2.isa import Instruction, Op
from sim.devices.memory_timing import MemoryTiming
from sim.functional import FunctionalBoard
from sim.rtl.board import RtlBoard
from sim.rtl.build import BuiltBoard, build_board
from sw.models.gpt2 import GPT2, GPT2Config
from sw.models.tokenizer import Tokenizer
from sw.train.save import save_model

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "gpt2-tiny"
CORE = core_config("16x4")
SEED = 20240614
TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def built() -> BuiltBoard:
    return build_board(CORE)


@dataclasses.dataclass
class Ran:
    """What a run left behind."""

    tokens: tuple[int, ...]
    reason: str
    logits: npt.NDArray[np.uint32]
    kv_hash: str


def _run(board: BoardModel, program: Program, image: MemoryImage, prompt: list[int], tokens: int) -> Ran:
    with open_kernel(board, program.core) as kernel:
        kernel.load((program, image))
        kernel.start(prompt, tokens, write_logits=True)
        result = kernel.wait(TIMEOUT_S)
        if isinstance(board, RtlBoard):
            assert board.counters()["ticks"] == result.cycles == kernel.get("cycles") > 0
        first = len(prompt) - 1
        logits = np.stack([kernel.read_logits(first + step) for step in range(len(result.tokens))])
        return Ran(result.tokens, result.reason, logits.view(np.uint32), kernel.kv_hash())


def _assert_equal(one: Ran, other: Ran) -> None:
    assert one.tokens == other.tokens and one.reason == other.reason
    differing = np.argwhere(one.logits != other.logits)
    assert not len(differing), f"{len(differing)} logits differ, first at (step, id) {differing[0]}"
    assert one.kv_hash == other.kv_hash


def _random_model(folder: Path, **sizes: int) -> Path:
    """A random GPT-2 with lively biases and LayerNorms."""
    torch.manual_seed(SEED)
    model = GPT2(GPT2Config(**{"n_layer": 2, "n_positions": 64, "vocab_size": 90, **sizes}))
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.dim() == 1:
                centre = 1.0 if "ln_" in name and "weight" in name else 0.0
                parameter.copy_(torch.randn_like(parameter) * 0.3 + centre)
            else:
                parameter.mul_(8)
    folder.mkdir(parents=True)
    save_model(model, folder)
    return folder


def _random_prompt(length: int, vocab: int) -> list[int]:
    return np.random.default_rng(SEED).integers(0, vocab, length).tolist()


# name: (sizes of a random model, prompt length, tokens)
CASES = {
    "three heads, width 48": ({"n_head": 3, "n_embd": 48}, 6, 32),
    "head size 32, one layer": ({"n_head": 2, "n_embd": 64, "n_layer": 1}, 5, 32),
    "head size 20 leaves tails": ({"n_head": 3, "n_embd": 60, "n_inner": 70}, 9, 32),
    "prompt of one token": ({"n_head": 3, "n_embd": 48}, 1, 34),
    "cache filled to its last position": ({"n_head": 2, "n_embd": 32, "n_positions": 45}, 9, 100),
    "prompt as long as the cache": ({"n_head": 2, "n_embd": 32, "n_positions": 45}, 45, 5),
}


@pytest.mark.parametrize("name", CASES)
def test_random_models(name: str, built: BuiltBoard, tmp_path: Path) -> None:
    sizes, length, tokens = CASES[name]
    program, image = compile_model(_random_model(tmp_path / "model", **sizes), CORE, tmp_path / "program")
    prompt = _random_prompt(length, 90)
    timing = MemoryTiming.random(SEED + len(name))
    print(f"seed {SEED}, timing {timing}")
    rtl = _run(RtlBoard(built, timing=timing), program, image, prompt, tokens)
    functional = _run(FunctionalBoard(), program, image, prompt, tokens)
    _assert_equal(rtl, functional)
    context = program.registers["context_limit"]
    expected = min(tokens, context - length + 1)
    assert len(rtl.tokens) == expected and rtl.reason == ("length" if expected == tokens else "context")
    assert np.isfinite(rtl.logits.view(np.float32)).all() and len(np.unique(rtl.logits)) > 50


def test_a_core_with_small_memories(tmp_path: Path) -> None:
    """Products that cannot keep all strips open, embeddings in two products, two passes of heads a layer."""
    core = dataclasses.replace(CORE, name="16x4-small", acc_depth=8, param_depth=8, prob_words=5)
    model = _random_model(tmp_path / "model", n_head=3, n_embd=48, n_positions=20)
    program, image = compile_model(model, core, tmp_path / "program")
    assert sum(Instruction.decode(word).op == Op.SC for word in program.instructions) == 2
    prompt = _random_prompt(3, 90)
    rtl = _run(RtlBoard(build_board(core), timing=MemoryTiming.random(SEED)), program, image, prompt, 32)
    _assert_equal(rtl, _run(FunctionalBoard(), program, image, prompt, 32))
    assert len(rtl.tokens) == 18


def test_the_shipped_checkpoint(built: BuiltBoard, tmp_path: Path) -> None:
    program, image = compile_model(TINY, CORE, tmp_path / "program")
    prompt = Tokenizer(TINY).encode("In the beginning God created")
    timing = MemoryTiming.random(SEED)
    rtl = _run(RtlBoard(built, timing=timing), program, image, prompt, 33)
    functional = _run(FunctionalBoard(), program, image, prompt, 33)
    _assert_equal(rtl, functional)
    assert len(rtl.tokens) == 33


@pytest.mark.parametrize("what", ["a weight", "a prompt token"])
def test_twin_a_small_difference_shows(what: str, built: BuiltBoard, tmp_path: Path) -> None:
    program, image = compile_model(_random_model(tmp_path / "model", n_head=3, n_embd=48), CORE, tmp_path / "program")
    prompt = _random_prompt(6, 90)
    functional = _run(FunctionalBoard(), program, image, prompt, 8)
    if what == "a weight":
        data = bytearray(image.files[1].read_bytes())
        data[CORE.port_bytes * 40 + 1] ^= 0x80  # the sign of one weight of the first layer
        broken = tmp_path / "ch01.bin"
        broken.write_bytes(data)
        image = dataclasses.replace(image, files=(image.files[0], broken, *image.files[2:]))
    else:
        prompt = [*prompt[:2], (prompt[2] + 1) % 90, *prompt[3:]]
    with pytest.raises(AssertionError):
        _assert_equal(_run_unverified(RtlBoard(built), program, image, prompt, 8), functional)


def _run_unverified(board: BoardModel, program: Program, image: MemoryImage, prompt: list[int], tokens: int) -> Ran:
    """`_run` for an image that was changed after its hashes were taken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryImage, "verify", lambda self: None)
        return _run(board, program, image, prompt, tokens)
