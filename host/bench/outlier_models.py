"""GPT-2s drawn to be hard in the ways trained ones are: outlier channels, a large mean of x, uneven heads.

`sw.models.seeded_weights` has plain ones, of any size and as a stream; these are adjusted to their own activations.
Outliers and mean come in through the position embedding, as in GPT-2's own checkpoints, so the head (tied to the token
embedding) stays as it is. Figures of trained models: Dettmers et al., LLM.int8() (2022), section 4; Sun et al., Massive
Activations in Large Language Models (2024), sections 2 and 3.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from sw.models.gpt2 import GPT2, GPT2Config

__all__ = ["WEIGHT_SETS", "OutlierModel", "WeightSet", "outlier_model"]

TOKEN_DEVIATION = 0.14
PEAKED_SPREAD, FLAT_SPREAD = 8.0, 0.25
SINK_OUTLIER = 2000.0


@dataclasses.dataclass(frozen=True)
class WeightSet:
    """How the weights are drawn.

    Parameters
    ----------
    name : str
        As it is printed.
    trained : bool
        False: GPT-2's own initialisation, nothing else. True: biases and betas that are not zero, gammas away from 1,
        heads in turn with peaked and with flat scores (standard deviation 8 and 0.25 over a row), values with a mean.
    outliers : tuple of float
        Magnitudes of the outlier channels in standard deviations of the others; gamma there is 0.02 and 2 in turn. The
        largest has 2,000 at position 0 (a sink).
    mean : float
        Mean of x at the model's entry in standard deviations of x.
    """

    name: str
    trained: bool = True
    outliers: tuple[float, ...] = ()
    mean: float = 0.0


OUTLIERS = (20.0, 35.0, 60.0, 110.0, 200.0)
WEIGHT_SETS = (
    WeightSet("benign", trained=False),
    WeightSet("outliers", outliers=OUTLIERS),
    WeightSet("large mean", mean=16.0),
    WeightSet("outliers and mean", outliers=OUTLIERS, mean=4.0),
)


@dataclasses.dataclass(frozen=True)
class OutlierModel:
    """`model`: fp32, not rounded to fp16; `ids`: tokens to run it on; `outlier_channels`: places in x."""

    model: GPT2
    ids: tuple[int, ...]
    outlier_channels: tuple[int, ...]


def outlier_model(weights: WeightSet, config: GPT2Config, positions: int, seed: int) -> OutlierModel:
    """Draw a model and `positions` tokens; the same for the same arguments."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = GPT2(config).eval()
        ids = torch.randint(config.vocab_size, (positions,))
        channels = torch.randperm(config.n_embd)[: len(weights.outliers)]
        if weights.trained:
            _train(model, weights, channels)
            _enter(model, weights, channels, ids)
            _spread_heads(model, ids)
    return OutlierModel(model, tuple(ids.tolist()), tuple(channels.tolist()))


def _train(model: GPT2, weights: WeightSet, channels: Tensor) -> None:
    """Gammas, betas and biases."""
    for name, parameter in model.named_parameters():
        if ".ln_" in name or name.startswith("ln_"):
            if name.endswith("weight"):
                parameter.copy_(0.4 * torch.exp(0.3 * torch.randn_like(parameter)))
                parameter[channels] = torch.tensor([(0.02, 2.0)[i % 2] for i in range(len(channels))])
            else:
                parameter.copy_(0.1 * torch.randn_like(parameter))
        elif name.endswith("bias"):
            parameter.copy_(0.1 * torch.randn_like(parameter))
        if name.endswith("c_proj.bias"):  # outliers grow with depth
            parameter[channels] += 0.02 * TOKEN_DEVIATION * torch.tensor(weights.outliers)
    model.ln_f.weight.mul_(4.0)
    width = model.config.n_embd
    for layer in range(model.config.n_layer):  # values of half of the heads
        model.get_parameter(f"h.{layer}.attn.c_attn.bias")[2 * width : 2 * width + width // 2] += 1.0


def _enter(model: GPT2, weights: WeightSet, channels: Tensor, ids: Tensor) -> None:
    """Embeddings: token deviation as in trained models, outliers, then the mean in deviations of what came out."""
    model.wte.weight.mul_(TOKEN_DEVIATION / model.wte.weight.std())
    table = model.wpe.weight
    if len(channels):
        size = (
            TOKEN_DEVIATION
            * torch.tensor(weights.outliers)
            * torch.tensor([(1.0, -1.0)[i % 2] for i in range(len(channels))])
        )
        table[:, channels] = size * (1.0 + 0.25 * torch.randn(len(table), len(channels)))
        table[0, channels[-1]] = SINK_OUTLIER * TOKEN_DEVIATION
    x = model.wte(ids) + table[: len(ids)]
    table.add_(weights.mean * x.std(dim=1).median())


def _spread_heads(model: GPT2, ids: Tensor) -> None:
    """Scale each head's queries so that its scores have the wanted deviation over a row, layer by layer."""
    config = model.config
    size = config.head_size
    x = (model.wte(ids) + model.wpe.weight[: len(ids)])[None]
    for layer, block in enumerate(model.h):
        weight, bias = (model.get_parameter(f"h.{layer}.attn.c_attn.{leaf}") for leaf in ("weight", "bias"))
        unit = model.get_submodule(f"h.{layer}.ln_1")(x)[0]
        query, key, _ = (unit @ weight + bias).split(config.n_embd, dim=1)
        for head in range(config.n_head):
            part = slice(head * size, (head + 1) * size)
            scores = query[:, part] @ key[:, part].T / math.sqrt(size)
            factor = (PEAKED_SPREAD, FLAT_SPREAD)[head % 2] / scores.std(dim=1).mean()
            weight[:, part] *= factor
            bias[part] *= factor
        x = block(x, None, 0)
