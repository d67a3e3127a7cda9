"""A HuggingFace GPT-2 directory as named fp32 tensors, read lazily and checked completely before the first read.

Layout: `config.json`; `model.safetensors`, or `model.safetensors.index.json` and its shards. Keys may carry the prefix
`transformer.`; projections are stored [in, out]; the head is tied to `wte.weight`; causal-mask buffers are ignored.
Source: the safetensors format (8-byte header length, JSON header, data) and HuggingFace's GPT-2 key names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from sw.errors import CheckpointError
from sw.models.gpt2_config import GPT2Config, checkpoint_directory, load_config, read_json_object
from sw.models.weights import Progress, WeightTensors, expected_shapes, unobserved

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PREFIX = "transformer."
HEAD = "lm_head.weight"
MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
FLOAT_TYPES = ("F32", "F16", "BF16")
LISTED = 4  # names in one message; `value` holds all of them
HASH_BLOCK_BYTES = 1 << 22


class Checkpoint:
    """One checked checkpoint directory; tensors are memory-mapped and converted one at a time (`WeightTensors`).

    Parameters: `directory`: str or Path.
    Members: `directory`; `config`: GPT2Config; `names`: every weight, in the order of computation, without
    `transformer.`; `files`: the safetensors files, sorted; `dtypes`: stored type of each name ('F32', 'F16', 'BF16');
    `label`: the directory as text; `largest_magnitude`: None, only reading the values tells.

    Raises CheckpointError: those of `load_config`, and kinds ``missing_weights``, ``bad_index``, ``truncated``,
    ``missing_key``, ``duplicate_key``, ``unexpected_key``, ``wrong_shape``, ``wrong_dtype``, ``untied_head``.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = checkpoint_directory(directory)
        self.config = load_config(self.directory)
        self.label = str(self.directory)
        self.largest_magnitude: float | None = None
        self._shapes = expected_shapes(self.config)
        self.names: tuple[str, ...] = tuple(self._shapes)
        self.dtypes: dict[str, str] = {}
        self._handles: dict[Path, Any] = {}
        self._where: dict[str, tuple[Path, str]] = {}
        for path in _weight_files(self.directory):
            handle = self._handles[path] = _open(path)
            for key in list(handle.keys()):
                self._add(key, path)
        self.files: tuple[Path, ...] = tuple(sorted(self._handles))
        self._check_names()
        self._check_tensors()
        self._check_head()

    def tensor(self, name: str) -> np.ndarray:
        """Weight `name` as fp32 [shape of `expected_shapes`], an array of the caller's own; only it is read."""
        return np.ascontiguousarray(self.stored_tensor(name).to(torch.float32, copy=True).numpy())

    def stored_tensor(self, name: str) -> torch.Tensor:
        """Weight `name` in the file's own type, memory-mapped; do not write to it. KeyError for an unknown name."""
        path, key = self._where[name]
        tensor: torch.Tensor = self._handles[path].get_tensor(key)
        return tensor

    def digest(self, progress: Progress = unobserved) -> str:
        """SHA-256 over config.json and the weight files, in order of their names, hexadecimal."""
        digest = hashlib.sha256()
        paths = [self.directory / "config.json", *self.files]
        total = sum(path.stat().st_size for path in paths)
        done = 0
        for path in paths:
            with path.open("rb") as stream:
                while block := stream.read(HASH_BLOCK_BYTES):
                    digest.update(block)
                    done += len(block)
                    progress("hashing the checkpoint", done, total)
        return digest.hexdigest()

    def _add(self, key: str, path: Path) -> None:
        name = key.removeprefix(PREFIX)
        if name in self._where:
            raise CheckpointError(
                "duplicate_key",
                f"{name} is stored twice: in {self._where[name][0].name} and in {path.name}.",
                value=name,
                expected="each weight once",
                hint="Remove stale shards, or save the checkpoint again.",
            )
        self._where[name] = (path, key)

    def _check_names(self) -> None:
        missing = [name for name in self.names if name not in self._where]
        if missing:
            raise CheckpointError(
                "missing_key",
                f"{self.directory} lacks {len(missing)} of {len(self.names)} weights: {_some(missing)}.",
                value=missing,
                expected=list(self.names),
                hint="Check n_layer in config.json, and that every shard was copied.",
            )
        known = set(self.names) | {HEAD}
        extra = [name for name in self._where if name not in known and not MASK_BUFFER.fullmatch(name)]
        if extra:
            raise CheckpointError(
                "unexpected_key",
                f"{self.directory} holds {len(extra)} tensors that no GPT-2 of this config.json has: {_some(extra)}.",
                value=extra,
                expected=list(self.names),
                hint="Check n_layer in config.json, and that no adapter or other model is mixed in.",
            )

    def _check_tensors(self) -> None:
        for name, wanted in self._shapes.items():
            path, key = self._where[name]
            view = self._handles[path].get_slice(key)
            got = tuple(view.get_shape())
            if got != wanted:
                transposed = got == wanted[::-1]
                raise CheckpointError(
                    "wrong_shape",
                    f"{name} has shape {list(got)}, wanted {list(wanted)}{' (transposed?)' if transposed else ''}.",
                    value=got,
                    expected=wanted,
                    hint="GPT-2 stores projections as [in, out]; save it so."
                    if transposed
                    else "config.json and the weights belong to different models.",
                )
            dtype = self.dtypes[name] = view.get_dtype()
            if dtype not in FLOAT_TYPES:
                raise CheckpointError(
                    "wrong_dtype",
                    f"{name} is stored as {dtype}.",
                    value=dtype,
                    expected=FLOAT_TYPES,
                    hint="Save the weights as fp32, fp16 or bf16.",
                )

    def _check_head(self) -> None:
        if HEAD in self._where and not torch.equal(self.stored_tensor(HEAD), self.stored_tensor("wte.weight")):
            raise CheckpointError(
                "untied_head",
                f"{HEAD} differs from wte.weight: the head is untied.",
                value=HEAD,
                expected="no lm_head.weight, or a copy of wte.weight",
                hint="Only models with a tied head are built here.",
            )


