"""The executor `torch`: PyTorch fp32 with a key/value cache on the host's CPU; no board, no cycles."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from host.runtime.job import Job, RunOutcome
from sw.models.gpt2 import GPT2

__all__ = ["TorchExecutor", "half_precision_logits", "inference", "reference_logits"]

SMALL_PARAMETERS = 20_000_000


@contextlib.contextmanager
def inference(model: GPT2) -> Iterator[None]:
    """Inference mode; a small model gets one thread, since handing work over takes longer than the work (measured:
    gpt2-tiny on 2 busy cores, 4 ms a token with one thread, 120 ms with two)."""
    threads = torch.get_num_threads()
    if sum(parameter.numel() for parameter in model.parameters()) < SMALL_PARAMETERS:
        torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(threads)


def reference_logits(model: GPT2, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """fp32 logits [len(ids), vocab] of one pass over `ids`."""
    with inference(model):
        logits: npt.NDArray[np.float32] = model(torch.tensor([list(ids)]))[0].numpy()
    return logits


def half_precision_logits(model: GPT2, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """As `reference_logits`, all weights and arithmetic rounded to fp16; `model` itself stays as it is."""
    with inference(model):
        weights = {name: parameter.half() for name, parameter in model.named_parameters()}
        found = torch.func.functional_call(model, weights, (torch.tensor([list(ids)]),))
        logits: npt.NDArray[np.float32] = found[0].numpy()
    return logits


class TorchExecutor:
    """Generates with the PyTorch model; `context` positions of cache as a board would have."""

    boards = 0
    verilog_sha256: str | None = None
    model_digest: str | None = None

    def __init__(self, model: GPT2, context: int) -> None:
        self._model = model
        self.context = context

    def run(self, job: Job) -> RunOutcome:
        """Generate; the prompt is one pass. Raises TimeLimit."""
        deadline = time.monotonic() + job.timeout_s
        cache = self._model.new_cache()
        outcome = RunOutcome([], "", sampled_by=None if job.sampler.greedy else "host")
        kept = []
        ids, position = list(job.prompt), 0
        with inference(self._model):
            while (reason := job.reason(outcome.tokens, self.context)) is None:
                if time.monotonic() > deadline:
                    raise job.expired(len(outcome.tokens))
                logits = self._model(torch.tensor([ids]), cache, position)[0, -1].numpy()
                position += len(ids)
                token = job.sampler.choose(logits, position)
                outcome.tokens.append(token)
                kept.append(logits)
                job.on_token(token)
                ids = [token]
        outcome.finish_reason = reason
        if job.keep_logits:
            outcome.logits = np.stack(kept)
        return outcome

    def run_batch(self, jobs: Sequence[Job]) -> list[RunOutcome]:
        """Generate all jobs, one after the other."""
        return [self.run(job) for job in jobs]
