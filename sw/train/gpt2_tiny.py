"""Train the small GPT-2 that the tests and the demonstration run.

`python -m sw.train.gpt2_tiny --out checkpoints/gpt2-tiny [--seed 1] [--minutes 35]`

AdamW (Loshchilov and Hutter 2019) with linear warm-up and cosine decay, whose horizon is the time given: the step
count, and so the exact weights, depend on the machine; data, tokenizer and order of windows depend on the seed alone.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sw.errors import ModelError
from sw.models.gpt2 import GPT2, GPT2Config
from sw.models.tokenizer import Tokenizer
from sw.train.evaluate import score_text, xz_size_after
from sw.train.save import END_OF_TEXT, save_model, save_record, train_tokenizer
from sw.train.text import DATABASE_SHA256, HELD_OUT, INSTALL, LICENCE, PACKAGE, VERSION, Corpus, build_corpus, sha256

VOCABULARY = 1024
SOURCE = {"package": PACKAGE, "version": VERSION, "database_sha256": DATABASE_SHA256, "licence": LICENCE}


@dataclass(frozen=True)
class Recipe:
    """How to train; `minutes` of wall clock on `threads` threads, windows of `GPT2Config.n_positions` tokens."""

    seed: int = 1
    minutes: float = 35.0
    threads: int = 1
    batch: int = 8
    peak_rate: float = 3e-3
    final_rate: float = 1e-4
    warm_up: float = 0.02
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    clip: float = 1.0
    report_seconds: float = 15.0


def tiny_config(end_of_text: int) -> GPT2Config:
    """The shipped shape: 4 layers, 8 heads of 16, context 256."""
    return GPT2Config(
        n_layer=4,
        n_head=8,
        n_embd=128,
        n_positions=256,
        vocab_size=VOCABULARY,
        eos_token_id=end_of_text,
        bos_token_id=end_of_text,
    )


def token_stream(corpus: Corpus, tokenizer: Tokenizer) -> Tensor:
    """Training ids [n], an end-of-text id before every book."""
    ids: list[int] = []
    for text in corpus.train.values():
        ids.extend(tokenizer.encode(END_OF_TEXT + text))
    return torch.tensor(ids)


def rate_at(progress: float, recipe: Recipe) -> float:
    """Learning rate after `progress` (0 to 1) of the time: linear warm-up, then cosine to `final_rate`."""
    if progress < recipe.warm_up:
        return recipe.peak_rate * max(progress / recipe.warm_up, 0.01)
    phase = min(1.0, (progress - recipe.warm_up) / (1 - recipe.warm_up))
    return recipe.final_rate + (recipe.peak_rate - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * phase))


def train(model: GPT2, stream: Tensor, recipe: Recipe) -> int:
    """Train in place until the time is over; returns the number of steps. Prints a line every `report_seconds`."""
    decayed = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(recipe.beta1, recipe.beta2), fused=True)
    windows = Windows(stream, model.config.n_positions, recipe)
    start = reported = time.monotonic()
    mean_loss, step = math.nan, 0
    while (progress := (time.monotonic() - start) / (60 * recipe.minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = rate_at(progress, recipe)
        rows = windows.next()
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimiser.step()
        step += 1
        value = float(loss.detach())
        mean_loss = value if math.isnan(mean_loss) else 0.98 * mean_loss + 0.02 * value
        if time.monotonic() - reported >= recipe.report_seconds:
            reported = time.monotonic()
            rate = step * recipe.batch * model.config.n_positions / (reported - start)
            print(f"{progress:6.1%}  step {step}  loss {mean_loss:.4f} nats/token  {rate:.0f} tokens/s", flush=True)
    return step


class Windows:
    """Batches [batch, length + 1] that cover the stream in a new random order and offset every epoch."""

    def __init__(self, stream: Tensor, length: int, recipe: Recipe) -> None:
        self.stream, self.length, self.batch = stream, length, recipe.batch
        self.random = torch.Generator().manual_seed(recipe.seed)
        self.epochs = 0
        self.starts = torch.empty(0, dtype=torch.int64)

    def next(self) -> Tensor:
        """The next batch; a new epoch starts when fewer than `batch` windows are left."""
        if len(self.starts) < self.batch:
            offset = int(torch.randint(self.length, (1,), generator=self.random))
            starts = torch.arange(offset, len(self.stream) - self.length, self.length)
            self.starts = starts[torch.randperm(len(starts), generator=self.random)]
            self.epochs += 1
        taken, self.starts = self.starts[: self.batch], self.starts[self.batch :]
        return self.stream[taken[:, None] + torch.arange(self.length + 1)]


def run(out: Path, recipe: Recipe) -> None:
    """Build the text, train tokenizer and model, write everything to `out`, score what was written."""
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    corpus = build_corpus()
    train_text, held_out = corpus.train_text.encode("utf-8"), corpus.held_out_text.encode("utf-8")
    print(f"text: {len(train_text)} bytes in {len(corpus.train)} books; held out: {len(held_out)} bytes", flush=True)
    train_tokenizer(corpus.train.values(), VOCABULARY, out)
    tokenizer = Tokenizer(out)
    end_of_text = tokenizer.token_id(END_OF_TEXT)
    if end_of_text is None:
        raise ModelError("bad_tokenizer", f"The tokenizer has no {END_OF_TEXT}.", value=None, expected=END_OF_TEXT)
    stream = token_stream(corpus, tokenizer)
    model = GPT2(tiny_config(end_of_text))
    print(f"model: {sum(p.numel() for p in model.parameters())} parameters; {len(stream)} training tokens", flush=True)
    start = time.monotonic()
    steps = train(model, stream, recipe)
    seconds = time.monotonic() - start
    save_model(model, out)
    (out / "heldout.txt").write_bytes(held_out)
    score = score_text(GPT2.from_directory(out), tokenizer, corpus.held_out_text)
    after = xz_size_after(train_text, held_out)
    tokens = steps * recipe.batch * model.config.n_positions
    record = {
        "format": 1,
        "command": f"python -m sw.train.gpt2_tiny --out {out} --seed {recipe.seed} --minutes {recipe.minutes:g}",
        "seconds": round(seconds, 1),
        "steps": steps,
        "tokens_seen": tokens,
        "epochs": round(tokens / len(stream), 2),
        "torch": torch.__version__,
        "recipe": asdict(recipe),
        "config": asdict(model.config),
        "source": {**SOURCE, "install": INSTALL, "held_out_books": list(HELD_OUT)},
        "train": {"bytes": len(train_text), "sha256": sha256(train_text), "tokens": len(stream)},
        "heldout": {"bytes": len(held_out), "sha256": sha256(held_out), "file": "heldout.txt"},
        "scores": {
            **asdict(score),
            "xz_after_train_bytes": after,
            "xz_after_train_bits_per_byte": 8 * after / len(held_out),
        },
    }
    save_record(record, out)
    print(f"held-out: {score.bits_per_byte:.4f} bits per byte")
    print(f"xz -9: {score.xz_bits_per_byte:.4f} ({score.xz_bytes} bytes)")
    print(f"xz -9 that has also read the training text: {8 * after / len(held_out):.4f} ({after} bytes)")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code (0, or 2 for input that cannot be used)."""
    parser = argparse.ArgumentParser(prog="python -m sw.train.gpt2_tiny", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="directory to write")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--minutes", type=float, default=Recipe.minutes, help="wall clock of the training itself")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes < math.inf:
        parser.error(f"--minutes is {options.minutes}; it must be a positive number")
    try:
        run(options.out, Recipe(seed=options.seed, minutes=options.minutes))
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
