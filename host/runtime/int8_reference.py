"""PyTorch with the very int8 weights that the compiler makes: what rounding the weights costs, without a core."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from host.compiler.int8_weights import quantised
from host.compiler.product_origins import ORIGINS
from host.runtime.torch_executor import inference
from sw.models.gpt2 import GPT2

__all__ = ["int8_logits"]


def int8_logits(model: GPT2, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """fp32 logits [len(ids), vocab] of one pass over `ids`, all arithmetic in fp32; `model` itself stays as it is.

    Every matrix, LayerNorm's gamma folded in as by `host.compiler.int8_product`, is rounded to int8 a column and
    multiplied by the column's scale; the token embedding is rounded for the head alone.
    """
    with inference(model), _normalised(model) as vectors:
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        scaled = weights["ln_f.weight"], weights["ln_f.bias"]
        head, head_bias = _folded(weights["wte.weight"].T, None, scaled)
        products = {(origin.matrix, origin.norm) for origin in ORIGINS.values()}
        for layer in range(model.config.n_layer):
            for matrix, norm in sorted(products):
                name, before = f"h.{layer}.{matrix}", f"h.{layer}.{norm}"
                late = (weights[f"{before}.weight"], weights[f"{before}.bias"]) if norm else None
                folded, bias = _folded(weights[f"{name}.weight"], weights[f"{name}.bias"], late)
                weights |= {f"{name}.weight": folded, f"{name}.bias": bias}
            for norm in {norm for _, norm in products if norm}:
                weights |= _plain(f"h.{layer}.{norm}", weights)
        weights |= _plain("ln_f", weights)
        torch.func.functional_call(model, weights, (torch.tensor([list(ids)]),))
        logits: npt.NDArray[np.float32] = functional.linear(vectors[0], head.T, head_bias)[0].numpy()
    return logits


def _folded(weight: Tensor, bias: Tensor | None, norm: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """(scale * int8 of gamma * W, b + beta @ W) of W [n_in, n_out]."""
    start = torch.zeros(weight.shape[1]) if bias is None else bias
    if norm is not None:
        start = start + norm[1] @ weight
        weight = weight * norm[0][:, None]
    matrix, scales = quantised(weight.contiguous().numpy())
    return torch.from_numpy(matrix.astype(np.float32) * scales), start


def _plain(norm: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A LayerNorm without gamma and beta."""
    size = weights[f"{norm}.weight"]
    return {f"{norm}.weight": torch.ones_like(size), f"{norm}.bias": torch.zeros_like(size)}


@contextlib.contextmanager
def _normalised(model: GPT2) -> Iterator[list[Tensor]]:
    """Collects what the final LayerNorm makes, in front of the head."""
    vectors: list[Tensor] = []
    hook = model.ln_f.register_forward_hook(lambda module, inputs, output: vectors.append(output))
    try:
        yield vectors
    finally:
        hook.remove()
