"""Errors of the forms of LayerNorm and softmax on whole seeded models, against PyTorch in float64.

The products and the attention are measured alone: on the reference's own x (or q, k, v) rounded to fp16, so that each
form answers only for itself. Blocks and logits are those of whole runs, every form on its own x.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from host.bench.core_arithmetic import to_fp16
from host.bench.core_attention import Softmax, attention
from host.bench.core_forms import (
    CENTRED,
    CENTRED_STREAM,
    CENTRED_WEIGHTS,
    EARLY,
    LATE,
    UNROUNDED_SUMS,
    NormProduct,
    norm_product,
    parameters_of,
    run,
)
from host.bench.outlier_models import OutlierModel, WeightSet, outlier_model
from sw.models.gpt2 import GPT2, GPT2Config

__all__ = [
    "PYTORCH_FP16",
    "PYTORCH_FP32",
    "SOFTMAX_NAMES",
    "ErrorRow",
    "Errors",
    "model_errors",
    "reference_attention",
]

PYTORCH_FP16, PYTORCH_FP32 = "PyTorch fp16", "PyTorch fp32"
SOFTMAX_NAMES = {
    Softmax.LATE: LATE.name,
    Softmax.EARLY: EARLY.name,
    Softmax.EARLY_ONE_ROUNDING: "early, one rounding",
}
PRODUCT_FORMS = (LATE, EARLY, CENTRED_WEIGHTS, UNROUNDED_SUMS)
WHOLE_FORMS = (LATE, EARLY, CENTRED_STREAM, CENTRED)
Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class ErrorRow:
    """One figure.

    Members: `case`: weight set or point of a sweep; `quantity`; `form`; `rms`, `p999`: RMS and 99.9th percentile of the
    error's magnitude; `median`: median over rows (positions; with attention, heads too) of the row's RMS error, which a
    few positions with peaked scores cannot decide; `largest` of all; all in units of the RMS of the reference quantity;
    `samples`: elements, over all seeds and layers.
    """

    case: str
    quantity: str
    form: str
    rms: float
    p999: float
    median: float
    largest: float
    samples: int


class Errors:
    """Collects errors under (case, quantity, form) and makes rows of them."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str, str], list[Array]] = collections.defaultdict(list)

    def add(self, case: str, quantity: str, form: str, found: npt.ArrayLike, reference: Array) -> None:
        """Take found - reference, in units of the reference's RMS, into account."""
        error = np.asarray(found, np.float64) - reference
        size = np.abs(error).reshape(-1, reference.shape[-1]) / np.sqrt(np.mean(reference**2))
        self._parts[case, quantity, form].append(size)

    def rows(self) -> list[ErrorRow]:
        """One row for each key, in the order of their first errors."""
        found = []
        for key, parts in self._parts.items():
            sizes = np.concatenate(parts)
            squares = np.mean(sizes**2, axis=1)
            p999, rms, median = np.percentile(sizes, 99.9), np.sqrt(squares.mean()), np.sqrt(np.median(squares))
            found.append(ErrorRow(*key, float(rms), float(p999), float(median), float(sizes.max()), sizes.size))
        return found


@dataclasses.dataclass
class _Pass:
    """One PyTorch pass: inputs of each block's LayerNorms, its q, k, v, its output, and the logits, as float64."""

    norm_inputs: list[tuple[Array, Array]]
    mixed: list[Array]
    blocks: list[Array]
    logits: Array


def model_errors(
    config: GPT2Config,
    weight_sets: Sequence[WeightSet],
    positions: int,
    seeds: Sequence[int],
    progress: Callable[[str], object] = lambda line: None,
) -> list[ErrorRow]:
    """Measure every weight set with every seed; errors of all seeds and layers are pooled.

    Parameters
    ----------
    config : GPT2Config
        Heads of 64, width and inner width multiples of 64, at least `positions` positions.
    positions : int
        Tokens of one pass.
    progress : callable
        Takes a line for each model.
    """
    errors = Errors()
    for weights in weight_sets:
        for seed in seeds:
            progress(f"{weights.name}, seed {seed}: {config.n_layer} layers, {positions} positions")
            made = outlier_model(weights, config, positions, seed)
            exact = copy.deepcopy(made.model).double()
            reference = _passed(exact, made.ids)
            for layer in range(config.n_layer):
                _measure_layer(errors, weights.name, made.model, exact, layer, reference)
            del exact
            _measure_whole(errors, weights.name, made, reference)
    return errors.rows()


