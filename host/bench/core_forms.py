"""GPT-2 in the core's arithmetic with LayerNorm and softmax in one form or another: which steps come before a product;
and with int8 weights.

The late forms are the core's (docs/core.md, sections 3 and 4; weights folded by `host.compiler.weights`); the others
are what a compiler or another core could do with the same units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from host.bench.core_arithmetic import (
    GUARD_BITS,
    Half,
    Single,
    drained,
    layer_norm_scalars,
    normalised,
    product,
    to_fp16,
)
from host.bench.core_attention import Softmax, attention
from host.bench.core_int8 import int8_product
from host.compiler.int8_weights import accumulator_starts, quantised, scaled_sums
from host.compiler.weights import column_sums, folded
from hw.gpt2.isa import Params, Path
from sw.models.gpt2 import GPT2, GPT2Config

__all__ = [
    "CENTRED",
    "CENTRED_STREAM",
    "CENTRED_WEIGHTS",
    "EARLY",
    "INT8",
    "LATE",
    "UNROUNDED_SUMS",
    "Form",
    "NormProduct",
    "Run",
    "norm_product",
    "parameters_of",
    "run",
    "with_centred_stream",
]

Parameters = Mapping[str, Single]
Quantiser = Callable[[Single], tuple[npt.NDArray[np.int8], Single]]
"""Takes weights [k, columns]; returns (int8 matrix, scale of each column)."""


@dataclasses.dataclass(frozen=True)
class Form:
    """One order of the steps.

    Parameters
    ----------
    name : str
        As it is printed.
    late_norm : bool
        LayerNorm's scalars after the product with fp16(gamma*W); else x is normalised, rounded to fp16 and multiplied
        with fp16(W).
    softmax : Softmax
        Where the softmax divides.
    centred_weights : bool
        The mean of each column of gamma*W is subtracted before it is rounded (late_norm only): the normalised vector
        sums to zero, so the product stays the same and the column sums are nearly zero.
    centred_stream : bool
        What writes x (embeddings, projections and their biases) has its mean over the width subtracted, so that x has
        mean zero: every reader of x is a LayerNorm, to which that makes no difference.
    rounded_sums : bool
        Column sums are those of the rounded matrix; False is a fault, for checks that must notice it.
    guard_bits : int
        Of the tile products.
    quantiser : callable or None
        Makes int8 weights with scales of every matrix, gamma folded in; None: fp16 weights. late_norm only, with
        neither kind of centring.
    """

    name: str
    late_norm: bool = True
    softmax: Softmax = Softmax.LATE
    centred_weights: bool = False
    centred_stream: bool = False
    rounded_sums: bool = True
    guard_bits: int = GUARD_BITS
    quantiser: Quantiser | None = None


LATE = Form("late (the core)")
EARLY = Form("early", late_norm=False, softmax=Softmax.EARLY)
CENTRED_WEIGHTS = Form("late, centred weights", centred_weights=True)
CENTRED_STREAM = Form("late, centred stream", centred_stream=True)
CENTRED = Form("late, both centred", centred_weights=True, centred_stream=True)
INT8 = Form("late, int8 weights", quantiser=quantised)
UNROUNDED_SUMS = Form("late, sums of unrounded weights", rounded_sums=False)


@dataclasses.dataclass(frozen=True)
class NormProduct:
    """LayerNorm and the product behind it, in fp32: `gamma`, `beta` [width], `weight` [width, columns], `bias`."""

    gamma: Single
    beta: Single
    weight: Single
    bias: Single
    epsilon: float

    @classmethod
    def of(cls, parameters: Parameters, norm: str, projection: str, epsilon: float) -> NormProduct:
        """That of a LayerNorm and a projection by their names in `parameters`, for example ``h.0.ln_1``."""
        return cls(
            parameters[f"{norm}.weight"],
            parameters[f"{norm}.bias"],
            parameters[f"{projection}.weight"],
            parameters[f"{projection}.bias"],
            epsilon,
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """`blocks`: x behind each block, fp16 [positions, width]; `logits`: fp32 [positions, vocabulary]."""

    blocks: tuple[Half, ...]
    logits: Single


def norm_product(form: Form, x: Half, weights: NormProduct, path: Path = Path.PLAIN) -> npt.NDArray[np.uint32]:
    """What the drain unit delivers for LayerNorm(x) @ W + b, before rounding to fp16: fp32 bit patterns."""
    scalars = layer_norm_scalars(x, weights.epsilon)
    if not form.late_norm:
        unit = normalised(x, scalars, weights.gamma, weights.beta)
        sums = product(unit, weights.weight.astype(np.float16), weights.bias, form.guard_bits)
        return drained(sums, path, Params.BIAS)
    scaled, bias = folded(weights.weight, weights.gamma, weights.beta, weights.bias)
    if form.quantiser is not None:
        integers, scales = form.quantiser(scaled)
        return drained(
            int8_product(x, integers, scales, guard_bits=form.guard_bits),
            path,
            Params.NORM,
            bias=bias,
            column_sums=scaled_sums(integers, scales),
            scalars=scalars,
        )
    exact = scaled.astype(np.float64)
    if form.centred_weights:
        exact -= exact.mean(axis=0)
    matrix = exact.astype(np.float16)
    return drained(
        product(x, matrix, guard_bits=form.guard_bits),
        path,
        Params.NORM,
        bias=bias,
        column_sums=column_sums(matrix if form.rounded_sums else exact),
        scalars=scalars,
    )


def parameters_of(model: GPT2) -> dict[str, Single]:
    """fp32 parameters by name; "head.weight" is the head's own copy of the token embedding."""
    found = {name: parameter.detach().float().numpy() for name, parameter in model.named_parameters()}
    return {**found, "head.weight": found["wte.weight"]}


