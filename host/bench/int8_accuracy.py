"""Accuracy of int8 weights beside fp16 weights: bits per byte and logit errors of a checkpoint, logit errors of real
sizes and of models with outlier channels.

``python -m host.bench.int8_accuracy`` computes whole models in the bits of a 64x16 core (`host.bench.core_forms`).
Logit errors are against PyTorch fp32 on the same weights, RMS / 99.9th percentile / largest, in units of the RMS of
fp32's logits. Whole real sizes take minutes, ``--only sizes --model gpt2-345m --layers 4 --positions 4`` about one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from host.bench.core_arithmetic import GUARD_BITS, TILE, Single
from host.bench.core_forms import INT8, LATE, Form, parameters_of, run
from host.bench.form_errors import PYTORCH_FP32, ErrorRow, Errors
from host.bench.late_forms import shape_345m, table
from host.bench.outlier_models import WEIGHT_SETS, outlier_model
from host.compiler.int8_weights import INT8_MAX, SMALLEST_SCALE, quantised
from host.runtime.accuracy import text_windows
from sw.errors import ModelError
from sw.models.gpt2 import GPT2, GPT2Config
from sw.models.named_sizes import NAMED_SIZES
from sw.models.seeded_weights import SeededCheckpoint
from sw.models.tokenizer import Tokenizer
from sw.train.evaluate import LanguageModel, progress_lines, read_text, score_text

__all__ = ["CLIPPED", "CoreModel", "Int8Accuracy", "TextRow", "clipped", "measure"]

PARTS = ("text", "sizes", "outliers")
CHECKPOINT = Path("checkpoints/gpt2-tiny")
SIZES = ("gpt2-124m", "gpt2-345m")
RATIOS = np.arange(0.60, 1.0, 0.02, np.float32)
OUTLIER_LAYERS, OUTLIER_POSITIONS = 4, 12
TEXT_POSITIONS = 2048  # whose logits are compared, from the start of the text, each context a text of its own
MOST_GUARD_BITS = 6
Progress = Callable[[str], object]


def clipped(weights: Single) -> tuple[np.ndarray, Single]:
    """`quantised` with each column's scale times the ratio, at most 1, that makes the column's squared error smallest;
    what lies beyond 127 steps becomes 127."""
    matrix, scales = quantised(weights)

    def squares(integers: np.ndarray, steps: Single) -> np.ndarray:
        found: np.ndarray = np.square(integers * steps - weights).sum(axis=0)
        return found

    error, best = squares(matrix, scales), scales.copy()
    for ratio in RATIOS:
        steps = np.maximum(scales * ratio, SMALLEST_SCALE)
        integers = np.clip(np.rint(weights / steps), -INT8_MAX, INT8_MAX).astype(np.int8)
        found = squares(integers, steps)
        better = found < error
        matrix[:, better], best[better], error[better] = integers[:, better], steps[better], found[better]
    return matrix, best


CLIPPED = Form("late, int8 weights clipped", quantiser=clipped)
MORE_GUARD = dataclasses.replace(
    INT8, name=f"late, int8 weights, {MOST_GUARD_BITS} guard bits", guard_bits=MOST_GUARD_BITS
)


@dataclasses.dataclass(frozen=True)
class TextRow:
    """Compression of a text by one form: `bits_per_byte`, and its excess over that of the core with fp16 weights."""

    form: str
    bits_per_byte: float
    above_fp16: float


@dataclasses.dataclass(frozen=True)
class Int8Accuracy:
    """All figures; a part that was not asked for is empty.

    Members: `text`: rows; `checkpoint`, `sizes`, `outliers`: logit errors; `conditions`; `seconds` of wall clock.
    """

    text: list[TextRow]
    checkpoint: list[ErrorRow]
    sizes: list[ErrorRow]
    outliers: list[ErrorRow]
    conditions: dict[str, object]
    seconds: float


class CoreModel:
    """A GPT-2 in the core's arithmetic, to be scored on texts: a `sw.train.evaluate.LanguageModel`."""

    def __init__(self, form: Form, model: GPT2) -> None:
        self.config: GPT2Config = model.config
        self._form, self._parameters = form, parameters_of(model)

    def __call__(self, ids: Tensor) -> Tensor:
        """fp32 logits [B, T, vocab_size] of ids [B, T]."""
        rows = [run(self._form, self._parameters, self.config, row).logits for row in ids.tolist()]
        return torch.from_numpy(np.stack(rows))


