"""PyTorch's GPT-2 on this machine over the lengths of `bench gpt2`: rows of measured figures only.

Weights are seeded and prompts are drawn from a seed: neither changes the time. Published figures of GPUs stand in a
list of their own.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from host.bench.gpt2_lengths import Length
from host.bench.processor import processor_flags, processor_name
from host.bench.published_figures import PUBLISHED
from host.bench.streamed_work import token_bytes
from host.bench.torch_speed import Sample, samples
from host.compiler.model_choice import chosen_model
from host.errors import BadInput
from sw.models.gpt2 import GPT2
from sw.models.gpt2_config import GPT2Config
from sw.models.weights import Progress, unobserved

__all__ = ["DTYPES", "GPU_LENGTHS", "Setup", "torch_report", "torch_row"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
GPU_LENGTHS = (Length(32, 32), Length(64, 64))
_NATIVE = {"bf16": {"avx512_bf16", "amx_bf16"}, "fp16": {"avx512_fp16", "amx_fp16"}}  # flags of /proc/cpuinfo


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is measured how.

    Parameters: `device`: ``cpu`` or ``cuda``; `dtypes` of `DTYPES`; `threads` of PyTorch on the processor; `warm_ups`,
    `repeats`: of every length; `seed`: of weights and prompts. Raises BadInput.
    """

    device: str
    dtypes: tuple[str, ...]
    threads: int
    warm_ups: int = 1
    repeats: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("threads", 1), ("warm_ups", 0), ("repeats", 1)):
            value = getattr(self, name)
            if value < least:
                option = "--" + name.replace("_", "-")
                raise BadInput(f"{option} must be {least} or more, got {value}", value=value, expected=f">= {least}")
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise BadInput(f"unknown dtype {dtype!r}", kind="unknown_dtype", value=dtype, expected=list(DTYPES))

    @classmethod
    def of_machine(
        cls, device: str, dtypes: Sequence[str], threads: int | None, warm_ups: int, repeats: int, seed: int
    ) -> Setup:
        """`device` ``auto``: a GPU if there is one. No dtypes: fp16 on a GPU; on a processor fp32 and those 16-bit
        formats that it computes with natively. Raises BadInput."""
        if device not in ("auto", "cpu", "cuda"):
            raise BadInput(
                f"unknown device {device!r}", kind="unknown_device", value=device, expected="auto, cpu, cuda"
            )
        there = torch.cuda.is_available()
        if device == "cuda" and not there:
            raise BadInput(
                "PyTorch sees no CUDA device here",
                kind="no_gpu",
                value=device,
                hint=f"Leave --device out; on a machine with a GPU install a CUDA build of PyTorch (this is "
                f"{torch.__version__}).",
            )
        chosen = ("cuda" if there else "cpu") if device == "auto" else device
        native = [name for name, flags in _NATIVE.items() if flags & processor_flags()]
        usual = ("fp16",) if chosen == "cuda" else ("fp32", *native)
        count = torch.get_num_threads() if threads is None else threads
        return cls(chosen, tuple(dict.fromkeys(dtypes)) or usual, count, warm_ups, repeats, seed)

    @property
    def modes(self) -> tuple[str, ...]:
        """How work is launched: eager, and on a GPU also as CUDA graphs."""
        return ("eager", "cuda graph") if self.device == "cuda" else ("eager",)

    def facts(self) -> dict[str, Any]:
        """Machine and method, for `--json`."""
        on_gpu = self.device == "cuda"
        return {
            "device": self.device,
            "device_name": torch.cuda.get_device_name() if on_gpu else processor_name(),
            "threads": None if on_gpu else self.threads,
            "torch": torch.__version__,
            "cuda": torch.version.cuda if on_gpu else None,
            "warm_ups": self.warm_ups,
            "repeats": self.repeats,
            "statistic": "median of the repeats; `spread` has the least and the largest",
            "seed": self.seed,
            "weights": "of a checkpoint, or seeded for a known size; the time does not depend on them",
            "batch": 1,
            "first_token": "the prompt in one pass, head for its last position, greedy choice",
            "decode": "the other tokens one after the other, greedy, no look at values on the host between them",
            "clock": "the device is idle (torch.cuda.synchronize) at every look at the clock"
            if on_gpu
            else "monotonic",
            "bandwidth": "bytes of weights and of the attended K/V in this dtype, over the time; the prompt reads the "
            "weights once",
        }