def with_centred_stream(parameters: Parameters) -> dict[str, Single]:
    """The same model with everything that is added to x centred over the width, computed in float64."""
    found = dict(parameters)
    for name, values in parameters.items():
        if name in ("wte.weight", "wpe.weight") or ".c_proj." in name:
            exact = values.astype(np.float64)
            found[name] = (exact - exact.mean(axis=-1, keepdims=True)).astype(np.float32)
    return found


def run(form: Form, parameters: Parameters, config: GPT2Config, ids: Sequence[int]) -> Run:
    """One pass over `ids` at positions 0, 1, ... in the core's arithmetic; heads of 64 at most."""
    if form.centred_stream:
        parameters = with_centred_stream(parameters)
    positions, heads, epsilon = len(ids), config.n_head, config.layer_norm_epsilon
    tables = [parameters[f"{name}.weight"].astype(np.float16).astype(np.float32) for name in ("wpe", "wte")]
    x = (tables[0][:positions] + tables[1][list(ids)]).astype(np.float16)
    attended = np.arange(1, positions + 1)
    blocks = []
    for layer in range(config.n_layer):
        block = f"h.{layer}"
        queries_keys_values = NormProduct.of(parameters, f"{block}.ln_1", f"{block}.attn.c_attn", epsilon)
        mixed = to_fp16(norm_product(form, x, queries_keys_values))
        parts = np.moveaxis(mixed.reshape(positions, 3, heads, -1), 0, 2)  # [3, heads, positions, 64]
        averages = attention(parts[0], parts[1], parts[2], attended, form.softmax, form.guard_bits)
        x = _added(form, x, np.moveaxis(averages, 0, 1).reshape(positions, -1), parameters, f"{block}.attn.c_proj")
        feed_in = NormProduct.of(parameters, f"{block}.ln_2", f"{block}.mlp.c_fc", epsilon)
        inner = to_fp16(norm_product(form, x, feed_in, Path.GELU))
        x = _added(form, x, inner, parameters, f"{block}.mlp.c_proj")
        blocks.append(x)
    head = NormProduct(
        parameters["ln_f.weight"],
        parameters["ln_f.bias"],
        parameters["head.weight"].T,
        np.zeros(config.vocab_size, np.float32),
        epsilon,
    )
    return Run(tuple(blocks), norm_product(form, x, head, Path.LOGITS).view(np.float32))


def _added(form: Form, x: Half, inner: Half, parameters: Parameters, projection: str) -> Half:
    """x + inner @ W + b, rounded once."""
    weight, bias = parameters[f"{projection}.weight"], parameters[f"{projection}.bias"]
    if form.quantiser is not None:
        integers, scales = form.quantiser(weight)
        sums = int8_product(inner, integers, scales, accumulator_starts(bias, scales), form.guard_bits)
    else:
        sums = product(inner, weight.astype(np.float16), bias, form.guard_bits)
    return to_fp16(drained(sums, Path.RESIDUAL, Params.BIAS, old=x))