def text_rows(checkpoint: Path, text: str, progress: Progress) -> list[TextRow]:
    """Score `text` by PyTorch fp32, the core with fp16 weights, with int8 weights, and with clipped ones."""
    model, tokenizer = GPT2.from_directory(checkpoint), Tokenizer(checkpoint)
    found: dict[str, float] = {}
    models: list[tuple[str, LanguageModel]] = [(PYTORCH_FP32, model)]
    models += [(form.name, CoreModel(form, model)) for form in (LATE, INT8, CLIPPED)]
    for name, scored in models:
        progress(f"{checkpoint}: {name}")
        found[name] = score_text(scored, tokenizer, text, report=progress_lines()).bits_per_byte
    return [TextRow(name, bits, bits / found[LATE.name] - 1) for name, bits in found.items()]


def checkpoint_rows(checkpoint: Path, text: str, progress: Progress) -> list[ErrorRow]:
    """Logit errors at the first 2,048 tokens of `text`, context by context."""
    model, errors = GPT2.from_directory(checkpoint), Errors()
    tokens = Tokenizer(checkpoint).encode(text)
    for ids in text_windows(tokens, model.config.n_positions, min(TEXT_POSITIONS, len(tokens))):
        progress(f"{checkpoint}: logits of {len(ids)} tokens")
        _add_logits(errors, str(checkpoint), model, ids, (LATE, INT8, CLIPPED))
    return errors.rows()


def size_rows(
    names: Sequence[str], positions: int, seed: int, progress: Progress, layers: int | None = None
) -> list[ErrorRow]:
    """Logit errors of named sizes with seeded weights on `positions` random tokens; of the first `layers` layers."""
    errors = Errors()
    for name in names:
        config = NAMED_SIZES[name]
        case = name
        if layers is not None and layers < config.n_layer:
            config, case = dataclasses.replace(config, n_layer=layers), f"{name}, n_layer {layers}"
        progress(f"{case}: {positions} positions")
        model = GPT2.from_weights(SeededCheckpoint(config, seed, name))
        ids = np.random.default_rng(seed).integers(0, config.vocab_size, positions).tolist()
        _add_logits(errors, case, model, ids, (LATE, INT8, CLIPPED))
    return errors.rows()


def outlier_rows(config: GPT2Config, seeds: Sequence[int], progress: Progress) -> list[ErrorRow]:
    """Logit errors of the models of `host.bench.outlier_models` at all positions of `config`."""
    errors = Errors()
    for weights in WEIGHT_SETS:
        for seed in seeds:
            progress(f"{weights.name}, seed {seed}: {config.n_layer} layers, {config.n_positions} positions")
            made = outlier_model(weights, config, config.n_positions, seed)
            _add_logits(errors, weights.name, made.model, made.ids, (LATE, INT8, CLIPPED, MORE_GUARD))
    return errors.rows()


def _add_logits(errors: Errors, case: str, model: GPT2, ids: Sequence[int], forms: Sequence[Form]) -> None:
    with torch.inference_mode():
        wanted = model(torch.tensor([list(ids)]))[0].double().numpy()
    parameters = parameters_of(model)
    for form in forms:
        errors.add(case, "logits", form.name, run(form, parameters, model.config, ids).logits, wanted)


