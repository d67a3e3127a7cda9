"""Where late LayerNorm and late softmax division would break: sweeps far beyond what models do.

LayerNorm: |mean| of x in its standard deviations, also with weights whose columns have a mean, and one outlier channel.
Softmax: spread of the scores, context, mean of the values, and one peak over a tail that alone has values. All against
float64 on the very fp16 operands; for LayerNorm also what rounding x to fp16 alone costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from host.bench.core_arithmetic import TILE, to_fp16
from host.bench.core_attention import attention
from host.bench.core_forms import CENTRED_WEIGHTS, EARLY, LATE, UNROUNDED_SUMS, NormProduct, norm_product
from host.bench.form_errors import PYTORCH_FP16, SOFTMAX_NAMES, ErrorRow, Errors, reference_attention

__all__ = ["STORAGE", "UNEVEN", "breaking_points", "norm_sweep", "softmax_sweep"]

MEANS = (0, 1, 4, 16, 64, 256, 1024, 2048)
# Above 2^11 deviations fp16 cannot hold an x whose channels all differ: here x is 1024, and 1023 or 1025 in some.
SPARSE_BASE = 1024.0
SPARSE_MEANS = (2048, 4096, 8192, 16384)
# Columns of gamma*W with a mean as large as their deviation: column sums sqrt(width) times those of random columns.
UNEVEN = ", uneven columns"
UNEVEN_MEANS = (0, 16, 64, 256, 1024)
OUTLIERS = (16, 256, 4096, 32768)
CONTEXTS = (16, 64, 256, 1000)
SPREADS = (0.25, 1.0, 4.0, 16.0)
VALUE_MEANS = (0.0, 4.0)
TAILS = (4, 8, 12, 15, 18)
STORAGE = "x in fp16, then exact"
FORMS = (LATE, EARLY, CENTRED_WEIGHTS, UNROUNDED_SUMS)
Floats = npt.NDArray[np.float64]
ROWS, QUERIES, EPSILON, WEIGHT_DEVIATION = 16, 4, 1e-5, 0.02
WORSE = 1.1
"""Above so many times another form's RMS error a form counts as worse: seeds differ by less than 3 %."""


