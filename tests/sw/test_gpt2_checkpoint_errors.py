"""Every way in which a checkpoint can be wrong ends in one clear error that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sw.errors import CheckpointError, ModelError
from sw.models.checkpoint import Checkpoint, expected_shapes, load_weights
from sw.models.gpt2 import GPT2, GPT2Config, load_config
from sw.models.tokenizer import Tokenizer

CONFIG: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 8,
    "n_positions": 6,
    "vocab_size": 10,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small sound checkpoint that each test breaks in one way."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    shapes = expected_shapes(load_config(tmp_path))
    tensors = {f"transformer.{name}": torch.randn(shape) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def change_config(folder: Path, **fields: object) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **fields}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def error_of(action: Callable[[], object], kind: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        action()
    error = caught.value
    assert error.kind == kind, error
    assert error.message and error.hint and str(error) == f"{error.message} {error.hint}"
    assert isinstance(error, ModelError) and isinstance(error, ValueError)
    return error


def test_the_sound_checkpoint_loads(folder: Path) -> None:
    assert GPT2.from_directory(folder)(torch.tensor([[1, 2]])).shape == (1, 2, 10)


def test_path_is_missing(tmp_path: Path) -> None:
    error = error_of(lambda: Checkpoint(tmp_path / "nowhere"), "missing_path")
    assert "nowhere" in error.message


def test_path_is_a_file(folder: Path) -> None:
    error_of(lambda: Checkpoint(folder / "model.safetensors"), "not_a_directory")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    error_of(lambda: Checkpoint(folder), "missing_config")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"n_layer": 2,', "line 1"),
        (b"", "line 1"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"[1, 2]", "not an object"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_config_is_no_json(folder: Path, content: bytes, says: str) -> None:
    (folder / "config.json").write_bytes(content)
    assert says in error_of(lambda: Checkpoint(folder), "bad_json").message


def test_everything_unsupported_is_listed_at_once(folder: Path) -> None:
    change_config(
        folder,
        architectures=["GPT2ForSequenceClassification"],
        model_type="gpt_neo",
        activation_function="relu",
        scale_attn_by_inverse_layer_idx=True,
        reorder_and_upcast_attn=True,
        add_cross_attention=True,
        scale_attn_weights=False,
        tie_word_embeddings=False,
        quantization_config={"bits": 4},
        n_embd=9,
    )
    error = error_of(lambda: load_config(folder), "unsupported")
    assert isinstance(error.value, list) and len(error.value) == 10
    for word in (
        "GPT2ForSequenceClassification",
        "gpt_neo",
        "relu",
        "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn",
        "add_cross_attention",
        "scale_attn_weights",
        "untied head",
        "quantization_config",
        "multiple of n_head",
    ):
        assert word in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_layer", 0),
        ("n_layer", "2"),
        ("n_layer", 2.0),
        ("n_layer", 10**9),
        ("n_head", True),
        ("n_embd", -8),
        ("vocab_size", 2**40),
        ("n_inner", -1),
        ("layer_norm_epsilon", 0),
        ("layer_norm_epsilon", float("nan")),
        ("layer_norm_epsilon", "1e-5"),
        ("eos_token_id", -1),
        ("eos_token_id", [1, 2]),
    ],
)
def test_value_out_of_range(folder: Path, field: str, value: object) -> None:
    change_config(folder, **{field: value})
    error = error_of(lambda: load_config(folder), "bad_config")
    assert field in error.message
    assert error.value == {field: value} or value != value  # NaN equals nothing


def test_missing_fields_are_listed(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    error = error_of(lambda: load_config(folder), "bad_config")
    assert error.value == ["n_head", "n_embd", "vocab_size", "n_positions"]


def test_special_id_outside_the_vocabulary_is_none(folder: Path) -> None:
    change_config(folder, eos_token_id=50256, bos_token_id=3)
    config = load_config(folder)
    assert config.eos_token_id is None and config.bos_token_id == 3


def test_config_constructor_refuses_alone() -> None:
    with pytest.raises(ModelError, match="multiple of n_head"):
        GPT2Config(n_layer=1, n_head=3, n_embd=8, n_positions=4, vocab_size=5)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    error_of(lambda: Checkpoint(folder), "missing_weights")
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "pickle" in error_of(lambda: Checkpoint(folder), "missing_weights").hint


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    error = error_of(lambda: Checkpoint(folder), "truncated")
    assert f"({path.stat().st_size} bytes)" in error.message


def test_lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in error_of(lambda: Checkpoint(folder), "truncated").hint


def test_missing_key(folder: Path) -> None:
    change_weights(folder, lambda t: (t.pop("transformer.ln_f.bias"), t.pop("transformer.h.1.mlp.c_fc.weight")))
    error = error_of(lambda: Checkpoint(folder), "missing_key")
    assert error.value == ["h.1.mlp.c_fc.weight", "ln_f.bias"]


def test_key_stored_twice(folder: Path) -> None:
    change_weights(folder, lambda t: t.update({"ln_f.bias": t["transformer.ln_f.bias"].clone()}))
    assert error_of(lambda: Checkpoint(folder), "duplicate_key").value == "ln_f.bias"


def test_unexpected_key(folder: Path) -> None:
    change_config(folder, n_layer=1)
    error = error_of(lambda: Checkpoint(folder), "unexpected_key")
    assert isinstance(error.value, list) and len(error.value) == 12 and "and 8 more" in error.message


def test_wrong_shape_says_transposed(folder: Path) -> None:
    key = "transformer.h.1.mlp.c_fc.weight"
    change_weights(folder, lambda t: t.update({key: t[key].T.contiguous()}))
    error = error_of(lambda: Checkpoint(folder), "wrong_shape")
    assert "h.1.mlp.c_fc.weight has shape [32, 8], wanted [8, 32] (transposed?)" in error.message
    assert (error.value, error.expected) == ((32, 8), (8, 32))


def test_wrong_shape(folder: Path) -> None:
    change_config(folder, vocab_size=11)
    error = error_of(lambda: Checkpoint(folder), "wrong_shape")
    assert "wte.weight has shape [10, 8], wanted [11, 8]." in error.message and "transposed" not in error.message


def test_wrong_dtype(folder: Path) -> None:
    key = "transformer.wte.weight"
    change_weights(folder, lambda t: t.update({key: t[key].to(torch.int8)}))
    assert error_of(lambda: Checkpoint(folder), "wrong_dtype").value == "I8"


def test_untied_head(folder: Path) -> None:
    change_weights(folder, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"] + 1}))
    error_of(lambda: Checkpoint(folder), "untied_head")


@pytest.mark.parametrize(
    ("index", "kind"),
    [
        ({}, "bad_index"),
        ({"weight_map": {}}, "bad_index"),
        ({"weight_map": {"wte.weight": "../secret.safetensors"}}, "bad_index"),
        ({"weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}}, "missing_weights"),
    ],
)
def test_bad_index(folder: Path, index: object, kind: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    error_of(lambda: Checkpoint(folder), kind)


def test_another_configuration(folder: Path) -> None:
    other = GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=6, vocab_size=10)
    error_of(lambda: load_weights(folder, other), "wrong_config")


def test_no_tokenizer(folder: Path) -> None:
    error_of(lambda: Tokenizer(folder), "missing_tokenizer")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("{", "bad_json"),
        ('{"decoder": {"type": "WordPiece"}}', "bad_tokenizer"),
        ('{"decoder": {"type": "ByteLevel"}}', "bad_tokenizer"),
    ],
)
def test_bad_tokenizer(folder: Path, content: str, kind: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    error_of(lambda: Tokenizer(folder), kind)
