"""Everything that does not fit is listed at once, before a byte is written; what does fit is legal for known GPT-2s."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from host.compiler import CompileError, Shape, compile_model, plan_program
from host.compiler.explain import ideal_cycles
from host.compiler.limits import all_problems
from host.driver.program_memory import program_bytes
from hw.gpt2.config import core_config
from sw.models.gpt2 import GPT2, GPT2Config
from sw.train.save import save_model

GPT2_SIZES = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}


def _known(name: str) -> GPT2Config:
    layers, heads, width = GPT2_SIZES[name]
    return GPT2Config(n_layer=layers, n_head=heads, n_embd=width, n_positions=1024, vocab_size=50257)


def _saved(folder: Path, **sizes: int) -> Path:
    torch.manual_seed(3)
    folder.mkdir(exist_ok=True)
    save_model(GPT2(GPT2Config(**sizes)), folder)
    return folder


@pytest.mark.parametrize("core", ["16x4", "64x16"])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium"])
def test_gpt2_up_to_345m_fits_both_cores(name: str, core: str) -> None:
    context = 512 if (name, core) == ("gpt2-medium", "16x4") else 1024  # the small core has 1 GiB
    shape = Shape(_known(name), core_config(core), context)
    assert all_problems(shape) == []
    assert len(plan_program(shape).instructions) == shape.program_sizes()[0]


def test_gpt2_large_and_xl_fit_the_large_core() -> None:
    for name in ("gpt2-large", "gpt2-xl"):
        shape = Shape(_known(name), core_config("64x16"), 1024)
        assert all_problems(shape) == []
        program = plan_program(shape)
        assert len(program.descriptors) <= shape.program_sizes()[1]


def test_ideal_cycles_of_345m_are_those_of_the_sketch() -> None:
    program = plan_program(Shape(_known("gpt2-medium"), core_config("64x16"), 1024))
    cycles = ideal_cycles(program, 128)
    # a layer: K, Q and V 1,024+4 each; scores, averages 128 each; projection 1,024+2; feed-forward 4,096+16, 4,096+2
    layer = 3 * 1028 + 256 + 1026 + 4112 + 4098
    head = 3142 * 16 + 2 * 99
    assert cycles == 24 * layer + head + 2 * 64
    assert 1.757 <= cycles / 200e3 <= 1.78


def test_a_channel_must_hold_the_regions_as_they_are_placed(tmp_path: Path) -> None:
    """Regions start on 4,096 bytes: rows alone would fit a channel that the placed regions do not."""
    model = _saved(tmp_path / "model", n_layer=1, n_head=2, n_embd=32, n_positions=32, vocab_size=90)
    core = core_config("16x4")
    program, image = compile_model(model, core, tmp_path / "roomy")
    used = max(region.offset + region.bytes for region in program.regions)
    rows_alone = sum(region.bytes for region in program.regions if region.channel == 0)
    assert rows_alone < used and image.channel_bytes > used
    program, image = compile_model(model, core, tmp_path / "exact", channel_bytes=used)
    assert program_bytes(program, image) == -(-used // 4096) * 4096
    for channel_bytes in (used - 1, rows_alone):
        with pytest.raises(CompileError) as caught:
            compile_model(model, core, tmp_path / "out", channel_bytes=channel_bytes)
        found = [(problem.what, problem.value) for problem in caught.value.problems]
        assert found == [("bytes per memory channel", used)]


def test_all_problems_come_in_one_message_and_nothing_is_written(tmp_path: Path) -> None:
    model = _saved(tmp_path / "model", n_layer=1, n_head=3, n_embd=30, n_positions=64, vocab_size=300)
    core = dataclasses.replace(core_config("16x4"), act_words=3, residual_strips=4, instructions=4)
    with pytest.raises(CompileError) as caught:
        compile_model(model, core, tmp_path / "out", context=65, channel_bytes=1000)
    what = [problem.what for problem in caught.value.problems]
    for expected in (
        "head size",
        "context",
        "strips of the residual vector",
        "activation words",
        "instructions",
        "bytes per memory channel",
    ):
        assert expected in what
        assert expected in caught.value.message
    assert caught.value.exit_code == 2 and caught.value.kind == "does_not_fit"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "sizes,changes,what",
    [
        ({"n_head": 33, "n_embd": 132}, {"new_key_words": 32}, "words of the new keys"),
        ({"n_embd": 64}, {"new_value_strips": 8}, "strips of the new values"),
        ({"n_embd": 64}, {"residual_strips": 8}, "strips of the residual vector"),
        ({"n_positions": 512}, {"prob_words": 16}, "probability words of one head"),
        ({"n_embd": 8192 * 2, "n_head": 1}, {}, "width"),
        ({"n_layer": 256}, {}, "layers"),
        ({"n_inner": 16 * 1024}, {}, "k words of a product"),
        ({"vocab_size": 70000 * 4}, {}, "strips of the logits"),
        ({"n_embd": 64, "n_head": 1}, {"acc_depth": 8}, "accumulators of one head's values"),
        ({"n_layer": 4}, {"descriptors": 4}, "access descriptors"),
    ],
)
def test_each_limit_is_named(sizes: dict[str, int], changes: dict[str, int], what: str) -> None:
    config = GPT2Config(**{"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 64, "vocab_size": 64, **sizes})
    core = dataclasses.replace(core_config("16x4"), **changes)
    assert what in [problem.what for problem in all_problems(Shape(config, core, config.n_positions))]
    # twin: the same model on an unchanged core, or the smallest model, has no such problem
    fine = GPT2Config(n_layer=1, n_head=2, n_embd=32, n_positions=64, vocab_size=64)
    assert all_problems(Shape(fine, core_config("16x4"), 64)) == []


def test_values_beyond_fp16_are_listed_with_tensor_and_value(tmp_path: Path) -> None:
    model = _saved(tmp_path / "model", n_layer=2, n_head=2, n_embd=32, n_positions=32, vocab_size=64)
    tensors = {name: tensor.float() for name, tensor in load_file(model / "model.safetensors").items()}
    tensors["transformer.h.1.ln_1.weight"][3] = 3e5
    tensors["transformer.h.1.attn.c_attn.weight"][3, 40] = 0.5  # gamma * W is what overflows
    tensors["transformer.wpe.weight"][7, 1] = -70000.0
    tensors["transformer.h.0.mlp.c_proj.weight"][0, 0] = float("nan")
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(CompileError) as caught:
        compile_model(model, core_config("16x4"), tmp_path / "out")
    text = caught.value.message
    assert caught.value.kind == "fp16_range"
    assert "wpe.weight is -70000.0" in text
    assert "h.1.ln_1.weight * h.1.attn.c_attn.weight [keys] is 150000.0" in text
    assert "h.0.mlp.c_proj.weight [feed_out] is nan" in text
    assert not (tmp_path / "out").exists()


def test_the_largest_fp16_value_is_still_taken(tmp_path: Path) -> None:
    model = _saved(tmp_path / "model", n_layer=1, n_head=2, n_embd=32, n_positions=32, vocab_size=64)
    tensors = {name: tensor.float() for name, tensor in load_file(model / "model.safetensors").items()}
    tensors["transformer.wpe.weight"][7, 1] = 65519.0  # rounds to 65504
    save_file(tensors, model / "model.safetensors")
    compile_model(model, core_config("16x4"), tmp_path / "out")