def norm_sweep(
    width: int,
    columns: int,
    seeds: Sequence[int],
    means: Sequence[float] = MEANS,
    sparse_means: Sequence[float] = SPARSE_MEANS,
    uneven_means: Sequence[float] = UNEVEN_MEANS,
    outliers: Sequence[float] = OUTLIERS,
) -> list[ErrorRow]:
    """Errors of LayerNorm and a product [width, columns]; quantity ``product``.

    x has deviation 1 around each of `means` (cases ``mean 16``, ...), is constant but for as many channels as give each
    of `sparse_means` (``mean 4096, sparse``), has deviation 1 around each of `uneven_means` before columns with a mean
    (``mean 64, uneven columns``), or has mean zero and one channel at each of `outliers` (``outlier 256``).
    """
    errors = Errors()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        ordinary = rng.standard_normal((ROWS, width))
        weights = NormProduct(
            np.exp(0.3 * rng.standard_normal(width)).astype(np.float32),
            np.zeros(width, np.float32),
            (WEIGHT_DEVIATION * rng.standard_normal((width, columns))).astype(np.float32),
            np.zeros(columns, np.float32),
            EPSILON,
        )
        for mean in means:
            _measure_norm(errors, f"mean {mean:g}", ordinary + mean, weights)
        for mean in sparse_means:
            _measure_norm(errors, f"mean {mean:g}, sparse", _sparse(width, mean, rng), weights)
        uneven = dataclasses.replace(weights, weight=weights.weight + np.float32(WEIGHT_DEVIATION))
        for mean in uneven_means:
            _measure_norm(errors, f"mean {mean:g}{UNEVEN}", ordinary + mean, uneven)
        for outlier in outliers:
            x = ordinary.copy()
            x[:, width // 3] = outlier
            _measure_norm(errors, f"outlier {outlier:g}", x, weights)
    return errors.rows()


def _sparse(width: int, mean: float, rng: np.random.Generator) -> Floats:
    """x around 1024 with so few channels one unit away that its mean is `mean` standard deviations."""
    channels = max(1, round(width * (SPARSE_BASE / mean) ** 2))
    x = np.full((ROWS, width), SPARSE_BASE)
    for row in x:
        row[rng.permutation(width)[:channels]] += rng.choice((-1.0, 1.0), channels)
    return x


def _measure_norm(errors: Errors, case: str, x: Floats, weights: NormProduct) -> None:
    half = x.astype(np.float16)
    wanted = _norm_product(torch.from_numpy(half).double(), weights)
    unrounded = _norm_product(torch.from_numpy(x), weights)
    errors.add(case, "product", STORAGE, wanted, unrounded)
    errors.add(case, "product", PYTORCH_FP16, _norm_product(torch.from_numpy(half), weights), wanted)
    for form in FORMS:
        errors.add(case, "product", form.name, to_fp16(norm_product(form, half, weights)), wanted)


def _norm_product(x: torch.Tensor, weights: NormProduct) -> Floats:
    """PyTorch's LayerNorm and product in the type of `x`."""
    gamma, beta, weight, bias = (
        torch.from_numpy(part).to(x.dtype) for part in (weights.gamma, weights.beta, weights.weight, weights.bias)
    )
    with torch.inference_mode():
        unit = F.layer_norm(x, (x.shape[1],), gamma, beta, weights.epsilon)
        found: Floats = torch.addmm(bias, unit, weight).double().numpy()
    return found


def breaking_points(rows: Sequence[ErrorRow]) -> dict[str, str | None]:
    """For each form that late LayerNorm is compared with, on even and on uneven columns (keys ``early``, ``early,
    uneven columns``, ...): the first mean at which late is clearly worse, or None."""
    rms = {(row.case, row.form): row.rms for row in rows}
    cases = list(dict.fromkeys(row.case for row in rows if row.case.startswith("mean ")))
    found: dict[str, str | None] = {}
    for kind in ("", UNEVEN):
        for other in (EARLY.name, CENTRED_WEIGHTS.name, PYTORCH_FP16):
            found[other + kind] = next(
                (
                    case
                    for case in cases
                    if case.endswith(UNEVEN) == bool(kind) and rms[case, LATE.name] > WORSE * rms[case, other]
                ),
                None,
            )
    return found


def softmax_sweep(
    heads: int,
    seeds: Sequence[int],
    contexts: Sequence[int] = CONTEXTS,
    spreads: Sequence[float] = SPREADS,
    tails: Sequence[float] = TAILS,
    progress: Callable[[str], object] = lambda line: None,
) -> list[ErrorRow]:
    """Errors of attention over each of `contexts` positions.

    Scores have a standard deviation of each of `spreads`, values a deviation of 1 around 0 and around 4 (cases
    ``context 16, spread 4, values around 0``, ...); or the first position's score is above all others by each of
    `tails` and its values are zero, so that the result is made of the small probabilities alone (``context 16, tail
    8``).
    """
    errors = Errors()
    for context in contexts:
        progress(f"softmax: context {context}")
        for seed in seeds:
            rng = np.random.default_rng(seed)
            queries = rng.standard_normal((heads, QUERIES, TILE))
            keys, values = rng.standard_normal((2, heads, context, TILE))
            for spread in spreads:
                for mean in VALUE_MEANS:
                    case = f"context {context}, spread {spread:g}, values around {mean:g}"
                    _measure_softmax(errors, case, spread * queries, keys, values + mean)
            for tail in tails:
                _measure_softmax(
                    errors, f"context {context}, tail {tail:g}", *_peak_over_tail(queries, keys, values, tail)
                )
    return errors.rows()


def _peak_over_tail(queries: Floats, keys: Floats, values: Floats, tail: float) -> tuple[Floats, Floats, Floats]:
    """Scores 0 at the first position, about -`tail` (deviation 0.5) elsewhere; values 0 there, about 4 elsewhere."""
    low_queries, low_keys, high_values = 0.5 * queries, keys.copy(), values + 4.0
    low_queries[:, :, 0] = TILE**0.5
    low_keys[:, :, 0] = -tail
    low_keys[:, 0] = 0.0
    high_values[:, 0] = 0.0
    return low_queries, low_keys, high_values


def _measure_softmax(errors: Errors, case: str, *operands: Floats) -> None:
    queries, keys, values = (part.astype(np.float16) for part in operands)
    attended = np.full(queries.shape[1], keys.shape[1])
    wanted = reference_attention(queries, keys, values, attended)
    query, key, value = (torch.from_numpy(part)[None] for part in (queries, keys, values))
    with torch.inference_mode():
        found = F.scaled_dot_product_attention(query, key, value)[0].double().numpy()
    errors.add(case, "attention output", PYTORCH_FP16, found, wanted)
    for softmax, name in SOFTMAX_NAMES.items():
        ours = attention(queries, keys, values, attended, softmax)
        errors.add(case, "attention output", name, ours, wanted)