def iter_weights(directory: str | Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, fp32 tensor) of a checkpoint in the order of computation, one in memory at a time."""
    checkpoint = Checkpoint(directory)
    for name in checkpoint.names:
        yield name, torch.from_numpy(checkpoint.tensor(name))


def load_weights(directory: str | Path, config: GPT2Config | None = None) -> dict[str, torch.Tensor]:
    """All weights as fp32 by name. CheckpointError ``wrong_config`` if `config` is given and the file's differs."""
    checkpoint = Checkpoint(directory)
    if config is not None and config != checkpoint.config:
        raise CheckpointError(
            "wrong_config",
            f"{checkpoint.directory} holds a model of another configuration.",
            value=checkpoint.config,
            expected=config,
            hint="Use the configuration that load_config reads from the same directory.",
        )
    return state_dict(checkpoint)


def state_dict(weights: WeightTensors, prefix: str = "") -> dict[str, torch.Tensor]:
    """All weights as fp32 by name, also of seeded ones. With prefix ``transformer.`` the names are those of
    `transformers.GPT2LMHeadModel`, whose head is tied to ``transformer.wte.weight``."""
    return {prefix + name: torch.from_numpy(weights.tensor(name)) for name in weights.names}


def _weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint: the single file, or the shards that the index names."""
    single, index = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.is_file():
        return [single]
    if not index.is_file():
        pickled = sorted(path.name for path in directory.glob("*.bin"))
        raise CheckpointError(
            "missing_weights",
            f"Neither {SINGLE_FILE} nor {INDEX_FILE} in {directory}.",
            value=pickled or None,
            expected=SINGLE_FILE,
            hint=f"{pickled[0]} is a pickle, which is not read: save the model again with safetensors."
            if pickled
            else "Copy the weights beside config.json.",
        )
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad_index(index, "has no weight_map")
    shards = sorted({str(shard) for shard in weight_map.values()})
    outside = [shard for shard in shards if Path(shard).name != shard or shard in ("", ".", "..")]
    if outside:
        raise _bad_index(index, f"names files outside its directory: {_some(outside)}")
    absent = [shard for shard in shards if not (directory / shard).is_file()]
    if absent:
        raise CheckpointError(
            "missing_weights",
            f"{len(absent)} of {len(shards)} shards named by {index} are not there: {_some(absent)}.",
            value=absent,
            expected=shards,
            hint="Copy every shard beside config.json.",
        )
    return [directory / shard for shard in shards]


def _open(path: Path) -> Any:
    """Memory-map one safetensors file; CheckpointError ``truncated`` if its header or length is wrong."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        with path.open("rb") as file:
            pointer = file.read(64).startswith(b"version https://git-lfs")
        raise CheckpointError(
            "truncated",
            f"{path} ({path.stat().st_size} bytes) is not a complete safetensors file: {error}.",
            value=path.stat().st_size,
            expected="a complete safetensors file",
            hint="It is a Git LFS pointer: fetch the file itself with 'git lfs pull'."
            if pointer
            else "Copy the file again.",
        ) from error


def _bad_index(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        "bad_index",
        f"{path} {what}.",
        value=str(path),
        expected='{"weight_map": {name: shard}}',
        hint="Save the checkpoint again.",
    )


def _some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {rest} more" if rest > 0 else "")
