"""What of a GPT-2 `config.json` decides the computation, validated up front.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3; field names as in
the HuggingFace file `config.json` of a `GPT2LMHeadModel`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sw.errors import CheckpointError, ModelError

GELU_TANH = ("gelu_new", "gelu_pytorch_tanh")  # two names of one function
DEFAULT_EPSILON = 1e-5
LIMITS = {"n_layer": 4096, "n_head": 4096, "n_embd": 2**20, "n_positions": 2**20, "vocab_size": 2**24, "n_inner": 2**22}


@dataclass(frozen=True)
class GPT2Config:
    """Shape and constants of one GPT-2.

    Parameters
    ----------
    n_layer, n_head, n_embd: blocks, heads per block, width (a multiple of `n_head`).
    n_positions: longest sequence in tokens (`n_ctx` is its older name).
    vocab_size: rows of the embedding, which is also the language-model head.
    layer_norm_epsilon: added to the variance in every LayerNorm.
    n_inner: width of the feed-forward layer; 0 stands for ``4 * n_embd``.
    eos_token_id, bos_token_id: ids inside the vocabulary, or None.
    activation: 'gelu_new', the tanh form of GELU; nothing else is built.

    Raises ModelError (kind ``bad_config``) when a value is out of its range.
    """

    n_layer: int
    n_head: int
    n_embd: int
    n_positions: int
    vocab_size: int
    layer_norm_epsilon: float = DEFAULT_EPSILON
    n_inner: int = 0
    eos_token_id: int | None = None
    bos_token_id: int | None = None
    activation: str = "gelu_new"

    def __post_init__(self) -> None:
        if self.n_inner == 0 and isinstance(self.n_embd, int):
            object.__setattr__(self, "n_inner", 4 * self.n_embd)
        for name, limit in LIMITS.items():
            _check_int(name, getattr(self, name), 1, limit)
        for name in ("eos_token_id", "bos_token_id"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0, self.vocab_size - 1)
        epsilon = self.layer_norm_epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
            raise _bad("layer_norm_epsilon", epsilon, "a positive finite number")
        if self.n_embd % self.n_head:
            raise _bad("n_embd", self.n_embd, f"a multiple of n_head = {self.n_head}")
        if self.activation not in GELU_TANH:
            raise _bad("activation", self.activation, "gelu_new")

    @property
    def n_ctx(self) -> int:
        """Longest sequence in tokens: the older name of `n_positions`."""
        return self.n_positions

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head


def load_config(directory: str | Path) -> GPT2Config:
    """Read `config.json` of a HuggingFace checkpoint directory.

    Raises CheckpointError: kinds ``missing_path``, ``not_a_directory``, ``missing_config``, ``unreadable``,
    ``bad_json``, ``bad_config``, and ``unsupported``, whose `value` lists everything unsupported at once.
    """
    folder = checkpoint_directory(directory)
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            "missing_config",
            f"No config.json in {folder}.",
            value=str(path),
            expected="config.json and model.safetensors in one directory",
            hint="Give the directory that a HuggingFace GPT-2 was saved in.",
        )
    raw = read_json_object(path)
    problems = _unsupported(raw)
    if problems:
        raise CheckpointError(
            "unsupported",
            f"{path} describes a model that is not built here: " + "; ".join(problems) + ".",
            value=problems,
            expected="GPT2LMHeadModel, gelu_new, tied head, plain scaled attention",
            hint="Use a GPT-2 checkpoint, or convert the model to plain GPT-2.",
        )
    required = ["n_layer", "n_head", "n_embd", "vocab_size"]
    missing = [name for name in required if raw.get(name) is None]
    positions: Any = raw["n_positions"] if raw.get("n_positions") is not None else raw.get("n_ctx")
    if positions is None:
        missing.append("n_positions")
    if missing:
        raise CheckpointError(
            "bad_config",
            f"{path} has no value for {', '.join(missing)}.",
            value=missing,
            expected=[*required, "n_positions"],
            hint="Save the configuration again with every field written.",
        )
    try:
        return GPT2Config(
            n_layer=raw["n_layer"],
            n_head=raw["n_head"],
            n_embd=raw["n_embd"],
            n_positions=positions,
            vocab_size=raw["vocab_size"],
            layer_norm_epsilon=raw.get("layer_norm_epsilon", DEFAULT_EPSILON),
            n_inner=raw.get("n_inner") or 0,
            eos_token_id=_token_id(raw, "eos_token_id"),
            bos_token_id=_token_id(raw, "bos_token_id"),
        )
    except ModelError as error:
        raise CheckpointError(
            "bad_config",
            f"{path}: {error.message}",
            value=error.value,
            expected=error.expected,
            hint="Correct the field in config.json.",
        ) from error


def checkpoint_directory(directory: str | Path) -> Path:
    """Return `directory` as a Path; CheckpointError ``missing_path`` or ``not_a_directory`` if it is no directory."""
    folder = Path(directory)
    hint = "Give the directory that holds config.json and model.safetensors."
    if not folder.exists():
        raise CheckpointError(
            "missing_path", f"{folder} does not exist.", value=str(folder), expected="a directory", hint=hint
        )
    if not folder.is_dir():
        raise CheckpointError(
            "not_a_directory",
            f"{folder} is a file, not a checkpoint directory.",
            value=str(folder),
            expected="a directory",
            hint=hint,
        )
    return folder


def read_json_object(path: Path) -> dict[str, Any]:
    """Read one JSON object from a UTF-8 file; CheckpointError ``unreadable`` or ``bad_json`` with line and column."""
    try:
        raw = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise CheckpointError(
            "unreadable",
            f"{path} cannot be read: {error.strerror}.",
            value=str(path),
            hint="Check the file's permissions.",
        ) from error
    except UnicodeDecodeError as error:
        raise _bad_json(path, f"is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise _bad_json(path, f"is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise _bad_json(path, "is nested too deeply") from error
    if not isinstance(raw, dict):
        raise _bad_json(path, f"holds a JSON {type(raw).__name__}, not an object")
    return raw


def _unsupported(raw: dict[str, Any]) -> list[str]:
    """Everything in a raw `config.json` that this project does not compute, one phrase each."""
    problems = []
    architectures = raw.get("architectures")
    if architectures not in (None, ["GPT2LMHeadModel"]):
        problems.append(f"architectures {architectures!r} (supported: ['GPT2LMHeadModel'])")
    model_type = raw.get("model_type")
    if model_type != "gpt2" and not (model_type is None and architectures == ["GPT2LMHeadModel"]):
        problems.append(f"model_type {model_type!r} (supported: 'gpt2')")
    activation = raw.get("activation_function", "gelu_new")
    if activation not in GELU_TANH:
        problems.append(f"activation_function {activation!r} (supported: 'gelu_new')")
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"):
        if raw.get(name):
            problems.append(f"{name} (supported: false)")
    if raw.get("scale_attn_weights", True) is not True:
        problems.append("scale_attn_weights false (supported: true)")
    if raw.get("tie_word_embeddings", True) is not True:
        problems.append("tie_word_embeddings false, an untied head (supported: true)")
    if raw.get("quantization_config"):
        problems.append("quantization_config (supported: fp32, fp16, bf16 weights)")
    width, heads = raw.get("n_embd"), raw.get("n_head")
    if isinstance(width, int) and isinstance(heads, int) and heads > 0 and width % heads:
        problems.append(f"n_embd {width} is not a multiple of n_head {heads}")
    return problems


def _token_id(raw: dict[str, Any], name: str) -> int | None:
    """A special token's id; None where the file has none, or one that the vocabulary does not hold."""
    value, vocabulary = raw.get(name), raw.get("vocab_size")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, int) and isinstance(vocabulary, int) and value >= vocabulary:
        return None  # HuggingFace writes 50256 for every vocabulary; the model can never produce it
    return value


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _bad(name, value, f"an integer from {low} to {high}")


def _bad(name: str, value: object, expected: str) -> ModelError:
    return ModelError(
        "bad_config", f"{name} is {value!r}; it must be {expected}.", value={name: value}, expected=expected
    )


def _bad_json(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        "bad_json",
        f"{path} {what}.",
        value=str(path),
        expected="one JSON object in UTF-8",
        hint="Fetch or save the file again.",
    )
