"""Accuracy of late LayerNorm and late softmax division, against float64 and beside early forms and PyTorch fp16.

``python -m host.bench.late_forms`` measures seeded weights of gpt2-345m's layer shape (width 1024, 16 heads of 64,
inner 4096) and a vocabulary of 4,096; what the figures mean for the core is in
docs/decisions/0005-late-layernorm-and-softmax.md. Errors are RMS / 99.9th percentile / RMS of the median position, in
units of the reference's RMS.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence

import torch

from host.bench.core_arithmetic import GUARD_BITS, TILE
from host.bench.form_errors import PYTORCH_FP16, PYTORCH_FP32, ErrorRow, model_errors
from host.bench.form_sweeps import STORAGE, breaking_points, norm_sweep, softmax_sweep
from host.bench.outlier_models import WEIGHT_SETS
from host.bench.processor import processor_flags, processor_name
from sw.models.gpt2 import GPT2Config

__all__ = ["LateForms", "measure", "shape_345m"]

VOCABULARY = 4096
SWEEP_COLUMNS = 1024
PARTS = ("models", "norm", "softmax")
THREADS = 2


@dataclasses.dataclass(frozen=True)
class LateForms:
    """All figures; a part that was not asked for is empty.

    Members: `models`, `norm_sweep`, `softmax_sweep`: rows; `late_norm_breaks_at`: see `breaking_points`; `sources`:
    where the figures of a form come from; `conditions`; `seconds` of wall clock.
    """

    models: list[ErrorRow]
    norm_sweep: list[ErrorRow]
    softmax_sweep: list[ErrorRow]
    late_norm_breaks_at: dict[str, str | None]
    sources: dict[str, str]
    conditions: dict[str, object]
    seconds: float


def shape_345m(layers: int, positions: int) -> GPT2Config:
    """gpt2-345m's layer shape with `layers` layers, `positions` positions and a vocabulary of 4,096."""
    return GPT2Config(n_layer=layers, n_head=16, n_embd=1024, n_positions=positions, vocab_size=VOCABULARY)


def measure(
    config: GPT2Config,
    seeds: Sequence[int],
    parts: Sequence[str] = PARTS,
    progress: Callable[[str], object] = lambda line: None,
) -> LateForms:
    """Measure models of `config` at all its positions, and the sweeps at its width."""
    start = time.monotonic()
    models: list[ErrorRow] = []
    norms: list[ErrorRow] = []
    softmaxes: list[ErrorRow] = []
    if "models" in parts:
        models = model_errors(config, WEIGHT_SETS, config.n_positions, seeds, progress)
    if "norm" in parts:
        progress("sweep of LayerNorm")
        norms = norm_sweep(config.n_embd, min(SWEEP_COLUMNS, config.n_inner), seeds)
    if "softmax" in parts:
        softmaxes = softmax_sweep(config.n_head, seeds, progress=progress)
    return LateForms(
        models,
        norms,
        softmaxes,
        breaking_points(norms) if norms else {},
        _sources([*models, *norms, *softmaxes]),
        _conditions(config, seeds),
        round(time.monotonic() - start, 1),
    )


def _sources(rows: Sequence[ErrorRow]) -> dict[str, str]:
    torch_forms = {
        PYTORCH_FP16: f"PyTorch {torch.__version__}, CPU, all weights and operands fp16, SDPA",
        PYTORCH_FP32: f"PyTorch {torch.__version__}, CPU, fp32",
        STORAGE: f"PyTorch {torch.__version__}, CPU, float64 on x rounded to fp16",
    }
    core = "kernels of sim.functional and golden models of hw.numerics"
    return {row.form: torch_forms.get(row.form, core) for row in rows}


def _conditions(config: GPT2Config, seeds: Sequence[int]) -> dict[str, object]:
    return {
        "layers": config.n_layer,
        "width": config.n_embd,
        "heads": config.n_head,
        "inner": config.n_inner,
        "vocabulary": config.vocab_size,
        "positions": config.n_positions,
        "seeds": list(seeds),
        "tile": TILE,
        "guard_bits": GUARD_BITS,
        "reference": "float64, weights and embeddings not rounded",
        "unit": "RMS of the reference quantity",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
    }


def _cpu() -> str:
    """The processor's features decide how PyTorch computes fp16: its name, and whether it has fp16 arithmetic."""
    native = "with" if "avx512_fp16" in processor_flags() else "without"
    return f"{processor_name()}, {native} avx512_fp16"


def table(rows: Sequence[ErrorRow], third: str = "median") -> list[str]:
    """Lines of text: a case and a quantity a line, a form a column; RMS / 99.9th percentile / the member `third`."""
    forms = list(dict.fromkeys(row.form for row in rows))
    cells = {
        (row.case, row.quantity, row.form): " / ".join(
            f"{size:.2e}" for size in (row.rms, row.p999, getattr(row, third))
        )
        for row in rows
    }
    keys = list(dict.fromkeys((row.case, row.quantity) for row in rows))
    body = [[case, quantity, *(cells.get((case, quantity, form), "") for form in forms)] for case, quantity in keys]
    lines = [["case", "quantity", *forms], *body]
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return ["  ".join(text.ljust(size) for text, size in zip(line, widths, strict=True)).rstrip() for line in lines]


def _text(found: LateForms) -> list[str]:
    lines = [f"{key}: {value}" for key, value in found.conditions.items()]
    lines += [f"source of {form!r}: {source}" for form, source in found.sources.items()]
    parts = {
        "models: products and attention alone, on exact inputs rounded to fp16; x and logits of whole runs": "models",
        "LayerNorm: mean of x in its deviations, or one outlier channel in those of the others": "norm_sweep",
        "softmax: deviation of the scores, or distance of one peak": "softmax_sweep",
    }
    for title, name in parts.items():
        rows = getattr(found, name)
        if rows:
            lines += ["", title, *table(rows)]
    for other, case in found.late_norm_breaks_at.items():
        lines.append(f"late LayerNorm clearly worse than {other!r}: {'from ' + case if case else 'nowhere'}")
    return [*lines, f"{found.seconds} s"]


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError(f"{value} is not in 1..1024")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host.bench.late_forms", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=_count, default=4, help="layers of the models (default: 4)")
    parser.add_argument("--positions", type=_count, default=12, help="tokens of a pass (default: 12)")
    parser.add_argument("--seed", type=int, default=1, help="first seed (default: 1)")
    parser.add_argument("--seeds", type=_count, default=3, help="how many seeds (default: 3)")
    parser.add_argument("--only", choices=PARTS, help="one part: whole models or one of the sweeps (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    torch.set_num_threads(min(THREADS, torch.get_num_threads()))
    found = measure(
        shape_345m(options.layers, options.positions),
        range(options.seed, options.seed + options.seeds),
        (options.only,) if options.only else PARTS,
        lambda line: sys.stderr.write(line + "\n"),
    )
    print(json.dumps(dataclasses.asdict(found)) if options.json else "\n".join(_text(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
