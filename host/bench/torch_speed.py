"""Time of a prompt and of its greedy continuation in PyTorch, on a GPU or on the processor.

The work is `sw.models.gpt2.GPT2`'s own layers with a key/value cache. Nothing of it looks at a value on the host, so a
GPU is never made to wait between steps; and all results are written in place, so that a CUDA graph can replay it. The
head is computed for the last position only.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from host.bench.gpt2_lengths import Length
from sw.models.gpt2 import GPT2

__all__ = ["Generation", "GraphedGeneration", "Sample", "samples"]

_BEFORE_CAPTURE = 3  # runs, so that libraries have chosen their kernels and workspaces


class Runs(Protocol):
    """A generation in two parts, the second behind the first."""

    def prefill(self) -> object:
        """The prompt, up to the first new token."""

    def decode(self) -> object:
        """All tokens behind the first new one."""


class Generation:
    """A prompt and its greedy continuation, each operation launched by itself (PyTorch's eager mode).

    Parameters
    ----------
    model : GPT2
        In the dtype and on the device that are measured.
    ids : Tensor
        [1, prompt] int64, the prompt.
    output : int
        Tokens to generate.

    `tokens` [1, output] are the new tokens once `prefill` and `decode` have run; running them again writes the same.
    """

    def __init__(self, model: GPT2, ids: Tensor, output: int) -> None:
        self._model = model
        place = model.wte.weight.device
        cache = model.new_cache()
        self._keys, self._values = cache.keys.to(place), cache.values.to(place)
        self._ids = ids.to(place)
        self.tokens = torch.zeros((1, output), dtype=torch.int64, device=place)

    def prefill(self) -> None:
        """The prompt in one pass, and the first new token."""
        self._step(self._ids, 0, 0)

    def decode(self) -> None:
        """The other new tokens, one after the other."""
        prompt = self._ids.shape[1]
        for number in range(1, self.tokens.shape[1]):
            self._step(self.tokens[:, number - 1 : number], prompt + number - 1, number)

    def _step(self, ids: Tensor, position: int, number: int) -> None:
        """Process `ids` [1, n], the first of them at `position`, and write new token `number`."""
        model = self._model
        x = model.wte(ids) + model.wpe.weight[position : position + ids.shape[1]]
        for layer, block in enumerate(model.h):
            x = block(x, (self._keys[layer], self._values[layer]), position)
        logits = F.linear(model.ln_f(x[:, -1:]), model.wte.weight)
        self.tokens[:, number : number + 1].copy_(logits[:, 0].argmax(-1, keepdim=True))


class GraphedGeneration:
    """The same as two CUDA graphs, each launched at once: without the time that the host takes for every launch.

    Capturing runs `generation` a few times on a stream of its own, as torch.cuda.graph asks for.
    """

    def __init__(self, generation: Generation) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_BEFORE_CAPTURE):
                generation.prefill()
                generation.decode()
        torch.cuda.current_stream().wait_stream(stream)
        self._prefill, self._decode = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._prefill):
            generation.prefill()
        with torch.cuda.graph(self._decode):
            generation.decode()

    def prefill(self) -> None:
        """The prompt and the first new token."""
        self._prefill.replay()

    def decode(self) -> None:
        """The other new tokens."""
        self._decode.replay()


@dataclasses.dataclass(frozen=True)
class Sample:
    """Seconds of one run: the prompt up to the first new token, and all tokens behind it."""

    prefill_s: float
    decode_s: float


def samples(
    model: GPT2,
    ids: Tensor,
    length: Length,
    *,
    graphed: bool = False,
    warm_ups: int = 1,
    repeats: int = 3,
    now: Callable[[], float] = time.perf_counter,
) -> list[Sample]:
    """Time `repeats` runs of a length behind `warm_ups` untimed ones; the device is idle at every look at the clock.

    Parameters: `ids`: [1, length.prompt]; `graphed`: replay CUDA graphs, which needs a model on a GPU.
    """
    device = model.wte.weight.device

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return now()

    with torch.inference_mode():
        eager = Generation(model, ids, length.output)
        runs: Runs = GraphedGeneration(eager) if graphed else eager
        found = []
        for number in range(warm_ups + repeats):
            start = clock()
            runs.prefill()
            first = clock()
            runs.decode()
            end = clock()
            if number >= warm_ups:
                found.append(Sample(first - start, end - first))
    return found
