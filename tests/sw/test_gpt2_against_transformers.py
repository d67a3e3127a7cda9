"""The PyTorch GPT-2 equals `transformers` on random weights and on the shipped checkpoint; wrong ones are caught."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config as JudgeConfig
from transformers import GPT2LMHeadModel

from sw.errors import ModelError
from sw.models.checkpoint import Checkpoint, iter_weights, load_weights
from sw.models.gpt2 import GPT2, GPT2Config, load_config

SHIPPED = Path(__file__).parents[2] / "checkpoints" / "gpt2-tiny"
TOLERANCE = 2e-5  # fp32, logits of a few units: a different order of summation
SHAPES = [
    {"n_embd": 32, "n_head": 4, "n_layer": 2},
    {"n_embd": 48, "n_head": 3, "n_layer": 3, "n_inner": 80, "layer_norm_epsilon": 1e-3},
    {"n_embd": 20, "n_head": 5, "n_layer": 1, "activation_function": "gelu_pytorch_tanh"},
]


def random_judge(seed: int = 0, **fields: object) -> GPT2LMHeadModel:
    """A transformers GPT-2 whose weights, biases and norms are all large enough to matter."""
    torch.manual_seed(seed)
    config = JudgeConfig(vocab_size=97, n_positions=24, bos_token_id=1, eos_token_id=2, **fields)
    judge = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in judge.named_parameters():
            centre = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            parameter.copy_(centre + 0.15 * torch.randn_like(parameter))
    return judge


def largest_difference(model: GPT2, judge: GPT2LMHeadModel, tokens: int = 24) -> float:
    ids = torch.randint(model.config.vocab_size, (3, tokens), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        return float((model(ids) - judge(ids).logits.float()).abs().max())


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, GPT2LMHeadModel]:
    judge = random_judge(**SHAPES[0])
    judge.save_pretrained(tmp_path)
    return tmp_path, judge


@pytest.mark.parametrize("fields", SHAPES)
def test_equals_transformers_on_random_weights(tmp_path: Path, fields: dict[str, object]) -> None:
    judge = random_judge(**fields)
    judge.save_pretrained(tmp_path)
    model = GPT2.from_directory(tmp_path)
    assert model.config.n_inner == fields.get("n_inner", 4 * model.config.n_embd)
    assert largest_difference(model, judge) < TOLERANCE


@pytest.mark.parametrize("name", ["h.0.attn.c_proj.weight", "h.1.attn.c_proj.weight"])
def test_mutation_transposed_weight_is_noticed(saved: tuple[Path, GPT2LMHeadModel], name: str) -> None:
    folder, judge = saved
    tensors = load_file(folder / "model.safetensors")
    key = f"transformer.{name}"
    tensors[key] = tensors[key].T.contiguous()  # square, so no shape check can see it
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert largest_difference(GPT2.from_directory(folder), judge) > 100 * TOLERANCE


def test_mutation_epsilon_is_noticed(saved: tuple[Path, GPT2LMHeadModel]) -> None:
    folder, judge = saved
    fields = json.loads((folder / "config.json").read_text())
    fields["layer_norm_epsilon"] *= 100
    (folder / "config.json").write_text(json.dumps(fields))
    assert largest_difference(GPT2.from_directory(folder), judge) > 10 * TOLERANCE


def test_mutation_exact_gelu_is_noticed(tmp_path: Path) -> None:
    judge = random_judge(**SHAPES[0])
    judge.save_pretrained(tmp_path)
    exact = random_judge(activation_function="gelu", **SHAPES[0])
    assert largest_difference(GPT2.from_directory(tmp_path), exact) > TOLERANCE


def test_shipped_checkpoint_equals_transformers() -> None:
    judge = GPT2LMHeadModel.from_pretrained(SHIPPED, dtype=torch.float32, local_files_only=True).eval()
    assert largest_difference(GPT2.from_directory(SHIPPED), judge, tokens=256) < 5 * TOLERANCE


@pytest.mark.parametrize("steps", [[1] * 24, [7, 1, 1, 5, 10], [23, 1]])
def test_cache_gives_the_logits_of_one_pass(saved: tuple[Path, GPT2LMHeadModel], steps: list[int]) -> None:
    model = GPT2.from_directory(saved[0])
    ids = torch.randint(model.config.vocab_size, (2, sum(steps)), generator=torch.Generator().manual_seed(9))
    cache, position, parts = model.new_cache(batch=2), 0, []
    cache.keys.fill_(torch.nan)  # what was never written must never be read
    cache.values.fill_(torch.nan)
    with torch.inference_mode():
        for step in steps:
            parts.append(model(ids[:, position : position + step], cache, position))
            position += step
        whole = model(ids)
    assert (torch.cat(parts, dim=1) - whole).abs().max() < TOLERANCE


def test_mutation_wrong_position_is_noticed(saved: tuple[Path, GPT2LMHeadModel]) -> None:
    model = GPT2.from_directory(saved[0])
    ids = torch.arange(10)[None]
    cache = model.new_cache()
    with torch.inference_mode():
        model(ids[:, :6], cache, 0)
        late = model(ids[:, 6:], cache, 7)
        assert (late - model(ids)[:, 6:]).abs().max() > 100 * TOLERANCE


def test_sharded_bfloat16_checkpoint_is_read_exactly(tmp_path: Path) -> None:
    judge = random_judge(**SHAPES[0]).to(torch.bfloat16)
    judge.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2 and not (tmp_path / "model.safetensors").exists()
    checkpoint = Checkpoint(tmp_path)
    assert set(checkpoint.dtypes.values()) == {"BF16"} and list(checkpoint.files) == shards
    state = judge.state_dict()
    for name, tensor in iter_weights(tmp_path):
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, state[f"transformer.{name}"].float())
    assert largest_difference(GPT2.from_directory(tmp_path), judge.float()) < TOLERANCE


def test_old_layout_without_prefix_and_with_buffers(tmp_path: Path, saved: tuple[Path, GPT2LMHeadModel]) -> None:
    folder, judge = saved
    tensors = {key.removeprefix("transformer."): t for key, t in load_file(folder / "model.safetensors").items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.uint8)
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    assert largest_difference(GPT2.from_directory(folder), judge) < TOLERANCE


def test_weights_are_the_callers_own(saved: tuple[Path, GPT2LMHeadModel]) -> None:
    checkpoint = Checkpoint(saved[0])
    first = checkpoint.tensor("wte.weight")
    assert first.dtype == np.float32 and first.flags.writeable
    first[:] = 0
    assert checkpoint.tensor("wte.weight").any()
    weights = load_weights(saved[0], load_config(saved[0]))
    assert tuple(weights) == checkpoint.names
    assert weights["h.0.attn.c_attn.weight"].shape == (32, 96)  # [in, out]


def test_training_reaches_every_parameter() -> None:
    torch.manual_seed(0)
    model = GPT2(GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=8, vocab_size=11))
    model(torch.randint(11, (2, 8))).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("kind", "ids", "position"),
    [
        ("bad_ids", torch.tensor([[0, 11]]), 0),
        ("bad_ids", torch.tensor([[-1]]), 0),
        ("bad_ids", torch.tensor([0]), 0),
        ("bad_ids", torch.zeros(1, 0, dtype=torch.int64), 0),
        ("bad_ids", torch.tensor([[0.5]]), 0),
        ("too_long", torch.zeros(1, 9, dtype=torch.int64), 0),
        ("bad_position", torch.tensor([[1]]), 3),
        ("bad_position", torch.tensor([[1]]), -1),
    ],
)
def test_bad_input_of_forward(kind: str, ids: torch.Tensor, position: int) -> None:
    model = GPT2(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=8, vocab_size=11))
    with pytest.raises(ModelError) as caught:
        model(ids, None, position)
    assert caught.value.kind == kind


def test_cache_of_another_batch_is_refused() -> None:
    model = GPT2(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=8, vocab_size=11))
    with pytest.raises(ModelError, match="cache has shape"):
        model(torch.tensor([[1]]), model.new_cache(batch=2), 0)