def torch_report(
    models: Sequence[str],
    lengths: Sequence[Length],
    setup: Setup,
    progress: Progress = unobserved,
) -> dict[str, Any]:
    """The report for `--json`. Raises CheckpointError, BadInput for a length beyond the model's positions."""
    weights = [chosen_model(name, None if Path(name).is_dir() else setup.seed) for name in models]
    for source in weights:
        for length in lengths:
            if length.positions > source.config.n_positions:
                raise BadInput(
                    f"length {length} takes {length.positions} positions, {source.label} has "
                    f"{source.config.n_positions}",
                    value=str(length),
                    expected=f"at most {source.config.n_positions} positions",
                )
    total = len(weights) * len(setup.dtypes) * len(setup.modes) * len(lengths)
    rows: list[dict[str, Any]] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(setup.threads)
    try:
        for name, source in zip(models, weights, strict=True):
            for dtype in setup.dtypes:
                model = GPT2.from_weights(source).to(torch.device(setup.device), DTYPES[dtype])
                for mode in setup.modes:
                    for length in lengths:
                        progress(f"PyTorch, {name} {dtype} {mode} {length}", len(rows), total)
                        ids = _prompt(source.config, length, setup.seed)
                        found = samples(
                            model,
                            ids,
                            length,
                            graphed=mode != "eager",
                            warm_ups=setup.warm_ups,
                            repeats=setup.repeats,
                        )
                        rows.append(torch_row(name, source.config, setup, dtype, mode, length, found))
    finally:
        torch.set_num_threads(threads)
    return {
        "rows": rows,
        "conditions": setup.facts(),
        "published": [one.facts() for one in PUBLISHED if "V100" in one.device],
    }


def torch_row(
    name: str, config: GPT2Config, setup: Setup, dtype: str, mode: str, length: Length, found: Sequence[Sample]
) -> dict[str, Any]:
    """The row of one length from its samples."""
    steps = length.output - 1
    bits = torch.finfo(DTYPES[dtype]).bits
    first_ms = [1000 * one.prefill_s for one in found]
    step_ms = [1000 * one.decode_s / steps for one in found] if steps else []
    first, step = statistics.median(first_ms), statistics.median(step_ms) if steps else None
    total = statistics.median(1000 * (one.prefill_s + one.decode_s) for one in found)
    read = token_bytes(config, length.prompt + length.output / 2, weight_bits=bits, kv_bits=bits)
    prompt_read = token_bytes(config, length.prompt, weight_bits=bits, kv_bits=bits)
    return {
        "model": name,
        "source": "measured",
        "device": setup.device,
        "device_name": setup.facts()["device_name"],
        "dtype": dtype,
        "mode": mode,
        "threads": setup.facts()["threads"],
        "in": length.prompt,
        "out": length.output,
        "first_token_ms": first,
        "total_ms": total,
        "decode_ms_per_token": step,
        "decode_tokens_per_s": None if step is None else 1000 / step,
        "tokens_per_s_with_prompt": 1000 * length.output / total,
        "bytes_per_token": None if step is None else read,
        "decode_gb_s": None if step is None else read / (step * 1e6),
        "prefill_gb_s": prompt_read / (first * 1e6),
        "spread": {
            "first_token_ms": [min(first_ms), max(first_ms)],
            "decode_ms_per_token": [min(step_ms), max(step_ms)] if steps else None,
        },
        "conditions": f"median of {setup.repeats} behind {setup.warm_ups} warm-ups; see the report's `conditions`",
    }


def _prompt(config: GPT2Config, length: Length, seed: int) -> torch.Tensor:
    """Token ids [1, prompt] drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (1, length.prompt), generator=generator)