def _passed(model: GPT2, ids: Sequence[int]) -> _Pass:
    seen: dict[str, Tensor] = {}

    def watch(module: nn.Module, name: str, *, before: bool = False) -> RemovableHandle:
        def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = (inputs[0] if before else output)[0]

        return module.register_forward_hook(keep)

    handles = [watch(model.ln_f, "final")]
    for layer, block in enumerate(model.h):
        handles += [watch(block.get_submodule(norm), f"{layer}.{norm}", before=True) for norm in ("ln_1", "ln_2")]
        handles += [watch(block.get_submodule("attn.c_attn"), f"{layer}.mixed"), watch(block, f"{layer}.out")]
    with torch.inference_mode():
        model(torch.tensor([list(ids)]))
        # the model's own logits are rounded to fp32, also in float64
        seen["logits"] = F.linear(seen["final"], model.wte.weight)
    for handle in handles:
        handle.remove()
    found = {name: value.double().numpy() for name, value in seen.items()}
    layers = range(len(model.h))
    return _Pass(
        [(found[f"{layer}.ln_1"], found[f"{layer}.ln_2"]) for layer in layers],
        [found[f"{layer}.mixed"] for layer in layers],
        [found[f"{layer}.out"] for layer in layers],
        found["logits"],
    )


def _measure_layer(errors: Errors, case: str, model: GPT2, exact: GPT2, layer: int, reference: _Pass) -> None:
    """The two products behind LayerNorms, and the attention, each on its own."""
    parameters, block, exact_block = parameters_of(model), model.h[layer], exact.h[layer]
    names = (("QKV product", "ln_1", "attn.c_attn"), ("FFN1 product", "ln_2", "mlp.c_fc"))
    for (quantity, norm, projection), x in zip(names, reference.norm_inputs[layer], strict=True):
        half = x.astype(np.float16)
        prefix = f"h.{layer}."
        epsilon = model.config.layer_norm_epsilon
        weights = NormProduct.of(parameters, prefix + norm, prefix + projection, epsilon)
        with torch.inference_mode():
            tensor = torch.from_numpy(half)[None]
            wanted = _torch_product(exact_block, norm, projection, tensor.double())
            errors.add(case, quantity, PYTORCH_FP16, _torch_half_product(block, norm, projection, tensor), wanted)
        for form in PRODUCT_FORMS:
            errors.add(case, quantity, form.name, to_fp16(norm_product(form, half, weights)), wanted)
    mixed = reference.mixed[layer].astype(np.float16)
    parts = np.moveaxis(mixed.reshape(len(mixed), 3, model.config.n_head, -1), 0, 2)
    attended = np.arange(1, len(mixed) + 1)
    wanted = reference_attention(parts[0], parts[1], parts[2], attended)
    query, key, value = (torch.from_numpy(np.ascontiguousarray(part))[None] for part in parts)
    with torch.inference_mode():
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)[0]
    errors.add(case, "attention output", PYTORCH_FP16, found.double().numpy(), wanted)
    for softmax, name in SOFTMAX_NAMES.items():
        found_here = attention(parts[0], parts[1], parts[2], attended, softmax)
        errors.add(case, "attention output", name, found_here, wanted)


def _torch_product(block: nn.Module, norm: str, projection: str, x: Tensor) -> Array:
    found: Array = block.get_submodule(projection)(block.get_submodule(norm)(x))[0].double().numpy()
    return found


def _torch_half_product(block: nn.Module, norm: str, projection: str, x: Tensor) -> Array:
    parts = nn.ModuleDict({"norm": block.get_submodule(norm), "product": block.get_submodule(projection)})
    half = copy.deepcopy(parts).half()
    return _torch_product(half, "norm", "product", x)


def reference_attention(
    queries: npt.NDArray[np.float16],
    keys: npt.NDArray[np.float16],
    values: npt.NDArray[np.float16],
    attended: npt.NDArray[np.int64],
) -> Array:
    """float64 attention of fp16 operands; arguments as `host.bench.core_attention.attention`."""
    q, k, v = (torch.from_numpy(np.ascontiguousarray(part)).double() for part in (queries, keys, values))
    mask = torch.arange(k.shape[1])[None] < torch.from_numpy(attended)[:, None]
    scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    found: Array = (scores.softmax(dim=-1) @ v).numpy()
    return found


def _measure_whole(errors: Errors, case: str, made: OutlierModel, reference: _Pass) -> None:
    """x behind the last block without its mean, over the ordinary channels (outliers' own rounding would hide the rest;
    every reader of x subtracts the mean), and the logits."""

    def ordinary(x: npt.ArrayLike) -> Array:
        exact = np.asarray(x, np.float64)
        return np.delete(exact - exact.mean(axis=1, keepdims=True), made.outlier_channels, axis=1)

    def add(name: str, block: npt.ArrayLike, logits: npt.ArrayLike) -> None:
        errors.add(case, "last block's x", name, ordinary(block), ordinary(reference.blocks[-1]))
        errors.add(case, "logits", name, logits, reference.logits)

    for name, dtype in ((PYTORCH_FP32, torch.float32), (PYTORCH_FP16, torch.float16)):
        found = _passed(copy.deepcopy(made.model).to(dtype), made.ids)
        add(name, found.blocks[-1], found.logits)
    parameters = parameters_of(made.model)
    for form in WHOLE_FORMS:
        ours = run(form, parameters, made.model.config, made.ids)
        add(form.name, ours.blocks[-1], ours.logits)
