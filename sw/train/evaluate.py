"""Bits per byte of a GPT-2 on a text, beside what xz makes of the same bytes.

`python -m sw.train.evaluate --model DIR --text FILE [--json]`
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sw.errors import ModelError
from sw.models.gpt2 import GPT2, GPT2Config
from sw.models.tokenizer import Tokenizer

XZ_PRESET = 9
BATCH = 16
REPORT_SECONDS = 2.0
Report = Callable[[float], None]  # takes the fraction done, 0 to 1


class LanguageModel(Protocol):
    """What can be scored: a GPT-2 by whatever arithmetic."""

    config: GPT2Config

    def __call__(self, ids: Tensor) -> Tensor:
        """fp32 logits [B, T, vocab_size] of ids [B, T]."""


@dataclass(frozen=True)
class Score:
    """Compression of one text: `nats` summed over `tokens`, which code `text_bytes` bytes."""

    text_bytes: int
    tokens: int
    nats: float
    bits_per_byte: float
    xz_bytes: int
    xz_bits_per_byte: float

    @property
    def beats_xz(self) -> bool:
        """True when the model needs fewer bits than xz."""
        return self.bits_per_byte < self.xz_bits_per_byte


def score_text(
    model: LanguageModel, tokenizer: Tokenizer, text: str, *, stride: int | None = None, report: Report | None = None
) -> Score:
    """Score `text`, every byte once. Raises ModelError ``empty_text``.

    Windows of `n_positions` tokens overlap by n_positions - stride (default: half), so that after the first window each
    token is predicted from at least that many before it. The first token is predicted from the start token.
    """
    data = text.encode("utf-8")
    if not data:
        raise ModelError("empty_text", "The text is empty.", value=0, expected="at least one byte")
    ids = tokenizer.encode(text)
    start = model.config.bos_token_id if model.config.bos_token_id is not None else model.config.eos_token_id
    nats = total_nats(model, ids, start=start or 0, stride=stride, report=report)
    packed = xz_size(data)
    return Score(
        text_bytes=len(data),
        tokens=len(ids),
        nats=nats,
        bits_per_byte=nats / math.log(2) / len(data),
        xz_bytes=packed,
        xz_bits_per_byte=8 * packed / len(data),
    )


def total_nats(
    model: LanguageModel, ids: list[int], *, start: int, stride: int | None = None, report: Report | None = None
) -> float:
    """Minus the log-likelihood of `ids` behind the token `start`, in nats, summed in fp64.

    Raises ModelError ``bad_stride`` for a stride that is not from 1 to `n_positions`.
    """
    window = model.config.n_positions
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride <= window:
        raise ModelError("bad_stride", f"Stride is {stride}.", value=stride, expected=f"1 to {window}")
    stream = torch.tensor([start, *ids])
    batches: dict[int, list[tuple[int, int]]] = {}  # window length -> (first token, targets that count)
    done = 0
    while done < len(ids):
        end = min(len(ids), window if done == 0 else done + stride)
        first = max(0, end - window)
        batches.setdefault(end - first, []).append((first, end - done))
        done = end
    nats, counted_tokens = 0.0, 0
    with torch.inference_mode():
        for length, windows in batches.items():
            for at in range(0, len(windows), BATCH):
                group = windows[at : at + BATCH]
                rows = torch.stack([stream[first : first + length + 1] for first, _ in group])
                logits = model(rows[:, :-1])
                loss = F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none").double()
                nats += sum(float(row[length - counted :].sum()) for row, (_, counted) in zip(loss, group, strict=True))
                counted_tokens += sum(counted for _, counted in group)
                if report is not None:
                    report(counted_tokens / len(ids))
    return nats


def xz_size(data: bytes) -> int:
    """Bytes that `xz -9` makes of `data`."""
    return len(lzma.compress(data, preset=XZ_PRESET))


def xz_size_after(prefix: bytes, data: bytes) -> int:
    """Bytes that `data` adds to `xz -9` of `prefix`: what xz needs when it too has seen the training text."""
    return xz_size(prefix + data) - xz_size(prefix)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code (0, or 2 for input that cannot be used)."""
    parser = argparse.ArgumentParser(prog="python -m sw.train.evaluate", description=__doc__)
    parser.add_argument("--model", required=True, type=Path, help="HuggingFace GPT-2 directory")
    parser.add_argument("--text", required=True, type=Path, help="UTF-8 text file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        model, tokenizer = GPT2.from_directory(options.model), Tokenizer(options.model)
        score = score_text(model, tokenizer, read_text(options.text), report=progress_lines())
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"model": str(options.model), "text": str(options.text), **asdict(score)}, indent=2))
        return 0
    print(f"{options.text}: {score.text_bytes} bytes, {score.tokens} tokens")
    print(f"model  {score.bits_per_byte:.4f} bits per byte ({score.nats / math.log(2) / 8:.0f} bytes)")
    print(f"xz -9  {score.xz_bits_per_byte:.4f} bits per byte ({score.xz_bytes} bytes)")
    return 0


def progress_lines() -> Report:
    """A report that writes a line to standard error every two seconds."""
    last = time.monotonic()

    def report(fraction: float) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_SECONDS:
            last = time.monotonic()
            print(f"scored {fraction:.0%}", file=sys.stderr, flush=True)

    return report


def read_text(path: Path) -> str:
    """Read a UTF-8 file, line ends untouched; ModelError ``bad_text`` if it is missing or not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            "bad_text",
            f"{path} cannot be read as UTF-8 text: {error}.",
            value=str(path),
            expected="a UTF-8 text file",
        ) from error


if __name__ == "__main__":
    sys.exit(main())
