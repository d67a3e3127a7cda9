"""GPT-2 in PyTorch, read from a HuggingFace directory: the reference that hardware results are judged by.

Source: Radford et al. (2019), section 2.3: pre-norm blocks, a final LayerNorm, head tied to the token embedding.
Weights keep the checkpoint's own orientation, [in, out].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sw.errors import ModelError
from sw.models.checkpoint import Checkpoint
from sw.models.gpt2_config import GPT2Config, load_config
from sw.models.weights import WeightTensors

__all__ = ["GPT2", "GPT2Config", "KVCache", "load_config"]

INITIAL_DEVIATION = 0.02


@dataclass
class KVCache:
    """Keys and values of every layer, allocated once.

    Members: `keys`, `values`: [n_layer, batch, n_head, n_positions, head_size] in the model's dtype; the caller's
    `position` says how many leading positions are valid.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, config: GPT2Config, batch: int = 1, dtype: torch.dtype = torch.float32) -> KVCache:
        """A zeroed cache for `batch` sequences of up to `config.n_positions` tokens."""
        shape = (config.n_layer, batch, config.n_head, config.n_positions, config.head_size)
        return cls(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))


class Projection(nn.Module):
    """x [..., n_in] -> x @ weight + bias [..., n_out]; `weight` is stored [n_in, n_out] (HuggingFace's Conv1D)."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], self.weight.shape[1])


class Attention(nn.Module):
    """Causal multi-head attention over x [B, T, n_embd], scores scaled by 1/sqrt(head_size)."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_attn = Projection(config.n_embd, 3 * config.n_embd)
        self.c_proj = Projection(config.n_embd, config.n_embd)
        self.n_head = config.n_head

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None, position: int) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.n_head, width // self.n_head)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        mask = None
        if cache is not None:
            end = position + length
            cache[0][:, :, position:end] = key
            cache[1][:, :, position:end] = value
            key, value = cache[0][:, :, :end], cache[1][:, :, :end]
            mask = torch.ones(length, end, dtype=torch.bool, device=x.device).tril(position)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        out: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class FeedForward(nn.Module):
    """n_embd -> n_inner -> GELU (tanh form) -> n_embd."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = Projection(config.n_embd, config.n_inner)
        self.c_proj = Projection(config.n_inner, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """One pre-norm transformer block: x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None, position: int) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache, position)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT2(nn.Module):
    """GPT-2 with a tied head and a key/value cache.

    Parameters: `config`. Parameter names are those of the checkpoint without the prefix `transformer.`.
    New models are initialised as in GPT-2: N(0, 0.02), residual projections divided by sqrt(2 * n_layer).
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith("c_proj.weight")
                scale = (2 * self.config.n_layer) ** -0.5 if residual else 1.0
                nn.init.normal_(parameter, std=INITIAL_DEVIATION * scale)

    @classmethod
    def from_directory(cls, directory: str | Path) -> GPT2:
        """Read a HuggingFace directory; fp32, evaluation mode. Raises CheckpointError (see `Checkpoint`)."""
        return cls.from_weights(Checkpoint(directory))

    @classmethod
    def from_weights(cls, weights: WeightTensors) -> GPT2:
        """The model of a checkpoint or of seeded weights; fp32, evaluation mode.

        Tensors are read one at a time: memory peaks at the fp32 model plus its largest tensor.
        """
        with torch.device("meta"):
            model = cls(weights.config)
        for name in weights.names:
            weight = nn.Parameter(torch.from_numpy(weights.tensor(name)))
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, weight)
        return model.eval()

    def new_cache(self, batch: int = 1) -> KVCache:
        """An empty cache for `batch` sequences, in the model's dtype."""
        return KVCache.empty(self.config, batch, self.wte.weight.dtype)

    def forward(self, ids: Tensor, cache: KVCache | None = None, position: int = 0) -> Tensor:
        """Logits [B, T, vocab_size] in fp32 of integer `ids` [B, T].

        `position` is the position of ids[:, 0]. With a cache, keys and values of this call are written at
        `position` and all earlier ones are read; without one the sequence stands alone and `position` must be 0.
        Raises ModelError: kinds ``bad_ids``, ``bad_position``, ``too_long``, ``bad_cache``.
        """
        self._check(ids, cache, position)
        length = ids.shape[1]
        x = self.wte(ids) + self.wpe.weight[position : position + length]
        for layer, block in enumerate(self.h):
            x = block(x, None if cache is None else (cache.keys[layer], cache.values[layer]), position)
        return F.linear(self.ln_f(x), self.wte.weight).float()

    def _check(self, ids: Tensor, cache: KVCache | None, position: int) -> None:
        config = self.config
        if ids.dim() != 2 or ids.numel() == 0 or ids.dtype not in (torch.int64, torch.int32):
            raise ModelError(
                "bad_ids",
                f"Token ids have shape {tuple(ids.shape)} and type {ids.dtype}.",
                value=tuple(ids.shape),
                expected="integers [batch, tokens], at least one token",
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= config.vocab_size:
            raise ModelError(
                "bad_ids",
                f"Token id {low if low < 0 else high} is outside the vocabulary of {config.vocab_size}.",
                value=low if low < 0 else high,
                expected=f"0 to {config.vocab_size - 1}",
                hint="Encode the text with this checkpoint's own tokenizer.",
            )
        if position < 0 or (cache is None and position != 0):
            raise ModelError(
                "bad_position",
                f"Position {position} {'is negative' if position < 0 else 'needs a cache'}.",
                value=position,
                expected="0, or with a cache the number of tokens already in it",
            )
        if position + ids.shape[1] > config.n_positions:
            raise ModelError(
                "too_long",
                f"{position} + {ids.shape[1]} tokens exceed the {config.n_positions} positions of the model.",
                value=position + ids.shape[1],
                expected=config.n_positions,
                hint="Shorten the prompt or generate fewer tokens.",
            )
        shape = (config.n_layer, ids.shape[0], config.n_head, config.n_positions, config.head_size)
        if cache is not None and (cache.keys.shape != shape or cache.values.shape != shape):
            raise ModelError(
                "bad_cache",
                f"The cache has shape {tuple(cache.keys.shape)}.",
                value=tuple(cache.keys.shape),
                expected=shape,
                hint="Make it with new_cache(batch).",
            )
