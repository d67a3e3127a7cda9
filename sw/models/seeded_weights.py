"""GPT-2 weights from a seed: real sizes without a download, each tensor made when it is asked for.

The distribution is GPT-2's own initialisation (Radford et al. 2019, section 2.3, and OpenAI's code): N(0, 0.02),
residual projections divided by sqrt(2 * n_layer). Gains and biases, which it sets to 1 and 0, get a spread, so that no
path of the computation is invisible.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sw.errors import ModelError
from sw.models.gpt2_config import GPT2Config
from sw.models.weights import Progress, expected_shapes, unobserved

__all__ = ["SeededCheckpoint", "checked_seed", "keyed_generator"]

GENERATOR = "ringfly-seeded-weights/1"  # part of every key and of the digest: another one gives other weights
DEVIATION = 0.02  # of matrices and biases
GAIN_SPREAD = 0.1  # LayerNorm gains are 1 + 0.1 * N(0, 1)
BLOCK = 1 << 20  # elements that one generator fills
LARGEST_NORMAL = 8.25  # NumPy's fp32 ziggurat ends at 3.6542 - ln(2^-24)/3.6542 = 8.207
SEED_LIMIT = 1 << 64


class SeededCheckpoint:
    """The weights of a GPT-2 as a pure function of (seed, name): a `sw.models.weights.WeightTensors`.

    Parameters: `config`; `seed`: 0 to 2^64 - 1; `name`: of the model, for messages.

    A tensor takes its own memory and a few blocks of 4 MiB; nothing is kept. Values depend on neither the order of the
    calls nor the number of threads. Raises ModelError ``bad_seed``.
    """

    def __init__(self, config: GPT2Config, seed: int = 0, name: str = "seeded GPT-2") -> None:
        self.config = config
        self.seed = checked_seed(seed)
        self.label = f"{name} (seed {seed})"
        self._shapes = expected_shapes(config)
        self.names = tuple(self._shapes)
        self.largest_magnitude: float | None = 1 + LARGEST_NORMAL * GAIN_SPREAD

    def tensor(self, name: str) -> np.ndarray:
        """Weight `name` as fp32 [shape of `expected_shapes`], an array of the caller's own. KeyError if unknown."""
        values = np.empty(self._shapes[name], np.float32)
        module, _, leaf = name.rpartition(".")
        gain = leaf == "weight" and module.rpartition(".")[2].startswith("ln_")
        residual = name.endswith("c_proj.weight")
        scale = GAIN_SPREAD if gain else DEVIATION / math.sqrt(2 * self.config.n_layer) if residual else DEVIATION
        flat = values.reshape(-1)

        def fill(start: int) -> None:
            block = flat[start : start + BLOCK]
            generator = keyed_generator(f"{GENERATOR}\n{self.seed}\n{name}", start // BLOCK)
            generator.standard_normal(out=block, dtype=np.float32)
            block *= np.float32(scale)
            if gain:
                block += np.float32(1)

        starts = range(0, flat.size, BLOCK)
        if len(starts) == 1:
            fill(0)
        else:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # NumPy's generators release the lock
                list(pool.map(fill, starts))
        return values

    def digest(self, progress: Progress = unobserved) -> str:
        """SHA-256 over generator version, configuration and seed, hexadecimal."""
        progress("hashing the configuration", 1, 1)
        facts = {"generator": GENERATOR, "config": dataclasses.asdict(self.config), "seed": self.seed}
        return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def keyed_generator(key: str, block: int = 0) -> np.random.Generator:
    """An independent random stream for every (key, block): Philox under SHA-256 of the key, block in the counter."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=number, counter=block << 192))


def checked_seed(seed: int) -> int:
    """`seed`, or ModelError ``bad_seed`` unless it is a whole number from 0 to 2^64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_LIMIT:
        raise ModelError("bad_seed", f"The seed is {seed!r}; it must be a whole number from 0 to 2^64 - 1.", value=seed)
    return seed
