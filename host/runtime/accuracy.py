"""Accuracy of a core's numbers: teacher-forced logit error against fp32, beside PyTorch fp16's own (DESIGN section 5).

``python -m host.runtime.accuracy --model DIR --text FILE --out results/accuracy_NAME.json`` measures a checkpoint and
stores the figure from which near ties are told.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from host.compiler import chosen_core
from host.runtime.appliance import Appliance
from host.runtime.board_executor import open_executor
from host.runtime.comparison import ACCURACY_FORMAT, TIE_ERRORS, rms
from host.runtime.program_folders import compile_programs
from host.runtime.torch_executor import reference_logits
from sw.models.gpt2 import GPT2
from sw.models.tokenizer import Tokenizer

__all__ = [
    "arg_max_differences",
    "bits_per_byte",
    "logit_errors",
    "measure",
    "teacher_forced_logits",
    "text_windows",
]

WAIT_S = 60.0
Logits = npt.NDArray[np.float32]


def text_windows(ids: Sequence[int], window: int, positions: int) -> list[list[int]]:
    """The first `positions` ids, cut into windows of `window` (the last may be shorter), each a text of its own."""
    return [list(ids[start : min(start + window, positions)]) for start in range(0, positions, window)]


def teacher_forced_logits(
    boards: Appliance, windows: Sequence[Sequence[int]], progress: Callable[[int], object] = lambda done: None
) -> Logits:
    """fp32 logits [positions, vocab] of every position of every window, one start a position."""
    rows = []
    for window in windows:
        for position in range(len(window)):
            boards.start(window[: position + 1], 1, write_logits=True, position=position)
            boards.wait(WAIT_S)
            rows.append(boards.read_logits(position))
            progress(len(rows))
    return np.stack(rows)


def logit_errors(logits: Logits, reference: Logits) -> dict[str, float]:
    """RMS, 99.9th percentile and largest magnitude of logits - reference."""
    error = logits - reference
    size = np.abs(error)
    return {
        "rms_error": rms(error),
        "p999_error": float(np.percentile(size, 99.9)),
        "max_error": float(size.max()),
    }


def bits_per_byte(logits: Logits, windows: Sequence[Sequence[int]], text_bytes: int) -> float:
    """Bits that the tokens of `windows` take for each of `text_bytes`, the bytes that they stand for.

    `logits` [positions, vocab] are those of every position of every window. A window's first token is not predicted:
    its bits are not in the sum, its bytes not in `text_bytes`.
    """
    nats, row = 0.0, 0
    for window in windows:
        scores = logits[row : row + len(window) - 1].astype(np.float64)
        chosen = scores[np.arange(len(scores)), list(window[1:])]
        highest = scores.max(axis=1)
        nats += float((highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1)) - chosen).sum())
        row += len(window)
    return nats / math.log(2) / text_bytes


def arg_max_differences(logits: Logits, reference: Logits) -> list[dict[str, float]]:
    """Every position whose arg-max differs, with both ids and the gap between them in the reference."""
    ours, theirs = logits.argmax(axis=1), reference.argmax(axis=1)
    return [
        {
            "position": int(row),
            "ours": int(ours[row]),
            "reference": int(theirs[row]),
            "gap": float(reference[row, theirs[row]]) - float(reference[row, ours[row]]),
        }
        for row in np.flatnonzero(ours != theirs)
    ]


def measure(model_dir: Path, text: Path, core_name: str, positions: int, boards: int = 1) -> dict[str, object]:
    """The accuracy record of a checkpoint on `boards` boards of `core_name`, executor ``functional``, over the text's
    first positions."""
    start = time.monotonic()
    core, model = chosen_core(core_name), GPT2.from_directory(model_dir)
    data = text.read_bytes()
    tokenizer = Tokenizer(model_dir)
    ids = tokenizer.encode(data.decode("utf-8"))[:positions]
    windows = text_windows(ids, min(model.config.n_positions, core.context), len(ids))
    reference = np.concatenate([reference_logits(model, window) for window in windows])
    with tempfile.TemporaryDirectory(prefix="ringfly-") as folder:
        programs = compile_programs(model_dir, core, Path(folder) / "program", boards)
        with open_executor("functional", programs) as executor:
            ours = teacher_forced_logits(executor.appliance, windows, _say)
    half = model.to(torch.float16)
    fp16 = np.concatenate([reference_logits(half, window) for window in windows])
    predicted = sum(len(tokenizer.token_bytes(token)) for window in windows for token in window[1:])
    scored = {"core": ours, "pytorch_fp16_sdpa": fp16, "pytorch_fp32": reference}
    errors = logit_errors(ours, reference)
    differences = arg_max_differences(ours, reference)
    return {
        "format": ACCURACY_FORMAT,
        "model": model_dir.name,
        "model_digest": programs[0][0].model_digest,
        "core_name": core.name,
        "core_digest": core.digest,
        "boards": boards,
        "executor": "functional",
        "positions": len(ids),
        "windows": len(windows),
        "text": text.name,
        "text_sha256": hashlib.sha256(data).hexdigest(),
        "reference": "PyTorch fp32 (sw.models.gpt2), one pass a window",
        "core": errors,
        "pytorch_fp16_sdpa": logit_errors(fp16, reference),
        "bits_per_byte": {name: bits_per_byte(logits, windows, predicted) for name, logits in scored.items()},
        "predicted_bytes": predicted,
        "arg_max_differences": differences,
        "near_tie_threshold": TIE_ERRORS * errors["rms_error"],
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - start, 1),
        "command": "python -m host.runtime.accuracy " + " ".join(sys.argv[1:]),
    }


def _say(done: int) -> None:
    if done % 256 == 0:
        sys.stderr.write(f"{done} positions\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--text", type=Path, required=True, help="held-out text, UTF-8")
    parser.add_argument("--core", default="16x4", help="core (default 16x4)")
    parser.add_argument("--boards", type=int, default=1, help="boards that share the model (default 1)")
    parser.add_argument("--positions", type=int, default=2048, help="tokens of the text (default 2048)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    record = measure(options.model, options.text, options.core, options.positions, options.boards)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    shown = ("core", "pytorch_fp16_sdpa", "bits_per_byte", "seconds")
    sys.stdout.write(json.dumps({key: record[key] for key in shown}) + "\n")


if __name__ == "__main__":
    main()