def measure(
    parts: Sequence[str] = PARTS,
    *,
    checkpoint: Path = CHECKPOINT,
    text: Path | None = None,
    names: Sequence[str] = SIZES,
    positions: int = 8,
    seed: int = 1,
    layers: int | None = None,
    progress: Progress = lambda line: None,
) -> Int8Accuracy:
    """Measure the parts that are asked for; `text` is the checkpoint's own ``heldout.txt`` if None.

    Real sizes have their first `layers` layers, all if None.

    Raises ModelError for a checkpoint or text that cannot be read.
    """
    start = time.monotonic()
    path = checkpoint / "heldout.txt" if text is None else text
    conditions: dict[str, object] = {
        "arithmetic": "bits of a 64x16 core: kernels of sim.functional, golden models of hw.numerics",
        "tile": TILE,
        "guard_bits": GUARD_BITS,
        "scale": "max|gamma*W| / 127 of each output channel",
        "reference": f"PyTorch {torch.__version__}, CPU, fp32",
        "seed": seed,
        "cores": len(os.sched_getaffinity(0)),
    }
    scores: list[TextRow] = []
    logits: list[ErrorRow] = []
    if "text" in parts:
        conditions |= {"checkpoint": str(checkpoint), "text": str(path), "stride": "half a context"}
        read = read_text(path)
        scores, logits = text_rows(checkpoint, read, progress), checkpoint_rows(checkpoint, read, progress)
    sizes: list[ErrorRow] = []
    if "sizes" in parts:
        conditions |= {"positions": positions}
        sizes = size_rows(names, positions, seed, progress, layers)
    outliers: list[ErrorRow] = []
    if "outliers" in parts:
        shape = shape_345m(OUTLIER_LAYERS, OUTLIER_POSITIONS)
        conditions |= {"outlier models": f"{shape.n_layer} layers of gpt2-345m's shape, {shape.n_positions} positions"}
        outliers = outlier_rows(shape, (seed,), progress)
    return Int8Accuracy(scores, logits, sizes, outliers, conditions, round(time.monotonic() - start, 1))


def _text(found: Int8Accuracy) -> list[str]:
    lines = [f"{key}: {value}" for key, value in found.conditions.items()]
    if found.text:
        lines += ["", "bits per byte, and how much above the core with fp16 weights"]
        lines += [f"{row.form:28}  {row.bits_per_byte:.5f}  {row.above_fp16:+.4%}" for row in found.text]
    parts = {"checkpoint": found.checkpoint, "real sizes": found.sizes, "outlier channels": found.outliers}
    for title, rows in parts.items():
        if rows:
            lines += ["", f"{title}: logits, RMS / 99.9th percentile / largest", *table(rows, "largest")]
    return [*lines, f"{found.seconds} s"]


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError(f"{value} is not in 1..1024")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code (0, or 2 for input that cannot be used)."""
    summary = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m host.bench.int8_accuracy", description=summary)
    parser.add_argument("--only", choices=PARTS, help="one part (default: all)")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help=f"HuggingFace directory ({CHECKPOINT})")
    parser.add_argument("--text", type=Path, help="UTF-8 text (default: heldout.txt of the checkpoint)")
    parser.add_argument("--model", choices=tuple(NAMED_SIZES), help=f"one real size (default: {', '.join(SIZES)})")
    parser.add_argument("--layers", type=_count, help="of real sizes only so many layers (default: all)")
    parser.add_argument("--positions", type=_count, default=8, help="tokens of a real size (default: 8)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and tokens (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        found = measure(
            (options.only,) if options.only else PARTS,
            checkpoint=options.checkpoint,
            text=options.text,
            names=(options.model,) if options.model else SIZES,
            positions=options.positions,
            layers=options.layers,
            seed=options.seed,
            progress=lambda line: sys.stderr.write(line + "\n"),
        )
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(dataclasses.asdict(found)) if options.json else "\n".join(_text(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
